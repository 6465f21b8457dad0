# shellcheck shell=sh
# s NAME COMMAND...: runs a command as a section of the output, and leaves its exit status in $r.
export LC_ALL=C
s() { printf '\036%s\n' "$1"; shift; "$@" 2>&1; r=$?; printf '\036=%s\n' "$r"; }
