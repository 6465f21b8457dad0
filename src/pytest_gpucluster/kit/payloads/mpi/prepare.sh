# shellcheck shell=sh
# sh prepare.sh FOLDER MPIRUN LANGUAGES COMMAND... < C_SOURCE   COMMAND: the program of Python
# Prints the MPI of a node, and prepares the program in FOLDER. One task per node; each line: mark, TAB, key, TAB, text.
folder=$1 mpirun=$2 languages=$3 compiler=mpicc; shift 3
case $mpirun in */*) [ ! -x "${mpirun%/*}/mpicc" ] || compiler=${mpirun%/*}/mpicc;; esac  # of the same MPI
report() { printf 'gpucluster-mpi-fact\t%s\t%s\n' "$1" "$2"; }
last() { printf '%s\n' "$1" | grep -v '^ *$' | tail -n 1; }

# prints all programs of a name on PATH, in its order; "conda" if the folder belongs to a conda environment
on_path() {
  old=$IFS; IFS=:; set -f
  for place in $PATH; do
    [ -f "$place/$1" ] && [ -x "$place/$1" ] || continue
    if [ -d "$place/../conda-meta" ]; then report "$2" "conda $place/$1"; else report "$2" "plain $place/$1"; fi
  done
  IFS=$old; set +f
}

on_path "$mpirun" mpirun
found=$(command -v "$mpirun") && report mpirun-first "$found" &&
  report mpirun-version "$("$mpirun" --version 2>&1 | head -n 2 | tr '\n' ' ')"
if command -v ompi_info >/dev/null; then
  report ompi-pmi "$(ompi_info --parsable 2>/dev/null | sed -n 's/^mca:pmix:\([^:]*\):.*/\1/p' | sort -u | tr '\n' ' ')"
fi
command -v mpichversion >/dev/null && report mpich "$(mpichversion 2>/dev/null | grep -i configure | head -n 1)"

case " $languages " in *" c "*)
  mine=$folder/world.$SLURMD_NODENAME.$$
  cat > "$mine.c" || exit 1
  if ! command -v "$compiler" >/dev/null; then report problem-c "$compiler: not found"; report code-c no_compiler
  elif ! text=$("$compiler" -O1 -o "$mine" "$mine.c" 2>&1); then report problem-c "$compiler: $(last "$text")"; report code-c not_compiled
  elif ! text=$("$mine" where 2>&1); then
    report problem-c "the compiled program does not start: $(last "$text")"; report code-c not_started
  else
    printf '%s\n' "$text" | sed 's/^gpucluster-mpi /gpucluster-mpi-c /'
    mv -f "$mine" "$folder/world"   # nodes that share the folder replace each other's whole file
  fi
  rm -f "$mine.c" "$mine";;
esac
case " $languages " in *" python "*)
  if ! text=$("$@" 2>&1); then report problem-python "$(last "$text")"
  else printf '%s\n' "$text" | sed 's/^gpucluster-mpi /gpucluster-mpi-python /'
  fi;;
esac
exit 0
