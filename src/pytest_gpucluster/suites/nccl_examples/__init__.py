"""NCCL's three classic programs."""
