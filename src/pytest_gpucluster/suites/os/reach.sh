# shellcheck shell=sh
# Reaches both neighbours of this node by name, at the same time. Replaced: LIST, the ring of nodes between blanks, which
# begins with the last name and ends with the first.
export LC_ALL=C
n=${SLURMD_NODENAME:-}
[ -n "$n" ] || { n=$(uname -n); n=${n%%.*}; }
l=@LIST@
case $l in *" $n "*) ;; *) echo "$n has no neighbour" >&2; exit 1 ;; esac
t=${l#*" $n "}
x=${t%% *}
t=${l%" $n "*}
y=${t##* }
[ "$x" != "$y" ] || y=
go() {
  a=$(timeout @NAME_SECONDS@ getent ahosts "$1")
  r=$?
  a=${a%%[[:space:]]*}
  [ -n "$a" ] || { echo "peer $1 - $r -"; return; }
  e=$(timeout @CONNECT_SECONDS@ bash -c ": >/dev/tcp/$a/@PORT@" 2>&1)
  r=$?
  echo "peer $1 $a $r ${e##*: }"
}
go "$x" &
[ -z "$y" ] || go "$y" &
wait
