# shellcheck shell=sh
# Prints the drives of the node and what they report of their health; needs own_folder.sh. NVMe on PCIe, SATA and SAS: no drive
# of USB (virtual media of a BMC), iSCSI, Fibre Channel or NVMe over fabrics. smartctl runs without -i, for few commands to the
# drive, and with -n, so that a disk that sleeps stays asleep. Each runs in the background and writes into a folder, since a
# process that waits for a drive without an answer cannot be ended. TICKS: tenths of a second without
# an answer of any drive.
# shellcheck disable=SC2045 # names of the kernel; a simulated node has its own ls
export LC_ALL=C PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
n=/sys/class/nvme b=/sys/block most=@MOST@ ticks=@TICKS@
all=
set --
for a in $(ls $n 2>/dev/null); do all="$all $a"; set -- "$@" "$n/$a/model" "$n/$a/transport"; done
for a in $(ls $b 2>/dev/null); do
  case $a in (sd*) ;; (*) continue ;; esac
  case $(readlink -f "$b/$a") in (*/usb*|*/session*|*/rport-*) continue ;; esac
  all="$all $a"
  set -- "$@" "$b/$a/device/vendor" "$b/$a/device/model"
done
f=
[ $# = 0 ] || f=$(grep -sH . "$@")
printf '%s\n' "$f"
s=$(command -v smartctl) v=$(command -v nvme)
echo "tools $s $v"
# health NAME: smartctl, or nvme where that printed no JSON
health() {
  o=
  [ -z "$s" ] || o=$(smartctl --json=c -n standby -H -A "/dev/$1" 2>&1)
  case $o in ("{"*) ;; (*) case $1 in (nvme*) [ -z "$v" ] || { nvme smart-log "/dev/$1" -o json 2>&1; return; } ;; esac ;; esac
  printf '%s\n' "$o"
}
@OWN_FOLDER@
d=
[ -z "$all" ] || [ -z "$s$v" ] || for p in /dev/shm /tmp /var/tmp; do [ -n "$d" ] || d=$(own "$p" 2>/dev/null); done
# answers: counts the drives that have answered in $k
answers() { set -- "$d"/*.rc; [ -e "$1" ] || shift; k=$#; }
i=0
for a in $all; do
  case $f in (*"$n/$a/transport:"[!p]*) continue ;; esac
  echo "found $a"
  [ -n "$s$v" ] && [ -n "$d" ] && [ "$i" -lt "$most" ] || continue
  i=$((i + 1))
  ( health "$a" </dev/null >"$d/$a" 2>&1; echo >"$d/$a.rc" ) >/dev/null 2>&1 &
done
w=0 before=0
while answers; [ "$k" -lt "$i" ] && [ "$w" -lt "$ticks" ]; do
  [ "$k" = "$before" ] || { before=$k w=0; }
  sleep 0.1
  w=$((w + 1))
done
for a in $all; do
  [ ! -e "$d/$a.rc" ] || { echo "drive $a"; cat "$d/$a"; }
  if [ -e "$d/$a" ] && [ ! -e "$d/$a.rc" ]; then echo "hung $a"; fi
done
[ -z "$d" ] || rm -rf "$d"
echo end
