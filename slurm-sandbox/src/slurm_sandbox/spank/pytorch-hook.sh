#!/bin/sh
# Sets PyTorch's variables for the rendezvous if image or user set PYTORCH_VERSION; existing values remain.
grep -q '^PYTORCH_VERSION=' "$ENROOT_ENVIRON" || exit 0
add() { grep -q "^$1=" "$ENROOT_ENVIRON" || printf '%s=%s\n' "$1" "$2" >> "$ENROOT_ENVIRON"; }
add MASTER_ADDR "$(scontrol show hostnames "$SLURM_STEP_NODELIST" | head -n 1)"
add MASTER_PORT "$((61000 + SLURM_JOB_ID % 4536))"
add WORLD_SIZE "$SLURM_NTASKS"
[ "${SLURM_STEP_NUM_TASKS:-1}" -le "${SLURM_STEP_NUM_NODES:-1}" ] || add OMP_NUM_THREADS 1
