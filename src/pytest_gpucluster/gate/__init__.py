"""The checks of one node, on that node, without pytest and without Slurm's clients: `gpucluster gate`."""
