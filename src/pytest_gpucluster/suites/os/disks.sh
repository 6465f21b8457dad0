# shellcheck shell=sh
# df of the stated paths and of every networked mount; needs sections.sh and own_folder.sh.
# One df of all paths runs first; if it fails or takes long, one df per path shows which path it is. Every df runs in the
# background and writes into a folder: a process that hangs in a dead NFS mount cannot be waited for and must not hold
# the pipes of the shell. In the end it gets SIGKILL, which also works on a hard NFS mount. `read` needs a complete line.
# FIRST and TICKS are tenths of a second: for the df of all paths together, and for all.
most=@MOST@
set -- @PATHS@
# paths with an escape (blank, newline) are omitted, since df does not accept them
also=' ' m=0
set -f
IFS='
'
# shellcheck disable=SC2013 # lines are wanted, without a process for the end of a pipe
for l in $(cat /proc/mounts 2>/dev/null); do
  IFS=' '
  p=${l#* } f=${l#* * }
  p=${p%% *} f=${f%% *}
  case $f in (@NETWORKED@) ;; (*) continue ;; esac
  case "$p$also" in (*\\*|*" $p "*) continue ;; esac
  for q do [ "$q" != "$p" ] || continue 2; done
  [ "$m" -lt "$most" ] || break
  m=$((m + 1)) also="$also$p "
done
[ "$m" = 0 ] || {
  # shellcheck disable=SC2086 # paths without blanks
  s also printf '%s\n' $also
  for p in $also; do set -- "$@" "$p"; done
}
unset IFS
set +f
own=
for p in /dev/shm ${TMPDIR-} /tmp /var/tmp ${HOME-}; do
  [ -n "$own" ] || own "$p" 2>/dev/null
done
d=$own
[ -n "$d" ] || { own "${TMPDIR:-/tmp}"; exit 1; }
n=0 t=0 k=0
# start PATH...: df of the paths, as the job $n
start() {
  (
    trap 'kill -9 $c; exit' TERM
    df -Pk "$@" & c=$!
    wait "$c" && { df -Pi "$@" & c=$!; wait "$c"; }
    echo "$?" >"$d/$n.rc"
  ) </dev/null >"$d/$n.out" 2>&1 &
  pids="$pids $!"
}
stop() { for i in $pids; do kill "$i"; done 2>/dev/null; }
# ended FIRST: counts the jobs from FIRST to $n that have ended in $k; the status of the last one is in $r
ended() {
  k=0 i=$1
  while [ "$i" -le "$n" ]; do
    { read -r r <"$d/$i.rc"; } 2>/dev/null && k=$((k + 1))
    i=$((i + 1))
  done
}
# await FIRST TICKS: until all those jobs have ended
await() {
  w=0
  while ended "$1"; [ "$k" -le "$((n - $1))" ] && [ "$t" -lt "$2" ]; do
    [ "$w" = 5 ] || w=$((w + 1))
    t=$((t + w))
    sleep "0.$w"
  done
}
show() { while read -r l; do printf '%s\n' "$l"; done <"$d/$1.out"; }
pids=
start "$@"
r=
await 0 @FIRST@
if [ "$k" = 1 ] && [ "$r" = 0 ]; then
  printf '\036all\n'
  show 0
  printf '\036=0\n'
else
  stop
  pids=
  for p do n=$((n + 1)); start "$p"; done
  await 1 @TICKS@
  j=0
  for p do
    j=$((j + 1)) r=hung
    { read -r r <"$d/$j.rc" || r=hung; } 2>/dev/null
    printf '\036%s\n' "$p"
    [ "$r" = hung ] || show "$j"
    case $r in hung) printf 'hung\n\036=deadline\n' ;; *) printf '\036=%s\n' "$r" ;; esac
  done
  [ "$k" -eq "$n" ] || stop
fi
rm -rf "$d"
