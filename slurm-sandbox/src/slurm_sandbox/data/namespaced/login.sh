#!/bin/sh
# usage: login.sh ROOT NODE...: the network of the login node, a bridge that connects every node. Runs as long as
# the sandbox. The environment has LOGIN_ADDRESS, NETWORK (the first bytes of an address), PREFIX and what init.sh reads.
set -eu
ROOT=$1
shift
export ROOT LOGIN=$$
ip link set lo up
ip link add br0 type bridge
ip addr add "$LOGIN_ADDRESS/$PREFIX" dev br0
ip link set br0 up
# other destinations are unreachable at once; without a route a connection would wait
echo 1 >/proc/sys/net/ipv4/ip_forward
ip route add unreachable default
here=$(dirname "$0")
number=0
for node; do
  number=$((number + 1))
  setsid unshare --net sh "$here/node.sh" "$ROOT" "$node" "$number" </dev/null >"$ROOT/log/node-$node.log" 2>&1 &
done
: >"$ROOT/run/login.ready"
# a pipe without a writer: waits without a child and without wakeups
exec 3<>"$ROOT/run/login.hold"
while :; do read -r _ <&3 || exit 1; done
