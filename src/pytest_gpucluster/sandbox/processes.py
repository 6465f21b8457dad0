"""Processes by identity, not by number alone: a pid that was given away again is never touched."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PROC = Path("/proc")
_START_TIME = 19  # of /proc/PID/stat, counted after the command's closing bracket (field 22, proc(5))
_STATE = 0


@dataclass(frozen=True)
class DaemonProcess:
    """One process: its pid, and its start time in clock ticks since boot."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        fields = _stat(self.pid)
        return bool(fields) and int(fields[_START_TIME]) == self.started and fields[_STATE] != "Z"

    @property
    def command(self) -> str:
        """The name of the program, at most 15 characters of it."""
        return _read(self.pid, "comm").strip()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process is still this one."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def identify(pid: int) -> DaemonProcess | None:
    """Return the process that has this pid now."""
    fields = _stat(pid)
    return DaemonProcess(pid, int(fields[_START_TIME])) if fields else None


def from_pid_file(path: Path, mark: str) -> DaemonProcess | None:
    """Return the process of a pid file, if its command line still names `mark`."""
    try:
        pid = int(path.read_text().strip())
    except (OSError, ValueError):
        return None
    return identify(pid) if mark in _read(pid, "cmdline") else None


def children(pid: int) -> list[DaemonProcess]:
    """Return the processes that a process has started and that still run, in the numbers of this machine."""
    try:
        numbers = [int(word) for word in _read(pid, f"task/{pid}/children").split()]
    except ValueError:
        numbers = []
    found = (identify(number) for number in numbers)
    return [process for process in found if process is not None]


def inner_pid(pid: int) -> int | None:
    """Return the number that a process has in its own PID namespace."""
    match = re.search(r"^NSpid:.*?(\d+)$", _read(pid, "status"), re.MULTILINE)
    return int(match[1]) if match else None


def kill(processes: Iterable[DaemonProcess], *, patience: float) -> None:
    """End them with SIGKILL and wait, at most `patience` seconds, until they are gone."""
    left = list(processes)
    for process in left:
        process.send(signal.SIGKILL)
    _wait(left, patience)


def of_environment(*marks: str) -> Iterator[DaemonProcess]:
    """Find processes that started with all these VARIABLE=value (or VARIABLE=) prefixes in their environment."""
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        variables = _read(pid, "environ").split("\0")
        if all(any(variable.startswith(mark) for variable in variables) for mark in marks):
            process = identify(pid)
            if process:
                yield process


def of_folder(folder: Path, command: str) -> Iterator[DaemonProcess]:
    """Find processes of this command name that work in the folder or below it."""
    for entry in _PROC.iterdir():
        try:
            inside = (entry / "cwd").readlink().is_relative_to(folder) if entry.name.isdigit() else False
        except OSError:  # gone, or somebody else's
            continue
        process = identify(int(entry.name)) if inside else None
        if process and process.command == command:
            yield process


def stop(processes: Iterable[DaemonProcess], *, patience: float) -> None:
    """Ask with SIGTERM, wait `patience` seconds, then insist with SIGKILL."""
    left = list(processes)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in left:
            process.send(number)
        left = _wait(left, patience)
        if not left:
            return


def boot_id() -> str:
    """Return what changes with every boot: pids of an earlier boot mean nothing."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _wait(processes: list[DaemonProcess], patience: float) -> list[DaemonProcess]:
    """Return those that still run after `patience` seconds."""
    deadline = time.monotonic() + patience
    left = [process for process in processes if process.alive]
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [process for process in left if process.alive]
    return left


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command name, [] if there is no such process."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    try:
        return (_PROC / str(pid) / name).read_text(errors="replace")
    except OSError:
        return ""
