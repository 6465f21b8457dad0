"""Functions as Slurm jobs."""
