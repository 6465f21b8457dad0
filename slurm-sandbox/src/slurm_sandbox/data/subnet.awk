# Simulates infiniband-diags (rdma-core) on the InfiniBand subnet of a sandbox: rails of 16 nodes, each with leaf switches of its
# own, below four spines. Input: the file `subnet` of the node that asks, then those of all nodes, itself too:
#   since SECONDS
#   hca NODE DEVICE GUID LID LEAF PORT STATE WIDTH SPEED MTU SYMBOL_ERRORS PER_SECOND LINK_DOWNED KEY,... KEY_THAT_THE_SWITCH_DROPS,...|-
#   uplink LEAF NUMBER down | speed NAME | errors PER_SECOND | mtu BYTES
#   manager GUID
# `tool`, `arguments`: what was called; `records`: a PortInfoRecord of saquery.
BEGIN {
  SPINES = 4; EACH = 2; FIRST = 32; LEAF_PORTS = 64
  lane["SDR"] = "2.5"; lane["QDR"] = "10.0"; lane["FDR"] = "14.0625"; lane["EDR"] = "25.78125"
  lane["HDR"] = "53.125"; lane["NDR"] = "106.25"; lane["XDR"] = "212.5"
  "date +%s" | getline now
}
FNR == NR { if ($1 == "hca" && own == "") own = $4; next }
$1 == "since" { since = $2 }
$1 == "hca" { hca(); next }
$1 == "uplink" { fault[$2, $3] = $4; value[$2, $3] = $5; from[$2, $3] = since }
$1 == "manager" { second = $2 }
END {
  uplinks()
  if (tool == "ibnetdiscover") discover()
  else if (tool == "iblinkinfo") linkinfo()
  else if (tool == "ibqueryerrors") query_errors()
  else if (tool == "sminfo") manager(arguments)
  else if (arguments ~ /PKTR/) key_tables()
  else if (arguments ~ /-s/) managers()
  else port_records()
}
function device(guid, type, description, ports, its_lid) {
  devices[++count] = guid
  kind[guid] = type; name[guid] = description; size[guid] = ports; lid[guid] = its_lid
}
function hca() {
  leaf($6)
  if ($8 != "Active") return
  if ($4 in kind) { silent[$6, $7] = $9 " " $10; return } # the tools follow the first of two that have one GUID
  device($4, "H", $2 " " $3, 1, $5)
  if (master == "") master = $4
  if (index(lane[$10], ".") && (best == "" || lane[$10] + 0 > lane[best] + 0)) best = $10
  join_ports($4, 1, guid_of[$6], $7, "Active", $9, $10, $11)
  symbol[$4, 1] = $12 + $13 * (now - since); downed[$4, 1] = $14
  keys[$4, 1] = $15; keys[guid_of[$6], $7] = without($15, $16)
}
function leaf(of) {
  if (of in guid_of) return
  leaves[++many] = of
  guid_of[of] = sprintf("2c5eab0300%06x", 4096 + 64 * many)
  device(guid_of[of], "S", "MF0;" of ":MQM9790/U1", LEAF_PORTS, 20000 + many)
}
function uplinks(  i, s, u, n, spine, state, speed, mtu, of) {
  for (s = 1; s <= SPINES && many; s++) {
    guid_of["spine" s] = sprintf("2c5eab0300%06x", 1048576 + 64 * s)
    device(guid_of["spine" s], "S", sprintf("MF0;spine%02d:MQM9790/U1", s), EACH * many < 64 ? 64 : EACH * many, 30000 + s)
  }
  for (i = 1; i <= many; i++)
    for (s = 1; s <= SPINES; s++)
      for (u = 1; u <= EACH; u++) {
        of = leaves[i]; n = (s - 1) * EACH + u; state = fault[of, n]
        if (state == "down") continue
        speed = state == "speed" ? value[of, n] : best
        mtu = state == "mtu" ? value[of, n] : 4096
        join_ports(guid_of[of], FIRST + n, guid_of["spine" s], (i - 1) * EACH + u, "Active", 4, speed, mtu)
        if (state == "errors") symbol[guid_of[of], FIRST + n] = value[of, n] * (now - from[of, n])
      }
}
function join_ports(a, ap, z, zp, state, width, speed, mtu) {
  half(a, ap, z, zp, state, width, speed, mtu)
  half(z, zp, a, ap, state, width, speed, mtu)
}
function half(a, ap, z, zp, state, width, speed, mtu) {
  peer[a, ap] = z; peer_port[a, ap] = zp; states[a, ap] = state
  widths[a, ap] = width; speeds[a, ap] = speed; mtus[a, ap] = mtu
}
function label(guid) { return "\"" kind[guid] "-" guid "\"" }
function short(guid) { sub(/^0+/, "", guid); return guid }
function discover(  i, p, g, o) {
  "date '+%a %b %e %H:%M:%S %Y'" | getline o
  printf "#\n# Topology file: generated on %s\n#\n# Initiated from node %s port %s\n", o, own, own
  for (p = 0; p < 2; p++)
    for (i = 1; i <= count; i++)
      if ((kind[devices[i]] == "H") == p) one_device(devices[i])
}
function one_device(g,  p, o, rate) {
  printf "\nvendid=0x2c9\ndevid=0x%s\nsysimgguid=0x%s\n", kind[g] == "S" ? "d2f2" : "1021", short(g)
  if (kind[g] == "S") {
    printf "switchguid=0x%s(%s)\n", short(g), short(g)
    printf "Switch\t%d %s\t\t# \"%s\" enhanced port 0 lid %d lmc 0\n", size[g], label(g), name[g], lid[g]
  } else printf "caguid=0x%s\nCa\t%d %s\t\t# \"%s\"\n", short(g), size[g], label(g), name[g]
  for (p = 1; p <= size[g]; p++) {
    if (!((g, p) in peer)) continue
    o = peer[g, p]; rate = widths[g, p] "x" speeds[g, p]
    if (kind[g] == "H") printf "[%d](%s) \t%s[%d]\t\t# lid %d lmc 0 \"%s\" lid %d %s\n", p, short(g), label(o), peer_port[g, p], lid[g], name[o], lid[o], rate
    else printf "[%d]\t%s[%d]%s\t\t# \"%s\" lid %d %s\n", p, label(o), peer_port[g, p], kind[o] == "H" ? "(" short(o) ") " : "", name[o], lid[o], rate
  }
}
function state_of(g, p) {
  return sprintf("(%3s %18s %6s/%8s)", widths[g, p] "X", lane[speeds[g, p]] " Gbps", states[g, p], "LinkUp")
}
function linkinfo(  i, g, p, rate, of) {
  for (i = 1; i <= count; i++) {
    g = devices[i]
    for (p = 1; p <= size[g]; p++) {
      printf "0x%s \"%30s\" %6d %4d[  ] ==", g, name[g], lid[g], p
      of = name[g]; sub(/^MF0;/, "", of); sub(/:.*/, "", of)
      if ((g, p) in peer)
        printf "%s==>  0x%s %6d %4d[  ] \"%s\" (%s %s)\n", state_of(g, p), peer[g, p], lid[peer[g, p]], peer_port[g, p], name[peer[g, p]], widths[g, p] < 4 ? "Could be 4X" : "", speeds[g, p] != best ? "Could be " lane[best] " Gbps" : ""
      else if ((of, p) in silent) {
        split(silent[of, p], rate, " ")
        printf "(%3s %18s %6s/%8s)==>      \"Port not available\"\n", rate[1] "X", lane[rate[2]] " Gbps", "Active", "LinkUp"
      } else printf "(              %6s/%8s)==>             [  ] \"\" ( )\n", "Down", "Polling"
    }
  }
}
# counted(SYMBOLS, DOWNS): the counters that are not 0; they have 16 and 8 bits
function counted(symbols, downs) {
  return (symbols > 0 ? " [SymbolErrorCounter == " int(symbols < 65535 ? symbols : 65535) "]" : "") (downs > 0 ? " [LinkDownedCounter == " (downs < 255 ? downs : 255) "]" : "")
}
function query_errors(  i, g, p, text, rows, ports, bad, bad_ports, symbols, downs) {
  for (i = 1; i <= count; i++) {
    g = devices[i]; rows = ""; symbols = downs = 0; ports += size[g]
    for (p = 1; p <= size[g]; p++) {
      text = counted(symbol[g, p] + 0, downed[g, p] + 0)
      if (text == "") continue
      symbols += symbol[g, p]; downs += downed[g, p]
      bad_ports++
      rows = rows sprintf("   GUID 0x%s port %d:%s\n", g, p, text)
    }
    if (rows == "") continue
    bad++
    # it asks a switch for the sum of all ports first, and then port 0 too
    if (kind[g] == "S") { rows = sprintf("   GUID 0x%s port ALL:%s\n", g, counted(symbols, downs)) rows; ports++ }
    printf kind[g] == "S" ? "Errors for 0x%s \"%s\"\n" : "%sErrors for \"%s\"\n", kind[g] == "S" ? g : "", name[g]
    printf "%s", rows
  }
  printf "\n## Summary: %d nodes checked, %d bad nodes found\n", count, bad
  printf "##          %d ports checked, %d ports have errors beyond threshold\n## Thresholds: \n## Suppressed:\n", ports, bad_ports
  if (bad) exit 1
}
function manager(which,  guid) {
  guid = which == "" || which == lid[master] ? master : which == lid[second] ? second : ""
  if (guid == "") {
    print "sminfo: iberror: failed: query" > "/dev/stderr"
    exit 1
  }
  printf "sminfo: sm lid %d sm guid 0x%s, activity count %d priority 14 state 3 SMINFO_MASTER\n", lid[guid], short(guid), now % 100000
}
function managers(  i, all, guid) {
  print "IsSM ports"
  split(master " " second, all, " ")
  for (i = 1; i in all; i++) {
    guid = all[i]
    printf "PortInfoRecord dump:\n\t\tEndPortLid..............%d\n\t\tPortNum.................1\n\t\tbase_lid................%d\n", lid[guid], lid[guid]
    printf "\t\tmaster_sm_base_lid......%d\n\t\tcapability_mask.........0xA759E84A\n", lid[master]
  }
  print "\nIsSMdisabled ports"
}
# without(LIST, DROPPED): the keys of LIST that are not among DROPPED
function without(list, dropped,  i, n, all, left) {
  n = split(list, all, ",")
  for (i = 1; i <= n; i++) if (index("," dropped ",", "," all[i] ",") == 0) left = left (left == "" ? "" : ",") all[i]
  return left
}
function key_tables(  i, g, p) {
  for (i = 1; i <= count; i++) {
    g = devices[i]
    for (p = 1; p <= size[g]; p++) if ((g, p) in keys) key_table(lid[g], p, keys[g, p])
  }
}
function key_table(at, port, list,  i, all) {
  split(list, all, ",")
  printf "PKeyTableRecord dump:\n\t\tLID........................%d\n\t\tPort.......................%d\n", at, port
  printf "\t\tBlock......................0\n\t\tPKey Table:\n"
  for (i = 1; i <= 32; i++) printf "%s%s%s", i % 8 == 1 ? "\t\t" : " ", i in all ? all[i] : "0x0000", i % 8 ? "" : "\n"
  print ""
}
function port_records(  i, g, p, text, line) {
  while ((getline line < records) > 0) text = text line "\n"
  for (i = 1; i <= count; i++) {
    g = devices[i]
    for (p = 1; p <= size[g]; p++) if ((g, p) in peer) printf "%s", record(text, lid[g], p, mtus[g, p], widths[g, p], kind[g] == "S" && kind[peer[g, p]] == "H")
  }
}
# filters: as opensm sets a switch port at a host (part_enforce both, its default)
function record(text, at, port, mtu, width, filters) {
  gsub(/@FILTERS@/, filters, text); gsub(/@LID@/, at, text); gsub(/@PORT@/, port, text); gsub(/@MTU@/, mtu, text)
  gsub(/@WIDTH@/, width, text); gsub(/@SM@/, lid[master], text)
  return text
}
