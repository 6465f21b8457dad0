# shellcheck shell=sh
# Basic facts of a node, as sections; needs sections.sh. The date is first: it is compared with the time at which the
# command was sent. One process reads all files: first those of one line, then the others, each after two copies of a file
# that contains "Linux", since a file may lack its last newline. If one cannot be read, each is read by its own process.
s date date +%s.%N
s names uname -nr
s lscpu lscpu
set -- @CPUS@/cpu[0-9]*/cpufreq/scaling_governor
[ $# -gt 1 ] || set -- @CPUS@/cpu0/cpufreq/scaling_governor
between=/proc/sys/kernel/ostype
s files cat @PROC@ @SYSCTLS@ @TAINT@ @THP@ "$@" $between $between /etc/os-release $between $between /proc/meminfo \
  $between $between /proc/self/limits $between $between /proc/mounts $between $between @LSM@
[ "${r?}" = 0 ] || {
  s proc cat @PROC@ /proc/meminfo
  s release cat /etc/os-release
  s governor cat "$@"
  s mounts cat /proc/mounts
  s limits cat /proc/self/limits
  s thp cat @THP@
  s lsm cat @LSM@
  s tunables cat @SYSCTLS@
  s taint cat @TAINT@
}
s user id
