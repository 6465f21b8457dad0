# shellcheck shell=sh
# sh -c THIS NONCE COMMAND...: runs the command of a task between two lines of a step's protocol.
# Each line is one write, so that no other output of the task splits it.
# Replaced: MARK by nothing or by task_place.sh, PRELUDE by the lines that prepare the environment.
# slurmd's limits may allow core files, which a crash would leave in the folder of the run.
ulimit -S -c 0 2>/dev/null
@MARK@
printf '%s begin %s %s %s %s %s\n' "$0" "$SLURM_PROCID" "$SLURMD_NODENAME" "$SLURM_STEP_ID" \
  "${gpucluster_root:--}" "${gpucluster_image:--}" >&2
@PRELUDE@
"$@"
rc=$?
printf '%s end %s %s %s\n' "$0" "$SLURM_PROCID" "$SLURMD_NODENAME" $rc >&2
exit $rc
