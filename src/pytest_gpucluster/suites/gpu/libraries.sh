# shellcheck shell=sh
# Prints NVIDIA's libraries in the cache of the loader, and which of them, or of the files beside them, are no ELF file.
# shellcheck disable=SC2086 # paths of libraries have no blanks
export LC_ALL=C
PATH=$PATH:/usr/sbin:/sbin
d=
set --
IFS='
'
for l in $(ldconfig -p 2>/dev/null); do
  case $l in *libnvidia-* | *libcuda.so*) ;; *) continue ;; esac
  printf '%s\n' "$l"
  p=${l##* }
  set -- "$@" "$p"
  case " $d " in *" ${p%/*} "*) ;; *) d="$d ${p%/*}" ;; esac
done
unset IFS
for e in $d; do
  for p in "$e"/libnvidia-*.so.* "$e"/libcuda.so.*; do
    if [ -e "$p" ] || [ -L "$p" ]; then set -- "$@" "$p"; fi
  done
done
echo bad
[ $# = 0 ] || grep -L '^.ELF' "$@" 2>&1
echo end
