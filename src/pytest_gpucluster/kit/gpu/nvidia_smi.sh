# shellcheck shell=sh
# Prints what nvidia-smi shows, one section after `@@ NAME STATUS` for each call. After a call that was stopped or that
# stopped answering no further one is started: its status is `-`.
s=
n() {
  if [ -n "$s" ]; then o='' r=-; return; fi
  o=$(nvidia-smi "$@" 2>&1)
  r=$?
  case $r in @STOPPED@) s=1 ;; esac
}
h() { echo "@@ $1 $r"; }
p() { printf '%s\n' "$o"; }
f=@FIELDS@
# without the fields that this driver does not know
while :; do
  n --query-gpu="$f" --format=csv
  case $o in *'Field "'?*'" is not a valid field to query'*)
    x=${o#*Field \"}
    x=${x%%\"*}
    case ",$f," in *",$x,"*)
      f=",$f,"
      f=${f%%",$x,"*},${f#*",$x,"}
      f=${f#,}
      f=${f%,}
      continue
      ;;
    esac
    ;;
  esac
  break
done
h gpus
p
g=$r
n --query-remapped-rows=@ROWS@ --format=csv
h rows
p
n --query-compute-apps=@APPS@ --format=csv
h apps
p
# the warning is below this table, even if the queries do not show it (microsoft/pai, issue 3756)
n
h header
case $o in *nfoROM*) p | grep nfoROM ;; esac
case $o in *CUDA*) o=${o#*CUDA}; printf 'CUDA%s\n' "${o%%|*}" ;; esac
n nvlink -s
h nvlink
p
n nvlink -e
h errors
read -r u </proc/uptime
echo "uptime $u"
p | awk @FOLD@
n topo -m
h topology
p
n topo -p2p n
h p2p
p
[ "$g" = 0 ]
