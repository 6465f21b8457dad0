# shellcheck shell=sh
# Prints the cards and drives on PCIe, one line per function (devices.awk), the files of NVMe controllers, and /proc/mdstat.
# shellcheck disable=SC2045 # names of the kernel; a simulated node has its own ls
d=/sys/bus/pci/devices n=/sys/class/nvme
set -- /proc/mdstat
for a in $(ls $d 2>/dev/null); do
  # a virtual function belongs to a card of this host
  [ -e $d/"$a"/physfn ] || set -- "$@" $d/"$a"/uevent $d/"$a"/current_link_width $d/"$a"/current_link_speed \
    $d/"$a"/max_link_width $d/"$a"/../max_link_width
done
for a in $(ls $n 2>/dev/null); do
  for f in model firmware_rev state transport; do set -- "$@" "$n/$a/$f"; done
done
grep -sH . "$@" | awk @FOLD@
echo end
