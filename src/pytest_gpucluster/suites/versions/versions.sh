# shellcheck shell=sh
# Prints the versions of the software of a node.
PATH=$PATH:/usr/local/bin:/sbin:/usr/sbin:/usr/local/sbin:/opt/slurm/sbin:/opt/slurm/bin:/opt/enroot/bin
tool=$(command -v slurmd || command -v srun) && {
  echo "slurm $("$tool" -V 2>&1)"
  file=$(readlink -f "$tool")
  name=$(dpkg -S "$file" 2>/dev/null | sed -n '1s/:.*//p')
  if [ -n "$name" ]; then
    echo "package deb $name $(dpkg -s "$name" 2>/dev/null | sed -n 's/^Version: //p') $(dpkg -s "$name" 2>/dev/null | sed -n 's/^Maintainer: //p')"
  else
    rpm -qf --qf 'package rpm %{NAME} %{VERSION}-%{RELEASE} %{VENDOR}\n' "$file" 2>/dev/null | sed -n '/^package /p'
  fi
}
echo "enroot $(enroot version 2>/dev/null)"
echo "ofed $(ofed_info -s 2>/dev/null)"
echo "container_toolkit $({ nvidia-ctk --version || nvidia-container-cli --version; } 2>/dev/null | sed -n 's/.*version[: ]*\([0-9]\)/\1/p' | sed -n 1p)"
library=$(ldconfig -p 2>/dev/null | sed -n 's/.*libnccl\.so\.2 .*=> //p' | sed -n 1p)
echo "nccl $([ -z "$library" ] || readlink -f "$library" | sed -n 's/.*libnccl\.so\.//p')"
echo end
