# shellcheck shell=sh
# Prints the folded kernel log (kernel_log.awk) and leaves it in $f for kernel_state.sh.
# -r prints the level of each line; tools that lack it print the lines alone.
w=dmesg
o=$(dmesg -r 2>/dev/null) && [ -n "$o" ] || { o=$(dmesg 2>&1); }
r=$?
if [ $r != 0 ] || [ -z "$o" ]; then
  e=$o w=journalctl
  o=$(journalctl -q -k -b --no-pager -o short-monotonic 2>&1)
  r=$?
  if [ $r != 0 ] || [ -z "$o" ]; then
    echo "dmesg: ${e:-empty}; journalctl -k: ${o:-empty}" | tr "\n" " " >&2
    exit 1
  fi
fi
echo "source $w"
echo "clock $(date +%s) $(cat /proc/uptime)"
f=$(printf '%s\n' "$o" | awk @FOLD@)
printf '%s\n' "$f"
