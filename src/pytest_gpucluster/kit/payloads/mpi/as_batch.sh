# shellcheck shell=sh
# sh as_batch.sh HOSTLIST NODES TASKS_PER_NODE COMMAND...
# Runs a command on one node with the variables of a batch script of `sbatch -N NODES --ntasks-per-node=TASKS_PER_NODE`:
# mpirun takes its hosts and slots from Slurm's variables, which in a step describe the step.
hosts=$1 nodes=$2 tasks=$3; shift 3
for name in $(env | sed -n 's/^\(SLURM_[A-Za-z0-9_]*\|PMI[A-Za-z0-9_]*\)=.*/\1/p'); do
  case $name in
    SLURM_JOB*|SLURM_CONF|SLURM_CLUSTER_NAME|SLURM_CPUS_ON_NODE|SLURM_SUBMIT*|SLURM_TOPOLOGY*|SLURM_WORKING_CLUSTER) ;;
    *) unset "$name";;
  esac
done
export SLURM_NODELIST="$hosts" SLURM_JOB_NODELIST="$hosts" SLURM_NNODES="$nodes" SLURM_JOB_NUM_NODES="$nodes"
export SLURM_NTASKS=$((nodes * tasks)) SLURM_NPROCS=$((nodes * tasks)) SLURM_TASKS_PER_NODE="$tasks(x$nodes)"
# An mpirun that takes its hosts from Slurm passes none to srun, which then chooses any of the job's nodes (23.11, 25.11).
# Slurm itself puts --external-launcher into these variables. An mpirun with a host option passes its hosts to srun.
case " $* " in
*" -host"*|*" --host"*|*" -H "*|*" -f "*|*" -machinefile"*|*" --machinefile"*) ;;
*)
  for name in OMPI_MCA_plm_slurm_args PRTE_MCA_plm_slurm_args HYDRA_LAUNCHER_EXTRA_ARGS I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS; do
    eval "export $name=\"\${$name:+\$$name }--nodelist=\$hosts\""
  done ;;
esac
export SLURM_OVERLAP=1   # the step that mpirun starts shares the nodes with this one
# a run as root is intended
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec "$@"
