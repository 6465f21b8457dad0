"""Diagnostics that own the GPUs of a node: NVIDIA's field diagnostic unloads the driver, and DCGM's loads all GPUs. Pure.

Names of processes: fieldiag and mods (docs.nvidia.com/deploy/hw-field-diag), nvvs (DCGM).
"""

from __future__ import annotations

from pytest_gpucluster.core.sanitize import one_line

# prints process id and name of each; it never fails
OWNERS_SH = "ps -eo pid=,comm= | grep -wE 'fieldiag|mods|nvvs' || :"


def owner(text: str) -> str:
    """Say from the output of OWNERS_SH which diagnostic owns the GPUs; '' for none."""
    words = text.split()
    if len(words) < 2:
        return ""
    return f"a diagnostic owns the GPUs: {one_line(words[1], 20)} (process {one_line(words[0], 10)}): wait for its end"
