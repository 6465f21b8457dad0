# shellcheck shell=sh
# Needs limited.sh. sh -c THIS gpucluster-lifeline SECONDS: sends signals at the other end of a connection, and ends the connection there.
# Input lines: '' is a heartbeat, 'SIGNAL PID' is for a process group of this connection; each gets an answer.
# No line for $1 seconds means that the sender has ended although the connection is open: then the lifeline kills the
# server's process for the connection, its parent, which closes the pipes of all processes of the connection.
parent=$PPID
case $(cat /proc/"$parent"/comm 2>/dev/null) in sshd*) ;; *) parent= ;; esac
while :; do
  clock
  line=$(timeout "$1" sh -c 'IFS= read -r x && printf %s "$x"') || { ending "$?" "$1" "${clock?}"; break; }
  pid=${line#* }
  [ "$pid" = "$line" ] || kill "-${line%% *}" "-$pid" 2>/dev/null || kill "-${line%% *}" "$pid" 2>/dev/null
  echo
done
[ "${ended?}" = deadline ] && [ -n "$parent" ] && kill "$parent"
