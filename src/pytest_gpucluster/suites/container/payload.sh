# Tells what a task sees, outside or inside of a container, as lines `c|KEY|VALUE`. POSIX sh, and little else: an image
# may hold next to nothing. $1 is what to do besides: tell, look, write, forget, environment; $2 a word that no other run uses.
act=$1 nonce=$2 own=
tell() { printf 'c|%s|%s\n' "$1" "$2"; }
has() { command -v "$1" > /dev/null 2>&1; }
can_write() { if (: > "$1") 2> /dev/null; then rm -f "$1"; echo yes; else echo no; fi; }
there() { if [ -e "$1" ]; then echo yes; else echo no; fi; }

root=
while read -r _ _ device source target _; do
    [ "$target" != / ] || root="$device $source"
done < /proc/self/mountinfo
tell root "$root"
tell namespace "$(ls -l /proc/self/ns/mnt 2> /dev/null | sed 's/.*-> //')"
while read -r key value _; do
    [ "$key" != Uid: ] || tell uid "$value"
done < /proc/self/status
read -r inside outside _ < /proc/self/uid_map && tell uid_map "$inside $outside"
tell release "$( (. /etc/os-release && echo "$ID $VERSION_ID") 2> /dev/null)"
tell workdir "$PWD"
tell path "$PATH"
tell home "$HOME"
tell memlock "$(ulimit -l 2> /dev/null)"
has stat && tell shm "$(stat -f -c '%b %S' /dev/shm 2> /dev/null)"
for name in RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT SLURM_PROCID SLURM_LOCALID SLURM_NTASKS SLURM_JOB_ID \
    GPUCLUSTER_PASSED; do
    eval "[ -z \"\${$name+set}\" ] || tell \"env.$name\" \"\$$name\""
done
for name in $GPUCLUSTER_ASKED; do
    eval "[ -z \"\${$name+set}\" ] || tell \"env.$name\" \"\$$name\""
done
devices=0
for device in /dev/nvidia[0-9]*; do [ ! -c "$device" ] || devices=$((devices + 1)); done
tell devices "$devices"
if has nvidia-smi; then
    nvidia-smi -L 2> /dev/null | while read -r line; do
        case $line in *UUID:*) line=${line##*UUID: } && tell "gpu.${line%)}" 1 ;; esac
    done
    tell smi yes
fi
tell rc "$(there /etc/rc)"
tell mark "$(there "/.gpucluster-$nonce")"
for home in "$HOME" "$GPUCLUSTER_HOME" /root; do
    [ ! -e "$home/.gpucluster-$nonce" ] || { tell at_home yes && break; }
done
if [ -d /gpucluster-rw ]; then
    read -r token < /gpucluster-rw/token && tell token "$token"
    if (echo "$nonce" > "/gpucluster-rw/from-$SLURMD_NODENAME") 2> /dev/null; then tell wrote yes; fi
    tell ro_writable "$(can_write /gpucluster-ro/try)"
fi
case $act in
    look) tell writable "$(can_write "/.gpucluster-try-$nonce")" ;;
    write)
        (: > "/.gpucluster-$nonce") 2> /dev/null && tell marked yes
        [ ! -e /etc/rc.local ] || : > /etc/rc.local
        ;;
    forget) rm -f "/.gpucluster-$nonce" ;;
    environment)
        while IFS== read -r name value; do
            case $name in '' | *[!A-Za-z0-9_]*) ;; *) tell "image.$name" "$value" && [ "$name" != PATH ] || own=$value ;; esac
        done < /etc/environment
        # what /etc/profile makes of it: Enroot starts a login shell by default
        [ -z "$own" ] || tell login_path "$(PATH=$own exec sh -l -c 'echo "$PATH"' 2> /dev/null)"
        ;;
esac
tell end "$nonce"
