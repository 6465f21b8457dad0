# shellcheck shell=sh
# Prints facts of a task, outside or inside of a container, as lines `c|KEY|VALUE`. POSIX sh with few commands, since an
# image may be minimal. $1 is a further action: none, try_write, write, remove, environment; $2 is unique to the run.
action=$1 nonce=$2 own=
report() { printf 'c|%s|%s\n' "$1" "$2"; }
has() { command -v "$1" > /dev/null 2>&1; }
can_write() { if (: > "$1") 2> /dev/null; then rm -f "$1"; echo yes; else echo no; fi; }
there() { if [ -e "$1" ]; then echo yes; else echo no; fi; }

root=
while read -r _ _ device source target _; do
    [ "$target" != / ] || root="$device $source"
done < /proc/self/mountinfo
report root "$root"
# shellcheck disable=SC2012 # an image may lack readlink
report namespace "$(ls -l /proc/self/ns/mnt 2> /dev/null | sed 's/.*-> //')"
while read -r key value _; do
    [ "$key" != Uid: ] || report uid "$value"
done < /proc/self/status
read -r inside outside _ < /proc/self/uid_map && report uid_map "$inside $outside"
report release "$( (. /etc/os-release && echo "$ID $VERSION_ID") 2> /dev/null)"
report workdir "$PWD"
report path "$PATH"
report home "$HOME"
report memlock "$(ulimit -l 2> /dev/null)"
has stat && report shm "$(stat -f -c '%b %S' /dev/shm 2> /dev/null)"
for name in RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT SLURM_PROCID SLURM_LOCALID SLURM_NTASKS SLURM_JOB_ID \
    GPUCLUSTER_PASSED; do
    eval "[ -z \"\${$name+set}\" ] || report \"env.$name\" \"\$$name\""
done
for name in $GPUCLUSTER_VARIABLES; do
    eval "[ -z \"\${$name+set}\" ] || report \"env.$name\" \"\$$name\""
done
devices=0
for device in /dev/nvidia[0-9]*; do [ ! -c "$device" ] || devices=$((devices + 1)); done
report devices "$devices"
if has nvidia-smi; then
    nvidia-smi -L 2> /dev/null | while read -r line; do
        case $line in *UUID:*) line=${line##*UUID: } && report "gpu.${line%)}" 1 ;; esac
    done
    report smi yes
fi
report rc "$(there /etc/rc)"
report mark "$(there "/.gpucluster-root-$nonce")"
for home in "$HOME" "$GPUCLUSTER_HOME" /root; do
    [ ! -e "$home/.gpucluster-$nonce" ] || { report at_home yes && break; }
done
if [ -d /gpucluster-rw ]; then
    read -r token < /gpucluster-rw/token && report token "$token"
    if (echo "$nonce" > "/gpucluster-rw/from-$SLURMD_NODENAME") 2> /dev/null; then report wrote yes; fi
    report ro_writable "$(can_write /gpucluster-ro/try)"
fi
case $action in
    try_write) report writable "$(can_write "/.gpucluster-try-$nonce")" ;;
    write)
        (: > "/.gpucluster-root-$nonce") 2> /dev/null && report marked yes
        [ ! -e /etc/rc.local ] || : > /etc/rc.local
        ;;
    remove) rm -f "/.gpucluster-root-$nonce" ;;
    environment)
        while IFS='=' read -r name value; do
            case $name in '' | *[!A-Za-z0-9_]*) ;; *) report "image.$name" "$value" && [ "$name" != PATH ] || own=$value ;; esac
        done < /etc/environment
        # as changed by /etc/profile: Enroot starts a login shell by default
        [ -z "$own" ] || report login_path "$(PATH=$own exec sh -l -c 'echo "$PATH"' 2> /dev/null)"
        ;;
esac
report end "$nonce"
