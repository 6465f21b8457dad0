"""What a transport is: a place where control commands run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import collections
    import subprocess
    from collections.abc import Collection, Mapping, Sequence
    from typing import IO


# bytes of one stream of a control command: `scontrol show node` of 10,000 nodes has 10 MiB
MAX_OUTPUT = 1 << 26


@dataclass(frozen=True)
class Completed:
    """A command that ended: `rc` is negative for a signal; `seconds` is wall time."""

    argv: tuple[str, ...]
    rc: int
    stdout: str
    stderr: str
    seconds: float


class Process(Protocol):
    """A started process, as subprocess.Popen shows it: here, or on a login node."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """What it reads; closing it is the end of its input."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """What it writes."""

    @property
    def stderr(self) -> IO[bytes] | None:
        """What it complains of."""

    @property
    def pid(self) -> int:
        """Its number where it runs."""

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it is not known to have ended."""

    def poll(self) -> int | None:
        """Return `returncode` as it is now."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; subprocess.TimeoutExpired where it does not come within `timeout` seconds."""


class RemoteProcess(Process, Protocol):
    """A process elsewhere: its group can only be signalled through the transport."""

    def kill_group(self, sig: int) -> None:
        """Signal it and all that it started; with SIGKILL also let go of its streams."""


class Transport(Protocol):
    """Where Slurm's commands run: this machine, or a login node.

    A far transport kills the far process group when `run` times out. When the way there is lost, the stdin of all that
    it has spawned ends, as the pipes of a local process do when we die.
    """

    started: collections.Counter[str]
    """Processes started, by the last part of argv[0]."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        input: str | None = None,  # subprocess's own word
        env: Mapping[str, str | None] | None = None,
    ) -> Completed:
        """Run to the end; TransportError where it is not found or outlives `timeout` seconds."""

    def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str | None] | None = None
    ) -> subprocess.Popen[bytes] | RemoteProcess:
        """Start a process with pipes for stdin, stdout and stderr, in a process group of its own."""

    def count(self, program: str) -> None:
        """Count the start of a program that a spawned one starts on our behalf."""

    def names(self) -> Collection[str]:
        """Return the names of the environment variables that a process inherits there."""

    def close(self) -> None:
        """Let go of what is held open; a later command opens it anew."""
