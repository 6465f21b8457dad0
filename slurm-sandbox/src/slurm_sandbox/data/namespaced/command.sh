#!/bin/sh
# a command of Slurm for users of the host: it enters the network of the login node
network=$(readlink /proc/@PID@/ns/net) || network=
[ "$network" = @NETWORK@ ] || { echo "${0##*/}: the sandbox of this command is down" >&2; exit 1; }
[ "$(readlink /proc/self/ns/net)" != @NETWORK@ ] || exec @PROGRAM@ "$@"
exec @ENTER@ @PROGRAM@ "$@"
