"""How far a run is, in a line: in the terminal of a long run, in the log of a CI job, and in `gpucluster watch`."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from pytest_gpucluster.core.text import count, some
from pytest_gpucluster.core.units import format_duration
from pytest_gpucluster.report.describe import folded
from pytest_gpucluster.report.verdict import ordered

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.report.run_model import Run

FIRST = 5  # results before a time left is stated
MAX_FAILURES = 3
A_MINUTE = 60.0


def progress(run: Run, now: float) -> str:
    """Write how far a run is: its time, its items, what is left at its pace so far, and what has failed."""
    done, of = len(run.results), run.items
    seconds = max(0.0, now - (run.began or now))
    words = [
        f"{run.start.get('run', 'run')}: {count(len(run.selected), 'node')}, for {format_duration(round(seconds))}",
        f"{done:,} of {of:,} items ({done / of:.0%})" if of else f"{done:,} items",
    ]
    if run.burnin and not done:  # its checks are judged after it
        ran, requested = (format_duration(round(run.burnin.get(key, 0.0))) for key in ("seconds", "requested"))
        words[1] = f"burn-in {ran} of {requested}, {run.burnin.get('rounds', 0.0):g} rounds"
    if of and FIRST <= done < of:
        words.append(f"about {format_duration(round(seconds / done * (of - done)))} left")
    failures = [f"{group.check} on {folded(group.nodes)}" for group in ordered(run)]
    words.append(f"failed: {some(failures, MAX_FAILURES)}" if failures else "no failure")
    return ", ".join(words)


class Reminder:
    """Writes a line once a minute ('': none), beside a process that may report nothing for long. `stdout` is duplicated.

    pytest redirects the standard output while an item runs: the duplicate is of before.
    """

    def __init__(self, line: Callable[[], str], stdout: int, every: float = A_MINUTE) -> None:
        self._line, self._file, self._every = line, os.dup(stdout), every
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._remind, name="reminder", daemon=True)
        self._thread.start()

    def _remind(self) -> None:
        while not self._ended.wait(self._every):
            try:
                if line := self._line():
                    os.write(self._file, f"\n{line}\n".encode())
            except OSError:
                return  # its reader has ended

    def close(self) -> None:
        """End it."""
        self._ended.set()
        self._thread.join()
        os.close(self._file)


def progress_now(run: Run) -> str:
    """Write how far a run is at this moment."""
    return progress(run, time.time())
