"""The folders of runs below --report-dir: DIR/RUN-ID for each run, and links to the newest ones.

DIR/latest is the newest full run; DIR/latest-rerun the newest other. While there is no full run, DIR/latest is the newest
other too. Evidence stays: full runs, signed runs, runs that changed a node in Slurm, and runs that a reason of a
node or the history names. Of the others only the newest stay. A run that executes no item leaves no folder and moves no link.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.secure_tempfile import Folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

LATEST, RERUN = LINKS = ("latest", "latest-rerun")
EVENTS = "events.jsonl"
# of a campaign's runs: the folder of a run without a result stays, since the campaign reads there how it ended
KEEP_FOLDER = "GPUCLUSTER_KEEP_FOLDER"
OF_CAMPAIGN = bool(os.environ.pop(KEEP_FOLDER, ""))
MANIFEST, SIGNATURE = "SHA256SUMS", "SHA256SUMS.sig"
SIGNATURES = (SIGNATURE, "record.json.sig")  # the second is of version 0.3
ENDED = (0, 1)  # pytest's exit status of a run that came to its end
_RUN_ID = re.compile(r"\d{8}T\d{6}-\d+")
_CHANGED_A_NODE = b'"event": "node_intent"'  # as EventLog writes it; in a text of an event the quotes are escaped
_FINISH = b'"event": "finish"'
_MAX_LINE = 1 << 22
_TAIL = 1 << 18  # bytes that hold the last `finish`
_CHUNK = 1 << 20


class RunFolder:
    """The folder of one run. `most`: how many folders of runs that are no evidence stay. Every method may raise OSError.

    `full`: the run has all suites and all nodes of the cluster file.
    """

    def __init__(self, root: Path, run: str, *, most: int, full: bool = False, group: int | None = None) -> None:
        self.path, self.link = root / run, root / (LATEST if full else RERUN)
        self._root, self._run, self._most, self._full = root, run, most, full
        self._root_is_new = not root.exists()
        self.is_published = False
        with contextlib.closing(Folder(root, create=True, group=group)):
            pass  # a folder that others may change is refused before anything is written

    def publish(self) -> None:
        """Point the link of this kind of run at the folder of this run."""
        self.is_published = True
        with contextlib.closing(Folder(self._root)) as folder:
            folder.link(self.link.name, self._run)
            if not self._full and not _is_taken(folder, _target(self._root / LATEST)):
                folder.link(LATEST, self._run)

    def close(self, named: Collection[str] = ()) -> list[str]:
        """Remove old runs that are no evidence, or this one if it was not published; return the ids of removed runs.

        `named`: ids of runs that a reason of a node or the history names. A full run that was stopped counts as other.
        """
        if self.is_published:
            if self._full:
                self._restore_latest()
            return prune(self._root, self._most, named)
        with contextlib.closing(Folder(self._root)) as folder:
            _remove(folder, self._run)
        if self._root_is_new:
            self._root.rmdir()
        return []

    def _restore_latest(self) -> None:
        """Point DIR/latest at the full run before, if there is one and this run was stopped."""
        with contextlib.closing(Folder(self._root)) as folder:
            if _is_full(folder, self._run):
                return
            folder.link(RERUN, self._run)
            before = next((run for run in reversed(_runs(folder)) if _is_full(folder, run)), None)
            if before is not None:
                folder.link(LATEST, before)


def prune(root: Path, most: int, named: Collection[str] = ()) -> list[str]:
    """Remove the oldest runs beyond `most` that are no evidence and no longer written; return their ids.

    Only folders of this user with the name of a run are removed; the names of runs sort by their start.
    """
    removed = []
    with contextlib.closing(Folder(root)) as folder:
        others = [run for run in _runs(folder) if run not in named]
        if len(others) > most:
            others = [run for run in others if not _is_evidence(folder, run)]
        for run in others[: max(0, len(others) - most)]:
            with contextlib.suppress(OSError), _unused(folder, run):
                _remove(folder, run)
                removed.append(run)
    return removed


def runs_in_reasons(reasons: Collection[str]) -> set[str]:
    """Return the ids of runs that the reasons of nodes name, also where a person has edited the reason."""
    return {run for reason in reasons for run in _RUN_ID.findall(reason)}


def log_in(path: Path) -> Path:
    """Return the event log that a path names: a log, the folder of a run, or a --report-dir, whose newest run counts."""
    if not path.is_dir():
        return path
    if (path / EVENTS).exists():
        return path / EVENTS
    linked = [run for link in LINKS if (run := _target(path / link))]
    return path / max(linked, key=_start_of, default=LATEST) / EVENTS


def full_log(path: Path) -> Path:
    """Return the event log that a path names as `log_in` does; of a --report-dir that of the newest run of all, if there is one."""
    full = _target(path / LATEST) if path.is_dir() and not (path / EVENTS).exists() else ""
    return path / full / EVENTS if full else log_in(path)


def newest_log(path: Path) -> Path:
    """Return the event log that a path names as `log_in` does; of a --report-dir that of the run that began last, also before its first result."""
    if not path.is_dir() or (path / EVENTS).exists():
        return log_in(path)
    begun = [log.parent.name for log in path.glob(f"*/{EVENTS}") if _RUN_ID.fullmatch(log.parent.name)]
    return path / max(begun, key=_start_of, default=LATEST) / EVENTS


def is_written(log: Path) -> bool:
    """Return whether a run still writes this event log. Only for a log that has a line: by then its run holds the lock."""
    try:
        with log.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it has executed no item, and is gone
        return False
    return False


def _runs(folder: Folder) -> list[str]:
    """Return the names of runs, the oldest first."""
    return sorted((name for name in folder.names() if _RUN_ID.fullmatch(name)), key=_start_of)


def _start_of(run: str) -> tuple[str, int]:
    time, _, process = run.partition("-")
    return time, int(process)


def _target(link: Path) -> str:
    """Return the run that a link names, '' for none."""
    with contextlib.suppress(OSError):
        name = os.readlink(link)  # noqa: PTH115 - as it stands
        if _RUN_ID.fullmatch(name):
            return name
    return ""


# --- what the log of a run says


def _is_full(folder: Folder, run: str) -> bool:
    """Return whether a run of all suites and all nodes came to its end."""
    with contextlib.suppress(OSError, ValueError), _log(folder, run) as log:
        return _was_full(log) and _has_ended(log)
    return False


def _is_taken(folder: Folder, run: str) -> bool:
    """Return whether DIR/latest stays with a run: a full one that has ended, or one that another process still writes."""
    if _is_full(folder, run):
        return True
    try:
        with _log(folder, run) as log:
            full = _was_full(log)
        with _unused(folder, run):
            return False
    except BlockingIOError:
        return full
    except (OSError, ValueError):
        return False


def _is_evidence(folder: Folder, run: str) -> bool:
    """Return whether a run is full, signed, or changed a node in Slurm. A log that cannot be read is no evidence."""
    if _is_full(folder, run) or _is_signed(folder, run):
        return True
    with contextlib.suppress(OSError), _log(folder, run) as log:
        before = b""
        for data in iter(lambda: log.read(_CHUNK), b""):
            if _CHANGED_A_NODE in before + data:
                return True
            before = data[-len(_CHANGED_A_NODE) :]
    return False


def _is_signed(folder: Folder, run: str) -> bool:
    with contextlib.suppress(OSError), contextlib.closing(folder.folder(run)) as inner:
        return any(name in inner.names() for name in SIGNATURES)
    return False


@contextlib.contextmanager
def _log(folder: Folder, run: str) -> Iterator[Any]:
    """Open the event log of a run of this user."""
    with contextlib.closing(folder.folder(run)) as inner:
        if EVENTS not in inner.names():
            raise FileNotFoundError(EVENTS)
        with os.fdopen(inner.open(EVENTS), "rb") as log:
            yield log


def _was_full(log: Any) -> bool:
    start = json.loads(log.readline(_MAX_LINE))
    return isinstance(start, dict) and start.get("event") == "start" and start.get("full") is True


def _has_ended(log: Any) -> bool:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _TAIL))
    lines = [line for line in log.read().splitlines() if _FINISH in line]
    return bool(lines) and json.loads(lines[-1]).get("exit") in ENDED


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
