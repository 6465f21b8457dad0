# shellcheck shell=sh
# Prints the cards and drives on PCIe, one line per function (devices.awk), the files of NVMe controllers, /proc/mdstat, and
# the kernel's names of adapters and drives.
# shellcheck disable=SC2045 # names of the kernel; a simulated node has its own ls
d=/sys/bus/pci/devices n=/sys/class
set -- /proc/mdstat
for a in $(ls $d 2>/dev/null); do
  # a virtual function belongs to a card of this host
  [ -e $d/"$a"/physfn ] || set -- "$@" $d/"$a"/uevent $d/"$a"/current_link_width $d/"$a"/current_link_speed \
    $d/"$a"/max_link_width $d/"$a"/../max_link_width
done
for a in $(ls $n/nvme 2>/dev/null); do
  for f in model firmware_rev state transport; do set -- "$@" "$n/nvme/$a/$f"; done
done
for k in infiniband nvme net; do
  for a in $(ls $n/$k 2>/dev/null); do set -- "$@" "$n/$k/$a/device/uevent"; done
done
grep -sH . "$@" | awk @FOLD@
echo end
