"""Horovod."""
