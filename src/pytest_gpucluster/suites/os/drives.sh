# shellcheck shell=sh
# Prints the drives of the node and what they report of their health; needs own_folder.sh. NVMe on PCIe, SATA and SAS: no drive
# of USB (virtual media of a BMC), iSCSI, Fibre Channel or NVMe over fabrics. smartctl runs without -i, for few commands to the
# drive, and with -n, so that a disk that sleeps stays asleep. Each runs in the background and writes into a folder, since a
# process that waits for a drive without an answer cannot be ended. TICKS: tenths of a second without
# an answer of any drive.
# shellcheck disable=SC2045,SC2086 # names of the kernel; a simulated node has its own ls
export LC_ALL=C PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
n=/sys/class/nvme b=/sys/block most=@MOST@ ticks=@TICKS@
all='' f='' s='' v=''
set --
# beside the controllers (nvme0) are namespaces (nvme0n1), and disks of other kinds
for a in $(ls $n $b 2>/dev/null); do
  case $a in
    (nvme*n*) ;;
    (nvme*) all="$all $a"; set -- "$@" "$n/$a/model" "$n/$a/transport" ;;
    (sd*)
      case $(readlink -f "$b/$a") in (*/usb*|*/session*|*/rport-*) continue ;; esac
      f="$f $a"
      set -- "$@" "$b/$a/device/vendor" "$b/$a/device/model"
      ;;
  esac
done
all=$all$f f=
[ $# = 0 ] || f=$(grep -sH . "$@")
printf '%s\n' "$f"
! command -v smartctl >/dev/null 2>&1 || s=smartctl
! command -v nvme >/dev/null 2>&1 || v=nvme
echo "tools $s $v"
@OWN_FOLDER@
own='' p='' i=0
[ -z "$all" ] || [ -z "$s$v" ] || for a in /dev/shm /tmp /var/tmp; do [ -n "$own" ] || own "$a" 2>/dev/null; done
d=$own
# instead NAME: what nvme prints, where smartctl printed no JSON
instead() {
  : >>"$d/$1"
  case $1 in (nvme*) [ -z "$v" ] || nvme smart-log "/dev/$1" -o json </dev/null >"$d/$1" 2>&1 ;; esac
  echo >"$d/$1.rc"
}
# answers: counts the drives that have answered in $k. In $p are drives with the process of smartctl, whose JSON is one line.
answers() {
  set -- $p
  p=
  while [ $# -gt 1 ]; do
    o='' r=1
    { read -r o <"$d/$1" && r=0; } 2>/dev/null
    case $r$o in
      ("0{"*) echo >"$d/$1.rc" ;;
      (*) if kill -0 "$2" 2>/dev/null; then p="$p $1 $2"; else case $o in ("{"*) echo >"$d/$1.rc" ;; (*) instead "$1" & esac; fi ;;
    esac
    shift 2
  done
  set -- "$d"/*.rc
  [ -e "$1" ] || shift
  k=$#
}
for a in $all; do
  case $f in (*"$n/$a/transport:"[!p]*) continue ;; esac
  echo "found $a"
  [ -n "$s$v" ] && [ -n "$d" ] && [ "$i" -lt "$most" ] || continue
  i=$((i + 1))
  if [ -n "$s" ]; then
    smartctl --json=c -n standby -H -A "/dev/$a" </dev/null >"$d/$a" 2>&1 &
    p="$p $a $!"
  else
    instead "$a" >/dev/null 2>&1 &
  fi
done
w=0 before=0
while answers; [ "$k" -lt "$i" ] && [ "$w" -lt "$ticks" ]; do
  [ "$k" = "$before" ] || { before=$k w=0; }
  sleep 0.1
  w=$((w + 1))
done
for a in $all; do
  if [ -e "$d/$a.rc" ]; then
    echo "drive $a"
    while IFS= read -r o || [ -n "$o" ]; do printf '%s\n' "$o"; o=; done <"$d/$a"
  elif [ -e "$d/$a" ]; then
    echo "hung $a"
  fi
done
[ -z "$d" ] || rm -rf "$d"
echo end
