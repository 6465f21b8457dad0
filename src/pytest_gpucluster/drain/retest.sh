# shellcheck shell=sh
# sh -c THIS trial NODE REASON...: undrains these nodes, and drains them again with their reasons when stdin ends.
# Lines in: `keep NODE`. Lines out: `undrained|changed|unread|refused|drained|left|lost NODE`.
# It decides as why_not_resume and why_not_drain_again of policy.py do.
trap '' HUP INT TERM PIPE
read_node() {
  shown=$(scontrol show node -o "$1" </dev/null) || return 1
  case "$shown" in *" State="*) ;; *) return 1 ;; esac
  state=${shown#* State=}; state=${state%% *}
  shown=${shown%% Comment=*}; shown=${shown%% Extra=*}
  case "$shown" in *" Reason="*) ;; *) reason=''; return ;; esac
  reason=${shown#* Reason=}; mark=${reason##* \[}
  case "${mark#*]}" in ''|' '|' '[A-Z]*) reason=${reason% \[*} ;; esac  # else a second line follows
}
made_by_slurm() {
  words=$state+
  while [ -n "$words" ]; do
    word=${words%%+*}; words=${words#*+}
    case "$word" in *[*~#\$-]) word=${word%?} ;; esac
    # shellcheck disable=SC2254 # a pattern, like DRAIN
    case "$word" in @STATES@|$1) ;; *) return 1 ;; esac
  done
}
drained_with() {
  case "$state" in *DRAIN*) [ "$reason" = "$1" ] && made_by_slurm DRAIN ;; *) return 1 ;; esac
}
undrained_from() {
  case "$reason" in
    ''|"$1") made_by_slurm UNKNOWN ;;
    "@SILENT@"|"$1 : @SILENT@") made_by_slurm UNKNOWN || made_by_slurm DOWN ;;
    *) return 1 ;;
  esac
}
undrain() {
  while [ $# -gt 0 ]; do
    if ! read_node "$1"; then finished="$finished$1 "; echo "unread $1"
    elif ! drained_with "$2"; then finished="$finished$1 "; echo "changed $1"
    elif scontrol update NodeName="$1" State=UNDRAIN </dev/null; then echo "undrained $1"
    else echo "refused $1"; fi
    shift 2
  done
}
drain_again() {
  tries=0
  while [ $tries -lt 200 ]; do
    if read_node "$1"; then
      undrained_from "$2" || { echo "left $1"; return; }
      scontrol update NodeName="$1" State=DRAIN Reason="$2" </dev/null && { echo "drained $1"; return; }
    fi
    tries=$((tries + 1)); sleep 3
  done
  echo "lost $1"
}
drain_others() {
  while [ $# -gt 0 ]; do
    case "$finished" in *" $1 "*) ;; *) drain_again "$1" "$2" ;; esac
    shift 2
  done
}
exec 2>/dev/null
finished=' '
undrain "$@"
while read -r word node; do finished="$finished$node "; done
drain_others "$@"
