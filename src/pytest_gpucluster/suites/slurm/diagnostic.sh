# shellcheck shell=sh
# Each task of the diagnostic step prints its environment, then ends: local task 0 with exit status 7, local task 1 by
# SIGKILL, the others with 0. POSIX sh; it needs no image and no tool.
open=
for device in /dev/nvidia[0-9]*; do
    # only devices that this task may open: with ConstrainDevices Slurm hides the others
    if [ -c "$device" ] && command : <"$device"; then open="$open,${device#/dev/nvidia}"; fi
done 2>/dev/null
# the CPUs that the task may use, and those of the machine; with builtins only, since this runs once per task
cpus='' online=''
while read -r key value; do
    [ "$key" != Cpus_allowed_list: ] || { cpus=$value; break; }
done 2>/dev/null </proc/self/status
read -r online 2>/dev/null </sys/devices/system/cpu/online
printf 'diagnostic|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|end\n' "$SLURM_PROCID" "${SLURMD_NODENAME:-$(uname -n)}" "$SLURM_LOCALID" \
    "$SLURM_NTASKS" "${CUDA_VISIBLE_DEVICES-unset}" "${SLURM_STEP_GPUS-unset}" "${open#,}" "$cpus" "$online" "$GPUCLUSTER_DIAGNOSTIC"
printf 'diagnostic-err|%s|end\n' "$SLURM_PROCID" >&2
case "$SLURM_LOCALID" in
    0) exit 7 ;;
    1) kill -KILL $$ ;;
esac
exit 0
