# shellcheck shell=sh
# Functions for folders that other users can write to, like /tmp.

# safe FOLDER: fails if another user can replace files there or in a folder above it. A folder that cannot be entered
# passes: the command that uses it states why. In a user namespace, root may be shown as the overflow user.
safe() (
  cd -P -- "$1" 2>/dev/null || exit 0
  u=$(id -u) v=0 p=$PWD
  set --
  while [ "${p:-/}" != / ]; do set -- "$@" "$p"; p=${p%/*}; done
  read -r _ _ n </proc/self/uid_map
  [ "$n" = 4294967295 ] || read -r v </proc/sys/kernel/overflowuid
  # shellcheck disable=SC2012 # the owner and the mode are what is read, and stat is not in POSIX
  LC_ALL=C ls -ldn -- "$@" | while read -r m _ o _; do
    case $o in (0|"$u"|"$v") ;; (*) echo "a folder of $PWD belongs to another user ($o)" >&2; exit 1 ;; esac
    case $m in (????????w[!tT]*) echo "all users may replace files in $PWD ($m)" >&2; exit 1 ;; esac
  done
)

# own FOLDER: creates a folder with an unpredictable name in it, and prints its path.
own() { safe "$1" && mktemp -d "$1/gpucluster.XXXXXXXXXX"; }
