"""How nodes are reached: through Slurm, over SSH, by one channel to all of them."""
