"""The line below what a benchmark prints: when it was measured, on which code, and beside which load."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

LOADED = 1.5  # load average of one minute per CPU, above which seconds mean little; those of the benchmark count too


def stamp() -> str:
    """Return the date, the commit (with `+` if files have changed since), the number of CPUs and the load."""
    git = ("git", "-C", str(Path(__file__).parent))
    commit = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    changed = subprocess.run(
        [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False
    ).stdout
    cpus, load = os.cpu_count() or 1, os.getloadavg()[0]
    busy = "; the machine was busy: trust ratios only" if load > LOADED * cpus else ""
    return f"{time.strftime('%Y-%m-%d')}, commit {commit or 'unknown'}{'+' if changed else ''}, {cpus} CPUs, load {load:.1f}{busy}"
