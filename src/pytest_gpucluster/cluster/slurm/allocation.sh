# shellcheck shell=sh
# sh -c THIS hold NONCE, in salloc: states the job and its nodes, then holds the allocation until stdin ends.
# If its parent, the guard, was killed, it releases the nodes itself.
if [ "$0" = hold ]; then
  { echo "job $SLURM_JOB_ID" >&5; exec 5>&-; } 2>/dev/null
  # one line, apart from what a wrapper of salloc prints
  # shellcheck disable=SC2046 # the names are words
  echo "$1 $SLURM_JOB_ID" $(scontrol show hostnames)
  cat >/dev/null
  { kill -0 $PPID 2>/dev/null && ! grep -q "^State:.*Z" /proc/$PPID/status; } || exec scancel --quiet "$SLURM_JOB_ID"
  exit
fi
# sh -c THIS guard NAME ARGUMENTS: runs `salloc ARGUMENTS` for as long as stdin is open. NAME: of its job, and of no other.
# When the holder ends, salloc releases the nodes. SIGTERM is for a request that still waits, and
# comes later: at the same moment as the end of the holder it sometimes made salloc hang (seen on 22.05.8).
# Nodes of a salloc that was killed are released by its parent, the only process that gets its exit status; of a job whose
# id is unknown by its name, which slurmctld may not have queued yet. It prints nothing: a shell that reports a killed
# process to a closed pipe is killed itself.
name=$1
shift
exec 3<&0 4>&1
{
  salloc "$@" <&3 3<&- 5>&1 >&4 4>&- &
  s=$!
  { read -r _ <&3; exec 3<&-; sleep 1; while kill -TERM $s; do kill -CONT $s; sleep 2; done; } >/dev/null 2>&1 4>&- &
  w=$!
  exec 3<&- 4>&- </dev/null 2>/dev/null
  wait $s; rc=$?
  kill $w
  echo "ended $rc"
} | {
  exec 3<&- 4>&- 2>/dev/null
  while read -r what value; do
    case $what in
      job) job=$value ;;
      ended)
        if [ "$value" -lt 128 ]; then
          exit "$value"
        elif [ -n "$job" ]; then
          scancel --quiet "$job"
        else
          for _ in 1 2 3 4 5; do scancel --quiet --name="$name"; sleep 1; done
        fi
        exit "$value"
        ;;
    esac
  done
}
