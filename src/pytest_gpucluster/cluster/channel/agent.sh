# The agent of the fleet channel: one on each node. POSIX sh; $1 is the nonce that marks our lines.
#
# In, one line a command:   ID WHO SECONDS CAP FORM CODE|
#   WHO: * or ,TASK,TASK,   FORM: p (plain) or b (printf %b)   |: keeps trailing blanks
# ID 0 asks for a sign of life only.
# Out, lines shorter than PIPE_BUF, so lines of several commands in flight never mix:
#   NONCE 0 H TASK ENCODING HOST        here I am       NONCE 0 P    I live       NONCE 0 Q REASON   I leave
#   NONCE ID o|e SEQUENCE LENGTH DATA   a piece of stdout or stderr
#   NONCE ID O|E PIECES 0|1             its end; 1: cut at the cap
#   NONCE ID X STATUS                   exit status
# A short answer is written at once: on TCP a second small packet waits 40 ms for the receipt of the first.
# Nothing is kept in files: the agent works where /tmp is full. Nothing is forked while it waits.
# A library that a profile preloads and that is not there would add a line to every answer.
unset LD_PRELOAD
N=$1 me=${SLURM_PROCID:-0}
NL='
'

# Where a coder is missing the next best serves; od is in POSIX.
chars=4 bytes=3 form=b
if base64 -w 700 </dev/null >/dev/null 2>&1; then coder='base64 -w 700'
elif base64 </dev/null >/dev/null 2>&1; then coder=base64
elif openssl base64 </dev/null >/dev/null 2>&1; then coder='openssl base64'
else coder='od -An -v -tx1' form=x chars=3 bytes=1
fi
# GNU timeout leads a process group of its own; others do not.
case $(timeout --version 2>/dev/null) in
  *coreutils*) keeper='timeout -k 2' ;;
  *) keeper='' ;;
esac
leader=''
command -v setsid >/dev/null 2>&1 && leader=setsid

# Encoded lines from stdin become frames: on 6 at once; a single one goes on 3, with the end.
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

# Without GNU timeout: end the group of $1 after the deadline.
watch() {
  sleep "$seconds" & nap=$!
  trap 'kill "$nap" 2>/dev/null; exit' TERM
  wait "$nap"
  kill -15 "-$1" 2>/dev/null || kill -15 "$1" 2>/dev/null
  sleep 2
  kill -9 "-$1" 2>/dev/null || kill -9 "$1" 2>/dev/null
}

# A signal may come after the fork and before `pid` is set, when $! has it already, or before it leads its group.
end_command() {
  pid=${pid:-$!}
  [ "$pid" = "$before" ] || kill -9 "-$pid" 2>/dev/null || kill -9 "$pid" 2>/dev/null
}

# Run the command: stdout to 1, stderr to 5, status to 3. What it leaves in its group ends with it.
work() {
  pid= watcher= before=$!
  trap 'end_command; exit' TERM HUP INT
  if [ "$how" = b ]; then code=$(printf '%b|' "$code"); code=${code%|}; fi
  if [ -n "$keeper" ]; then
    $keeper "$seconds" sh -c "$code" </dev/null 2>&5 3>&- 5>&- 6>&- &
    pid=$!
  else
    $leader sh -c "$code" </dev/null 2>&5 3>&- 5>&- 6>&- &
    pid=$!
    watch "$pid" </dev/null >/dev/null 2>&1 3>&- 5>&- 6>&- &
    watcher=$!
  fi
  wait "$pid"
  status=$?
  [ -n "$watcher" ] && kill "$watcher"
  kill -9 "-$pid"
  printf '%s %s X %s\n' "$N" "$id" "$status" >&3
}

answer() {
  ends=$({ { work 2>/dev/null | $coder 3>&- 5>&- | frames o O 5>&-; } 5>&1 | $coder 3>&- | frames e E; } 3>&1)
  printf '%s\n' "$ends" >&6
}

# Our own group, commands excepted (each leads its own and is ended by its `work`), ends with us.
leave() {
  trap '' TERM HUP INT PIPE
  printf '%s 0 Q %s\n' "$N" "$1"
  kill -0 "-$$" 2>/dev/null && kill -15 0
  exit 0
}
trap 'leave "ended by a signal"' TERM HUP INT

exec 6>&1
printf '%s 0 H %s %s %s\n' "$N" "$me" "$form" "${SLURMD_NODENAME:-$(uname -n)}"
while IFS=' ' read -r id who seconds cap how code; do
  jobs >/dev/null 2>&1 # takes the status of ended children: no zombies
  case $who in
    '*' | *",$me,"*) ;;
    *) continue ;;
  esac
  if [ "$id" = 0 ]; then
    printf '%s 0 P\n' "$N"
    continue
  fi
  code=${code%|}
  limit=$((cap / bytes * chars + 2 * chars))
  answer &
done
leave 'its input ended'
