"""MPI: its installation, steps, worlds and errors."""
