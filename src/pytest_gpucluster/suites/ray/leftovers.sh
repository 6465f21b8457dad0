# shellcheck shell=sh
# Prints the processes and folders of a run of Ray that are left on a node. Replaced: MARK, of their environment, and STEM,
# with which the names of its folders begin. Some Ray processes overwrite their environment by their title: their open
# files identify them.
# shellcheck disable=SC2010 # the links of ls -l are what is searched
for p in /proc/[0-9]*; do
  if tr '\0' '\n' 2>/dev/null <"$p/environ" | grep -q '^@MARK@' || ls -l "$p/fd" 2>/dev/null | grep -q ' @STEM@'; then
    echo "process ${p#/proc/} $(tr '\0' ' ' 2>/dev/null <"$p/cmdline" | cut -c1-120)"
  fi
done
for f in @STEM@*; do [ -L "$f" ] || [ ! -O "$f" ] || echo "folder $f"; done
