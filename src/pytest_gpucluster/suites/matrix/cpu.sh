# shellcheck shell=sh
# The sum proves that the task computes. Then it computes for half a second and states how much CPU time it got: a share
# that does not depend on the shell of an image. All with builtins; the units of /proc/uptime and of utime and stime in
# /proc/self/stat are hundredths of a second (proc(5); USER_HZ is 100 on x86-64, arm64 and ppc64).
i=0 s=0
while [ $i -lt 1000 ]; do i=$((i + 1)); s=$((s + i)); done
cpus=
while read -r key value; do
  [ "$key" != Cpus_allowed_list: ] || { cpus=$value; break; }
done </proc/self/status
now() { read -r up rest </proc/uptime; wall=1${up%.*}${up#*.}; }
used() { read -r _ _ _ _ _ _ _ _ _ _ _ _ _ utime stime _ </proc/self/stat; cpu=$((utime + stime)); }
now
begin=$wall
used
before=$cpu
while now; [ $((wall - begin)) -lt 50 ]; do
  j=0
  while [ $j -lt 1000 ]; do j=$((j + 1)); done
done
used
printf 'gpucluster-matrix %s %s\ngpucluster-matrix-share %s %s %s %s\n' "$SLURMD_NODENAME" $s \
  "$SLURMD_NODENAME" $((cpu - before)) $((wall - begin)) "$cpus"
