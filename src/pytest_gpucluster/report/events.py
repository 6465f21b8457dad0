"""The event log: one JSON object per line, flushed, so that it is whole up to the last line even after SIGKILL.

Every event has `time` (seconds since the epoch), `run` (id of the run) and `event`. The events: `start`, `nodes`,
`allocation`, `result` (one item), `lost` (a node), `burnin` (suites/burnin/steps.py), `finish`. Those of drain and
resume are in docs/drain.md. What a field means stands where it is written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import redact
from pytest_gpucluster.core import safe_json as jsontext
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.secure_tempfile import Folder
from pytest_gpucluster.report.atomic_write import harmless
from pytest_gpucluster.report.run_model import Run, read_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path


_ENCODER = json.JSONEncoder(allow_nan=False)  # json.dumps makes a new one each time


class EventLog:
    """Appends events to one file. Safe to use from several threads.

    `model` has read all of them, also those that a full disk has taken.
    """

    def __init__(self, path: Path, run: str, group: int | None = None) -> None:
        self.path, self.run = path, run
        self._lock = threading.Lock()
        try:
            with contextlib.closing(Folder(path.parent, create=True, group=group)) as folder:
                handle = folder.open(path.name)
            self._file = os.fdopen(handle, "r+b", buffering=0)  # a failed write must not be repeated later
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(
                    handle, fcntl.LOCK_EX | fcntl.LOCK_NB
                )  # until the end: this run's folder is in use
        except OSError as error:
            raise GpuClusterError(
                f"cannot write the event log {path}: {error.strerror}: --report-dir=DIR names another folder"
            ) from error
        self.failed = ""
        self.model = Run()
        self._partial = False  # the last line is not whole

    def write(self, event: str, *, clean: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """Append one event. A full disk is remembered in `failed`, and never ends the run.

        `clean`: further fields, which hold no secret any more, as those of `Record.as_dict` (plugin/items.py).
        """
        plain = {**redact.everything(fields, harmless), **(clean or {})}
        whole = {"time": round(time.time(), 3), "run": self.run, "event": event, **plain}
        line = strict_json(whole)
        with self._lock:
            if self._file.closed:
                return
            self.model.take(jsontext.loads(line))  # as a reader of the log has it
            try:
                self._append(line.encode() + b"\n")
            except OSError as error:
                self.failed = f"{self.path}: {error.strerror}"

    def _append(self, line: bytes) -> None:
        """Write a line of its own: what a full disk has cut before stays a line that readers leave out."""
        data = b"\n" + line if self._partial else line
        while data:
            written = self._file.write(data) or 0
            self._partial, data = True, data[written:]
        self._partial = False

    def seen(self, look: Callable[[Run], str]) -> str:
        """Return what a function of the model says, while no other thread writes an event."""
        with self._lock:
            return look(self.model)

    def close(self) -> None:
        """Close the file; later events are dropped."""
        with self._lock:
            try:
                self._file.close()
            except OSError as error:
                self.failed = f"{self.path}: {error.strerror}"


def strict_json(data: dict[str, Any]) -> str:
    """Write JSON that every reader takes: a number that is none becomes the text 'NaN' or 'Infinity'."""
    try:
        return _ENCODER.encode(data)
    except ValueError:
        return json.dumps(json.loads(json.dumps(data), parse_constant=str))


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a log; a last line that was cut by SIGKILL is left out.

    OSError where it cannot be read, or is a device, which may never end.
    """
    if path.is_char_device():
        raise OSError(errno.EINVAL, "a device is no event log", str(path))
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from _events(file)


def _events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            event = jsontext.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


class GrowingLog:
    """The event log of a run that may still write it. OSError where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._file = path.open(encoding="utf-8", errors="replace")
        self._begun = ""  # a line of which the end is not written yet

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the events that were written since the last call."""
        *whole, self._begun = (self._begun + self._file.read()).split("\n")
        return _events(whole)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_log(path: Path, **readers: Callable[[dict[str, Any]], None]) -> Run:
    """Read an event log as read_run() reads its events; OSError where it cannot be opened."""
    return read_run(read_events(path), **readers)


def run_of(path: Path) -> str:
    """Return the id of the run that wrote a log, '' where it has none yet. OSError where it cannot be read."""
    return str(next(read_events(path), {}).get("run", ""))


def logs_below(folders: Iterable[Path]) -> dict[str, str]:
    """Return where the event log of each run lies: run -> path. Logs that cannot be read are left out."""
    found = {}
    for path in sorted(log for folder in folders for log in folder.rglob("events.jsonl")):
        with contextlib.suppress(OSError):
            found[run_of(path)] = str(path)
    return found
