# shellcheck shell=sh
# sh -c THIS sh COMMAND...: runs the command without the variables of Slurm and PMI. A binary built with MPI is then a
# singleton; with them it would join the tasks of all nodes.
for name in $(env | sed -n 's/^\(SLURM_[A-Za-z0-9_]*\|PMI[A-Za-z0-9_]*\)=.*/\1/p'); do unset "$name"; done
exec "$@"
