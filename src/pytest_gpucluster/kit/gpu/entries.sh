# shellcheck shell=sh
# entries FOLDER...: lists in $entries the network adapters, and `ADAPTER/FOLDER/NAME` for all that is in these folders of each:
# two processes, however many adapters there are.
# shellcheck disable=SC2045,SC2048,SC2086 # names of the kernel, without blanks; a simulated node has its own ls
d=/sys/class/infiniband
entries() {
  n=$* entries=
  set -- $d
  for a in $(ls $d 2>/dev/null); do for f in $n; do set -- "$@" "$d/$a/$f"; done; done
  # it heads each folder, since it lists several
  [ $# = 1 ] || for e in $(ls "$@" 2>/dev/null); do
    case $e in
      "$d":) f='' ;;
      "$d"/*:) f=${e%:}/ f=${f#"$d"/} ;;
      *) entries="$entries $f$e" ;;
    esac
  done
}
