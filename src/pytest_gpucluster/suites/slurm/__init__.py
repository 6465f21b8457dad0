"""Slurm's view of nodes, steps and jobs."""
