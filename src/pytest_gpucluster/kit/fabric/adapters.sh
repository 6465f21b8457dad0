# shellcheck shell=sh
# Prints the network adapters of a node, their ports, counters, keys and GIDs, and the GPUs that they may belong to, from sysfs:
# few processes, whose number does not grow with the adapters. Needs entries.sh. A second reading, for the counters, has an
# empty $keys. Reading an unused GID is an error of the kernel (EINVAL), which grep ignores.
# shellcheck disable=SC2045 # names of the kernel; a simulated node has its own ls
# shellcheck disable=SC2043 # a placeholder is a list
# shellcheck disable=SC2046,SC2086 # words of the kernel, without blanks
d=${d?} b=/sys/bus/pci/drivers/nvidia
entries ports device/net
u='' t='' c='' q='' k='' f='' v=''
set --
[ -z "${keys?}" ] || for g in $(ls $b 2>/dev/null); do
  case $g in *:*) u=known; set -- "$@" $b/$g ;; esac
done
g=$*
set -- /proc/uptime /sys/class/dmi/id/product_name
for e in ${entries?}; do
  a=${e%%/*}
  case $e in
    */ports/*)
      # the adapter is a virtual function of another one of this host
      w=; [ ! -e $d/$a/device/physfn ] || w=virtual
      q="$q;port $a ${e##*/} $w"
      for n in @OF_PORT@; do set -- "$@" $d/$e/$n; done
      [ -z "$keys" ] || set -- "$@" $d/$e/gid_attrs/types/*
      # the keys of partitions
      [ -n "$w" ] || [ -z "$keys" ] || for n in @PKEYS@; do k="$k $d/$e/pkeys/$n"; done
      ;;
    */net/*)
      q="$q;net $a ${e##*/}"
      set -- "$@" $d/$e/mtu $d/$e/phys_port_name
      ;;
    *)
      [ -z "$keys" ] || c="$c $a" f="$f $d/$a/device" v="$v $d/$a/device/vpd"
      for n in @OF_DEVICE@; do set -- "$@" $d/$a/$n; done
      ;;
  esac
done
{ printf '%s\n' "$q"; grep -sH . "$@"; } | awk -v d="$d/" '
  NR == 1 {
    m = split($0, item, ";")
    for (i = 1; i <= m; i++)
      if (split(item[i], w, " ") && w[1] == "port") port[++n] = item[i]
      else net[w[2]] = net[w[2]] " " w[3]
    next
  }
  i = index($0, "/proc/uptime:") { print "uptime " substr($0, i + 13) }
  i = index($0, "/product_name:") { print "product " substr($0, i + 14) }
  i = index($0, d) {
    f = substr($0, i + length(d)); x = substr(f, index(f, ":") + 1); f = substr(f, 1, index(f, ":") - 1); split(f, w, "/")
    if (w[2] == "device") value[f] = x
    else {
      k = w[1] (w[2] == "ports" ? " " w[3] : "")
      if (w[5] == "types") types[k] = types[k] $0 "\n"
      else text[k] = text[k] $0 "\n"
      if (w[4] == "link_layer") layer[k] = x
    }
  }
  END {
    for (i = 1; i <= n; i++) {
      split(port[i], w, " "); a = w[2]
      printf "%s\n%s%s", port[i], text[a], text[a " " w[3]]
      m = split(net[a], y, " ")
      for (j = 1; j <= m; j++) {
        f = a "/device/net/" y[j]
        print "net " y[j] " " value[f "/mtu"] " name " value[f "/phys_port_name"]
      }
    }
    for (i = 1; i <= n; i++) {
      split(port[i], w, " "); k = w[2] " " w[3]
      printf "gids %s %s\n%s", k, layer[k], types[k]
    }
  }'
# the links show the bridges between the processor and a device
set -- $c
m=$#
set -- $g $c
[ -z "$g$f" ] || for l in $(readlink -f $g $f); do
  if [ $# -gt "$m" ]; then
    echo gpu $l
  else
    echo path "$1" $l
    case $l in *:*) t=known ;; esac
  fi
  shift
done
# vital product data of a bridge to NVSwitches (Fabric Manager User Guide); only root may read it
[ -z "$v" ] || grep -al SW_MNG $v 2>/dev/null
[ -z "$k" ] || grep -svH '^0x0000$' $k
[ -n "$keys" ] || { echo end; exit 0; }
IFS='
'
for l in $(ibv_devinfo 2>&1); do
  case $l in *hca_id:* | *port:* | *active_mtu:*) printf '%s\n' "$l" ;; esac
done
unset IFS
[ -z "$f" ] || [ -n "$t" ] && [ -n "$u" ] || { echo topology; timeout -k 5 20 nvidia-smi topo -m 2>/dev/null; }
echo end
