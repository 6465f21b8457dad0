# shellcheck shell=sh
# Prints what mlxlink of MFT, or mstlink of mstflint, shows of the module at each InfiniBand adapter: `= ADAPTER`, JSON, `= exit STATUS`.
# shellcheck disable=SC2045 # names of the kernel; a simulated node has its own ls
PATH=$PATH:/usr/sbin:/sbin
d=/sys/class/infiniband
tool=$(command -v mlxlink || command -v mstlink) || tool=''
[ -n "$tool" ] || echo absent
for a in $(ls $d 2>/dev/null); do
  # one that hangs at the firmware's semaphore must not take the others along
  [ -z "$tool" ] || ! grep -qs InfiniBand "$d/$a/ports/1/link_layer" || {
    echo "= $a"
    timeout 15 "$tool" -d "$a" -m --json 2>&1
    printf '\n= exit %s\n' $? # what was cut has no end of a line
  }
done
echo "user $(id -u)"
echo end
