# shellcheck shell=sh
# Prints whether PAM of sshd has pam_slurm_adopt. Only lines that matter: the files of all nodes come in one answer.
# shellcheck disable=SC2012 # files of packages
files=$(ls /etc/pam.d 2>/dev/null | sed 's|^|/etc/pam.d/|')
# shellcheck disable=SC2086 # a list of files
lines=$([ -z "$files" ] || grep -HsE '^[^#]*(pam_slurm_adopt|include|substack)' $files)
printf '%s\n' "$lines" | sed -n 's/^[^:]*\/pam\.d\//pam|/p'
printf '%s\n' "$files" | sed -n 's:^/etc/pam\.d/sshd$:sshd|yes:p'
named=$(printf '%s\n' "$lines" | sed -n 's/.*[[:space:]]\(\/[^[:space:]]*pam_slurm_adopt\.so\).*/\1/p')
for place in $named /lib*/security/pam_slurm_adopt.so /lib/*/security/pam_slurm_adopt.so \
  /usr/lib*/security/pam_slurm_adopt.so /usr/lib/*/security/pam_slurm_adopt.so; do
  [ ! -e "$place" ] || echo "module|$place"
done
PATH=$PATH:/usr/sbin:/sbin
use=$(sshd -T -C user=root,host=localhost,addr=127.0.0.1 2>/dev/null | grep -i '^usepam ')
[ -n "$use" ] || use=$(grep -hisE '^[[:space:]]*UsePAM[[:space:]]' /etc/ssh/sshd_config.d/*.conf /etc/ssh/sshd_config | head -n 1)
echo "usepam|$use"
