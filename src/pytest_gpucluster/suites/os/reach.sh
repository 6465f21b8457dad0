# shellcheck shell=sh
# Needs limited.sh. Reaches both neighbours of this node by name, at the same time. Replaced: LIST, the ring of nodes between blanks, which
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
  clock
  a=$(timeout @NAME_SECONDS@ getent ahosts "$1")
  ending "$?" @NAME_SECONDS@ "${clock?}"
  a=${a%%[[:space:]]*}
  [ -n "$a" ] || { echo "peer $1 - ${ended?} -"; return; }
  clock
  e=$(timeout @CONNECT_SECONDS@ bash -c ": >/dev/tcp/$a/@PORT@" 2>&1)
  ending "$?" @CONNECT_SECONDS@ "${clock?}"
  echo "peer $1 $a ${ended?} ${e##*: }"
}
go "$x" &
[ -z "$y" ] || go "$y" &
wait
