# shellcheck shell=sh
# Prints the folded kernel log (kernel_log.awk). -r prints the level of each line; tools that lack it print the lines alone.
# Of the journal, which prints no level, errors get that of dmesg -r.
w=dmesg
o=$(dmesg -r 2>/dev/null) && [ -n "$o" ] || o=$(dmesg 2>&1)
r=$?
j() { journalctl -q -k -b --no-pager -o short-monotonic "$@"; }
if [ $r != 0 ] || [ -z "$o" ]; then
  e=$o w=journalctl
  o=$(j 2>&1) && [ -n "$o" ] || { echo "dmesg: ${e:-empty}; journalctl -k: ${o:-empty}" | tr "\n" " " >&2; exit 1; }
  o=$({ j -p err 2>/dev/null; echo @; printf '%s\n' "$o"; } |
    awk '/^@$/ { all = 1; next } !all { err[$0]; next } { print ($0 in err ? "<3>" : "<6>") $0 }')
fi
echo "source $w"
echo "clock $(date +%s) $(cat /proc/uptime)"
printf '%s\n' "$o" | awk @FOLD@
