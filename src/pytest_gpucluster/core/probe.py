"""A probe: one command and the parser of its output. Pure: this module runs no command."""

from __future__ import annotations

import re
import shlex
import traceback
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable

from pytest_gpucluster.core.command_end import CommandEnd
from pytest_gpucluster.core.errors import GpuClusterError, NotAvailable, ProbeError
from pytest_gpucluster.core.sanitize import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

NOT_FOUND, NOT_EXECUTABLE = 127, 126


@dataclass(frozen=True)
class Answer:
    """The result of one command on one node.

    `rc` is the exit status (128 + N for signal N), None if the command did not end: then `problem` has the
    reason ('timed out after 30 s', 'node lost: ...'). `truncated`: the output reached the cap and was cut.
    `sent` and `received`: time.time() of the controller when it sent the command and when the answer was complete;
    None if unknown. `lost`: the node went away, or its channel, before it could answer.
    """

    node: str
    rc: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    problem: str = ""
    truncated: bool = False
    sent: float | None = None
    received: float | None = None
    lost: bool = False

    @property
    def out(self) -> str:
        """Standard output as text; undecodable bytes are replaced."""
        return self.stdout.decode(errors="replace")

    @property
    def err(self) -> str:
        """Standard error as text; undecodable bytes are replaced."""
        return self.stderr.decode(errors="replace")


@dataclass(frozen=True)
class GuardedParser(Generic[T]):
    """A parser that raises only errors of this package, whatever the answer contains.

    It does not read an answer that was cut at the cap, did not end or was killed: half a number is a wrong number.
    """

    name: str
    read: Callable[[Answer], T]

    def __call__(self, answer: Answer) -> T:
        """Return the facts; ProbeError or NotAvailable where there are none."""
        if answer.rc is None:
            raise ProbeError(answer.problem or "the command did not end")
        if answer.truncated:
            raise NotAvailable(f"{self.name}: output was cut at the cap")
        if (end := CommandEnd(answer.rc)).signal:
            raise NotAvailable(f"{self.name}: {end}")
        try:
            return self.read(answer)
        except GpuClusterError:
            raise
        except Exception as error:
            raise ProbeError(
                f"{self.name}: the output is not understood: {one_line(repr(error), 120)} in {place_of(error)}"
            ) from error


def place_of(error: Exception) -> str:
    """Return function, file and line of what was called where the error was caught."""
    frame = traceback.extract_tb(error.__traceback__)[:2][-1]
    return f"{frame.name} ({PurePath(frame.filename).name}:{frame.lineno})"


@runtime_checkable
class HasVersions(Protocol):
    """Facts with versions of components; several versions of one component are joined."""

    @property
    def versions(self) -> dict[str, str]:
        """{component: version}, without those that are not known."""


@dataclass(frozen=True)
class Probe(Generic[T]):
    """One POSIX sh command line and the parser of its output.

    `parse` gets the answer of a command that ended and returns facts. It raises ProbeError for output that it cannot
    parse, and NotAvailable if the command could not run (absent, not permitted).
    `by_hand` is a short form for people who repeat the command; '' means the command itself.
    `root`: the command needs root; it runs through `sudo -n` if the cluster file allows that.
    `alone`: never part of a batch, since it takes long, may hang, or its time is measured.
    `version_of`: the component whose version the facts are, as text; facts of several components have `versions`.
    """

    name: str
    command: str
    parse: Callable[[Answer], T]
    root: bool = False
    timeout: float = 30.0
    by_hand: str = ""
    alone: bool = False
    version_of: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.parse, GuardedParser):
            object.__setattr__(self, "parse", GuardedParser(self.name, self.parse))

    def versions(self, facts: object) -> dict[str, str]:
        """Return {component: version} from the facts; it is stored with the run."""
        if self.version_of and isinstance(facts, str):
            return {self.version_of: facts}
        return facts.versions if isinstance(facts, HasVersions) else {}


def text_of(answer: Answer) -> str:
    """Return the standard output of a command that succeeded; NotAvailable otherwise."""
    if answer.rc in (NOT_FOUND, NOT_EXECUTABLE):
        raise NotAvailable(f"{last_line(answer.err) or 'command not found'}")
    if answer.rc != 0:
        words = last_line(answer.err) or last_line(answer.out)
        raise NotAvailable(f"{words} (exit {answer.rc})" if words else f"exit status {answer.rc}, no message")
    if answer.truncated:
        raise NotAvailable("output was cut at the cap")
    return answer.out


# dash, bash and busybox, alone and in a batch: `sh: 1: eval: ip: not found`, `environment: line 1: exec: ip: not found`,
# `sh: exec: line 0: ip: not found`
_ABSENT = re.compile(r"(?:\S*sh: |\S+: (?=line \d))(?:(?:line )?\d+: |(?:eval|exec): )*(.+?): (?:command )?not found")


def last_line(text: str) -> str:
    """Return the last line that is not blank; of a shell that lacks a command, the same words of all shells."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    absent = _ABSENT.fullmatch(last)
    return f"{absent[1]}: command not found" if absent else last


# the effective user: proc(5). It starts no process, unlike id.
_UID_SH = 'while read -r k _ u _ && [ "$k" != Uid: ]; do :; done 2>/dev/null </proc/self/status'


def with_root(command: str) -> str:
    """Wrap a command so that it runs as root, through `sudo -n` unless the user is root already."""
    return f'{_UID_SH}; if [ "$u" = 0 ]; then {command}\nelse sudo -n sh -c {shlex.quote(command)}; fi'


RESPONDS: Probe[Answer] = Probe("responds", "true", lambda answer: answer)  # the shortest command
