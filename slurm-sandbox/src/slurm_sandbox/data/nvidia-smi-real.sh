#!/bin/sh
# The real nvidia-smi, restricted to this node's GPUs and counted from 0, as Slurm counts them.
@SHARED@
REAL=@REAL@
ids=
[ ! -e "$N/gpu.ids" ] || read -r ids < "$N/gpu.ids"
[ -n "$ids" ] || exec "$REAL" "$@"
first=${ids%%,*}
wanted=
for a; do
  shift
  case $a in
    -i | --id) wanted=next ;;
    -i=* | --id=*) wanted=${a#*=} ;;
    *) if [ "$wanted" = next ]; then wanted=$a; else set -- "$@" "$a"; fi ;;
  esac
done
# indices of the node become those of the host; UUIDs and bus ids stay
if [ -n "$wanted" ]; then
  host=
  for i in $(echo "$wanted" | $TR , ' '); do
    case $i in *[!0-9]*) ;; *) i=$((i + first)) ;; esac
    host=$host${host:+,}$i
  done
  ids=$host
fi
case ${1:-} in
  topo)
    # topo has no filter: keep the node's rows and columns
    "$REAL" "$@" | $AWK -F '\t' -v OFS='\t' -v ids="$ids" '
      function strip(text) { gsub(/\033\[[0-9]*m/, "", text); gsub(/ /, "", text); return text }
      BEGIN { n = split(ids, id, ","); for (i = 1; i <= n; i++) new["GPU" id[i]] = "GPU" i - 1 }
      !header && /GPU[0-9]/ {
        header = 1
        for (i = 2; i <= NF; i++) {
          name = strip($i)
          drop[i] = name ~ /^GPU[0-9]+$/ && !(name in new)
          if (name in new) sub(name, "@" new[name], $i)
          else if (drop[i]) $i = ""
          if (drop[i]) continue
          line = line OFS $i
        }
        sub(/@/, "", line); gsub(/\t@/, "\t", line); gsub(/@GPU/, "GPU", line)
        if (line !~ /\033\[4m/) sub(/GPU/, "\033[4mGPU", line)
        print strip($1) == "" && $1 ~ / / ? " " line : line
        next
      }
      /^ ?GPU[0-9]/ {
        name = strip($1)
        if (!(name in new)) next
        line = ($1 ~ /^ /) ? " " new[name] : new[name]
        for (i = 2; i <= NF; i++) if (!drop[i]) line = line OFS $i
        print line
        next
      }
      /^ ?NIC[0-9]/ {
        line = $1
        for (i = 2; i <= NF; i++) if (!drop[i]) line = line OFS $i
        print line
        next
      }
      { print }'
    exit
    ;;
  nvlink)
    "$REAL" "$@" -i "$ids" | $AWK -v first="$first" '/^GPU [0-9]+:/ { sub(/^GPU [0-9]+/, "GPU " ($2 + 0) - first) } { print }'
    exit
    ;;
esac
index=0
for a; do
  case $a in --query-gpu=*) index=1 ;; -L | --list-gpus) index=2 ;; esac
done
case $index in
  0) exec "$REAL" "$@" -i "$ids" ;;
  2) "$REAL" "$@" -i "$ids" | $AWK -v first="$first" '/^GPU [0-9]+:/ { sub(/^GPU [0-9]+/, "GPU " ($2 + 0) - first) } { print }' ;;
  1)
    fields=
    for a; do case $a in --query-gpu=*) fields=${a#*=} ;; esac; done
    "$REAL" "$@" -i "$ids" > /dev/null || exec "$REAL" "$@" -i "$ids"
    "$REAL" "$@" -i "$ids" | $AWK -F ', ' -v OFS=', ' -v first="$first" -v count="$(echo "$ids" | $TR , '\n' | $GREP -c .)" \
      -v fields="$fields" '
        BEGIN { n = split(fields, field, ","); for (i = 1; i <= n; i++) gsub(/ /, "", field[i]) }
        { for (i = 1; i <= n; i++) {
            if (field[i] == "index" && $i ~ /^[0-9]+$/) $i -= first
            if (field[i] == "count" && $i ~ /^[0-9]+$/) $i = count } print }'
    ;;
esac
