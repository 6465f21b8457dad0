# shellcheck shell=sh
# The agent of the fleet channel: one per node. POSIX sh, after limited.sh; $1 is the nonce that marks the agent's lines.
#
# Input, one line for each command:   ID WHO SECONDS CAP FORM CODE|
#   WHO: * or ,TASK,TASK,   FORM: p (plain), b (printf %b), or the character that stands for each newline
#   |: preserves trailing blanks
# ID 0 is a ping.
# Output, lines shorter than PIPE_BUF, so that lines of concurrent commands never mix:
#   NONCE 0 H TASK ENCODING HOST        started         NONCE 0 P    pong         NONCE 0 Q REASON   exits
#   NONCE ID o|e SEQUENCE LENGTH DATA   a piece of stdout or stderr
#   NONCE ID O|E PIECES 0|1             its end; 1: cut at the cap
#   NONCE ID X STATUS                   exit status, or `deadline`
# A short answer is one write: on TCP a second small packet waits 40 ms for the acknowledgement of the first.
# The agent uses no files, so it works with a full /tmp, and forks nothing while it waits.
# A missing library that a profile preloads would add a line to every answer.
unset LD_PRELOAD
# of tools that a user's login does not have
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
N=$1 me=${SLURM_PROCID:-0}
NL='
'

# the first encoder that exists; od is in POSIX
chars=4 bytes=3 form=b
if base64 -w 700 </dev/null >/dev/null 2>&1; then coder='base64 -w 700'
elif base64 </dev/null >/dev/null 2>&1; then coder=base64
elif openssl base64 </dev/null >/dev/null 2>&1; then coder='openssl base64'
else coder='od -An -v -tx1' form=x chars=3 bytes=1
fi
# GNU timeout makes its own process group; others do not.
case $(timeout --version 2>/dev/null) in
  *coreutils*) limiter='timeout -k 2' ;;
  *) limiter='' ;;
esac
leader=''
command -v setsid >/dev/null 2>&1 && leader=setsid

# Make frames from encoded lines on stdin: on 6 at once; a single one on 3, with the end.
frames() {
  n=0 length=0 cut=0 held=
  while IFS= read -r line || [ -n "$line" ]; do
    piece="$N $id $1 $n ${#line} $line$NL"
    if [ "$n" = 0 ]; then
      held=$piece
    else
      printf %s "$held$piece" >&6
      held=
    fi
    n=$((n + 1)) length=$((length + ${#line}))
    if [ "$length" -gt "$limit" ]; then cut=1; break; fi
    line=
  done
  printf %s "$held$N $id $2 $n $cut$NL" >&3
}

# without GNU timeout: end the group of $1 after the deadline
watch() {
  sleep "$seconds" & nap=$!
  trap 'kill "$nap" 2>/dev/null; exit' TERM
  wait "$nap"
  kill -15 "-$1" 2>/dev/null || kill -15 "$1" 2>/dev/null
  sleep 2
  kill -9 "-$1" 2>/dev/null || kill -9 "$1" 2>/dev/null
}

# A signal may arrive after the fork, before `pid` is set ($! is set by then) or before the child leads its group.
# shellcheck disable=SC2317,SC2329 # a trap calls it
end_command() {
  pid=${pid:-$!}
  [ "$pid" = "$before" ] || kill -9 "-$pid" 2>/dev/null || kill -9 "$pid" 2>/dev/null
}

# Run the command: stdout to 1, stderr to 5, status to 3. Then kill the rest of its process group.
work() {
  pid='' watcher='' before=$!
  trap 'end_command; exit' TERM HUP INT
  # shellcheck disable=SC2086 # lines are wanted, without a process
  case $how in
    p) ;;
    b) code=$(printf '%b|' "$code"); code=${code%|} ;;
    *) set -f; IFS=$how; set -- $code; IFS=$NL; code="$*"; unset IFS; set +f ;;
  esac
  clock
  if [ -n "$limiter" ]; then
    $limiter "$seconds" sh -c "$code" </dev/null 2>&5 3>&- 5>&- 6>&- &
    pid=$!
  else
    $leader sh -c "$code" </dev/null 2>&5 3>&- 5>&- 6>&- &
    pid=$!
    watch "$pid" </dev/null >/dev/null 2>&1 3>&- 5>&- 6>&- &
    watcher=$!
  fi
  wait "$pid"
  ending "$?" "$seconds" "${clock?}"
  [ -n "$watcher" ] && kill "$watcher"
  kill -9 "-$pid"
  printf '%s %s X %s\n' "$N" "$id" "${ended?}" >&3
}

# After a signal it still waits for `work`, which holds 3 open, and prints nothing.
answer() {
  gone=
  trap 'gone=1' TERM HUP INT
  ends=$({ { work 2>/dev/null | $coder 3>&- 5>&- | frames o O 5>&-; } 5>&1 | $coder 3>&- | frames e E; } 3>&1)
  [ -n "$gone" ] || printf '%s\n' "$ends" >&6
}

# End the agent's process group. Each command has its own group, which its `work` ends: the agent waits for this, since
# whatever ends the agent may kill the rest of its group after it.
leave() {
  trap '' TERM HUP INT PIPE
  printf '%s 0 Q %s\n' "$N" "$1"
  kill -0 "-$$" 2>/dev/null && kill -15 0 && wait
  exit 0
}
trap 'leave "ended by a signal"' TERM HUP INT

exec 6>&1
printf '%s 0 H %s %s %s\n' "$N" "$me" "$form" "${SLURMD_NODENAME:-$(uname -n)}"
while IFS=' ' read -r id who seconds cap how code; do
  # reaps ended children: no zombies
  jobs >/dev/null 2>&1
  case $who in
    '*' | *",$me,"*) ;;
    *) continue ;;
  esac
  if [ "$id" = 0 ]; then
    printf '%s 0 P\n' "$N"
    continue
  fi
  code=${code%|}
  # shellcheck disable=SC2017 # whole groups of characters
  limit=$((cap / bytes * chars + 2 * chars))
  answer &
done
leave 'its input ended'
