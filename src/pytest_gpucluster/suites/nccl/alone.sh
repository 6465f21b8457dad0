# shellcheck shell=sh
# sh -c THIS sh COMMAND...: runs the command in a world of this node's @GPUS@ tasks, which count from 0; the first one is
# the rendezvous. The port differs per step and is below 32768, the first ephemeral port of Linux.
export SLURM_PROCID="$SLURM_LOCALID" SLURM_STEP_NUM_TASKS=@GPUS@ SLURM_NTASKS=@GPUS@ MASTER_ADDR=127.0.0.1
export MASTER_PORT=$((20000 + (SLURM_JOB_ID * 131 + ${SLURM_STEP_ID:-$SLURM_STEPID} * 17 + SLURM_NODEID) % 12000))
exec "$@"
