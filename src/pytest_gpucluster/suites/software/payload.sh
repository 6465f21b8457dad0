# shellcheck shell=bash
# Functions of the script that facts.py writes for bash. Each step prints its output, then the line
# "@@software STEP ENTRY STATUS MILLISECONDS"; module commands print to stderr, which goes to stdout here.

mark() { printf '\n@@software %s %s %s %s\n' "$1" "$entry" "$2" "$3"; }

timed() {
  local step=$1 start rc
  shift
  start=$(date +%s%3N)
  "$@"
  rc=$?
  mark "$step" $rc $(($(date +%s%3N) - start))
  return $rc
}

paths() { printf 'PATH=%s\nLD_LIBRARY_PATH=%s\nPYTHONPATH=%s\n' "$PATH" "${LD_LIBRARY_PATH-}" "${PYTHONPATH-}"; }
loaded() { printf '\nLOADEDMODULES=%s\n' "${LOADEDMODULES-}"; }
begin() { entry=$1; mark begin 0 0; }
end() { mark end 0 0; }

load_all() {
  timed before loaded
  timed paths_before paths
  for name; do
    timed avail module -t avail "$name"
    timed load module load "$name"
  done
  timed list module -t list
  timed after loaded
}

output() { timed output bash -c "$1" </dev/null; }

unload_all() {
  for name; do timed unload module unload "$name"; done
  timed unloaded loaded
  timed paths_unloaded paths
}

activate() {
  eval "$("$1" shell.posix hook)" && conda activate "$2"
}

environment() { # CONDA NAME OPTION PATTERN
  ( timed activate activate "$1" "$2"; timed place eval 'echo "$CONDA_PREFIX"; command -v python' )
  timed python "$1" run "$3" "$2" python --version
  [ -z "$4" ] || timed packages "$1" list "$3" "$2" --json "$4" 2>/dev/null
}
