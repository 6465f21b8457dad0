"""The command `gpucluster`."""
