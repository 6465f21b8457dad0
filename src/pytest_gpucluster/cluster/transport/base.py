"""Protocols of a transport, which runs control commands, and of its processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pytest_gpucluster.core import redact
from pytest_gpucluster.core.sanitize import one_line

if TYPE_CHECKING:
    import collections
    import subprocess
    from collections.abc import Mapping, Sequence
    from typing import IO

    Env = Mapping[str, str | None]  # added to the environment of a process; None unsets a variable

# bytes per stream of a control command: `scontrol show node` of 10,000 nodes has 10 MiB
MAX_OUTPUT = 1 << 26


@dataclass(frozen=True)
class Completed:
    """A command that ended: `rc` is negative for a signal; `seconds` is wall time."""

    argv: tuple[str, ...]
    rc: int
    stdout: str
    stderr: str
    seconds: float


class RemoteProcess(Protocol):
    """A process on another machine, with the interface of subprocess.Popen; only the transport can signal its group."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """The input of the process; closing it ends the input."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """The output of the process."""

    @property
    def stderr(self) -> IO[bytes] | None:
        """The error output of the process."""

    @property
    def pid(self) -> int:
        """The process id on its machine."""

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while the process may run."""

    def poll(self) -> int | None:
        """Return the current `returncode`."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status; subprocess.TimeoutExpired after `timeout` seconds."""

    def kill_group(self, sig: int) -> None:
        """Signal the process and its children; with SIGKILL also close its streams."""


class Transport(Protocol):
    """Runs Slurm's commands on this machine or on a login node.

    A remote transport kills the remote process group when `run` times out. When its connection is lost, the stdin of all
    spawned processes ends, as the pipes of local processes do at the end of this process.
    """

    started: collections.Counter[str]
    """Processes started, by the last part of argv[0]."""

    def run(
        self, argv: Sequence[str], *, timeout: float, input: str | None = None, env: Env | None = None
    ) -> Completed:
        """Run a command to its end; TransportError if it is not found or exceeds `timeout` seconds."""

    def spawn(self, argv: Sequence[str], *, env: Env | None = None) -> subprocess.Popen[bytes] | RemoteProcess:
        """Start a process with pipes for stdin, stdout and stderr, in its own process group."""

    def count(self, program: str) -> None:
        """Count the start of a program by a spawned process."""

    def close(self) -> None:
        """Close open connections; a later command opens a new one."""


def shown(argv: Sequence[str]) -> str:
    """Return a command for a message, in at most one terminal line and without secrets."""
    return one_line(" ".join(redact.words(argv)), 120)
