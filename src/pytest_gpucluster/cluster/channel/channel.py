"""The fleet channel: one long-lived process, one agent per node; a command runs once on all nodes.

    with Fleet.over_slurm(slurm, allocation) as fleet:
        fleet.ask("uname -r")["gpu03"].out

A node that dies, hangs or sends invalid data is in `lost`, costs one deadline in total, and delays no other node.
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
from typing import TYPE_CHECKING, Any, Protocol

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
    unlabel,
)
from pytest_gpucluster.cluster.environment import OF_STEPS, OWN_LIMITS
from pytest_gpucluster.cluster.slurm.result import task_numbers
from pytest_gpucluster.cluster.transport import LocalTransport, kill_group
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.core.probe import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.transport import RemoteProcess
    from pytest_gpucluster.core.command_end import CommandEnd

CAP = 1 << 20
TIMEOUT = 30.0
GRACE = 5.0  # seconds for an answer to arrive after the deadline of its command
PING_AFTER = 1.0  # seconds that a command may take before its nodes are pinged
PING_TIMEOUT = 15.0  # seconds without an answer until a node is lost; a ping needs no fork on the node
STRAGGLER, STRAGGLER_FACTOR = 20.0, 5.0  # seconds, plus a multiple of the start time of half of the agents
LAUNCH_TIMEOUT = 180.0  # a prolog runs before the first agent
AHEAD = 10.0  # seconds that a prefetched request waits while over a tenth of the nodes are busy with an earlier one
GARBAGE_LIMIT = 3
_KILL_AFTER = 2.0  # of the agent: from TERM to KILL
_TICK = 0.1
_TIDY_AFTER = 0.3
_LINE_LIMIT = 1 << 16


class Channel(Protocol):
    """The interface of Fleet, FleetClient and JoinedChannel."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes of the channel, in task order, lost ones too."""

    @property
    def lost(self) -> Mapping[str, Explanation]:
        """{node: why it no longer answers}."""

    @property
    def disconnected(self) -> frozenset[str]:
        """The nodes that were lost with the whole channel, without a fault of their own."""

    def ask(self, command: str, *, timeout: float = TIMEOUT, cap: int = CAP) -> dict[str, Answer]:
        """Run a command on all nodes at once; the answers are cached."""

    def ask_node(
        self, node: str, command: str, *, timeout: float = TIMEOUT, cap: int = CAP, fresh: bool = False
    ) -> Answer:
        """Return the answer of one node: from the cache of all nodes, or, if `fresh`, from a new run on this node."""

    def prefetch(self, commands: Sequence[tuple[str, float]]) -> None:
        """Send (command, timeout in seconds) pairs without waiting, for a later ask()."""

    def close(self) -> None:
        """Close the channel."""


@dataclass
class _Part:
    out: Stream = field(default_factory=Stream)
    err: Stream = field(default_factory=Stream)
    end: CommandEnd | None = None

    @property
    def complete(self) -> bool:
        return self.end is not None and self.out.ended and self.err.ended


@dataclass
class _Query:
    """One command, the nodes that run it, and their answers."""

    command: str
    timeout: float
    cap: int
    nodes: tuple[str, ...]
    ahead: bool = False  # prefetched: no caller waits for it yet
    number: int = 0
    sent: float | None = None
    sent_at: float | None = None
    parts: dict[str, _Part] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)

    @property
    def seconds(self) -> int:
        """The deadline on the node: whole seconds, as POSIX sleep requires."""
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
    """The channel over one process: its stdin goes to the agents of all nodes, its stdout has their lines.

    `nodes` are in task order. `labelled`: lines have srun's task label; without, the process is one agent.
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
        self._lost: dict[str, Explanation] = {}
        self._disconnected: set[str] = set()
        self._cancelled = False  # the whole step was ended from outside
        self.launch_failed: dict[str, Explanation] = {}  # nodes without an agent, which ended all other agents
        self._started = time.monotonic()
        self._ready: dict[str, float] = {}
        self._last_frame: dict[str, float] = {}
        self._pinged = 0.0
        self._idle_since = math.inf
        self._coder: dict[str, bytes] = {}
        self._garbage: Counter[str] = Counter()
        self._first_noise: dict[str, str] = {}
        self._last_error: dict[str, str] = {}
        self._cache: dict[tuple[str, int], _Query] = {}
        self._queue: deque[_Query] = deque()
        self._flying: dict[int, _Query] = {}
        self._count = 0
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._threads = [
            self._thread(self._read_answers), self._thread(self._read_errors),
            self._thread(self._write), self._thread(self._keep_time),
        ]  # fmt: skip

    @classmethod
    def local(cls, name: str, *, shell: tuple[str, ...] = ("sh",), **options: Any) -> Fleet:
        """Open a channel to this machine alone, without Slurm. `shell`: what runs the agent."""
        nonce = new_nonce()
        popen = LocalTransport().spawn(agent_argv(nonce, shell))
        return cls(popen, (name,), nonce, labelled=False, **options)

    @classmethod
    def over_slurm(cls, slurm: Slurm, allocation: Allocation, **options: Any) -> Fleet:
        """Open a channel to every node of an allocation: one srun, one agent per node."""
        nonce = new_nonce()
        argv = srun_argv(allocation.job_id, allocation.nodes, nonce)
        popen = slurm.transport.spawn(argv, env={**OF_STEPS, **allocation.env})
        return cls(popen, allocation.nodes, nonce, **options)

    # --- queries

    @property
    def lost(self) -> dict[str, Explanation]:
        """{node: why it no longer answers}."""
        if not self._lost:  # the usual case, without the lock: every item reads this
            return {}
        with self._changed:
            return dict(self._lost)

    @property
    def disconnected(self) -> frozenset[str]:
        """The nodes that were lost with the whole channel, without a fault of their own."""
        with self._changed:
            return frozenset(self._disconnected)

    def wait_started(self) -> None:
        """Wait until the agent of every node has started or its node is lost."""
        with self._changed:
            while any(node not in self._ready and node not in self._lost for node in self.nodes):
                self._changed.wait(_TICK)

    def ask(self, command: str, *, timeout: float = TIMEOUT, cap: int = CAP) -> dict[str, Answer]:
        """Run a command on all nodes at once; return {node: Answer} in task order, cached per command.

        `timeout` in seconds, on each node; `cap` in bytes, for stdout and stderr each. A lost node, or one that
        exceeded the timeout, has an answer with rc None and a problem. ValueError if the command contains a NUL.
        """
        query = self._cached(command, timeout, cap)
        with self._changed:
            self._changed.wait_for(lambda: query.done)
            return {node: query.answers[node] for node in query.nodes}

    def ask_node(
        self, node: str, command: str, *, timeout: float = TIMEOUT, cap: int = CAP, fresh: bool = False
    ) -> Answer:
        """Return the answer of one node: from the cache of all nodes, or, if `fresh`, from a new run on this node."""
        if node not in self._task:
            raise ValueError(f"{node} is no node of this channel: it has {hostlist.fold(self.nodes)}")
        query = self._new(command, timeout, cap, (node,)) if fresh else self._cached(command, timeout, cap)
        with self._changed:
            self._changed.wait_for(lambda: node in query.answers)
            return query.answers[node]

    def prefetch(self, commands: Sequence[tuple[str, float]]) -> None:
        """Send (command, timeout in seconds) pairs without waiting, for a later ask().

        They run one after another: the first answers are judged while the nodes run the next command.
        """
        for command, timeout in commands:
            self._cached(command, timeout, CAP, ahead=True)

    def _cached(self, command: str, timeout: float, cap: int, *, ahead: bool = False) -> _Query:
        with self._changed:
            query = self._cache.get((command, cap))
            if query is None:
                query = self._new(command, timeout, cap, self.nodes, ahead=ahead)
                self._cache[command, cap] = query
            elif query.ahead and not ahead:
                query.ahead = False
                self._send_next()
            return query

    def _new(self, command: str, timeout: float, cap: int, nodes: tuple[str, ...], *, ahead: bool = False) -> _Query:
        if "\0" in command:
            raise ValueError(f"a command cannot hold a NUL byte: {command[:60]!r}")
        query = _Query(command, timeout, cap, nodes, ahead)
        with self._changed:
            for node in nodes:
                if node in self._lost:
                    query.answers[node] = _of_lost(node, self._lost[node].text)
            if not query.done:
                self._queue.append(query)
                self._send_next()
        return query

    def _next(self) -> _Query | None:
        """Return the query to send now: the first with a waiting caller, or else the first prefetched one."""
        wanted = next((query for query in self._queue if not query.ahead), None)
        if wanted or not self._queue or self._owed():
            return wanted
        return self._queue[0]

    def _owed(self) -> bool:
        """Return whether some nodes are still busy with a query of the last AHEAD seconds."""
        long_ago = time.monotonic() - AHEAD
        return any(not it.nearly_done and (it.sent or 0.0) > long_ago for it in self._flying.values())

    def _send_next(self) -> None:
        """Send waiting queries, as far as the window allows. The lock is held."""
        while len(self._flying) < self._window and (query := self._next()):
            self._queue.remove(query)
            if query.done:
                continue
            self._idle_since = math.inf
            self._count += 1
            query.number, query.sent, query.sent_at = self._count, time.monotonic(), time.time()
            self._flying[query.number] = query
            everywhere = query.nodes == self.nodes or not self._labelled
            tasks = None if everywhere else [self._task[node] for node in query.nodes]
            self._outbox.put(request(query.number, tasks, query.seconds, query.cap, query.command))

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
                self.noise[node] += 1
                self._first_noise.setdefault(node, rest.decode(errors="replace").strip()[:80])
            else:
                self._last_frame[node] = time.monotonic()
                take = self._take_of_command if frame.number else self._take_of_agent
                take(node, frame)
        except FrameError as error:
            self._count_garbage(node, str(error))

    def _count_garbage(self, node: str, what: str) -> None:
        self._garbage[node] += 1
        if self._garbage[node] >= GARBAGE_LIMIT:
            self._lose(node, f"it sends invalid data ({what}): check its network and memory")

    def _take_of_agent(self, node: str, frame: Frame) -> None:
        if frame.kind == "H":
            if frame.fields[1] not in CODERS:
                raise FrameError(f"unknown coder {frame.fields[1]!r}")
            self._ready[node], self._coder[node] = time.monotonic(), frame.fields[1]
        elif frame.kind == "Q":
            # it could still report its end: the node is not at fault
            why = frame.fields[0].decode(errors="replace")
            self._lose(node, f"its agent exited: {why}", disconnected=True)

    def _take_of_command(self, node: str, frame: Frame) -> None:
        query = self._flying.get(frame.number)
        if query is None or node in query.answers or node not in query.nodes:
            return  # too late: the deadline has passed
        part = query.parts.setdefault(node, _Part())
        if frame.kind in "oe":
            (part.out if frame.kind == "o" else part.err).add(frame, query.cap)
        elif frame.kind in "OE":
            (part.out if frame.kind == "O" else part.err).end(frame)
        elif frame.kind == "X":
            part.end = frame.end
        if part.complete:
            self._answer(query, self._assemble(query, node, part))

    def _assemble(self, query: _Query, node: str, part: _Part) -> Answer:
        damage = part.out.damage or part.err.damage
        stdout = stderr = b""
        try:
            coder = self._coder.get(node, BASE64)
            stdout, stderr = part.out.data(coder, query.cap), part.err.data(coder, query.cap)
        except FrameError as error:
            damage = damage or str(error)
        rc, problem = part.end.status if part.end else None, ""
        if damage:
            rc, problem = None, f"answer damaged in transit: {damage}"
            self._count_garbage(node, damage)
        elif rc is None:
            problem = f"timed out after {query.seconds} s"
        truncated = part.out.truncated or part.err.truncated
        return Answer(node, rc, stdout, stderr, problem, truncated, query.sent_at, time.time())

    def _began(self, query: _Query, node: str) -> float:
        """Return the earliest start on a node: an agent that starts late reads waiting commands first."""
        return max(query.sent or 0.0, self._ready.get(node, 0.0))

    def _answer(self, query: _Query, answer: Answer) -> None:
        """Store one node's answer. The lock is held."""
        if answer.node in query.answers:
            return
        query.answers[answer.node] = answer
        query.parts.pop(answer.node, None)
        if query.done:
            self._flying.pop(query.number, None)
            self._idle_since = time.monotonic()
        if self._queue and query.nearly_done:
            self._send_next()
        self._changed.notify_all()

    # --- lost nodes

    def _lose(self, node: str, why: str, code: str = "", *, disconnected: bool = False) -> None:
        """Mark a node as lost and answer its open queries with the reason. `disconnected`: it is not at fault."""
        with self._changed:
            if node in self._lost:
                return
            self._lost[node] = Explanation(code, why)
            if disconnected:
                self._disconnected.add(node)
            for query in [*self._flying.values(), *self._queue]:
                if node in query.nodes:
                    self._answer(query, _of_lost(node, why, query.sent_at))

    def give_up(self, node: str, why: str) -> None:
        """Mark a node as lost before its ping times out, for the owner of the process."""
        if not self._closing.is_set():
            self._lose(node, why)

    def _lose_all(self, why: str) -> None:
        for node in self.nodes:
            self._lose(node, why, disconnected=True)

    def _read_errors(self) -> None:
        assert self._popen.stderr is not None
        while line := self._popen.stderr.readline(_LINE_LIMIT):
            text = line.decode(errors="replace").strip()
            if text:
                self.messages.append(text)
            task, rest = unlabel(line) if self._labelled else (None, b"")
            # from slurmstepd or the agent, before srun reports the end
            if task is not None and task < len(self.nodes):
                self._last_error[self.nodes[task]] = rest.decode(errors="replace").strip()[:120]
            self._cancelled |= self._labelled and cancelled(text)
            reported = ending(text) if self._labelled else None
            if reported is not None:
                for node in self._named(reported.nodes, reported.tasks):
                    self._lose_ended(node, reported)

    def _lose_ended(self, node: str, reported: Ending) -> None:
        error = self._last_error.get(node, "")
        prolog = "prolog_failed" * ("TaskProlog failed" in f"{reported.why} {error}")  # words of slurmstepd
        if reported.revoked:
            why, code = f"its job ended before the agent started ({reported.why})", ""
        elif reported.launch:
            why, code = (
                f"its slurmd starts no task ({reported.why}): systemctl status slurmd and its log there",
                prolog or "starts_no_task",
            )
            self.launch_failed[node] = Explanation(code, why)
        else:
            why = f"its agent's task ended: {reported.why}{f' ({error})' if error else ''}: see slurmd's log there"
            code = prolog or "task_ended"
        self._lose(node, why, code, disconnected=reported.revoked or (self._cancelled and not reported.launch))

    def _named(self, nodes: str, tasks: str) -> list[str]:
        """Return the channel's nodes among those that srun names by task number or by hostlist."""
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
                # first read its last output
                if now - ended > 1.0 or not any(reader.is_alive() for reader in self._threads[:2]):
                    self._lose_all(self._why_ended())
                    return
            with self._changed:
                self._check_launch(now)
                for query in list(self._flying.values()):
                    self._check_deadlines(query, now)
                self._check_life(now)
                self._send_next()  # a prefetched request after AHEAD seconds
                self._tidy(now)

    def _why_ended(self) -> str:
        errors = [text for text in self.messages if "error" in text] or list(self.messages)
        name = "srun" if self._labelled else "the agent"
        output = errors[-1] if errors else "it printed nothing"
        return f"{name} ended (exit {self._popen.returncode}): {output}"

    def _check_launch(self, now: float) -> None:
        patience = self._patience()
        if now - self._started <= patience:
            return
        nowhere = not self._ready and len(self.nodes) > 1
        for node in self.nodes:
            if node not in self._ready and node not in self._lost:
                output = f"; it printed {self._first_noise[node]!r}" if node in self._first_noise else ""
                why = f"no agent started within {patience:.0f} s{output}: see slurmd's log there"
                self._lose(node, why, disconnected=nowhere)

    def _patience(self) -> float:
        """Return the seconds for all agents to start: a multiple of the time in which half of them started."""
        half = (len(self.nodes) + 1) // 2
        if len(self.nodes) < 2 or len(self._ready) < half:  # no other node to compare with
            return self._launch_timeout
        took = sorted(self._ready.values())[half - 1] - self._started
        return min(self._launch_timeout, STRAGGLER + STRAGGLER_FACTOR * took)

    def _check_deadlines(self, query: _Query, now: float) -> None:
        problem = f"timed out after {query.seconds} s: the command, or a process that it started, cannot be ended"
        latest = now - query.seconds - _KILL_AFTER - self._grace
        for node in query.waiting:
            if node in self._ready and self._began(query, node) < latest:
                late = Answer(node, None, problem=problem, sent=query.sent_at, received=time.time())
                self._answer(query, late)

    def _tidy(self, now: float) -> None:
        """Wake idle agents once: a line without a task lets them reap their ended children."""
        if not self._flying and now > self._idle_since + _TIDY_AFTER:
            self._idle_since = math.inf
            self._outbox.put(request(0, (), 0, 0, ""))

    def _check_life(self, now: float) -> None:
        """Ping the nodes while a command takes long; those that do not answer are lost."""
        waiting = {
            node
            for query in self._flying.values()
            for node in query.waiting
            if node in self._ready and now > self._began(query, node) + PING_AFTER
        }
        if self._pinged and now > self._pinged + self._ping_timeout:
            here = self._ready.keys() - self._lost.keys()
            silent = {node for node in here if self._last_frame[node] < self._pinged}
            all_silent = len(silent) > 1 and silent == here
            for node in waiting & silent:
                why = f"silent for {self._ping_timeout:g} s: hung or unreachable; see its console and slurmd"
                if all_silent:
                    why = f"all {len(silent)} nodes are silent for {self._ping_timeout:g} s: check srun's machine"
                self._lose(node, why, disconnected=all_silent)
            self._pinged = 0.0
        if not waiting:
            self._pinged = 0.0
        elif not self._pinged:
            self._pinged = now
            self._outbox.put(request(0, None, 0, 0, ""))

    # --- the process

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        name = f"fleet{work.__name__}"
        thread = threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
        thread.start()
        return thread

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a thread's work; if it fails, end all waiting queries."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - becomes the reason of every lost node
            self._lose_all(f"the channel failed: {type(error).__name__}: {error}")

    def _write(self) -> None:
        """Feed the process. A write may block, which delays this thread only, and no deadline."""
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):  # the process has ended: _keep_time finds the reason
            while (data := self._outbox.get()) is not None:
                self._popen.stdin.write(data)
                if self._outbox.empty():
                    self._popen.stdin.flush()
        with contextlib.suppress(OSError):
            self._popen.stdin.close()

    def close(self) -> None:
        """End the agents and the process. Open queries get an answer with the problem 'node lost'."""
        if self._closing.is_set():
            return
        self._closing.set()
        patience = 1 if self._lost else 5  # seconds; a hung agent does not exit by itself
        self._lose_all("the channel is closed")
        self._outbox.put(None)
        for send in (0, signal.SIGTERM, signal.SIGKILL):
            if send:
                self._signal(send)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(patience)
                break
        self._signal(signal.SIGKILL)  # the rest of its group
        for thread in self._threads:
            thread.join(5)
        for pipe in (self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                pipe.close()

    def _signal(self, number: int) -> None:
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


def _of_lost(node: str, why: str, sent: float | None = None) -> Answer:
    return Answer(node, None, problem=f"node lost: {why}", sent=sent, lost=True)


def new_nonce() -> str:
    """Return a random word that marks the lines of the agents."""
    return f"gpucluster-{secrets.token_hex(8)}"


def srun_argv(job: int | str, nodes: Sequence[str], nonce: str) -> tuple[str, ...]:
    """Return the srun command that runs one agent per node for as long as its stdin is open.

    It overlaps with every other step and occupies none of their resources. The end of an agent ends no other
    (`--kill-on-bad-exit=0 --wait=0`), nor does the failure of a node (`--no-kill`). Not `--unbuffered`: that would give
    each task a terminal; without it, slurmstepd forwards whole lines at once.
    """
    count, names = len(nodes), hostlist.fold(nodes)
    return (
        *("srun", f"--jobid={job}", "--job-name=gpucluster-fleet", "--overlap"),
        *(f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", f"--nodelist={names}"),
        *("--distribution=block", "--cpu-bind=none", "--mem=0", "--mpi=none", OWN_LIMITS),
        *("--label", "--input=all", "--kill-on-bad-exit=0", "--wait=0", "--no-kill"),
        *agent_argv(nonce),
    )
