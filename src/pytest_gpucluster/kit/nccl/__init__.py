"""NCCL: the programs of nccl-tests, their logs and rows, floors and verdicts."""
