# shellcheck shell=sh
# Prints what identifies the parts of a node: sections `@@ NAME`, each ended by `== ` and how its command ended, or `== absent`.
# Needs limited.sh. Modules, DIMMs, chassis, BMC and the serial number of an adapter need root.
# shellcheck disable=SC2045 # names of the kernel; a simulated node has its own ls
export LC_ALL=C PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
ib=/sys/class/infiniband
# call NAME SECONDS COMMAND...
call() {
  echo "@@ $1"
  s=$2
  shift 2
  if command -v "$1" >/dev/null 2>&1; then
    limited "$s" "$@" 2>&1
    printf '\n== %s\n' "${ended?}"
  else
    echo "== absent $1"
  fi
}
call gpus 60 nvidia-smi -q | grep -E '^(@@ |== |GPU [0-9A-F])|Product Name|Serial Number|GPU UUID|VBIOS Version|Part Number|Image Version|NVIDIA-SMI|No devices|Unable'
echo "@@ nvswitches"
for a in $(ls /proc/driver/nvidia-nvswitch/devices 2>/dev/null); do
  echo "$a $(cat "/proc/driver/nvidia-nvswitch/devices/$a/information" 2>/dev/null)"
done
echo '== 0'
for a in $(ls $ib 2>/dev/null); do
  [ ! -e "$ib/$a/device/physfn" ] || continue
  p=$(readlink -f "$ib/$a/device")
  echo "@@ adapter $a ${p##*/}"
  for f in fw_ver board_id; do # only Mellanox has a board_id
    printf '%s\n' "$(cat "$ib/$a/$f" 2>/dev/null)"
  done
  echo '== 0'
  call "vpd $a" 10 lspci -Dvv -s "${p##*/}" | grep -E '^(@@ |== )|Product Name:|\[(PN|SN|EC)\]|<access denied>'
  for i in $(ls "$ib/$a/device/net" 2>/dev/null); do
    call "module $a" 15 ethtool -m "$i" | grep -E '^(@@ |== )|Vendor (name|PN|SN)|ength|etlink|annot|ermitted'
    break
  done
done
for a in $(ls /sys/class/nvme 2>/dev/null); do
  echo "@@ drive $a"
  grep -sH . "/sys/class/nvme/$a/address" "/sys/class/nvme/$a/model" "/sys/class/nvme/$a/serial" "/sys/class/nvme/$a/firmware_rev" "/sys/class/nvme/$a/transport"
  echo '== 0'
done
set --
for a in $(ls /sys/block 2>/dev/null); do
  case $a in sd*) set -- "$@" "/dev/$a" ;; esac
done
[ $# = 0 ] || call disks 15 lsblk -dPno NAME,MODEL,SERIAL,REV,TRAN,HCTL "$@"
call dmi 15 dmidecode -t 1 -t 2 -t 3 -t 17
call bmc 15 ipmitool mc info
echo end
