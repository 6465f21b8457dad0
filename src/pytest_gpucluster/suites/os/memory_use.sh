# shellcheck shell=sh
# Prints the memory of a node in kB; where more than a twentieth is in use, also what uses it: tmpfs, files in /dev/shm,
# processes. The cache of ZFS is not in MemAvailable.
# shellcheck disable=SC2086 # words of /proc/meminfo and of arcstats
export LC_ALL=C
t=0 a=0 h=-1 n=0 p=0 c=0
# shellcheck disable=SC2046 # words are wanted
set -- $(cat /proc/meminfo /proc/spl/kstat/zfs/arcstats 2>/dev/null)
while [ $# -gt 2 ]; do
  case $1 in
    MemTotal:) t=$2 ;;
    MemAvailable:) a=$2 ;;
    Hugetlb:) h=$2 ;;
    HugePages_Total:) n=$2 ;;
    Hugepagesize:) p=$2 ;;
    size) c=$(($3 / 1024)) ;;
  esac
  shift
done
[ "$h" -ge 0 ] || h=$((n * p))
echo "memory $t $a $h $c"
[ $(((t - a - h - c) * 20)) -le "$t" ] || {
  df -Pkt tmpfs 2>/dev/null
  find /dev/shm -xdev -type f -printf 'shm %k %u %p\n' 2>/dev/null
  ps -eo rss=,pid=,user=,comm=
} | awk -v least=$((t / 100)) @FOLD@
echo end
