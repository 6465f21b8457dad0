"""Codes of findings on a program that found too few GPUs: a missing GPU explains them (suites/gpu/known_cause.py). Pure."""

from __future__ import annotations

import re

FEW_GPUS = "too_few_gpus"  # fewer than it was started for
# no GPU at all, ranks that compute on the CPU, or that share a GPU
TOO_FEW = frozenset({FEW_GPUS, "no_gpu", "no_gpu_named", "shared_gpu", "shared_by_ranks"})

# of nccl-tests, of torch, of CUDA and of nvidia-container-cli
_MESSAGE = re.compile(
    r"\d+ requested but only \d+ were found|no CUDA-capable device|invalid device ordinal|"
    r"nvidia-container-cli: (?:device|detection) error"
)


def reports_too_few(output: str) -> bool:
    """Return whether the output of a program that is not ours reports too few GPUs."""
    return bool(_MESSAGE.search(output))
