#!/bin/sh
# Hours of load on nodes after a maintenance, in a reservation that excludes other users:
#
#   burnin-maintenance.sh CLUSTER NODES TIME [pytest options...]
#   burnin-maintenance.sh prod 'gpu[01-16]' 4h
#
# The run drains nodes that fail (--drain=apply) and resumes nodes that an earlier run drained and that pass now. The script
# always deletes the reservation. Run it as Slurm's administrator. The exit status is
# pytest's: 0 all nodes passed; 1 a node failed or broke; 4 wrong input.
set -eu

if [ $# -lt 3 ]; then
  echo "usage: $0 CLUSTER NODES TIME [pytest options...]" >&2
  exit 4
fi
cluster=$1 nodes=$2 time=$3
shift 3
number=${time%[hm]}
case $number in
  '' | *[!0-9]* | "$time")
    echo "$0: the time must be like 30m or 4h, not '$time'" >&2
    exit 4
    ;;
esac
case $time in
  *h) minutes=$((number * 60)) ;;
  *m) minutes=$number ;;
esac

# Users: Slurm runs only their jobs in it. Duration: longer than the burn-in, since the run first waits for the nodes.
name=burnin-$(date +%Y%m%d-%H%M%S)-$$
trap '' INT TERM HUP # a signal during the creation would leave the reservation behind
scontrol create reservation ReservationName="$name" Nodes="$nodes" Users="$(id -un)" \
  StartTime=now Duration="$((minutes + 60))" Flags=maint,ignore_jobs >&2

run=
# End pytest first: Slurm does not delete a reservation with a running job.
# shellcheck disable=SC2317,SC2329 # a trap calls it
finish() {
  trap '' INT TERM HUP
  if [ -n "$run" ] && kill -TERM "$run" 2>/dev/null; then
    wait "$run" || true
  fi
  tries=0
  until scontrol delete ReservationName="$name" >&2; do
    tries=$((tries + 1))
    if [ "$tries" -ge 30 ]; then
      echo "$0: reservation $name is still there: scontrol delete ReservationName=$name" >&2
      break
    fi
    sleep 2
  done
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# in the background, so that a signal ends the wait at once
status=0
pytest --cluster="$cluster" -m burnin --burnin-time="$time" --nodes="$nodes" --set slurm.reservation="$name" \
  --drain=apply --resume-passing "$@" &
run=$!
wait "$run" || status=$?
run=
exit "$status"
