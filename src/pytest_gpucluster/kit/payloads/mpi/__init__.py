"""Programs that the mpi suite runs on the nodes."""
