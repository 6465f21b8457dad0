# shellcheck shell=sh
# Prints the software of a node as lines `NAME<TAB>VALUE`; each part is bounded, and none changes anything.
# Replaced: COUNT_GPUS by nothing, or by a command that prints how many GPUs torch sees.
# shellcheck disable=SC2043 # a placeholder is a list
p() { printf '%s\t%s\n' "$1" "$2"; }
t='' l=''
# shellcheck disable=SC2034 # l is for COUNT_GPUS
! command -v timeout >/dev/null 2>&1 || { t='timeout -k 1 15'; l='timeout -k 1 90'; }
p system "$(. /etc/os-release 2>/dev/null; echo "$PRETTY_NAME")"
for n in @PROGRAMS@; do f=$(command -v "$n" 2>/dev/null) && p "program $n" "$f"; done
command -v all_reduce_perf >/dev/null 2>&1 || for d in @BUILDS@; do
  [ ! -x "$d/all_reduce_perf" ] || { p 'program all_reduce_perf' "$d/all_reduce_perf"; break; }
done
p mpirun "$($t mpirun --version 2>/dev/null </dev/null | head -n 1)"
$t @PYTHON@ -c @PACKAGES_PY@ @PACKAGES@ 2>/dev/null </dev/null || :
@COUNT_GPUS@
for f in @IMAGES@; do [ ! -r "$f" ] || p image "$f"; done
for f in /etc/slurm/plugstack.conf.d/*pyxis* /etc/slurm-llnl/plugstack.conf.d/*pyxis*; do
  [ ! -e "$f" ] || { p pyxis yes; break; }
done
case $(srun --help 2>/dev/null </dev/null) in *container-image*) p pyxis yes ;; esac
$t bash -lc 'module -t avail 2>&1' 2>/dev/null </dev/null | grep -v -e : -e '^ *$' -e 'not found' | head -n @MOST@ |
  while read -r m; do p module "$m"; done
echo end
