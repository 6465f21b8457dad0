# shellcheck shell=sh
# sh -c THIS sh COMMAND...: one process per GPU of a pod; the payload takes its rank from Slurm's variables.
until getent hosts "$MASTER_ADDR" > /dev/null; do sleep 1; done
local=0; pids=
while [ "$local" -lt "$GPUS" ]; do
  SLURM_PROCID=$((JOB_COMPLETION_INDEX * GPUS + local)) SLURM_LOCALID=$local "$@" &
  pids="$pids $!"; local=$((local + 1))
done
rc=0; for pid in $pids; do wait "$pid" || rc=$?; done; exit "$rc"
