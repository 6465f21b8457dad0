"""Slurm's commands: inventory, allocation, steps, Pyxis."""
