"""The protocol of the fleet channel: requests to the agents, and the parser of their lines. Pure.

agent.sh has the grammar. Every line of an agent starts with the nonce of its session; any other line is noise (a
profile, a motd) and no part of an answer.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.environment import login_lines
from pytest_gpucluster.cluster.slurm.result import REVOKED
from pytest_gpucluster.core.command_end import DEADLINE, LIMITED_SH, CommandEnd
from pytest_gpucluster.core.scripts import script

if TYPE_CHECKING:
    from collections.abc import Iterable

BASE64, HEX = b"b", b"x"
MAX_PIECE = 1 << 16
CODERS = (BASE64, HEX)

_PLAIN = re.compile(r"[\x20-\x7e]*")
# commands of several lines, with the marks of sections; the agent drops newlines at the end
_NEWLINE = "\x1f"
_LINES = re.compile(r"(?=[^\n]*\n)[\x1e\t\n -~]*[\x1e\t -~]")
_SHORT = {ord("\\"): r"\\", ord("\n"): r"\n", ord("\t"): r"\t"}  # escapes of printf %b that POSIX has
_LABEL = re.compile(rb"\s*(\d{1,7}): ")
_DIGITS = 18  # of a number in a frame


class FrameError(ValueError):
    """A line with the nonce is no valid frame: it was damaged in transit."""


@dataclass(frozen=True)
class Frame:
    """One line of an agent: number of the command (0: the agent itself), kind, fields."""

    number: int
    kind: str
    fields: tuple[bytes, ...] = ()

    def integer(self, index: int) -> int:
        """Return a field as a number from 0; FrameError if it is none."""
        text = self.fields[index]
        if not text.isdigit() or len(text) > _DIGITS:
            raise FrameError(f"not a number: {text[:20]!r}")
        return int(text)

    @property
    def end(self) -> CommandEnd:
        """How the command of an X ended; FrameError if that is not understood."""
        return CommandEnd(None if self.fields[0] == DEADLINE.encode() else self.integer(0))


# number of fields after the kind; the last takes the rest of the line
_FIELDS = {"H": 3, "Q": 1, "P": 0, "o": 3, "e": 3, "O": 2, "E": 2, "X": 1}


def agent_argv(nonce: str, shell: tuple[str, ...] = ("sh",)) -> tuple[str, ...]:
    """Return the command that starts an agent, without its comments; a login's environment comes first."""
    source = login_lines() + "\n" + LIMITED_SH + script(__package__, "agent.sh")
    return (*shell, "-c", source, "gpucluster-agent", nonce)


def request(number: int, tasks: Iterable[int] | None, seconds: int, cap: int, command: str) -> bytes:
    r"""Return the request line of one command.

    `tasks` None: all of them. `seconds` is the deadline on the node, `cap` the most bytes of stdout and of stderr.
    A command of printable ASCII is sent unchanged, also with other characters for its newlines, and any other in the format
    of `printf %b`, which costs a process per node.
    """
    who = "*" if tasks is None else f",{','.join(map(str, tasks))},"
    form, code = "p", command
    if _LINES.fullmatch(command):
        form, code = _NEWLINE, command.replace("\n", _NEWLINE)
    elif not _PLAIN.fullmatch(command):
        raw = command.encode("utf-8", "surrogateescape")
        plain = (chr(byte) if 0x20 <= byte <= 0x7E else f"\\0{byte:03o}" for byte in raw)
        form, code = "b", "".join(_SHORT.get(byte, char) for byte, char in zip(raw, plain, strict=True))
    return f"{number} {who} {seconds} {cap} {form} {code}|\n".encode("ascii")


def unlabel(line: bytes) -> tuple[int | None, bytes]:
    """Split srun's label from a line: (task, rest); (None, line) without a label."""
    found = _LABEL.match(line)
    return (int(found[1]), line[found.end() :]) if found else (None, line)


def parse(line: bytes, nonce: bytes) -> Frame | None:
    """Read one line of an agent, without its label. None: not from the agent. FrameError: damaged."""
    head, _, rest = line.rstrip(b"\r\n").partition(b" ")
    if head != nonce:
        return None
    number, _, rest = rest.partition(b" ")
    kind, _, rest = rest.partition(b" ")
    name = kind.decode("ascii", "replace")
    if name not in _FIELDS or not number.isdigit() or len(number) > _DIGITS:
        raise FrameError(f"unknown frame: {line[:60]!r}")
    count = _FIELDS[name]
    fields = tuple(rest.split(b" ", count - 1)) if count else ()
    if len(fields) != count:
        raise FrameError(f"frame {name} lacks a field: {line[:60]!r}")
    return Frame(int(number), name, fields)


@dataclass
class Stream:
    """Stdout or stderr of a command, collected in pieces."""

    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    ended: bool = False
    truncated: bool = False
    damage: str = ""

    def add(self, frame: Frame, cap: int) -> None:
        """Add one piece; a missing or invalid one, or one too many, is recorded as damage.

        `cap`: the limit in bytes of output; the longer encoding, hex, has three characters per byte.
        """
        data = frame.fields[2]
        self.size += len(data)
        if self.size > 3 * cap + MAX_PIECE:
            self.damage = self.damage or f"more than the limit of {cap} bytes"
            self.pieces.clear()
        elif frame.integer(0) != len(self.pieces) or frame.integer(1) != len(data):
            self.damage = self.damage or f"piece {len(self.pieces)} is missing or invalid"
        else:
            self.pieces.append(data)

    def end(self, frame: Frame) -> None:
        """Record the end of the stream."""
        self.ended, self.truncated = True, frame.fields[1] == b"1"
        if frame.integer(0) != len(self.pieces):
            self.damage = self.damage or f"only {len(self.pieces)} of {frame.integer(0)} pieces arrived"

    def data(self, coder: bytes, cap: int) -> bytes:
        """Return the bytes, at most `cap`; FrameError if they cannot be decoded."""
        joined = b"".join(self.pieces)
        try:
            raw = bytes.fromhex(joined.decode()) if coder == HEX else base64.b64decode(joined, validate=True)
        except (ValueError, binascii.Error) as error:
            raise FrameError(f"undecodable output: {error}") from error
        if len(raw) > cap:
            self.truncated = True
        return raw[:cap]


# srun 22.05, src/srun/libsrun/launch.c and src/api/step_launch.c
_TASK_ENDED = re.compile(r"srun: error: (?P<nodes>\S+): tasks? (?P<tasks>[\d,\-]+): (?P<why>.+)")
_NODE_FAILED = re.compile(r"srun: error: (?P<why>Node failure) on (?P<nodes>\S+)")
_TASK_LAUNCH = re.compile(r"srun: error: [Tt]ask (?P<tasks>\d+) launch failed: (?P<why>.+)")
_NODE_LAUNCH = re.compile(r"srun: error: Task launch for (?:StepId=)?\S+ failed on node (?P<nodes>\S+): (?P<why>.+)")
_ENDINGS = (_TASK_ENDED, _NODE_FAILED, _TASK_LAUNCH, _NODE_LAUNCH)


@dataclass(frozen=True)
class Ending:
    """Tasks that srun reports as ended: by hostlist, by task numbers, or both.

    `launch`: the node started no task at all; srun then ends the tasks of all other nodes too (22.05, with --no-kill).
    `revoked`: it started none because the job ended earlier.
    """

    nodes: str
    tasks: str
    why: str
    launch: bool = False

    @property
    def revoked(self) -> bool:
        """The job ended before the launch: the node is not at fault."""
        return self.launch and self.why.startswith(REVOKED)


def ending(line: str) -> Ending | None:
    """Read a line of srun's stderr; None if it reports no ended task."""
    for pattern in _ENDINGS:
        found = pattern.match(line.strip())
        if found:
            named = found.groupdict()
            launch = pattern is _NODE_LAUNCH
            return Ending(named.get("nodes", ""), named.get("tasks", ""), named["why"].strip(), launch)
    return None


# messages of slurmstepd and srun for a cancelled step (22.05, src/slurmd/slurmstepd/req.c, src/srun)
_CANCELLED = re.compile(r"\*\*\* (?:STEP|JOB) .*CANCELLED AT (?!.*(?:NODE|TASK) FAILURE)|srun: Job step aborted")


def cancelled(line: str) -> bool:
    """Return whether a line of srun's stderr reports the end of the whole step: scancel, a time limit, a signal."""
    return bool(_CANCELLED.search(line))
