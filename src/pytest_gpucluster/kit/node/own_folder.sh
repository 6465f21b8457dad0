# shellcheck shell=sh
# Functions for folders that other users can write to, like /tmp.

# safe FOLDER: fails if another user can replace files there or in a folder above it. A folder that cannot be entered
# passes: the command that uses it states why. In a user namespace, root may be shown as the overflow user. One process, and no
# subshell: the variables safe_* and the current folder are its own.
# shellcheck disable=SC2086 # words of ls are wanted
safe() {
  safe_from=$PWD
  cd -P -- "$1" 2>/dev/null || return 0
  safe_in=$PWD safe_root=0 safe_list=
  # without the processes of id: the effective user is in proc(5)
  while read -r safe_k _ safe_u _ && [ "$safe_k" != Uid: ]; do :; done </proc/self/status
  set --
  safe_k=$PWD
  while [ "${safe_k:-/}" != / ]; do set -- "$@" "$safe_k"; safe_k=${safe_k%/*}; done
  cd -- "$safe_from" 2>/dev/null || cd /
  read -r _ _ safe_k </proc/self/uid_map
  [ "$safe_k" = 4294967295 ] || read -r safe_root </proc/sys/kernel/overflowuid
  # shellcheck disable=SC2012 # the owner and the mode are what is read, and stat is not in POSIX
  [ $# = 0 ] || safe_list=$(LC_ALL=C ls -ldn -- "$@")
  set -f
  IFS='
'
  for safe_k in $safe_list; do
    IFS=' '
    set -- $safe_k
    case $3 in (0|"$safe_u"|"$safe_root") ;; (*) echo "a folder of $safe_in belongs to another user ($3)" >&2; set --; break ;; esac
    case $1 in (????????w[!tT]*) echo "all users may replace files in $safe_in ($1)" >&2; set --; break ;; esac
  done
  unset IFS
  set +f
  [ $# != 0 ] || [ -z "$safe_list" ]
}

# own FOLDER: creates a folder with an unpredictable name in it, and leaves its path in $own.
# shellcheck disable=SC2034 # the caller reads it
own() { own=; safe "$1" && own=$(mktemp -d "$1/gpucluster.XXXXXXXXXX"); }
