# shellcheck shell=sh
# Runs lldpd on gpu01, leaf01 and leaf02, each with its own network, joined by the cables of stdin (NODE PORT NODE PORT; the last
# node of a cable without a link is `-`), until each has found its neighbours; then the command $1 on gpu01. Needs root. Runs in a PID
# namespace of its own, which ends all of it.
folder=$2
device() {
  unshare --net --mount --uts sh -c '
    hostname "$1"
    mount -t tmpfs none /run && mkdir /run/lldpd && mount -t sysfs none /sys
    touch "$2/$1"
    until [ -e "$2/plugged" ]; do sleep 0.05; done
    exec lldpd -d 2>"$2/$1.log"' sh "$1" "$folder" &
  echo $! >"$folder/$1.pid"
  until [ -e "$folder/$1" ]; do sleep 0.05; done
}
at() { pid=$(cat "$folder/$1.pid"); shift; nsenter -t "$pid" -n -m -u "$@"; }
for name in gpu01 leaf01 leaf02; do device $name; done
cables=0
while read -r a a_port z z_port; do
  cables=$((cables + 1))
  ip link add a$cables type veth peer name z$cables
  ip link set a$cables name "$a_port" netns "$(cat "$folder/$a.pid")"
  at "$a" ip link set "$a_port" up
  [ "$z" = - ] || { ip link set z$cables name "$z_port" netns "$(cat "$folder/$z.pid")" && at "$z" ip link set "$z_port" up; }
done
touch "$folder/plugged"
for name in gpu01 leaf01 leaf02; do until at $name lldpcli show neighbors >/dev/null 2>&1; do sleep 0.1; done; done
for name in leaf01 leaf02; do at $name lldpcli update >/dev/null; done
tries=50
until [ "$(at gpu01 lldpcli -f keyvalue show neighbors | grep -c 'chassis.name=')" = 2 ] || [ $((tries -= 1)) = 0 ]; do sleep 0.1; done
at gpu01 sh -c "$1"
