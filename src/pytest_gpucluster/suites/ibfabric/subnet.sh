# shellcheck shell=sh
# Prints what infiniband-diags and ibdiagnet show of the whole subnet, from this one host. Each part stands between `= NAME` and
# `= exit STATUS`; stderr has the same heads. Counters are read first and again at the end, at least @SECONDS@ seconds later.
PATH=$PATH:/usr/sbin:/sbin
part() {
  echo "= $1"
  echo "= $1" >&2
  shift
  "$@"
  echo "= exit $?"
}
counters() {
  date '+time %s'
  ibqueryerrors --threshold-file /dev/null
}
# the fields that are judged, of each port that the subnet manager has: LID, port, state, MTU, highest MTU, LID of its manager,
# whether it filters by partition
ports() {
  saquery PIR | awk '
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
  { saquery --smkey 1 PKTR || saquery PKTR; } | awk '
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
  sminfo || return
  saquery -s | awk -F. '/EndPortLid/ { print $NF }' | while read -r lid; do
    sminfo "$lid" || : # one that does not answer is none
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
part before counters
sleep @SECONDS@ &
part subnet ibnetdiscover
part links iblinkinfo --line
part managers managers
part ports ports
part pkeys pkeys
part routing routing
part ibdiagnet ibdiagnet_files
wait
part after counters
