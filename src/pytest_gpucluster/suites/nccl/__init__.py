"""NCCL's collectives, judged against thresholds."""
