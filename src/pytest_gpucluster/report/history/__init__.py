"""What is stored over runs, and what is asked of it."""
