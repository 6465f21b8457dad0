"""Commands in a PID namespace of their own, and how many processes they start."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

OWN_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def counted(count: Path, *argv: str) -> list[str]:
    """Return the command that runs another one and writes into a file how many processes and threads it started; it needs root."""
    return [*OWN_PIDS, sys.executable, str(ROOT / "benchmarks/sides/counted.py"), str(count), *argv]
