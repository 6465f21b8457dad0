"""The event log: one JSON value per line, flushed, so that it is whole up to the last line even after SIGKILL.

Every event has `time` (seconds since the epoch), `run` (id of the run) and `event`. The events: `start`, `nodes`,
`allocation`, `result` (one item), `lost` (a node), `burnin` (suites/burnin/steps.py), `finish`. Those of drain and
resume are in docs/drain.md. What a field means stands where it is written. Results that are alike are short rows in the
file (report/machine/event_rows.py); the readers below make events of them.
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
from pytest_gpucluster.report.cluster_findings import settle
from pytest_gpucluster.report.machine.atomic_write import harmless
from pytest_gpucluster.report.machine.event_rows import RowReader, RowWriter
from pytest_gpucluster.report.run_model import Run

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
                # until the end: this run's folder is in use
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise GpuClusterError(
                f"cannot write the event log {path}: {error.strerror}: --report-dir=DIR names another folder"
            ) from error
        self.failed = ""
        self.lines = 0  # that this process has written
        self.model = Run()
        self._rows, self._reader = RowWriter(), RowReader()
        size = os.lseek(handle, 0, os.SEEK_END)
        self._is_cut = size > 0 and os.pread(handle, 1, size - 1) != b"\n"  # by an earlier writer

    def write(self, event: str, *, clean: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """Append one event. A full disk is remembered in `failed`, and never ends the run.

        `clean`: further fields, which hold no secret any more, as those of `Record.as_dict` (run/item_record.py).
        """
        plain = {**redact.everything(fields, harmless), **(clean or {})}
        whole = {"time": round(time.time(), 3), "run": self.run, "event": event, **plain}
        with self._lock:
            if self._file.closed:
                return
            lines = (self._rows.lines(whole) if event == "result" else []) or [strict_json(whole)]
            for found in events_of(lines, reader=self._reader):  # as a reader of the log has it
                if "nodeid" in whole:
                    found["nodeid"] = whole["nodeid"]  # one text with pytest
                self.model.take(found)
            try:
                self._append("\n".join(lines))
            except OSError as error:
                self.failed = f"{self.path}: {error.strerror}"
                self._rows = RowWriter()  # what rows refer to may not be in the file

    def _append(self, text: str) -> None:
        """Write whole lines: what a full disk has cut before stays a line that readers leave out."""
        data = f"{chr(10) * self._is_cut}{text}\n".encode()
        while data:
            written = self._file.write(data) or 0
            self._is_cut = data[written - 1 : written] != b"\n" if written else self._is_cut
            data = data[written:]
        self.lines += 1

    def with_model(self, use: Callable[[Run], str]) -> str:
        """Return use(model), while no other thread writes an event."""
        with self._lock:
            return use(self.model)

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
        return json.dumps(jsontext.strict(data))


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a log; a last line that was cut by SIGKILL is left out.

    OSError where it cannot be read, or is a device, which may never end.
    """
    if path.is_char_device():
        raise OSError(errno.EINVAL, "a device is no event log", str(path))
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        yield from events_of(file)


def events_of(
    lines: Iterable[str], broken: list[int] | None = None, reader: RowReader | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the events of the lines of a log; `broken` takes the numbers, from 1, of lines that are no event.

    `reader`: has read the lines before, if these are not the first.
    """
    reader = reader or RowReader()
    for number, line in enumerate(lines, 1):
        try:
            event = reader.event(jsontext.loads(line))
        except ValueError:
            if broken is not None:
                broken.append(number)
        else:
            if event is not None:
                yield event


class GrowingLog:
    """The event log of a run that may still write it. OSError where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._file = path.open(encoding="utf-8", errors="replace")
        self._begun = ""  # a line of which the end is not written yet
        self._reader = RowReader()

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the events that were written since the last call."""
        *whole, self._begun = (self._begun + self._file.read()).split("\n")
        return events_of(whole, reader=self._reader)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_run(events: Iterable[dict[str, Any]], **readers: Callable[[dict[str, Any]], None]) -> Run:
    """Read the events of one run. `readers`: kind of event -> the reader of these events instead of the model."""
    run = Run()
    for event in events:
        readers.get(str(event.get("event")), run.take)(event)
    settle(run)
    return run


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
