# shellcheck shell=sh
# sh -c THIS NONCE, in salloc: states the job and its nodes, then holds the allocation until stdin ends.
# If its parent (allocation_guard.sh) was killed, it releases the nodes itself.
{ echo "job $SLURM_JOB_ID" >&5; exec 5>&-; } 2>/dev/null
scontrol show hostnames; echo "$0 $SLURM_JOB_ID $SLURM_JOB_PARTITION"
cat >/dev/null
{ kill -0 $PPID 2>/dev/null && ! grep -q "^State:.*Z" /proc/$PPID/status; } || exec scancel --quiet "$SLURM_JOB_ID"
