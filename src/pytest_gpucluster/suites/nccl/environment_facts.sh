# shellcheck shell=sh
# Prints what sets NCCL of a task: variables, the files that may set them, adapters, interfaces and libraries.
# shellcheck disable=SC2012,SC2045 # names of the kernel; a simulated node has its own ls
# shellcheck disable=SC2046,SC2086 # echo joins words by one blank and omits empty ones
PATH=$PATH:/sbin:/usr/sbin
env | sed -n 's/^NCCL_[A-Za-z0-9_]*=/env &/p'
user=${NCCL_CONF_FILE:-${HOME:-}/.nccl.conf}
for file in "$user" /etc/nccl.conf; do
  echo "file $file"
  cat "$file" 2>/dev/null | sed 's/^/| /'
  echo
done
# files that may set variables of tasks: PAM, login shells, slurmd's unit, prologs, Enroot. -s: without those missing
grep -Hns 'NCCL_[A-Z0-9_]*=' /etc/environment /etc/security/pam_env.conf /etc/profile /etc/bash.bashrc /etc/bashrc \
  /etc/profile.d/*.sh "${HOME:-/}/.profile" "${HOME:-/}/.bash_profile" "${HOME:-/}/.bashrc" /etc/default/slurmd \
  /etc/sysconfig/slurmd /etc/systemd/system/slurmd.service.d/*.conf /etc/slurm/*prolog* /etc/slurm/*.d/* \
  /etc/slurm/plugstack.conf /etc/enroot/environ.d/* /etc/enroot/hooks.d/* | head -n 200 | sed 's/^/seen /'
d=/sys/class/infiniband
for a in $(ls $d 2>/dev/null); do
  for p in $(ls $d/$a/ports 2>/dev/null); do
    v=
    [ ! -e $d/$a/device/physfn ] || v=virtual
    echo port $a $p $(cat $d/$a/ports/$p/state $d/$a/ports/$p/link_layer 2>/dev/null | tr -d ' ') $v
  done
done
echo net $(ls /sys/class/net 2>/dev/null)
# a file may end without a newline
{ env; cat "$user"; echo; cat /etc/nccl.conf; echo; } 2>/dev/null |
  sed -n 's|^NCCL_[A-Z0-9_]*=\(/.*\)$|\1|p' | while read -r path; do
    if [ -r "$path" ]; then echo "readable $path"; else echo "unreadable $path"; fi
  done
if ldconfig -p >/dev/null 2>&1; then
  echo searched
  { ldconfig -p; IFS=:; for folder in ${LD_LIBRARY_PATH:-}; do ls "$folder" 2>/dev/null; done; } |
    sed -n 's/^[[:space:]]*\(lib[^ ]*nccl[^ ]*\.so[^ ]*\).*/lib \1/p'
fi
echo end
