# shellcheck shell=sh
# Prints the GPUs, the ports of network adapters and the network interfaces of a node, from sysfs: few processes, whose
# number does not grow with the files. Needs entries.sh.
# shellcheck disable=SC2045,SC2046 # names of the kernel, without blanks; a simulated node has its own ls
d=${d?} b=/sys/bus/pci/drivers/nvidia i=/sys/class/net
# values FILE...: prints FILE:LINE of each line
values() { [ $# = 0 ] || grep -H . "$@" 2>/dev/null; }
set --
for g in $(ls $b 2>/dev/null); do
  case $g in *:*) set -- "$@" "$b/$g" ;; esac
done
[ $# = 0 ] || for g in $(readlink -f "$@"); do echo "gpu;$g"; done
entries ports
set --
all=${entries?} c=
for e in $all; do
  case $e in */*) ;; *) c="$c $e"; set -- "$@" "$d/$e/device" ;; esac
done
f=$(
  [ $# = 0 ] || set -- $(readlink -f "$@")
  for a in $c; do echo "link $a ${1-}"; [ $# = 0 ] || shift; done
  set --
  for e in $all; do
    a=${e%%/*}
    case $e in
      */*)
        v=; [ ! -e "$d/$a/device/physfn" ] || v=virtual
        echo "port $a ${e##*/};$v"
        set -- "$@" "$d/$e/state" "$d/$e/rate" "$d/$e/link_layer" "$d/$e/gid_attrs/ndevs/0"
        ;;
      *) set -- "$@" "$d/$a/device/current_link_speed" "$d/$a/device/current_link_width" "$d/$a/board_id" ;;
    esac
  done
  values "$@"
)
set --
for a in $c; do set -- "$@" "$d/$a/device/vpd"; done
[ $# = 0 ] || f="$f
$(grep -acHs SW_MNG "$@")"
set --
for n in $(printf '%s\n' "$f" | sed -n "s|.*$d/\([^/]*\)/ports/[^/]*/gid_attrs/ndevs/0:\(.*\)|\1/device/net/\2|p"); do
  set -- "$@" "$d/$n/phys_port_name"
done
f="$f
$(values "$@")"
set --
for n in $(ls $i 2>/dev/null); do
  f="$f
net $n"
  set -- "$@" "$i/$n/operstate" "$i/$n/speed"
done
f="$f
$(values "$@")"
printf '%s\n' "$f" | awk '
  /^link / { link[$2] = $3; next }
  /^(port|net) / { line[++n] = $0; next }
  at = index($0, "/sys/class/") {
    path = substr($0, at + 11)
    value[substr(path, 1, index(path, ":") - 1)] = substr(path, index(path, ":") + 1)
  }
  END {
    for (k = 1; k <= n; k++) {
      split(line[k], cell, ";"); split(cell[1], word, " ")
      if (word[1] == "net") { i = "net/" word[2]; print line[k] ";" value[i "/operstate"] ";" value[i "/speed"]; continue }
      a = "infiniband/" word[2]; p = a "/ports/" word[3]; e = a "/device"
      print cell[1] ";" value[p "/state"] ";" value[p "/rate"] ";" value[p "/link_layer"] ";" value[e "/current_link_speed"] \
        ";" value[e "/current_link_width"] ";" cell[2] ";" value[a "/board_id"] ";" link[word[2]] ";" value[e "/vpd"] \
        ";" value[e "/net/" value[p "/gid_attrs/ndevs/0"] "/phys_port_name"]
    }
  }'
echo end
