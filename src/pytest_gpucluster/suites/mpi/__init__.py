"""MPI programs by mpirun and srun."""
