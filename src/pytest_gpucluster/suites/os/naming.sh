# shellcheck shell=sh
# Needs limited.sh. Measures one getent of the node's name and of another node's. After two seconds or more it is repeated and the second
# time counts, since the node may have been busy. `read` is a builtin: the start of a process would add to the time.
export LC_ALL=C
n=${SLURMD_NODENAME:-$(uname -n)}
for _ in 1 2; do
  read -r a _ </proc/uptime
  clock
  o=$(timeout @SECONDS@ getent hosts "$n" @OTHER@)
  ending "$?" @SECONDS@ "${clock?}"
  read -r b _ </proc/uptime
  [ "${ended?}" != deadline ] && [ "$((${b%.*}-${a%.*}))" -gt 1 ] || break
done
printf '%s\n' ${o:+"$o"} "took $a $b ${ended?} $n"
