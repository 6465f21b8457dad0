# shellcheck shell=sh
# Prints how many GPUs nvidia-smi lists in a task, or why it lists none.
n=$(nvidia-smi -L 2>&1) || {
  printf 'gpucluster-matrix %s %s\n' "$SLURMD_NODENAME" "$(printf %s "nvidia-smi: $n" | tr '\n' ' ')"
  exit 0
}
printf 'gpucluster-matrix %s %s\n' "$SLURMD_NODENAME" "$(printf '%s\n' "$n" | grep -c '^GPU ')"
