# shellcheck shell=sh
# Prints the GPUs, the ports of network adapters and the network interfaces of a node, from sysfs.
# shellcheck disable=SC2045 # names of the kernel; a simulated node has its own ls
d=/sys/class/infiniband b=/sys/bus/pci/drivers/nvidia
for g in $(ls $b 2>/dev/null); do
  case $g in *:*) echo "gpu;$(readlink -f "$b/$g")" ;; esac
done
for a in $(ls $d 2>/dev/null); do
  e=$d/$a/device
  for n in $(ls "$d/$a/ports" 2>/dev/null); do
    p=$d/$a/ports/$n v=
    [ ! -e "$e/physfn" ] || v=virtual
    echo "port $a $n;$(cat "$p/state" 2>/dev/null);$(cat "$p/rate" 2>/dev/null)\
;$(cat "$p/link_layer" 2>/dev/null);$(cat "$e/current_link_speed" 2>/dev/null)\
;$(cat "$e/current_link_width" 2>/dev/null);$v;$(cat "$d/$a/board_id" 2>/dev/null);$(readlink -f "$e")\
;$(grep -acs SW_MNG "$e/vpd")\
;$(cat "$e/net/$(cat "$p/gid_attrs/ndevs/0" 2>/dev/null)/phys_port_name" 2>/dev/null)"
  done
done
for i in $(ls /sys/class/net 2>/dev/null); do
  echo "net $i;$(cat "/sys/class/net/$i/operstate" 2>/dev/null);$(cat "/sys/class/net/$i/speed" 2>/dev/null)"
done
echo end
