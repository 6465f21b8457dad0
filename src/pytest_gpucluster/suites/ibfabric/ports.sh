# shellcheck shell=sh
# Prints the InfiniBand ports of a node with their GUIDs, the PCI addresses of their adapters, and whether the node has
# infiniband-diags. Needs entries.sh.
# shellcheck disable=SC2046,SC2086 # names of the kernel, without blanks
d=${d?}
PATH=$PATH:/usr/sbin:/sbin
! command -v ibnetdiscover > /dev/null || echo tools
entries ports
a=
set --
for e in ${entries?}; do
  case $e in
    */*) set -- "$@" "$d/$e/link_layer" "$d/$e/state" "$d/$e/gids/0" ;;
    *) a="$a $e" ;;
  esac
done
[ $# = 0 ] || grep -sH . "$@"
for e in $a; do echo path $e $(readlink -f $d/$e/device); done
echo end
