# shellcheck shell=sh
# sh -c THIS sh SETTLED LIFETIME OPTIONS COMMAND...: deletes an object by the command when its owner is done or has died.
# First line: whether the owner was created. End of file instead means that this process died during the creation, which
# may still take effect. A deleted object counts as gone at the answer NotFound.
settled=$1 lifetime=$2 options=$3 pause=0; shift 3
clock() { read -r now _ < /proc/uptime; now=${now%.*}; }
trap '' PIPE
read -r created || created=unknown
[ "$created" != no ] || exit 0
[ "$created" != yes ] || read -r _
clock; settled=$((now + settled)); end=$((settled + lifetime))
while :; do
  answer=$(printf %s "$options" | "$@" 2>&1 > /dev/null) && created=yes
  clock
  case $answer in
    *"(NotFound)"*) [ "$created" != yes ] && [ "$now" -lt "$settled" ] || exit 0 ;;
    ?*) printf '%s
' "$answer" >&2 ;;
  esac
  [ "$now" -lt "$end" ] || exit 1
  sleep "$pause"; pause=$((pause < 2 ? 2 * pause + 1 : 3))
done
