"""A real Slurm of virtual nodes on one machine. `slurm_sandbox.api` has all that other software imports."""

__version__ = "0.1.0"
