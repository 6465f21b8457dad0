# Each task of the exam step tells what it sees, then ends in the way that its place on the node says:
# local task 0 with exit status 7, local task 1 by SIGKILL, the others with 0. POSIX sh; runs before any image or tool.
open=
for device in /dev/nvidia[0-9]*; do
    # only devices that this task may open: with ConstrainDevices Slurm hides the others
    if [ -c "$device" ] && command : <"$device"; then open="$open,${device#/dev/nvidia}"; fi
done 2>/dev/null
# the CPUs that it may run on, and those that the machine has; without a process, since this runs once a task
cpus= online=
while read -r key value; do
    [ "$key" != Cpus_allowed_list: ] || { cpus=$value; break; }
done 2>/dev/null </proc/self/status
read -r online 2>/dev/null </sys/devices/system/cpu/online
printf 'exam|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|end\n' "$SLURM_PROCID" "${SLURMD_NODENAME:-$(uname -n)}" "$SLURM_LOCALID" \
    "$SLURM_NTASKS" "${CUDA_VISIBLE_DEVICES-unset}" "${SLURM_STEP_GPUS-unset}" "${open#,}" "$cpus" "$online" "$GPUCLUSTER_EXAM"
printf 'exam-err|%s|end\n' "$SLURM_PROCID" >&2
case "$SLURM_LOCALID" in
    0) exit 7 ;;
    1) kill -KILL $$ ;;
esac
exit 0
