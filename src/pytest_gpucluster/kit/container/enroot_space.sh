# shellcheck shell=sh
# Prints the room of Enroot's folders. The precedence of Enroot: environment, enroot.conf, XDG's defaults.
PATH=$PATH:/usr/bin:/usr/local/bin:/opt/enroot/bin
tool=$(command -v enroot) || { echo "enroot: not found" >&2; exit 127; }
conf=$(sed -n 's/^config::init "\(.*\)"$/\1/p' "$tool" | head -n 1)
for file in "${conf:-/etc/enroot/enroot.conf}" "${conf:-/etc/enroot/enroot.conf}".d/*.conf; do
  [ -r "$file" ] || continue
  while read -r key value; do
    case $key in
      ENROOT_DATA_PATH | ENROOT_CACHE_PATH | ENROOT_TEMP_PATH)
        eval "[ -n \"\${$key:-}\" ] || $key=$value" ;;
    esac
  done < "$file"
done
: "${ENROOT_DATA_PATH:=${XDG_DATA_HOME:-$HOME/.local/share}/enroot}"
: "${ENROOT_CACHE_PATH:=${XDG_CACHE_HOME:-$HOME/.cache}/enroot}"
: "${ENROOT_TEMP_PATH:=${TMPDIR:-/tmp}}"
for name in data cache temp; do
  case $name in data) path=$ENROOT_DATA_PATH ;; cache) path=$ENROOT_CACHE_PATH ;; temp) path=$ENROOT_TEMP_PATH ;; esac
  there=$path
  while [ ! -d "$there" ]; do there=$(dirname "$there"); done
  echo "$name $(stat -f -c '%a %b %S %d %c' "$there") $(test -w "$there" && echo rw || echo ro) $path"
done
