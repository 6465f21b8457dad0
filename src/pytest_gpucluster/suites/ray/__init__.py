"""Ray's head and workers."""
