"""The fleet channel: one long-lived process, one agent a node, and every command asked once of all nodes.

    with Fleet.over_slurm(slurm, allocation) as fleet:
        fleet.ask("uname -r")["gpu03"].out

A node that dies, hangs or answers garbage is named in `lost`, costs one deadline in all, and the others go on.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import secrets
import signal
import subprocess
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pytest_gpucluster.cluster.channel.protocol import (
    BASE64,
    CODERS,
    Ending,
    Frame,
    FrameError,
    Stream,
    agent_argv,
    cancelled,
    ending,
    parse,
    request,
    task_numbers,
    unlabel,
)
from pytest_gpucluster.cluster.transport import LocalTransport, kill_group
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.probe import LOST, Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpucluster.cluster.transport import RemoteProcess

CAP = 1 << 20
TIMEOUT = 30.0
GRACE = 5.0  # seconds that an answer may take on its way after the deadline of its command
PING_AFTER = 1.0  # seconds that a command may take before its nodes are asked for a sign of life
PING_TIMEOUT = 15.0  # seconds without one until a node counts as lost; a sign needs no fork on the node
STRAGGLER, STRAGGLER_FACTOR = 20.0, 5.0  # seconds, and times what half of the agents needed to start
LAUNCH_TIMEOUT = 180.0  # a prolog runs before the first agent
AHEAD = 10.0  # seconds until the next question goes ahead while a tenth of the nodes still owe the one before
GARBAGE_LIMIT = 3
_KILL_AFTER = 2.0  # of the agent: from TERM to KILL
_TICK = 0.1
_TIDY_AFTER = 0.3
_LINE_LIMIT = 1 << 16
# timeout(1) gives 124, or 137 after its KILL; the agent's own watch ends with the command's 143 or 137
_ENDED_BY_DEADLINE = (124, 128 + signal.SIGKILL, 128 + signal.SIGTERM)


class Channel(Protocol):
    """What a fleet and a worker's view of it have in common."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes of the channel, in task order, lost ones too."""

    @property
    def lost(self) -> Mapping[str, str]:
        """Nodes that no longer answer, and why."""

    @property
    def cut(self) -> frozenset[str]:
        """The lost nodes that went with the channel as a whole: nothing is known against them."""

    def ask(self, command: str, *, timeout: float = TIMEOUT, cap: int = CAP) -> dict[str, Answer]:
        """Ask all nodes at once; the answers are remembered."""

    def ask_node(
        self, node: str, command: str, *, timeout: float = TIMEOUT, cap: int = CAP, fresh: bool = False
    ) -> Answer:
        """Return the answer of one node: the remembered one of all, or, if `fresh`, one asked of it alone now."""

    def prefetch(self, commands: Sequence[tuple[str, float]]) -> None:
        """Send (command, timeout in seconds) pairs without waiting; a later ask() finds them answered."""

    def close(self) -> None:
        """Let go of the channel."""


class Spawner(Protocol):
    """What the channel needs of a transport."""

    def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str | None] | None = None
    ) -> subprocess.Popen[bytes] | RemoteProcess:
        """Start a process in a group of its own, with pipes for stdin, stdout and stderr."""


class Client(Protocol):
    """What the channel needs of the Slurm client."""

    @property
    def transport(self) -> Spawner:
        """Where Slurm's commands run."""


class AllocationLike(Protocol):
    """What the channel needs of an allocation."""

    @property
    def job_id(self) -> int | str:
        """The job that holds the nodes."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes in Slurm's order, which is the task order."""

    @property
    def env(self) -> Mapping[str, str]:
        """The environment of its steps."""


@dataclass
class _Part:
    """The answer of one node, as it comes in."""

    out: Stream = field(default_factory=Stream)
    err: Stream = field(default_factory=Stream)
    rc: int | None = None
    ended: float = 0.0

    @property
    def complete(self) -> bool:
        return self.rc is not None and self.out.ended and self.err.ended


@dataclass
class _Question:
    """One command in flight: who is asked, and who has answered."""

    command: str
    timeout: float
    cap: int
    nodes: tuple[str, ...]
    ahead: bool = False  # nobody waits for it yet
    number: int = 0
    sent: float | None = None
    sent_at: float | None = None
    parts: dict[str, _Part] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)

    @property
    def seconds(self) -> int:
        """The deadline on the node: whole seconds, for sleep of POSIX knows no others."""
        return max(1, math.ceil(self.timeout))

    @property
    def done(self) -> bool:
        return len(self.answers) == len(self.nodes)

    @property
    def nearly_done(self) -> bool:
        return 10 * len(self.answers) >= 9 * len(self.nodes)

    @property
    def waiting(self) -> list[str]:
        return [node for node in self.nodes if node not in self.answers]


class Fleet:
    """The channel over one process whose stdin reaches the agent of each node and whose stdout brings their lines.

    `nodes` are in task order. `labelled`: lines bear srun's task label; without, the process is one agent.
    `window`: how many commands may be in flight. Thread-safe.
    """

    def __init__(
        self,
        popen: subprocess.Popen[bytes] | RemoteProcess,
        nodes: Sequence[str],
        nonce: str,
        *,
        labelled: bool = True,
        window: int = 4,
        launch_timeout: float = LAUNCH_TIMEOUT,
        ping_timeout: float = PING_TIMEOUT,
        grace: float = GRACE,
    ) -> None:
        self.nodes = tuple(nodes)
        self.noise: Counter[str] = Counter()
        self.messages: deque[str] = deque(maxlen=50)
        self._popen, self._nonce, self._labelled, self._window = popen, nonce.encode(), labelled, window
        self._launch_timeout, self._ping_timeout, self._grace = launch_timeout, ping_timeout, grace
        self._task = {node: task for task, node in enumerate(self.nodes)}
        self._changed = threading.Condition()
        self._lost: dict[str, str] = {}
        self._cut: set[str] = set()
        self._cancelled = False  # somebody ended the whole step
        self.stillborn: dict[str, str] = {}  # nodes whose slurmd took no agent, which ended all other agents
        self._started = time.monotonic()
        self._ready: dict[str, float] = {}
        self._heard: dict[str, float] = {}
        self._pinged = 0.0
        self._idle_since = math.inf
        self._coder: dict[str, bytes] = {}
        self._garbage: Counter[str] = Counter()
        self._first_noise: dict[str, str] = {}
        self._last_error: dict[str, str] = {}
        self._remembered: dict[tuple[str, int], _Question] = {}
        self._queue: deque[_Question] = deque()
        self._flying: dict[int, _Question] = {}
        self._count = 0
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._threads = [
            self._thread(self._read_answers), self._thread(self._read_errors),
            self._thread(self._write), self._thread(self._keep_time),
        ]  # fmt: skip

    @classmethod
    def local(cls, name: str, *, shell: tuple[str, ...] = ("sh",), **options: float) -> Fleet:
        """Open a channel to this machine alone, without Slurm. `shell`: what runs the agent."""
        nonce = new_nonce()
        popen = LocalTransport().spawn(agent_argv(nonce, shell))
        return cls(popen, (name,), nonce, labelled=False, **options)  # type: ignore[arg-type] # seconds only

    @classmethod
    def over_slurm(cls, slurm: Client, allocation: AllocationLike, **options: float) -> Fleet:
        """Open a channel to every node of an allocation: one srun, one agent a node."""
        nonce = new_nonce()
        argv = srun_argv(allocation.job_id, allocation.nodes, nonce)
        popen = slurm.transport.spawn(argv, env=allocation.env)
        return cls(popen, allocation.nodes, nonce, **options)  # type: ignore[arg-type] # seconds only

    # --- asking

    @property
    def lost(self) -> dict[str, str]:
        """Nodes that no longer answer, and why."""
        if not self._lost:  # as nearly always, and every item asks
            return {}
        with self._changed:
            return dict(self._lost)

    @property
    def cut(self) -> frozenset[str]:
        """The lost nodes that went with the channel as a whole: nothing is known against them."""
        with self._changed:
            return frozenset(self._cut)

    def wait_started(self) -> None:
        """Wait until the agent of every node has started or its node is lost."""
        with self._changed:
            while any(node not in self._ready and node not in self._lost for node in self.nodes):
                self._changed.wait(_TICK)

    def ask(self, command: str, *, timeout: float = TIMEOUT, cap: int = CAP) -> dict[str, Answer]:
        """Ask all nodes at once; {node: Answer} in task order, remembered per command.

        `timeout` in seconds, on each node; `cap` in bytes, for stdout and stderr each. A lost node, or one that ran
        out of time, answers with rc None and a problem. ValueError where the command holds a NUL.
        """
        asked = self._asked(command, timeout, cap)
        with self._changed:
            self._changed.wait_for(lambda: asked.done)
            return {node: asked.answers[node] for node in asked.nodes}

    def ask_node(
        self, node: str, command: str, *, timeout: float = TIMEOUT, cap: int = CAP, fresh: bool = False
    ) -> Answer:
        """Return one node's answer: the remembered one of all, or, if `fresh`, one asked of it alone now."""
        if node not in self._task:
            raise ValueError(f"{node} is no node of this channel: it has {hostlist.fold(self.nodes)}")
        asked = self._new(command, timeout, cap, (node,)) if fresh else self._asked(command, timeout, cap)
        with self._changed:
            self._changed.wait_for(lambda: node in asked.answers)
            return asked.answers[node]

    def prefetch(self, commands: Sequence[tuple[str, float]]) -> None:
        """Send (command, timeout in seconds) pairs without waiting; a later ask() finds them answered.

        One follows the other: the first answers are judged while the nodes work on the next question.
        """
        for command, timeout in commands:
            self._asked(command, timeout, CAP, ahead=True)

    def _asked(self, command: str, timeout: float, cap: int, *, ahead: bool = False) -> _Question:
        with self._changed:
            asked = self._remembered.get((command, cap))
            if asked is None:
                asked = self._new(command, timeout, cap, self.nodes, ahead=ahead)
                self._remembered[command, cap] = asked
            elif asked.ahead and not ahead:
                asked.ahead = False
                self._send_next()
            return asked

    def _new(
        self, command: str, timeout: float, cap: int, nodes: tuple[str, ...], *, ahead: bool = False
    ) -> _Question:
        if "\0" in command:
            raise ValueError(f"a command cannot hold a NUL byte: {command[:60]!r}")
        asked = _Question(command, timeout, cap, nodes, ahead)
        with self._changed:
            for node in nodes:
                if node in self._lost:
                    asked.answers[node] = Answer(node, None, problem=f"{LOST}{self._lost[node]}")
            if not asked.done:
                self._queue.append(asked)
                self._send_next()
        return asked

    def _next(self) -> _Question | None:
        """Return what is to be sent now: what somebody waits for, or else what was asked ahead."""
        wanted = next((asked for asked in self._queue if not asked.ahead), None)
        if wanted or not self._queue or self._owed():
            return wanted
        return self._queue[0]

    def _owed(self) -> bool:
        """Whether some nodes are still busy with a question of the last seconds."""
        long_ago = time.monotonic() - AHEAD
        return any(
            not asked.nearly_done and (asked.sent or 0.0) > long_ago for asked in self._flying.values()
        )

    def _send_next(self) -> None:
        """Send what waits, as far as the window allows. The lock is held."""
        while len(self._flying) < self._window and (asked := self._next()):
            self._queue.remove(asked)
            if asked.done:
                continue
            self._idle_since = math.inf
            self._count += 1
            asked.number, asked.sent, asked.sent_at = self._count, time.monotonic(), time.time()
            self._flying[asked.number] = asked
            tasks = (
                None
                if asked.nodes == self.nodes or not self._labelled
                else [self._task[n] for n in asked.nodes]
            )
            self._outbox.put(request(asked.number, tasks, asked.seconds, asked.cap, asked.command))

    # --- answers

    def _read_answers(self) -> None:
        assert self._popen.stdout is not None
        while line := self._popen.stdout.readline(_LINE_LIMIT):
            with self._changed:
                self._take(line)

    def _take(self, line: bytes) -> None:
        task, rest = unlabel(line) if self._labelled else (0, line)
        if task is None or task >= len(self.nodes):
            self.noise[""] += 1
            return
        node = self.nodes[task]
        if node in self._lost:
            return
        try:
            frame = parse(rest, self._nonce)
            if frame is None:
                self._hear_noise(node, rest)
            else:
                self._heard[node] = time.monotonic()
                take = self._take_of_command if frame.number else self._take_of_agent
                take(node, frame)
        except FrameError as error:
            self._hear_garbage(node, str(error))

    def _hear_noise(self, node: str, text: bytes) -> None:
        self.noise[node] += 1
        self._first_noise.setdefault(node, text.decode(errors="replace").strip()[:80])

    def _hear_garbage(self, node: str, what: str) -> None:
        self._garbage[node] += 1
        if self._garbage[node] >= GARBAGE_LIMIT:
            self._lose(node, f"answers garbage ({what}): look at its network and memory")

    def _take_of_agent(self, node: str, frame: Frame) -> None:
        if frame.kind == "H":
            if frame.fields[1] not in CODERS:
                raise FrameError(f"unknown coder {frame.fields[1]!r}")
            self._ready[node], self._coder[node] = time.monotonic(), frame.fields[1]
        elif frame.kind == "Q":
            # it could still say so: whoever ended it, the node is no worse for it
            self._lose(node, f"its agent left: {frame.fields[0].decode(errors='replace')}", cut=True)

    def _take_of_command(self, node: str, frame: Frame) -> None:
        asked = self._flying.get(frame.number)
        if asked is None or node in asked.answers or node not in asked.nodes:
            return  # late: its deadline has passed
        part = asked.parts.setdefault(node, _Part())
        if frame.kind in "oe":
            (part.out if frame.kind == "o" else part.err).add(frame, asked.cap)
        elif frame.kind in "OE":
            (part.out if frame.kind == "O" else part.err).end(frame)
        elif frame.kind == "X":
            part.rc, part.ended = frame.integer(0), time.monotonic()
        if part.complete:
            self._answer(asked, self._assemble(asked, node, part))

    def _assemble(self, asked: _Question, node: str, part: _Part) -> Answer:
        damage = part.out.damage or part.err.damage
        stdout = stderr = b""
        try:
            coder = self._coder.get(node, BASE64)
            stdout, stderr = part.out.data(coder, asked.cap), part.err.data(coder, asked.cap)
        except FrameError as error:
            damage = damage or str(error)
        rc, problem = part.rc, ""
        if damage:
            rc, problem = None, f"answer damaged on its way: {damage}"
            self._hear_garbage(node, damage)
        elif part.rc in _ENDED_BY_DEADLINE and part.ended - self._began(asked, node) >= asked.seconds * 0.95:
            rc, problem = None, f"timed out after {asked.seconds} s"
        cut = part.out.truncated or part.err.truncated
        return Answer(node, rc, stdout, stderr, problem, cut, asked.sent_at, time.time())

    def _began(self, asked: _Question, node: str) -> float:
        """Return when a node may have begun: an agent that starts late finds its commands waiting."""
        return max(asked.sent or 0.0, self._ready.get(node, 0.0))

    def _answer(self, asked: _Question, answer: Answer) -> None:
        """Keep one node's answer. The lock is held."""
        if answer.node in asked.answers:
            return
        asked.answers[answer.node] = answer
        asked.parts.pop(answer.node, None)
        if asked.done:
            self._flying.pop(asked.number, None)
            self._idle_since = time.monotonic()
        if self._queue and asked.nearly_done:
            self._send_next()
        self._changed.notify_all()

    # --- trouble

    def _lose(self, node: str, why: str, *, cut: bool = False) -> None:
        """Give a node up: whatever it still owes is answered with the reason. `cut`: it is not to blame."""
        with self._changed:
            if node in self._lost:
                return
            self._lost[node] = why
            if cut:
                self._cut.add(node)
            for asked in [*self._flying.values(), *self._queue]:
                if node in asked.nodes:
                    self._answer(asked, Answer(node, None, problem=f"{LOST}{why}", sent=asked.sent_at))

    def give_up(self, node: str, why: str) -> None:
        """Say that a node is lost: whoever made the process knows it before its silence tells."""
        if not self._closing.is_set():
            self._lose(node, why)

    def _lose_all(self, why: str) -> None:
        for node in self.nodes:
            self._lose(node, why, cut=True)

    def _read_errors(self) -> None:
        assert self._popen.stderr is not None
        while line := self._popen.stderr.readline(_LINE_LIMIT):
            text = line.decode(errors="replace").strip()
            if text:
                self.messages.append(text)
            task, rest = unlabel(line) if self._labelled else (None, b"")
            if task is not None and task < len(
                self.nodes
            ):  # of slurmstepd or the agent, before srun tells the end
                self._last_error[self.nodes[task]] = rest.decode(errors="replace").strip()[:120]
            self._cancelled |= self._labelled and cancelled(text)
            told = ending(text) if self._labelled else None
            if told is not None:
                for node in self._named(told.nodes, told.tasks):
                    self._lose_told(node, told)

    def _lose_told(self, node: str, told: Ending) -> None:
        if told.revoked:
            why = f"its job ended before the agent started ({told.why})"
        elif told.launch:
            why = f"its slurmd starts no task ({told.why}): systemctl status slurmd and its log there"
            self.stillborn[node] = why
        else:
            said = self._last_error.get(node, "")
            why = f"its agent's task ended: {told.why}{f' ({said})' if said else ''}: look at slurmd's log there"
        self._lose(node, why, cut=told.revoked or (self._cancelled and not told.launch))

    def _named(self, nodes: str, tasks: str) -> list[str]:
        """Return our nodes among those that srun names by task number or by hostlist."""
        numbers = [number for number in task_numbers(tasks) if number < len(self.nodes)]
        if numbers:
            return [self.nodes[number] for number in numbers]
        with contextlib.suppress(ValueError):
            return [node for node in hostlist.expand(nodes) if node in self._task]
        return []

    def _keep_time(self) -> None:
        ended = 0.0
        while not self._closing.wait(_TICK):
            now = time.monotonic()
            if self._popen.poll() is not None:
                ended = ended or now
                # what it wrote last is read first
                if now - ended > 1.0 or not any(reader.is_alive() for reader in self._threads[:2]):
                    self._lose_all(self._why_ended())
                    return
            with self._changed:
                self._check_launch(now)
                for asked in list(self._flying.values()):
                    self._check_deadlines(asked, now)
                self._check_life(now)
                self._send_next()  # what was asked ahead goes when its patience ends
                self._tidy(now)

    def _why_ended(self) -> str:
        errors = [text for text in self.messages if "error" in text] or list(self.messages)
        said = errors[-1] if errors else "it said nothing"
        name = "srun" if self._labelled else "the agent"
        return f"{name} ended (exit {self._popen.returncode}): {said}"

    def _check_launch(self, now: float) -> None:
        patience = self._patience()
        if now - self._started <= patience:
            return
        nowhere = not self._ready and len(self.nodes) > 1
        for node in self.nodes:
            if node not in self._ready and node not in self._lost:
                said = f"; it printed {self._first_noise[node]!r}" if node in self._first_noise else ""
                self._lose(
                    node,
                    f"no agent started within {patience:.0f} s{said}: look at slurmd's log there",
                    cut=nowhere,
                )

    def _patience(self) -> float:
        """Seconds for all agents to start: once half of them are there, some times what that took is enough."""
        half = (len(self.nodes) + 1) // 2
        if len(self.nodes) < 2 or len(self._ready) < half:  # nobody to compare with
            return self._launch_timeout
        took = sorted(self._ready.values())[half - 1] - self._started
        return min(self._launch_timeout, STRAGGLER + STRAGGLER_FACTOR * took)

    def _check_deadlines(self, asked: _Question, now: float) -> None:
        for node in asked.waiting:
            if (
                node in self._ready
                and now > self._began(asked, node) + asked.seconds + _KILL_AFTER + self._grace
            ):
                problem = f"timed out after {asked.seconds} s: it, or what it left behind, can not be ended"
                self._answer(
                    asked, Answer(node, None, problem=problem, sent=asked.sent_at, received=time.time())
                )

    def _tidy(self, now: float) -> None:
        """Wake idle agents once: a line for nobody lets them take the status of their ended children."""
        if not self._flying and now > self._idle_since + _TIDY_AFTER:
            self._idle_since = math.inf
            self._outbox.put(request(0, (), 0, 0, ""))

    def _check_life(self, now: float) -> None:
        """Ask for signs of life while a command takes long, and give up the nodes that send none."""
        waiting = {
            node
            for asked in self._flying.values()
            for node in asked.waiting
            if node in self._ready and now > self._began(asked, node) + PING_AFTER
        }
        if self._pinged and now > self._pinged + self._ping_timeout:
            silent = {node for node in self._ready if self._heard[node] < self._pinged} - self._lost.keys()
            nobody = len(silent) > 1 and silent == self._ready.keys() - self._lost.keys()
            for node in waiting & silent:
                why = f"silent for {self._ping_timeout:g} s: hung or unreachable; look at its console and slurmd"
                if nobody:
                    why = f"all {len(silent)} nodes are silent for {self._ping_timeout:g} s: look at srun's machine"
                self._lose(node, why, cut=nobody)
            self._pinged = 0.0
        if not waiting:
            self._pinged = 0.0
        elif not self._pinged:
            self._pinged = now
            self._outbox.put(request(0, None, 0, 0, ""))

    # --- the process

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(
            target=self._guarded, args=(work,), name=f"fleet{work.__name__}", daemon=True
        )
        thread.start()
        return thread

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a thread's work; if it breaks, nobody must wait for ever."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - becomes the reason of every lost node
            self._lose_all(f"the channel broke: {type(error).__name__}: {error}")

    def _write(self) -> None:
        """Feed the process. It may block: only this thread waits then, and the deadlines go on."""
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):  # the process is gone: _keep_time tells why
            while (data := self._outbox.get()) is not None:
                self._popen.stdin.write(data)
                if self._outbox.empty():
                    self._popen.stdin.flush()
        with contextlib.suppress(OSError):
            self._popen.stdin.close()

    def close(self) -> None:
        """End the agents and the process. Whatever is unanswered is answered as lost."""
        if self._closing.is_set():
            return
        self._closing.set()
        patience = 1 if self._lost else 5  # a hung agent does not leave by itself
        self._lose_all("the channel is closed")
        self._outbox.put(None)
        for send in (None, signal.SIGTERM, signal.SIGKILL):
            if send is not None:
                self._signal(send)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(patience)
                break
        self._signal(signal.SIGKILL)  # what is left of its group
        for thread in self._threads:
            thread.join(5)
        for pipe in (self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                pipe.close()

    def _signal(self, number: int) -> None:
        """Signal the process with its group where it leads one."""
        if not isinstance(self._popen, subprocess.Popen):
            kill_group(self._popen, number)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._popen.poll() is None and os.getpgid(self._popen.pid) != self._popen.pid:
                self._popen.send_signal(number)
            elif os.getpgrp() != self._popen.pid:
                os.killpg(self._popen.pid, number)

    def __enter__(self) -> Fleet:  # Self is not in Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def new_nonce() -> str:
    """Return a word that no other program prints."""
    return f"gpucluster-{secrets.token_hex(8)}"


def srun_argv(job: int | str, nodes: Sequence[str], nonce: str) -> tuple[str, ...]:
    """Return the srun that runs one agent a node for as long as its stdin is open.

    It overlaps with every other step and holds none of their resources back. An agent that ends, well or not, ends
    no other (`--kill-on-bad-exit=0 --wait=0`), nor does a node that fails (`--no-kill`). Not `--unbuffered`: that gives
    each task a terminal; without, slurmstepd passes on whole lines as they come.
    """
    count = str(len(nodes))
    return (
        *("srun", f"--jobid={job}", "--job-name=gpucluster-fleet", "--overlap"),
        *(
            f"--nodes={count}",
            f"--ntasks={count}",
            "--ntasks-per-node=1",
            f"--nodelist={hostlist.fold(nodes)}",
        ),
        *("--distribution=block", "--cpu-bind=none", "--mem=0", "--mpi=none", "--export=ALL"),
        *("--label", "--input=all", "--kill-on-bad-exit=0", "--wait=0", "--no-kill"),
        *agent_argv(nonce),
    )
