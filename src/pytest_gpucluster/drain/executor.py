"""Execution of drains and resumes: read the node's state, write the intent, run scontrol, read the result.

Events are written ahead: `drain_decision` (a node, drained or spared, and why), `node_intent` (the command that runs
next), `node_result` (the state in Slurm afterwards). After a crash, a log that ends with an intent means that the command
may have run; one that ends with a decision, that it did not.

Slurm has no compare-and-set for nodes, so a lock lets one run of a user drain at a time. Without it, a run changes no node. It
is below the home folder, which login nodes usually share; against runs of other users, the node is read again right before the
command and after it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import GpuClusterError, SlurmError
from pytest_gpucluster.core.run_mark import NO_NODE
from pytest_gpucluster.core.secure_tempfile import Folder
from pytest_gpucluster.drain import policy
from pytest_gpucluster.drain.reason import read_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.core.budget import Budget
    from pytest_gpucluster.drain.policy import Grounds

    Write = Callable[..., None]

PATIENCE = 60.0  # seconds; a drain of one node takes well under one
OUT_OF_TIME = 300.0  # seconds for all commands of a run, which holds its nodes meanwhile


@dataclass(frozen=True)
class Limits:
    """`budget` of nodes that gpucluster drains at a time, and each node's partition (several by commas)."""

    budget: Budget
    partition_of: Mapping[str, str]

    def reached(self, node: str, nodes: Mapping[str, NodeInfo], new: Iterable[str]) -> str:
        """Return a message if the budget of the node's partition is spent, else ''."""
        name = self.partition_of.get(node, "")
        wanted = set(name.split(","))
        present = {other for other, info in nodes.items() if wanted.intersection(info.partitions)}
        allowed = self.budget.of(len(present))
        out = {other for other in present if policy.counts(nodes[other])} | (set(new) & present)
        if len(out) < allowed:
            return ""
        return (
            f"the budget is spent: {len(out)} of {len(present)} nodes of partition {name or '(unknown)'} are "
            f"drained by gpucluster, drain.max={self.budget} allows {allowed}"
        )


@dataclass
class DrainExecutor:
    """Drains and resumes nodes of one cluster in one run.

    `slurm` has short timeouts: a controller that does not answer ends all commands. `write(event, **fields)` raises if
    the event cannot be written: then no command runs. `dry`: write the decisions, run no command.
    """

    slurm: Slurm
    write: Write
    run: str
    dry: bool = False
    shown: Callable[[Sequence[str]], str] = " ".join
    commands: list[str] = field(default_factory=list)  # of a dry run
    # would drain nodes that failed and that the run could not test
    by_hand: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # failed commands, for people
    drained: list[str] = field(default_factory=list)  # also those that a dry run would drain
    over_budget: list[str] = field(default_factory=list)
    spared: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)  # (what, check, why) -> nodes
    _deadline: float = field(init=False)
    _stopped: str = ""

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + OUT_OF_TIME

    @property
    def spared_lines(self) -> list[str]:
        """The nodes that stay as they are, and why, for people: one line for each reason."""
        return [
            f"{what}: {hostlist.shown(nodes)}{f' ({check})' if check else ''}: {why}"
            for (what, check, why), nodes in self.spared.items()
        ]

    # --- drain

    def drain(self, grounds: Iterable[Grounds], limits: Limits, *, spared: Mapping[str, str]) -> None:
        """Drain the nodes of confirmed grounds, the worst first. `spared`: {node: why it must not be drained}."""
        known = tuple(grounds)
        for one in known:
            if one.unconfirmed:
                self._decide(one.node, (one,), f"not confirmed: {one.unconfirmed}")
        for node, mine in policy.ranked(known):
            self._drain_one(node, mine, limits, spared.get(node, ""))

    def _drain_one(self, node: str, mine: tuple[Grounds, ...], limits: Limits, spared: str) -> None:
        try:
            nodes = {} if spared or self._halted() else self._read()
        except SlurmError as error:
            nodes = {}
            self._stop(f"{node}: its state cannot be read: {error}")
        why = spared or self._stopped or policy.why_not_drain(nodes.get(node))
        if not why and (spent := limits.reached(node, nodes, self.drained)):
            self.over_budget.append(node)
            why = spent
        reason = policy.reason_for(mine, self.run)
        argv = policy.drain_command(node, reason)
        self._decide(node, mine, why, argv)
        if spared:
            self.by_hand.append(self.shown(argv))
        if why:
            return
        self.drained.append(node)
        if self.dry:
            self.commands.append(self.shown(argv))
            return
        result = self._update(node, argv, nodes[node], lambda info: _is_drained(info, reason), "drained")
        if result != "drained":
            self.drained.remove(node)

    def _decide(self, node: str, grounds: Sequence[Grounds], why: str, argv: Sequence[str] | None = None) -> None:
        fields: dict[str, Any] = {"command": self.shown(argv)} if argv and not why else {}
        if why:
            self.spared.setdefault(("not drained", grounds[0].check, why), []).append(node)
        self.write(
            "drain_decision",
            node=node,
            decision="spare" if why else "drain",
            why=why or "failed, and failed again on a fresh attempt",
            checks=[one.check for one in grounds],
            action=grounds[0].action.value,
            dry_run=self.dry,
            **fields,
        )

    # --- resume

    def current(self, node: str) -> NodeInfo | None:
        """Return the current state of a node; None if it cannot be read."""
        return None if self._halted() else self._read_back(node)

    def resume(self, node: str, reason: str) -> bool:
        """Resume a node that has passed, if gpucluster drained it and its reason still is `reason`."""
        argv = policy.undrain_command(node)
        try:
            info = None if self._halted() else self._read().get(node)
            why = self._stopped or policy.why_not_resume(info, reason)
        except SlurmError as error:
            why = f"its state cannot be read: {error}"
            self._stop(f"{node}: {why}")
        if not why and read_reason(node, reason) is None:
            why = "its reason is not from gpucluster"
        fields: dict[str, Any] = {} if why else {"command": self.shown(argv)}
        self.decide_resume(node, why, reason, **fields)
        if why:
            self.spared.setdefault(("not resumed", "", why), []).append(node)
            return False
        if self.dry:
            self.commands.append(self.shown(argv))
            return False
        assert info is not None  # else there is a why
        return self._update(node, argv, info, lambda now: _is_resumed(now, reason), "resumed") == "resumed"

    def decide_resume(self, node: str, why: str, reason: str, **fields: Any) -> None:
        """Write the decision about a node that gpucluster drained; `why` it stays drained, '' to resume it."""
        self.write(
            "resume_decision",
            node=node,
            decision="keep drained" if why else "resume",
            why=why or "passed every check that drained it",
            reason=reason,
            dry_run=self.dry,
            **fields,
        )

    # --- Slurm

    def _update(
        self, node: str, argv: Sequence[str], before: NodeInfo, reached: Callable[[NodeInfo], bool], word: str
    ) -> str:
        """Run the command between the events of its intent and result; return `result`."""
        self.write("node_intent", node=node, command=self.shown(argv), state=before.full_state, reason=before.reason)
        problem = ""
        try:
            self.slurm.run(*argv)
        except SlurmError as error:
            problem = str(error)
        after = self._read_back(node)
        if after is not None and reached(after):
            result, problem = word, ""  # whatever the command printed
        elif after is None:
            result = "unknown"
            problem = problem or "its state could not be read after the command"
        else:
            result = "failed" if problem else "overtaken"
            problem = problem or "another user changed the node at the same time"
        self.write(
            "node_result",
            node=node,
            result=result,
            problem=problem,
            state=after.full_state if after else None,
            reason=after.reason if after else None,
        )
        if result != word:
            self.problems.append(f"{node}: {result}: {problem}")
            self._stop(f"a command failed ({node}: {problem})")
        return result

    def _read(self) -> dict[str, NodeInfo]:
        self.slurm.refresh()
        return self.slurm.nodes()

    def _read_back(self, node: str) -> NodeInfo | None:
        try:
            return self._read().get(node)
        except SlurmError:
            return None

    def _stop(self, why: str) -> None:
        if not self._stopped:
            self._stopped = f"no further node is changed: {why}"
            self.problems.append(self._stopped)

    def _halted(self) -> bool:
        if not self._stopped and time.monotonic() > self._deadline:
            self._stop(f"{OUT_OF_TIME:.0f} s have passed, and the nodes must be released")
        return bool(self._stopped)


def why_no_rights(slurm: Slurm) -> str:
    """Return Slurm's error if this user may not change nodes; '' if the user may, or if Slurm does not answer.

    The update names a node that does not exist, so it changes nothing; Slurm checks permissions first (22.05.8).
    """
    try:
        slurm.run(*policy.undrain_command(NO_NODE))
    except SlurmError as error:
        return str(error) if re.search(r"Invalid user id|denied", error.stderr, re.IGNORECASE) else ""
    return ""


def _is_drained(info: NodeInfo, reason: str) -> bool:
    return "DRAIN" in info.flags and info.reason == reason


def _is_resumed(info: NodeInfo, reason: str) -> bool:
    return not policy.why_not_drain_again(info, reason)


# --- the lock


def lock_path(cluster: str) -> Path | None:
    """Return the path of the lock of a cluster, by Slurm's ClusterName; None for a user without a home."""
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError:
        return None
    return state / "pytest-gpucluster" / "locks" / f"drain-{re.sub(r'[^A-Za-z0-9_.-]', '_', cluster)}.lock"


class LockError(GpuClusterError):
    """The lock cannot be held."""


@contextlib.contextmanager
def locked(path: Path | None, *, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock. LockError if no file can be locked, or if another run holds the lock too long."""
    if path is None:
        raise LockError("no file can be locked without a home folder: no node is changed; set XDG_STATE_HOME")
    try:
        with contextlib.closing(Folder(path.parent, create=True)) as folder:
            handle = folder.open(path.name)
    except OSError as error:
        raise _no_lock(path, error) from error
    try:
        _wait_for(handle, path, patience)
        yield
    finally:
        os.close(handle)  # frees the lock too


def _no_lock(path: Path, error: OSError) -> LockError:
    return LockError(
        f"{path}: cannot be locked ({error.strerror}): no node is changed; XDG_STATE_HOME names another folder"
    )


def _wait_for(handle: int, path: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise LockError(
                    f"{path}: another run has been draining for {patience:.0f} s: no node is changed"
                ) from None
            time.sleep(0.1)
        except OSError as error:  # a file system without locks
            raise _no_lock(path, error) from error
        else:
            return
