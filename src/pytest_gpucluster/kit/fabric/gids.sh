# shellcheck shell=sh
# Prints the ports of network adapters with their link layer, and the types of the GIDs of each. Needs entries.sh. Reading an
# unused index is an error of the kernel (EINVAL), which grep ignores.
# shellcheck disable=SC2046 # names of the kernel, without blanks
d=${d?}
set --
for e in $(entries ports); do
  case $e in */*) set -- "$@" "$d/$e/link_layer" "$d/$e"/gid_attrs/types/* ;; esac
done
[ $# = 0 ] || grep -sH . "$@" | sed "s|^.*$d/\([^/]*\)/ports/\([^/]*\)/link_layer:|port \1 \2 |"
echo end
