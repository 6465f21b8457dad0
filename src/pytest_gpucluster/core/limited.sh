# shellcheck shell=sh
# Runs commands with a deadline and states how they ended: the one place where 124, 137 and 143 have a meaning, with the
# time that was measured. Alone they are the command's own status, or the work of whatever else kills commands.

# clock: the node's monotonic time in hundredths of a second is in $clock, '' where it cannot be read
clock() { clock=; { read -r clock _ </proc/uptime; } 2>/dev/null; clock=${clock%.*}${clock#*.}; }

# shellcheck disable=SC2034 # the caller reads it
# ending STATUS SECONDS SINCE: sets $ended to STATUS, or to `deadline` if our own timeout(1) or watch ended the command
ending() {
  ended=$1
  case $1 in 124 | 137 | 143) ;; *) return ;; esac
  clock
  [ -z "$3" ] || [ -z "$clock" ] || [ "$((clock - $3))" -lt "$(($2 * 100))" ] || ended=deadline
}

# limited SECONDS COMMAND...: runs a command; without timeout(1), without a deadline
limited() {
  clock
  since=$clock seconds=$1
  shift
  ! command -v timeout >/dev/null 2>&1 || set -- timeout -k 5 "$seconds" "$@"
  "$@"
  ending "$?" "$seconds" "$since"
}
