# shellcheck shell=sh
# shared by all simulated tools: the folders of this node's files, and the host's own tools
N=@NODES@/${SLURMD_NODENAME:-none}
B=@BASE@
@TOOLS@
[ ! -e "$N/fault.hang" ] || exec $SLEEP 86400
# pick FILE: sets F to the file of the last load, else of the node, else of healthy nodes
pick() {
  F=$N/load/$1
  [ -e "$F" ] || F=$N/$1
  [ -e "$F" ] || F=$B/$1
}
hidden() {
  [ -e "$N/hidden" ] || return 1
  while read -r h; do
    case $1 in "$h" | "$h"/*) return 0 ;; esac
  done < "$N/hidden"
  return 1
}
# overlay PATH: sets F to the file to read; fails if this node does not have it
overlay() {
  F=$N/root$1
  [ ! -e "$F" ] || return 0
  ! hidden "$1" || return 1
  F=$B/root$1
  [ -e "$F" ] || F=$1
}
# show: prints F and exits; a short file of the sandbox is printed without a further process
show() {
  [ ! -f "$F" ] || case $F in
    "$N"/* | "$B"/*)
      text= lines=0 line=
      while [ $lines -lt 40 ] && IFS= read -r line; do
        text=$text$line'
' lines=$((lines + 1)) line=
      done < "$F"
      [ $lines = 40 ] || [ -n "$line" ] || { printf %s "$text"; exit; }
      ;;
  esac
  exec $CAT "$F"
}
# together: one task per node waits until the first task, which measures for all, has ended
together() {
  [ -w @NODES@/../tmp ] || return 0
  lock=@NODES@/../tmp/collective.$SLURM_JOB_ID.$SLURM_STEP_ID
  if [ "${SLURM_PROCID:-0}" = 0 ]; then
    exec 9> "$lock.new"
    flock -x 9 # the next exec inherits the lock
    mv "$lock.new" "$lock"
  elif [ "${SLURM_LOCALID:-0}" = 0 ] && command -v flock > /dev/null; then
    tries=0
    while [ ! -e "$lock" ] && [ $tries -lt 50 ]; do
      $SLEEP 0.1
      tries=$((tries + 1))
    done
    [ ! -e "$lock" ] || flock -s "$lock" true
  fi
}
