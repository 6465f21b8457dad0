"""Processes, identified by pid and start time: a reused pid is never signalled."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PROC = Path("/proc")
_STATE, _THREADS, _START_TIME = 0, 17, 19  # of /proc/PID/stat (proc(5)), counted after the command's bracket
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid


@dataclass(frozen=True)
class DaemonProcess:
    """One process: its pid, and its start time in clock ticks since boot."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether this process still runs; a zombie without threads does not."""
        fields = _stat(self.pid)
        if not fields or int(fields[_START_TIME]) != self.started:
            return False
        # a killed process is a zombie before its last thread gives back files, locks and ports
        return fields[_STATE] != "Z" or int(fields[_THREADS]) > 1

    @property
    def command(self) -> str:
        """The name of the program, cut to 15 characters."""
        return _read(self.pid, "comm").strip()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def identify(pid: int) -> DaemonProcess | None:
    """Return the process that has this pid now."""
    fields = _stat(pid)
    return DaemonProcess(pid, int(fields[_START_TIME])) if fields else None


def from_pid_file(path: Path, mark: str) -> DaemonProcess | None:
    """Return the process of a pid file, if its command line contains `mark`."""
    try:
        pid = int(path.read_text().strip())
    except (OSError, ValueError):
        return None
    return identify(pid) if mark in _read(pid, "cmdline") else None


def is_locked(path: Path) -> bool:
    """Return whether a process, of any PID namespace, holds the lock of a file."""
    wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        with path.open() as file:
            return bool(struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, wanted))[0] != fcntl.F_UNLCK)
    except OSError:
        return False


def children(pid: int) -> list[DaemonProcess]:
    """Return the running child processes of a process, with pids of this machine."""
    try:
        numbers = [int(word) for word in _read(pid, f"task/{pid}/children").split()]
    except ValueError:
        numbers = []
    found = (identify(number) for number in numbers)
    return [process for process in found if process is not None]


def inner_pid(pid: int) -> int | None:
    """Return the pid of a process in its own PID namespace."""
    match = re.search(r"^NSpid:.*?(\d+)$", _read(pid, "status"), re.MULTILINE)
    return int(match[1]) if match else None


def kill(processes: Iterable[DaemonProcess], *, patience: float) -> None:
    """Send SIGKILL and wait at most `patience` seconds until the processes have ended."""
    left = list(processes)
    for process in left:
        process.send(signal.SIGKILL)
    _wait(left, patience)


def of_environment(*marks: str) -> Iterator[DaemonProcess]:
    """Yield processes with all these prefixes, VARIABLE=value or VARIABLE=, in their environment."""
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        variables = _read(pid, "environ").split("\0")
        if all(any(variable.startswith(mark) for variable in variables) for mark in marks):
            process = identify(pid)
            if process:
                yield process


def of_command(*words: str) -> Iterator[DaemonProcess]:
    """Yield processes whose command line has all these words."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and set(words) <= set(_read(int(entry.name), "cmdline").split("\0")):
            process = identify(int(entry.name))
            if process:
                yield process


def of_folder(folder: Path, command: str) -> Iterator[DaemonProcess]:
    """Yield processes of this command name whose working directory is in the folder."""
    for entry in _PROC.iterdir():
        try:
            inside = (entry / "cwd").readlink().is_relative_to(folder) if entry.name.isdigit() else False
        except OSError:  # ended, or another user's
            continue
        process = identify(int(entry.name)) if inside else None
        if process and process.command == command:
            yield process


def stop(processes: Iterable[DaemonProcess], *, patience: float) -> None:
    """Send SIGTERM, wait `patience` seconds, then send SIGKILL."""
    left = list(processes)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in left:
            process.send(number)
        left = _wait(left, patience)
        if not left:
            return


def boot_id() -> str:
    """Return the id of this boot: pids of an earlier boot are invalid."""
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
