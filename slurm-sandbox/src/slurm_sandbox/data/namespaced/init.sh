#!/bin/sh
# usage: init.sh ROOT NODE: the first process of a node: sets up its mounts and hostname, starts sshd, reaps children.
# The environment has KEEP (paths that stay visible, one per line), HOME, SSHD, SSH_ENVIRONMENT and DROP (a prefix).
set -eu
ROOT=$1 node=$2
disk=$ROOT/disk/$node
hostname "$node"

# cover DIRECTORY FOLDER: mounts FOLDER over the host's DIRECTORY; paths of KEEP stay visible
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
# sockets of the driver's daemons are needed wherever its devices are used
for path in /run/nvidia-*; do
  [ ! -d "$path" ] || KEEP="$KEEP
$path"
done
cover /run "$disk/run"
cover /tmp "$disk/tmp"
chmod 1777 /tmp
mkdir -p /run/sshd /run/lock
mount -t tmpfs -o mode=1777 shm /dev/shm
# /sys/class/net shows the network of the process that mounts sysfs
mount -t sysfs sysfs "$disk/sys"
[ ! -d /sys/fs/cgroup ] || mount --rbind /sys/fs/cgroup "$disk/sys/fs/cgroup"
mount --rbind "$disk/sys" /sys
[ ! -d "$HOME/.ssh" ] || mount -t tmpfs -o mode=700 ssh "$HOME/.ssh"
mount --bind "$ROOT/etc/hosts" /etc/hosts
mount --bind "$ROOT/etc/nsswitch.conf" /etc/nsswitch.conf
mount --bind "$ROOT/ssh/config" /etc/ssh/ssh_config
echo "$node" >"$disk/hostname"
[ ! -e /etc/hostname ] || mount --bind "$disk/hostname" /etc/hostname
# sshd rejects keys of accounts with a locked password
mount --bind "$ROOT/etc/shadow" /etc/shadow
# Slurm's commands enter the login node's network only on the host; on a node they run directly
mount --bind "$ROOT/bin.node" "$ROOT/bin"

# shellcheck disable=SC2086
env -i PATH="$PATH" $DROP "$SSHD" -D -f "$ROOT/ssh/sshd_config" -E "$ROOT/log/sshd-$node.log" \
  -o "SetEnv=$SSH_ENVIRONMENT SLURMD_NODENAME=$node SLURM_SANDBOX_NODE=$ROOT/nodes/$node" &
: >"$ROOT/run/node-$node.ready"
while :; do
  sleep 86400 &
  wait $! || :
done
