# shellcheck shell=sh
# breaker FOLDER CHECK NODE MINUTES: leaves the mark FOLDER/CHECK/NODE and prints the number of younger marks of the check.
# Root follows no name that another user chose: FOLDER is no link, and users cannot create files in it.
breaker() {
  [ ! -L "$1" ] || { echo "it is a link" >&2; return 1; }
  safe "${1%/*}/" && mkdir -p "$1" && safe "$1" || return
  # shellcheck disable=SC2012 # stat is not in POSIX
  case $(LC_ALL=C ls -ldn "$1") in (????????w*) echo "all users may create files in it" >&2; return 1 ;; esac
  mkdir -p "$1/$2" && : >"$1/$2/$3" && find "$1/$2" -type f -mmin "-$4" | wc -l
}
