#!/bin/sh
# usage: node.sh ROOT NODE NUMBER: connects a new network to the login node's bridge; then enters the other namespaces.
set -eu
ROOT=$1 node=$2 number=$3
echo $$ >"$ROOT/run/node-$node.pid"
ip link add eth0 type veth peer name "veth$number" netns "$LOGIN"
nsenter --net="/proc/$LOGIN/ns/net" ip link set "veth$number" master br0 up
# IPv6 addresses would only add a delay and a second answer for each name
[ ! -e /proc/sys/net/ipv6 ] || echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start
ip link set lo up
ip addr add "$NETWORK.$number/$PREFIX" dev eth0
ip link set eth0 up
ip route add default via "$LOGIN_ADDRESS"
exec unshare --mount --uts --ipc --pid --fork --kill-child --mount-proc sh "$(dirname "$0")/init.sh" "$ROOT" "$node"
