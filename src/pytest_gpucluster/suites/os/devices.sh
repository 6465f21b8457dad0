# shellcheck shell=sh
# Prints the cards and drives on PCIe, one line per function (devices.awk), the files of NVMe controllers, /proc/mdstat, and
# the kernel's names of adapters and drives.
# shellcheck disable=SC2045 # names of the kernel; a simulated node has its own ls
d=/sys/bus/pci/devices n=/sys/class k=
set -- /proc/mdstat
# it heads each folder, in the order of their names: that of RDMA counts before that of an interface
for a in $(ls $d $n/infiniband $n/net $n/nvme 2>/dev/null); do
  case $k/$a in
    (*/$d: | */$n/*:) k=${a##*/} ;;
    # a virtual function belongs to a card of this host
    (devices:/*)
      [ -e $d/"$a"/physfn ] || set -- "$@" $d/"$a"/uevent $d/"$a"/current_link_width $d/"$a"/current_link_speed \
        $d/"$a"/max_link_width $d/"$a"/../max_link_width
      ;;
    (nvme:/*) for f in model firmware_rev state transport device/uevent; do set -- "$@" "$n/nvme/$a/$f"; done ;;
    (infiniband:/* | net:/*) set -- "$@" "$n/${k%:}/$a/device/uevent" ;;
  esac
done
grep -sH . "$@" | awk @FOLD@
echo end
