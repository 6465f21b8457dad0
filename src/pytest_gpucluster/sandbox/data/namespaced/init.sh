#!/bin/sh
# usage: init.sh ROOT NODE: the first process of a node: makes it a place of its own, starts sshd, reaps children.
# The environment has KEEP (paths that stay visible, one a line), HOME, SSHD, SSH_ENVIRONMENT and DROP (a prefix).
set -eu
ROOT=$1 node=$2
disk=$ROOT/disk/$node
hostname "$node"

# cover DIRECTORY FOLDER: the node has FOLDER in place of the host's DIRECTORY; paths of KEEP stay what they are.
# shellcheck disable=SC2317
cover() {
  mkdir -p "$2"
  printf '%s\n' "$KEEP" | while read -r path; do
    case $path in
      "$1"/*)
        mkdir -p "$2/${path#"$1"/}"
        mount --bind "$path" "$2/${path#"$1"/}"
        ;;
    esac
  done
  mount --rbind "$2" "$1"
}
# what a driver's daemons put there is for all who have its devices
for path in /run/nvidia-*; do
  [ ! -d "$path" ] || KEEP="$KEEP
$path"
done
cover /run "$disk/run"
cover /tmp "$disk/tmp"
chmod 1777 /tmp
mkdir -p /run/sshd /run/lock
mount -t tmpfs -o mode=1777 shm /dev/shm
# the interfaces under /sys/class/net are those of whoever mounts it
mount -t sysfs sysfs "$disk/sys"
[ ! -d /sys/fs/cgroup ] || mount --rbind /sys/fs/cgroup "$disk/sys/fs/cgroup"
mount --rbind "$disk/sys" /sys
[ ! -d "$HOME/.ssh" ] || mount -t tmpfs -o mode=700 ssh "$HOME/.ssh"
mount --bind "$ROOT/etc/hosts" /etc/hosts
mount --bind "$ROOT/etc/nsswitch.conf" /etc/nsswitch.conf
mount --bind "$ROOT/ssh/config" /etc/ssh/ssh_config
echo "$node" >"$disk/hostname"
[ ! -e /etc/hostname ] || mount --bind "$disk/hostname" /etc/hostname
# a locked password must not keep sshd from letting the owner of the key in
mount --bind "$ROOT/etc/shadow" /etc/shadow
# Slurm's commands enter the login node's network from outside; here they are just themselves
mount --bind "$ROOT/bin.node" "$ROOT/bin"

# shellcheck disable=SC2086
env -i PATH="$PATH" $DROP "$SSHD" -D -f "$ROOT/ssh/sshd_config" -E "$ROOT/log/sshd-$node.log" \
  -o "SetEnv=$SSH_ENVIRONMENT SLURMD_NODENAME=$node GPUCLUSTER_SANDBOX_NODE=$ROOT/nodes/$node" &
: >"$ROOT/run/node-$node.ready"
while :; do
  sleep 86400 &
  wait $! || :
done
