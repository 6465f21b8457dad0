# shellcheck shell=sh
# The base environment of commands at the other end of a connection, as base_environment() and command_path() make it here.
far_slurm=$(command -v srun || command -v scontrol) && far_slurm=${far_slurm%/*} || far_slurm=
for far_name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
  case $far_name in @NAMES@) ;; *) command unset "$far_name" ;; esac
done 2>/dev/null
export PATH=@PATH@
case :$PATH: in
  *":$far_slurm:"*) ;;
  *) [ -z "$far_slurm" ] || if command -v srun >/dev/null; then PATH=$far_slurm:$PATH; else PATH=$PATH:$far_slurm; fi ;;
esac
export LANG=@LOCALE@
umask 022
