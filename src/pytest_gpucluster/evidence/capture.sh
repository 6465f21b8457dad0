# shellcheck shell=sh
# Prints the evidence of a node: sections `MARK begin NAME`, each ended by `MARK end STATUS HUNDREDTHS`. Needs limited.sh and own_folder.sh.
# MARK is a secret word: no tool can print a line of ours. Every tool has a deadline and a number of bytes.
# shellcheck disable=SC2154 # clock and limited set them
export LC_ALL=C PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
exec 3>&1 </dev/null
clock
began=$clock budget=@SECONDS@
# begin NAME: sets since and left; fails if no time is left
begin() {
  clock
  since=$clock left=$((budget - (clock - began) / 100))
  printf '\n@MARK@ begin %s\n' "$1"
  [ "$left" -gt 0 ] || { finish late; return 1; }
}
finish() {
  clock
  printf '\n@MARK@ end %s %s\n' "$1" "$((clock - since))"
}
# take NAME SECONDS BYTES COMMAND...
take() {
  ended=late
  begin "$1" || return 0
  s=$2 bytes=$3
  shift 3
  [ "$s" -le "$left" ] || s=$left
  if ! command -v "$1" >/dev/null 2>&1; then
    ended=absent
    finish absent
    return
  fi
  # its status goes through 4, since the last command of a pipe sets the pipe's
  ended=$({ { limited "$s" "$@" 2>&1 3>&- 4>&-; echo "$ended" >&4; } | head -c "$bytes" >&3; } 4>&1)
  finish "${ended:-unknown}"
}
# file NAME BYTES PATH...: the first of the paths that exists
file() {
  name=$1 bytes=$2
  shift 2
  for f; do
    [ -s "$f" ] || continue
    clock
    since=$clock
    printf '\n@MARK@ begin %s\n' "$name${f##*.log}"
    head -c "$bytes" "$f"
    finish 0
    return
  done
}
# bug_report SECONDS BYTES: NVIDIA asks for a second one in safe mode if the first hangs, and for both
bug_report() {
  d=$(own "${TMPDIR:-/tmp}" 2>&1 && echo "${own?}") || { begin nvidia-bug-report && echo "$d" && finish 1; return; }
  trap 'rm -rf "$d"' EXIT
  trap 'exit 1' HUP INT TERM
  take nvidia-bug-report "$1" 65536 nvidia-bug-report.sh --output-file "$d/report.log"
  file nvidia-bug-report.log "$2" "$d/report.log.gz" "$d/report.log"
  [ "$ended" = deadline ] || return 0
  take nvidia-bug-report-safe-mode "$1" 65536 nvidia-bug-report.sh --safe-mode --output-file "$d/safe.log"
  file nvidia-bug-report-safe-mode.log "$2" "$d/safe.log.gz" "$d/safe.log"
}
@CALLS@
printf '\n@MARK@ whole\n'
