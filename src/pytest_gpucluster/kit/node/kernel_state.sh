# shellcheck shell=sh
# Prints the state that answers the questions of a folded kernel log ($f, see kernel_log.awk), as lines
# `state<TAB>PART<TAB>...`, and reads only the parts that it asks for. Nothing is printed if it asks for none.
# shellcheck disable=SC2010,SC2012,SC2045 # names of the kernel; a recorded or simulated node has its own ls
t=$(printf '\t')
most=@MOST@ seconds=@SECONDS@
needs() { case ${f?} in (*"need$t$1"*) return 0 ;; esac; return 1; }
# put NAME: prints lines with their name
put() { head -n 200 | cut -c 1-300 | awk -v n="$1" '$0 != "" { print "state\t" n "\t" $0 }'; }
of() {
  printf '%s\n' "$f" | awk -F "$t" -v n="$1" -v most="$most" '
    $1 == n && c++ < most { if ($2 ~ /^nvme[0-9]+$/) $2 = $2 "n1"; print $2 }' | sort -u
}
@OWN_FOLDER@
# job NAME ARGUMENT WORD...: runs the words in the background, with the output in a file of the folder $d
job() {
  n=$((n + 1))
  echo "$1$t$2" >"$d/$n.name"
  shift 2
  ( "$@" </dev/null >"$d/$n.out" 2>&1; echo "$?" >"$d/$n.rc" ) >/dev/null 2>&1 &
}
done_jobs() { set -- "$d"/*.rc; [ -e "$1" ] || shift; [ "$#" -ge "$n" ]; }
sector() {
  printf '%s\n' "$f" | awk -F "$t" -v k="$1" '$1 == "sector" && $2 == k { n = $3 } END { printf "%d", n / 8 }'
}
waiting() {
  ps -eo pid=,ppid=,stat=,etimes=,user=,comm= 2>/dev/null |
    awk '{ n++ } $3 ~ /^D/ { print $1, $6, ($1 == 2 || $2 == 2 ? "kernel" : "") } END { print "tasks", (n > 0) }' |
    while read -r p c k; do
      echo "$p $c $k $(cat "/proc/$p/status" 2>/dev/null | grep voluntary | tr -d '\n' | tr '\t' ' ')"
    done
}
case $f in (*"need$t"*)
  export LC_ALL=C
  echo "state${t}read"
  n=0 d=
  for p in /dev/shm /tmp /var/tmp; do [ -n "$d" ] || d=$(own "$p" 2>/dev/null); done
  m='' q=''
  if needs mounts || needs disks || needs tasks; then
    m=$(cat /proc/self/mountinfo 2>/dev/null | grep -v -E " - (@OWN_TYPES@) " | grep -v -E "^([^ ]+ ){4}/(proc|sys|run/user)/")
    printf '%s\n' "$m" | put mountinfo
    q=$(cat /proc/mounts 2>/dev/null | grep -v -E "^[^ ]+ [^ ]+ (@OWN_TYPES@) ")
    printf '%s\n' "$q" | put mounts
    cat /etc/fstab 2>/dev/null | grep -v "^#" | put fstab
    awk 'NR > 1 { print $1 }' /proc/swaps 2>/dev/null | put swap
    for k in $(ls -d /proc/spl/kstat/zfs/*/state 2>/dev/null); do
      p=${k%/state}
      echo "${p##*/} $(cat "$k" 2>/dev/null)"
    done | put pool
  fi
  if [ -n "$d" ]; then
    i=0
    { printf '%s\n' "$m" | awk '{ print $5 }'; printf '%s\n' "$q" | awk '{ print $2 }'; } | sort -u >"$d/paths"
    while read -r p; do
      # df does not accept a path with an escape
      case $p in (*\\*|"") continue ;; esac
      i=$((i + 1))
      [ "$i" -gt "$most" ] || job df "$p" df -P "$p"
    done <"$d/paths"
    if needs disks; then
      for k in $(of disk); do
        case $k in (md*|dm-*) continue ;; esac
        job dd "$k" dd "if=/dev/$k" of=/dev/null bs=4096 count=1 iflag=direct "skip=$(sector "$k")"
        if command -v smartctl >/dev/null; then job smart "$k" smartctl -H "/dev/$k"; fi
      done
    fi
    if needs gpu; then seconds=@GPU_SECONDS@; job gpu "" nvidia-smi -q; fi
  fi
  if needs disks || needs mounts; then
    grep -H . /sys/class/block/*/dev 2>/dev/null | grep -v -E "/(loop|ram|zram|nbd)[0-9]+/" | put block
    cat /proc/mdstat 2>/dev/null | put md
    for k in $(of disk); do
      p=$(readlink -f "/sys/class/block/$k" 2>/dev/null)
      h=$(ls "/sys/class/block/$k/holders" "/sys/class/block/$k/$k"*/holders 2>/dev/null | grep -v / | tr '\n' ' ')
      r=$(cat "/sys/class/block/$k/removable" 2>/dev/null)
      echo "$k $p holders ${h}removable $r $(cat "/sys/class/block/$k/device/model" 2>/dev/null)"
    done | put disk
  fi
  if needs pci || needs rate || needs gpu; then
    for k in $(of pci); do
      p=/sys/bus/pci/devices/$k
      echo "$k class $(cat "$p/class" 2>/dev/null) $(cat "$p/uevent" 2>/dev/null | tr '\n' ' ')"
      echo "$k has $(ls "$p" 2>/dev/null | tr '\n' ' ')"
    done | put pci
  fi
  if needs pci; then
    for k in $(ls /sys/class/infiniband 2>/dev/null); do
      p=/sys/class/infiniband/$k
      u=$(cat "$p/device/uevent" 2>/dev/null | tr '\n' ' ')
      s=$(cat "$p"/ports/*/state 2>/dev/null | tr '\n' ' ')
      echo "$k ${u}state ${s}rate $(cat "$p"/ports/*/rate 2>/dev/null | tr '\n' ' ')"
    done | put port
    for k in $(ls /sys/class/net 2>/dev/null); do
      p=/sys/class/net/$k
      echo "$k $(cat "$p/device/uevent" 2>/dev/null | tr '\n' ' ')state $(cat "$p/operstate" 2>/dev/null)"
    done | put port
  fi
  if needs tasks && [ -n "$d" ]; then
    waiting >"$d/1"
    sleep 2
    waiting >"$d/2"
    grep -F -x -f "$d/1" "$d/2" | put task
  fi
  if [ -n "$d" ]; then
    w=0
    until done_jobs || [ "$w" -ge "$((seconds * 5))" ]; do sleep 0.2; w=$((w + 1)); done
    i=0
    while [ "$i" -lt "$n" ]; do
      i=$((i + 1)) r=hung
      if [ -e "$d/$i.rc" ]; then r=$(cat "$d/$i.rc"); fi
      k=$(cat "$d/$i.name")
      case $k in
        (gpu*)
          grep -i -E "^GPU |recovery action|reset (required|status)|drain and reset|unable|failed|no devices|lost|not found" \
            "$d/$i.out"
          ;;
        (smart*) grep -i -E "health|permission|unable" "$d/$i.out" ;;
        (*) tail -n 1 "$d/$i.out" ;;
      esac | put "$k$t$r"
      echo "state$t$k$t$r$t"
    done
    rm -rf "$d"
  fi
  ;;
esac
