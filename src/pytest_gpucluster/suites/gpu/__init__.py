"""The GPUs of every node."""
