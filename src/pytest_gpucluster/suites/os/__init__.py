"""The operating system of every node."""
