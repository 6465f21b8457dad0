# shellcheck shell=sh
# Two tasks per node in one container: the first runs the image's sshd as the user of the step, with a host key and an
# authorized key of its own on a free port of 127.0.0.1; the second runs a command through it. $2 is unique to the run.
# Prints lines `c|KEY|VALUE`. Nothing takes longer than LIMIT seconds; the folder of keys is removed at the end.
nonce=$2 LIMIT=40
folder=/gpucluster-rw/sshd-$SLURMD_NODENAME
report() { printf 'c|%s|%s\n' "$1" "$2"; }
fail() { report problem "$1" && finish; }
finish() { report end "$nonce" && exit 0; }
# wait for a file that the other task writes, or for the end of a process
wait_for() {
    left=$((LIMIT * 5))
    while [ ! -e "$1" ]; do
        left=$((left - 1))
        [ "$left" -gt 0 ] && { [ -z "$2" ] || kill -0 "$2" 2> /dev/null; } || return 1
        sleep 0.2
    done
}
last_line() { tail -n 1 "$1" 2> /dev/null | cut -c1-200 | tr -d '\r'; }

listen() { # PORT: run sshd there; its log states whether it listens
    : > "$folder/log"
    "$sshd" -D -e -f "$folder/config" -p "$1" 2> "$folder/log" &
    pid=$!
    left=50
    while [ "$left" -gt 0 ] && kill -0 "$pid" 2> /dev/null; do
        if grep -q 'Server listening' "$folder/log"; then return 0; fi
        left=$((left - 1))
        sleep 0.1
    done
    kill "$pid" 2> /dev/null
    return 1
}

serve() {
    pid=
    trap 'exit 1' TERM INT
    trap '[ -z "$pid" ] || kill "$pid" 2> /dev/null; rm -rf "$folder"' EXIT
    mkdir -m 700 "$folder" || fail "the mounted folder cannot be written"
    sshd=$(PATH=$PATH:/usr/sbin:/sbin:/usr/local/sbin command -v sshd) || refuse "the image has no sshd"
    command -v ssh-keygen > /dev/null || refuse "the image has no ssh-keygen"
    for key in host user; do
        ssh-keygen -q -t ed25519 -N '' -f "$folder/$key" > "$folder/log" 2>&1 || refuse "ssh-keygen: $(last_line "$folder/log")"
    done
    cp "$folder/user.pub" "$folder/authorized_keys"
    printf '%s\n' "HostKey $folder/host" "AuthorizedKeysFile $folder/authorized_keys" 'ListenAddress 127.0.0.1' \
        'PidFile none' 'PasswordAuthentication no' 'StrictModes no' 'UsePAM no' > "$folder/config"
    port=$((20000 + (${SLURM_JOB_ID:-0} * 131 + ${SLURM_NODEID:-0} * 17) % 12000)) tries=5
    until listen "$port"; do
        tries=$((tries - 1)) port=$((port + 1))
        { [ "$tries" -gt 0 ] && grep -q 'Address already in use' "$folder/log"; } || refuse "sshd: $(last_line "$folder/log")"
    done
    report port "$port"
    echo "$port" > "$folder/ready.new" && mv "$folder/ready.new" "$folder/ready"
    wait_for "$folder/done" "$pid" || report problem "sshd: $(last_line "$folder/log")"
    kill "$pid" 2> /dev/null
    wait "$pid" 2> /dev/null
    report ended yes
    pid=
    finish
}

# the other task must not wait for a server that does not come
refuse() {
    : > "$folder/refused"
    report problem "$1"
    sleep 1
    finish
}

connect() {
    left=$((LIMIT * 5))
    while [ ! -e "$folder/ready" ]; do
        [ ! -e "$folder/refused" ] || { report refused yes && finish; }
        left=$((left - 1))
        [ "$left" -gt 0 ] || { report refused yes && finish; }
        sleep 0.2
    done
    trap ': > "$folder/done"' EXIT
    command -v ssh > /dev/null || fail "the image has no ssh"
    user=$(id -un 2> /dev/null) || fail "user $(id -u) has no entry in /etc/passwd of the container"
    read -r port < "$folder/ready"
    echo "[127.0.0.1]:$port $(cut -d' ' -f1,2 "$folder/host.pub")" > "$folder/known"
    answer=$(ssh -F /dev/null -i "$folder/user" -p "$port" -o BatchMode=yes -o ConnectTimeout=10 -o IdentitiesOnly=yes \
        -o StrictHostKeyChecking=yes -o UserKnownHostsFile="$folder/known" -o LogLevel=ERROR "$user@127.0.0.1" \
        "(. /etc/os-release; echo $nonce \$ID \$VERSION_ID); set -- \$SSH_CONNECTION; echo \$4" 2> "$folder/errors" < /dev/null)
    report rc $?
    report answer "$(echo "$answer" | tr '\n' ' ' | cut -c1-200)"
    cat "$folder/errors" >> "$folder/log"  # sshd names the reason that it hides from ssh
    report message "$(grep -v -e 'Server listening' -e '^Connection' "$folder/log" | tail -n 3 | tr '\r\n' '  ' | cut -c1-300)"
    finish
}

if [ "$SLURM_LOCALID" = 0 ]; then serve; else connect; fi
