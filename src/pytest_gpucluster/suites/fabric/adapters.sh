# shellcheck shell=sh
# Prints the network adapters of a node, their ports and counters, and the GPUs that they may belong to, from sysfs.
# shellcheck disable=SC2045 # names of the kernel; a simulated node has its own ls
# shellcheck disable=SC2043 # a placeholder is a list
# shellcheck disable=SC2046,SC2086 # echo joins words by one blank and omits empty ones
d=/sys/class/infiniband b=/sys/bus/pci/drivers/nvidia
echo uptime $(cat /proc/uptime)
echo product $(cat /sys/class/dmi/id/product_name 2>/dev/null)
# the links show the bridges between the processor and a device
u=
for g in $(ls $b 2>/dev/null); do
  case $g in *:*) echo gpu $(readlink -f $b/$g); u=known ;; esac
done
f='' t='' k=''
for a in $(ls $d 2>/dev/null); do
  l=$(readlink -f $d/$a/device)
  echo path $a $l
  case $l in *:*) t=known ;; esac
  f="$f $d/$a/device/vpd"
done
# vital product data of a bridge to NVSwitches (Fabric Manager User Guide); only root may read it
[ -z "$f" ] || grep -al SW_MNG $f 2>/dev/null
for a in $(ls $d 2>/dev/null); do
  for p in $(ls $d/$a/ports 2>/dev/null); do
    v=
    # the adapter is a virtual function of another one of this host
    [ ! -e $d/$a/device/physfn ] || v=virtual
    echo port $a $p $v
    [ -n "$v" ] || for n in @PKEYS@; do k="$k $d/$a/ports/$p/pkeys/$n"; done
    set --
    for n in @OF_DEVICE@; do set -- "$@" $d/$a/$n; done
    for n in @OF_PORT@; do set -- "$@" $d/$a/ports/$p/$n; done
    grep -H . "$@" 2>/dev/null
    for n in $(ls $d/$a/device/net 2>/dev/null); do
      e=$d/$a/device/net/$n
      echo net $n $(cat $e/mtu 2>/dev/null) name $(cat $e/phys_port_name 2>/dev/null)
    done
  done
done
# the keys of partitions; $keys is empty in the second reading
[ -z "$k" ] || [ -z "${keys?}" ] || grep -svH '^0x0000$' $k
ibv_devinfo 2>&1 | grep -e hca_id: -e port: -e active_mtu:
[ -z "$f" ] || [ -n "$t" ] && [ -n "$u" ] || { echo topology; timeout -k 5 20 nvidia-smi topo -m 2>/dev/null; }
echo end
