# shellcheck shell=sh
# Functions for folders that other users can write to, like /tmp.

# safe FOLDER: fails if another user can replace files there or in a folder above it. A folder that cannot be entered
# passes: the command that uses it states why. In a user namespace, root may be shown as the overflow user.
# shellcheck disable=SC2086 # words of ls are wanted
safe() (
  cd -P -- "$1" 2>/dev/null || exit 0
  u='' v=0 p=$PWD l=
  # without the processes of id: the effective user is in proc(5)
  while read -r k _ u _ && [ "$k" != Uid: ]; do :; done </proc/self/status
  set --
  while [ "${p:-/}" != / ]; do set -- "$@" "$p"; p=${p%/*}; done
  read -r _ _ n </proc/self/uid_map
  [ "$n" = 4294967295 ] || read -r v </proc/sys/kernel/overflowuid
  # shellcheck disable=SC2012 # the owner and the mode are what is read, and stat is not in POSIX
  [ $# = 0 ] || l=$(LC_ALL=C ls -ldn -- "$@")
  set -f
  IFS='
'
  for l in $l; do
    IFS=' '
    set -- $l
    case $3 in (0|"$u"|"$v") ;; (*) echo "a folder of $PWD belongs to another user ($3)" >&2; exit 1 ;; esac
    case $1 in (????????w[!tT]*) echo "all users may replace files in $PWD ($1)" >&2; exit 1 ;; esac
  done
)

# own FOLDER: creates a folder with an unpredictable name in it, and leaves its path in $own.
own() { own=; safe "$1" && own=$(mktemp -d "$1/gpucluster.XXXXXXXXXX"); }
