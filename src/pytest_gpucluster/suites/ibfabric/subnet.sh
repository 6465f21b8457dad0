# shellcheck shell=sh
# shellcheck disable=SC2045,SC2086 # names of the kernel, without blanks; a simulated node has its own ls
# Prints what infiniband-diags and ibdiagnet show of each subnet that this one host is in, a further one after `= port ADAPTER PORT`.
# Each part stands between `= NAME` and `= exit STATUS`; stderr has the same heads. Counters are read first and again at the end, at
# least @SECONDS@ seconds later.
PATH=$PATH:/usr/sbin:/sbin
d=/sys/class/infiniband
part() {
  echo "= $1"
  echo "= $1" >&2
  shift
  "$@"
  echo "= exit $?"
}
discover() {
  found=$(ibnetdiscover $at)
  status=$?
  first=$(printf '%s\n' "$found" | awk '/^Switch/ && !n++ { print $3 }')
  # a port of a virtual function, whose GUID the switch does not show, is in a subnet that was read
  case $seen in *"${first:-none}"*) status=1 found='' ;; esac
  seen=$seen$found
  printf '%s\n' "$found"
  return $status
}
counters() {
  date '+time %s'
  ibqueryerrors $at --threshold-file /dev/null
}
# the fields that are judged, of each port that the subnet manager has: LID, port, state, MTU, highest MTU, LID of its manager,
# whether it filters by partition
ports() {
  saquery $at PIR | awk '
    { text = $0; sub(/^[^.:]*[.:]+/, "", text) }
    /EndPortLid\./ { lid = text }
    /PortNum\./ { port = text }
    /SMLid:/ { manager = text }
    /^[ \t]*LinkState:/ { state = text }
    /NeighborMTU:/ { mtu = text }
    /MtuCap:/ { most = text }
    /PartEnforceInb:/ { filters = text }
    /PartEnforceOutb:/ { print lid, port, state, mtu, most, manager, (filters + text > 0) }'
}
# the partition keys of each port. opensm provides them to trusted requests only: to those with its sa_key, by default 1; ibdiag.conf
# may have another one
pkeys() {
  { saquery $at --smkey 1 PKTR || saquery $at PKTR; } | awk '
    { text = $0; sub(/^[^.]*[.]+/, "", text) }
    /LID[.]/ { lid = text }
    /Port[.]/ { port = text }
    $1 ~ /^0x/ {
      keys = ""
      for (i = 1; i <= NF; i++) if ($i !~ /^0x[08]000$/) keys = keys " " $i
      if (keys != "") print lid, port keys
    }'
}
managers() {
  sminfo $at || return
  saquery $at -s | awk -F. '/EndPortLid/ { print $NF }' | while read -r lid; do
    sminfo $at "$lid" || : # one that does not answer is none
  done
}
routing() {
  for f in /etc/opensm/opensm.conf /etc/opensm.conf /opt/ufm/files/conf/opensm/opensm.conf; do
    [ ! -r $f ] || grep '^routing_engine ' $f
  done
  for f in /var/log/opensm.log /opt/ufm/files/log/opensm.log; do
    # what the routing engine of the last sweep was, and whether it fell back
    [ ! -r $f ] || tail -n 20000 $f | grep -i -e 'tables configured on all switches' -e 'falling back' | tail -n 2
  done
  :
}
ibdiagnet_files() {
  for f in @DIAGNET@/ibdiagnet2.db_csv @DIAGNET@/ibdiagnet2.net_dump_ext; do
    # one of last month says nothing of today
    [ ! -r $f ] || [ -z "$(find $f -mmin -1440)" ] || { echo "file $f"; cat $f; }
  done
}
show() {
  part subnet discover
  [ $status = 0 ] || return 0
  part before counters
  sleep @SECONDS@ &
  part links iblinkinfo $at --line
  part managers managers
  part ports ports
  part pkeys pkeys
  [ -n "$once" ] || {
    part routing routing
    part ibdiagnet ibdiagnet_files
  }
  once=yes
  wait
  part after counters
}
# Omni-Path, whose ports state InfiniBand too, and the adapters by which NVLSM manages the NVSwitches of a node
is_other() {
  case $1 in
    hfi1_*) ;;
    *) grep -qs SW_MNG $d/$1/device/vpd ;;
  esac
}
at='' seen='' others='' once=''
for a in $(ls $d 2>/dev/null); do ! is_other $a || others=yes; done
# the tools take the first active port by themselves
[ -n "$others" ] || show
for a in $(ls $d 2>/dev/null); do
  ! is_other $a || continue
  for p in $(ls $d/$a/ports 2>/dev/null); do
    grep -qs InfiniBand $d/$a/ports/$p/link_layer || continue
    grep -qs ACTIVE $d/$a/ports/$p/state || continue
    guid=$(grep -s . $d/$a/ports/$p/gids/0 | sed 's/^.*:\(.*:.*:.*:.*\)$/\1/; s/://g; s/^0*//')
    case $seen in *"${guid:-none}"*) continue ;; esac
    at="-C $a -P $p"
    echo "= port $a $p"
    echo "= port $a $p" >&2
    show
  done
done
# what the tools state of a host that has only others
[ -n "$seen$at" ] || [ -z "$others" ] || show
