"""The folders of runs below --report-dir: DIR/RUN-ID for each run, and DIR/latest, a link to the newest one.

A run that executes no item leaves no folder and does not move the link: the evidence of the run before stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from typing import TYPE_CHECKING

from pytest_gpucluster.core.secure_tempfile import Folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LATEST = "latest"
EVENTS = "events.jsonl"
_RUN_ID = re.compile(r"\d{8}T\d{6}-\d+")


class RunFolder:
    """The folder of one run. `most`: how many folders of runs stay. Every method may raise OSError."""

    def __init__(self, root: Path, run: str, *, most: int, group: int | None = None) -> None:
        self.path, self.link = root / run, root / LATEST
        self._root, self._run, self._most = root, run, most
        self._root_is_new = not root.exists()
        self.is_published = False
        with contextlib.closing(Folder(root, create=True, group=group)):
            pass  # a folder that others may change is refused before anything is written

    def publish(self) -> None:
        """Point DIR/latest at the folder of this run."""
        self.is_published = True
        with contextlib.closing(Folder(self._root)) as folder:
            folder.link(self.link.name, self._run)

    def close(self) -> list[str]:
        """Remove the oldest runs beyond `most`, or this one if it was not published; return the ids of removed runs."""
        if self.is_published:
            return prune(self._root, self._most)
        with contextlib.closing(Folder(self._root)) as folder:
            _remove(folder, self._run)
        if self._root_is_new:
            self._root.rmdir()
        return [self._run]


def prune(root: Path, most: int) -> list[str]:
    """Remove the oldest runs beyond `most`, except those that are still written; return their ids.

    Only folders of this user with the name of a run are removed; the names of runs sort by their start.
    """
    removed = []
    with contextlib.closing(Folder(root)) as folder:
        runs = sorted((name for name in folder.names() if _RUN_ID.fullmatch(name)), key=_start_of)
        for run in runs[: max(0, len(runs) - most)]:
            with contextlib.suppress(OSError), _unused(folder, run):
                _remove(folder, run)
                removed.append(run)
    return removed


def _start_of(run: str) -> tuple[str, int]:
    time, _, process = run.partition("-")
    return time, int(process)


@contextlib.contextmanager
def _unused(folder: Folder, run: str) -> Iterator[None]:
    """Hold the lock of the event log, which a run holds until its end; OSError if it does."""
    with contextlib.closing(folder.folder(run)) as inner:
        if EVENTS not in inner.names():
            yield
            return
        handle = inner.open(EVENTS)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(handle)


def _remove(folder: Folder, run: str) -> None:
    with contextlib.closing(folder.folder(run)):  # no link, and this user's
        shutil.rmtree(folder.reach(run))  # follows no links


def log_in(path: Path) -> Path:
    """Return the event log that a path names: a log, the folder of a run, or a --report-dir, whose latest run counts."""
    if not path.is_dir():
        return path
    return path / EVENTS if (path / EVENTS).exists() else path / LATEST / EVENTS
