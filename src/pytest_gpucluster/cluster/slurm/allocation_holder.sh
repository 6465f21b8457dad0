# shellcheck shell=sh
# sh -c THIS NONCE, in salloc: states the job and its nodes, then holds the allocation until stdin ends.
# If its parent (allocation_guard.sh) was killed, it releases the nodes itself.
{ echo "job $SLURM_JOB_ID" >&5; exec 5>&-; } 2>/dev/null
# one line, apart from what a wrapper of salloc prints
# shellcheck disable=SC2046 # the names are words
echo "$0 $SLURM_JOB_ID" $(scontrol show hostnames)
cat >/dev/null
{ kill -0 $PPID 2>/dev/null && ! grep -q "^State:.*Z" /proc/$PPID/status; } || exec scancel --quiet "$SLURM_JOB_ID"
