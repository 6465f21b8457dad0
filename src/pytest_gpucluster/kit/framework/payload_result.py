"""The results of the tasks of one payload step, for the checks of the framework suites. Pure."""

from __future__ import annotations

import re
import signal
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_gpucluster.core import safe_json as jsontext
from pytest_gpucluster.core.check import Action, Finding
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.majority import decides, differs, norm

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.nccl.nccl_transport import Connections

    Fact = Mapping[str, Any]

T = TypeVar("T")
MAX_LINE = 300
# lines of slurmstepd: 'slurmstepd: error: ...', since 25.05 '[TIME] error: ...' as in its log
_OF_SLURM = re.compile(r"slurmstepd|\[\d{4}-\d\d-\d\dT[^]]*\] (?:error|fatal): ")
# the name and line of the script around each task (cluster/slurm/task.sh), before what its shell says: dash, bash, busybox
_OF_WRAPPER = re.compile(r"^task-[0-9a-f]{16}: (?:(?:line )?\d+: |exec: )*")
_ERROR = re.compile(r"[Ee]rror|[Cc]annot|[Nn]ot found|does not|[Ff]ailed|Killed")


@dataclass(frozen=True)
class PayloadTask:
    """One Slurm task: its facts, one mapping per line of JSON, and how it ended. `error`: its last line on stderr."""

    task: int
    node: str
    rc: int | None
    signal: int | None
    facts: tuple[Fact, ...]
    error: str = ""

    def ending(self) -> str:
        """Return how the task ended, as text."""
        if self.signal is not None:
            return f"ended by signal {self.signal} ({signal_name(self.signal)})"
        if self.rc is None:
            return "never ended"
        message = f": {self.error}" if self.error and self.rc else ""
        return f"exit status {self.rc}{message}"


@dataclass(frozen=True)
class PayloadResult:
    """One step. `key`: the first key in the lines of its payload; `problem`: why it was cancelled or did not start.

    `hint`: the known cause of the messages of a failed step, in one line. `misplaced`: {node: reason} of nodes whose tasks
    ran elsewhere than stated (see cluster/slurm/task_place.py): `tasks` has none of them. `connections`: of NCCL, in a step
    that logs them. `where`: the environment of the tasks, as text.
    """

    key: str
    nodes: tuple[str, ...]
    ntasks: int
    tasks: tuple[PayloadTask, ...] = ()
    problem: str = ""
    command: str = ""
    seconds: float = 0.0
    rc: int = 0
    hint: str = ""
    misplaced: Mapping[str, str] = field(default_factory=dict)
    connections: Connections | None = None
    where: str = ""
    _made: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, make: Callable[..., T], *args: Hashable) -> T:
        """Return make(self, *args), made by the first call: what concerns all tasks is not made for each node."""
        if (make, args) not in self._made:
            self._made[make, args] = make(self, *args)
        found: T = self._made[make, args]
        return found

    @property
    def failure(self) -> str:
        """Why the step failed as a whole, in one line; '' if it ended with 0."""
        return self.problem or (self.rc and (self.hint or f"the step ended with {self.rc}")) or ""

    def facts(self, kind: str) -> list[Fact]:
        """Return all facts of a kind, sorted by rank."""
        return list(self.once(_by_kind).get(kind, ()))

    def require_tasks(self, see: str) -> None:
        """Raise NotAvailable if no node could take part in the step. see: the checks that judge why."""
        if not self.ntasks:
            raise NotAvailable(see)

    def of_node(self, node: str, kind: str) -> list[Fact]:
        """Return the facts of a kind from one node."""
        return list(self.once(_by_node, kind).get(node, ()))

    def tasks_of(self, node: str) -> list[PayloadTask]:
        """Return the tasks on one node."""
        return list(self.once(_tasks_by_node).get(node, ()))

    def last_facts(self, node: str = "") -> dict[str, Fact]:
        """Return {kind: its last fact}, of one node or of all."""
        facts = (fact for task in self.tasks for fact in task.facts)
        return {str(fact[self.key]): fact for fact in facts if not node or fact.get("node") == node}

    def by_rank(self, kind: str) -> Mapping[int, Fact]:
        """Return {rank: fact}; the last one for a rank with several."""
        return self.once(_by_rank, kind)

    def failure_of(self, task: PayloadTask) -> str:
        """Return the failure or the expired deadline that the payload of a task reported, '' without one."""
        for fact in task.facts:
            if fact.get(self.key) == "failed":
                return f"{fact['phase']}: {fact['reason']}"
            if fact.get(self.key) == "stuck":
                return f"{fact['phase']}: no end after {fact['seconds']:g} s"
        return ""

    @property
    def exchanged(self) -> frozenset[str]:
        """The nodes of the ranks if all have summed over all ranks without an error, and trained; else none."""
        reduced = self.by_rank("reduced")
        whole = set(reduced) == set(self.by_rank("trained")) == set(range(self.ntasks))
        if not whole or any(fact["wrong"] for fact in self.facts("reduced")):
            return frozenset()
        return frozenset(str(fact["node"]) for fact in reduced.values())

    def lacking(self, package: str, error: str, everyone: Iterable[str]) -> Finding:
        """Return the finding for a package that the environment of the step lacks.

        everyone: the error on each node. If all have one, the environment lacks the package, not the node.
        """
        where = f"; {self.where}" if self.where else ""
        return Finding(
            f"package {package}", f"{error}{where}", "installed", Action.CONFIGURE if all(everyone) else None
        )

    def port_taken(self) -> bool:
        """Return whether a task failed because another program uses its port."""
        return any("already in use" in fact["reason"] for fact in self.facts("failed"))

    def silence(self, node: str) -> str:
        """Return why a node sent no result."""
        if node in self.misplaced:
            return self.misplaced[node]
        tasks = self.tasks_of(node)
        bad = next((task for task in tasks if task.rc != 0), None)
        if bad is not None:
            return f"task {bad.task}: {bad.ending()}"
        return self.problem or self.hint or ("sent no result" if tasks else "no task started there")


def _by_kind(result: PayloadResult) -> Mapping[str, list[Fact]]:
    found: defaultdict[str, list[Fact]] = defaultdict(list)
    for task in result.tasks:
        for fact in task.facts:
            # a rank that is not a number is not from the payload
            if isinstance(fact.get("rank", -1), int):
                found[str(fact.get(result.key))].append(fact)
    return {kind: sorted(facts, key=lambda fact: int(fact.get("rank", -1))) for kind, facts in found.items()}


def _by_node(result: PayloadResult, kind: str) -> Mapping[str, list[Fact]]:
    found: defaultdict[str, list[Fact]] = defaultdict(list)
    for fact in result.facts(kind):
        found[str(fact.get("node"))].append(fact)
    return found


def _by_rank(result: PayloadResult, kind: str) -> Mapping[int, Fact]:
    return {int(fact["rank"]): fact for fact in result.facts(kind)}


def _tasks_by_node(result: PayloadResult) -> Mapping[str, list[PayloadTask]]:
    found: defaultdict[str, list[PayloadTask]] = defaultdict(list)
    for task in result.tasks:
        found[task.node].append(task)
    return found


def judge_package(
    node_name: str, packages: PayloadResult, name: str, peers: Collection[str] | None = None
) -> Judgement:
    """Judge the fact `found` of a node: a package is installed, in the version of the other nodes of its kind (`peers`)."""
    facts = packages.of_node(node_name, "found")
    if not facts:
        yield Finding("python", packages.silence(node_name), f"reports whether {name} is installed")
        return
    if facts[0]["error"]:
        yield packages.lacking(name, facts[0]["error"], [fact["error"] for fact in packages.facts("found")])
        return
    versions = {
        fact["node"]: fact["version"]
        for fact in packages.facts("found")
        if not fact["error"] and (peers is None or fact["node"] in peers)
    }
    yield from norm(versions.items()).judge(f"package {name}", versions[node_name], worse=differs)


def read_facts(text: str, key: str) -> tuple[Fact, ...]:
    """Return the lines of JSON that have the payload's key; other lines are output of the framework."""
    facts = []
    for line in text.splitlines():
        start = line.find(f'{{"{key}": ')
        if start < 0:
            continue
        try:
            facts.append(jsontext.loads(line[start:]))
        except ValueError:
            continue  # cut; the check reports the missing fact
    return tuple(facts)


def last_stderr_line(stderr: str) -> str:
    """Return the last line with an error message, else the last line with a letter or digit, cut to MAX_LINE."""
    lines = [line.strip() for line in stderr.splitlines() if any(map(str.isalnum, line))]  # MPI draws rules
    own = [line for line in lines if not _OF_SLURM.match(line) and " NCCL INFO " not in line] or lines
    errors = [line for line in own if _ERROR.search(line)] or own
    return _OF_WRAPPER.sub("", errors[-1])[:MAX_LINE] if errors else ""


def most_common(values: Iterable[str]) -> str:
    """Return the value that at least two thirds have (see core/majority.py), '' if there is none."""
    known = list(values)
    return next((value for value in known if decides(known.count(value), len(known))), "")


def signal_name(number: int) -> str:
    """Return the name of a signal, like SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
