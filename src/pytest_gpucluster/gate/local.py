"""The channel of a gate: its own machine runs the commands within one time budget, other nodes answer from the baseline."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.channel.batch import Batch
from pytest_gpucluster.cluster.channel.channel import CAP, TIMEOUT
from pytest_gpucluster.cluster.transport import kill_group
from pytest_gpucluster.core.command_end import CommandEnd
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.core.sanitize import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import IO

    from pytest_gpucluster.cluster.transport.base import Transport
    from pytest_gpucluster.core.finding import Explanation

SHOWN = 60  # characters of a command that a message quotes
GRACE = 0.2  # seconds for what a killed shell has printed


@dataclass(eq=False)
class _Job:
    """Commands in one shell. `end`: the monotonic time at which it is killed."""

    batch: Batch
    process: Any  # of Transport.spawn
    end: float
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    cut: bool = False
    late: bool = False  # the budget has ended it
    readers: list[threading.Thread] = field(default_factory=list)
    began: float = field(default_factory=time.time)

    def start(self) -> None:
        """Begin to read what it prints."""
        for stream, into in ((self.process.stdout, self.out), (self.process.stderr, self.err)):
            assert stream is not None  # both are pipes
            self.readers.append(threading.Thread(target=self._read, args=(stream, into), daemon=True))
            self.readers[-1].start()

    def _read(self, stream: IO[bytes], into: bytearray) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed, since the budget is spent
            while data := os.read(stream.fileno(), 1 << 16):
                room = CAP - len(into)
                into += data[:room]
                self.cut = self.cut or len(data) > room
            self.process.wait()  # at once: os.zombies would find a shell that has ended

    def finish(self) -> None:
        """Wait for its end, or end it."""
        for reader in self.readers:
            reader.join(max(0.0, self.end - time.monotonic()))
        if any(reader.is_alive() for reader in self.readers) or self.process.poll() is None:
            self.late = True
            _kill_session(self.process.pid)
            kill_group(self.process)
            for reader in self.readers:
                reader.join(GRACE)
        # a child may hold them in a session of its own
        if not any(reader.is_alive() for reader in self.readers):
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
                if stream is not None:
                    stream.close()


class LocalChannel:
    """Answers of one machine, and of the nodes in a baseline. `end`: the monotonic time at which the budget is spent.

    `names`: {command: how messages name it}.
    """

    disconnected: frozenset[str] = frozenset()

    def __init__(
        self,
        node: str,
        peers: Mapping[str, Mapping[str, Answer]],
        transport: Transport,
        *,
        budget: float,
        known: Mapping[str, Answer],
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._names = names or {}
        self.node, self._peers, self._transport = node, peers, transport
        self.budget, self.end = budget, time.monotonic() + budget
        self.answers: dict[str, Answer] = dict(known)
        self.slow: list[str] = []  # commands that the budget has ended
        self._jobs: dict[str, _Job] = {}
        self.ended: dict[str, str] = {}  # command -> why it has no answer: the budget, or an output too large
        self.nodes = (node, *(name for name in peers if name != node))
        self.lost: dict[str, Explanation] = {}

    def start(self, batches: Iterable[Sequence[tuple[str, float]]]) -> None:
        """Start commands with their deadlines in seconds, each batch in a shell of its own; known answers need none."""
        for commands in batches:
            known = self.answers.keys() | self._jobs.keys()
            if needed := {command: timeout for command, timeout in commands if command not in known}:
                self._start(needed)

    def _start(self, commands: Mapping[str, float]) -> None:
        batch = Batch(tuple(commands.items()))
        process = self._transport.spawn(["sh", "-c", batch.command], env={"LD_PRELOAD": None})
        job = _Job(batch, process, min(self.end, time.monotonic() + batch.timeout))
        job.start()
        self._jobs |= dict.fromkeys(commands, job)

    def ask_node(
        self, node: str, command: str, *, timeout: float = TIMEOUT, cap: int = CAP, fresh: bool = False
    ) -> Answer:
        """Return the answer of this machine, or that of the baseline; NotAvailable for a command that the budget ended.

        A check may judge an answer without an exit status: what did not fit into the budget is no fault of the node.
        """
        if node != self.node:
            none = Answer(node, None, problem="the baseline has no answer of it")
            return self._peers[node].get(command, none)
        if fresh:
            self.answers.pop(command, None)
            self.ended.pop(command, None)
        if command not in self.answers and command not in self.ended:
            if command not in self._jobs:
                if time.monotonic() >= self.end:  # it is not to blame
                    raise NotAvailable(self._late(next(iter(self.slow), "the commands before it")))
                self._start({command: timeout})
            self._collect(self._jobs[command])
        if command in self.ended:
            raise NotAvailable(self.ended[command])
        return self.answers[command]

    def ask(self, command: str, *, timeout: float = TIMEOUT, cap: int = CAP) -> dict[str, Answer]:
        """Return the answer of this machine alone: no command is sent to another."""
        return {self.node: self.ask_node(self.node, command, timeout=timeout)}

    def prefetch(self, commands: Sequence[tuple[str, float]]) -> None:
        """Start commands, each in a shell of its own."""
        self.start([one] for one in commands)

    def _collect(self, job: _Job) -> None:
        job.finish()
        status = job.process.poll() or 0
        ended = CommandEnd(status if status >= 0 else 128 - status)
        rc = None if job.late else ended.status
        whole = Answer(self.node, rc, bytes(job.out), bytes(job.err), sent=job.began, received=time.time())
        done = {} if job.cut else job.batch.split(whole)
        waiting = [command for command, _ in job.batch.commands if command not in done]
        for command in waiting:
            name = self._name(waiting[0])
            late = self._late(name) if job.late else f"the shell of {name}: {ended}"
            why = late if command == waiting[0] else f"it waited for another command: {late}"
            self.ended[command] = "the output of its shell was cut" if job.cut else why
        if waiting and job.late and not job.cut:
            self.slow.append(self._name(waiting[0]))
        self.answers.update(done)
        for command, _ in job.batch.commands:
            self._jobs.pop(command, None)

    def _late(self, slow: str) -> str:
        return f"{slow} did not end within the budget of {self.budget:g} s"

    def _name(self, command: str) -> str:
        return self._names.get(command) or shown(command)

    def close(self) -> None:
        """End what still runs."""
        for job in dict.fromkeys(self._jobs.values()):
            job.end = 0.0
            job.finish()
        self._jobs.clear()


def _kill_session(leader: int) -> None:
    """Kill the processes of a session: timeout(1) has made groups of their own."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader:  # proc(5): session
                    os.kill(int(entry.name), signal.SIGKILL)


def shown(command: str) -> str:
    """Return the start of a command, for a message: its program and first words, which say nothing of several commands."""
    if re.search(r"[;\n{}()]", command):
        return "a script of gpucluster"
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        words = command.split()
    return one_line(" ".join(words), SHOWN)
