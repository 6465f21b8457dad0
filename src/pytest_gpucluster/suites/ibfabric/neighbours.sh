# shellcheck shell=sh
# Prints the network interfaces with their state, which of them belong to RDMA devices, and the neighbours that lldpd has found.
# Needs entries.sh.
# shellcheck disable=SC2045 # names of the kernel; a simulated node has its own ls
export LC_ALL=C PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
n=/sys/class/net
set --
for i in $(ls $n 2>/dev/null); do set -- "$@" "$n/$i/operstate"; done
[ $# = 0 ] || grep -sH . "$@" | sed "s|^.*$n/|$n/|"
entries device/net
for e in ${entries?}; do
  case $e in */net/*) echo "rdma ${e%%/*} ${e##*/}" ;; esac
done
echo lldp
lldpcli -f json show neighbors 2>&1
echo "rc $?"
