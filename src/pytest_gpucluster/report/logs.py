"""Where the event logs of runs lie."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pytest_gpucluster.report.events import read_events

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def logs_below(folders: Iterable[Path]) -> dict[str, str]:
    """Return where the event log of each run lies: run -> path. What cannot be read is left out."""
    found = {}
    for path in sorted(log for folder in folders for log in folder.rglob("events.jsonl")):
        with contextlib.suppress(OSError):
            first = next(read_events(path), {})
            found[str(first.get("run", ""))] = str(path)
    return found
