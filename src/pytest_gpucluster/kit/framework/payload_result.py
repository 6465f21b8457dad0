"""What the checks of the framework suites share: the results of the tasks of one payload step, and the checks that each suite declares. Pure."""

from __future__ import annotations

import math
import re
import signal
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pytest_gpucluster.cluster.slurm.task_place import MISPLACED
from pytest_gpucluster.core import safe_json as jsontext
from pytest_gpucluster.core.check import Action, Finding, check
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.finding import Explanation, Quantity, Quote
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.majority import decides, differs, norm
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.kit.mpi.mpi_errors import code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping

    from pytest_gpucluster.core.check import Check, Judgement
    from pytest_gpucluster.kit.nccl.nccl_transport import Connections

    Fact = Mapping[str, Any]

P = ParamSpec("P")
T = TypeVar("T")
MAX_LINE = 300
# lines of slurmstepd: 'slurmstepd: error: ...', since 25.05 '[TIME] error: ...' as in its log
_OF_SLURM = re.compile(r"slurmstepd|\[\d{4}-\d\d-\d\dT[^]]*\] (?:error|fatal): ")
# the name and line of the script around each task (cluster/slurm/task.sh), before what its shell says: dash, bash, busybox
_OF_WRAPPER = re.compile(r"^task-[0-9a-f]{16}: (?:(?:line )?\d+: |exec: )*")
_ERROR = re.compile(r"[Ee]rror|[Cc]annot|[Nn]ot found|does not|[Ff]ailed|Killed")


NOT_STARTED = Explanation("not_started", "did not start")
NO_RESULT = Explanation("no_result", "sent no result")
NO_MESSAGE = Explanation("no_message", "ended without a message")
STILL = Explanation(
    "hung", "exceeded the time limit of the step without a report of a deadline: it was stopped, or hangs"
)
_FOLLOWS = {"peer_lost": 1, "stuck": 2}  # what happens to a rank if another one is the cause


@dataclass(frozen=True)
class PayloadTask:
    """One Slurm task: its facts, one mapping per line of JSON, and how it ended. `error`: its last line on stderr."""

    task: int
    node: str
    rc: int | None
    signal: int | None
    facts: tuple[Fact, ...]
    error: str = ""

    @property
    def end(self) -> Explanation:
        """How the task ended."""
        if self.signal is not None:
            return Explanation("killed", f"ended by signal {self.signal} ({signal_name(self.signal)})")
        if self.rc is None:
            return Explanation("never_ended", "never ended")
        message = f": {self.error}" if self.error and self.rc else ""
        return Explanation(code_of(self.error, "exit_status"), f"exit status {self.rc}{message}")


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
    def stopped(self) -> Explanation | None:
        """Why the step was cancelled or did not start; None if it ended by itself."""
        code = MISPLACED if self.misplaced else "timed_out" if self.tasks else "not_started"
        return Explanation(code, self.problem) if self.problem else None

    @property
    def failed(self) -> Explanation | None:
        """Why the step failed as a whole; None if it ended with 0."""
        known = Explanation("step_failed", self.hint or f"the step ended with {self.rc}")
        return self.stopped or (known if self.rc else None)

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

    def reported(self, fact: Fact) -> Explanation | None:
        """Return the failure or the expired deadline that a fact is; None if it is another one."""
        if fact.get(self.key) == "failed":
            limited = fact.get("low_limits", False)
            code = code_of(fact["reason"], fact.get("code") or "failed", low_limits=limited)
            return Explanation(code, f"{fact['phase']}: {fact['reason']}")
        if fact.get(self.key) == "stuck":
            return Explanation("stuck", f"{fact['phase']}: no end after {fact['seconds']:g} s")
        return None

    def why(self, task: PayloadTask) -> Explanation:
        """Return why a task did not continue: the failure that it reported, or how it ended."""
        if reported := next(filter(None, map(self.reported, task.facts)), None):
            return reported
        if task.signal is not None and self.stopped:  # Slurm ended all tasks: the first to die is unknown
            others_ended = any(other.signal is None for other in self.tasks)
            return STILL if others_ended else self.stopped
        return NO_MESSAGE if task.rc == 0 else task.end

    def causes_first(self, tasks: Iterable[PayloadTask]) -> list[PayloadTask]:
        """Return tasks in the order of ranks; those that only waited for others come last."""
        return sorted(tasks, key=lambda task: (_FOLLOWS.get(self.why(task).code, 0), task.task))

    def absent(
        self, ranks: Collection[int], expected: str, parts: Mapping[int, Part] | None = None
    ) -> Iterator[Finding]:
        """Yield why each of these ranks did not do what is expected. `parts`: what they are, if known better."""
        known, more = {task.task: task for task in self.tasks}, parts or {}
        for task in self.causes_first(known[number] for number in ranks if number in known):
            part = more.get(task.task) or rank_part(task.task, task.node)
            yield self.why(task).finding(part, expected)
        for number in sorted(set(ranks) - set(known)):
            yield (self.stopped or NOT_STARTED).finding(rank_part(number), expected)

    @property
    def exchanged(self) -> frozenset[str]:
        """The nodes of the ranks if all have summed over all ranks without an error, and trained; else none."""
        reduced = self.by_rank("reduced")
        whole = set(reduced) == set(self.by_rank("trained")) == set(range(self.ntasks))
        if not whole or any(fact["wrong"] for fact in self.facts("reduced")):
            return frozenset()
        return frozenset(str(fact["node"]) for fact in reduced.values())

    def port_taken(self) -> bool:
        """Return whether a task failed because another program uses its port."""
        return any("already in use" in fact["reason"] for fact in self.facts("failed"))

    def silent(self, node: str) -> Explanation:
        """Return why a node sent no result."""
        if node in self.misplaced:
            return Explanation(MISPLACED, self.misplaced[node])
        tasks = self.tasks_of(node)
        bad = next((task for task in tasks if task.rc != 0), None)
        if bad is not None:
            return Explanation(bad.end.code, f"task {bad.task}: {bad.end.text}")
        if self.problem or self.hint:
            return self.stopped or Explanation("step_failed", self.hint)
        if tasks:
            return NO_RESULT
        return Explanation("no_task", "no task started there")

    def silence(self, node: str) -> str:
        """Return why a node sent no result, as text."""
        return self.silent(node).text


def rank_part(number: int | None, node: str = "") -> Part:
    """Return a rank, of a node if that is known."""
    return Part("rank", number, of=Part("node", name=node) if node else None)


def wrong_data(part: Part, count: int, words: str) -> Finding:
    """Return the finding of a number of wrong elements in what a part received or computed."""
    unit = "wrong elements"
    return Finding(part, Quantity(count, unit, words), Quantity(0, unit, "none"), code="wrong_data")


def untrained(part: Part, before: str, after: str, losses: Iterable[float]) -> Iterator[Finding]:
    """Yield what is wrong with a training by itself: it changed no parameter, or a loss is no finite number."""
    if before == after:
        yield Finding(part, "training changed no parameter", "other parameters", code="unchanged")
    yield from not_finite(part, losses)


def unequal(values: Mapping[Part, str], what: str, code: str) -> Iterator[Finding]:
    """Yield the ranks whose parameters differ from those that at least two thirds have; '': they differ within the rank."""
    usual = most_common(values.values())
    for part, value in values.items():
        if value != usual or not value:
            measured = f"parameters {what}: {value or 'replicas differ within the rank'}"
            code_of_rank = code if value else f"{code}_replicas"
            yield Finding(part, measured, usual or "equal on all ranks", code=code_of_rank)


def not_finite(part: Part, losses: Iterable[float]) -> Iterator[Finding]:
    """Yield a finding for the first loss that is no finite number."""
    for step, loss in enumerate(losses, 1):
        if not math.isfinite(float(loss)):
            yield Finding(part, f"loss {loss} in step {step}", "finite losses", code="not_finite")
            return


def _by_kind(result: PayloadResult) -> Mapping[str, list[Fact]]:
    found: defaultdict[str, list[Fact]] = defaultdict(list)
    for task in result.tasks:
        for fact in task.facts:
            # a rank that is not a number is not from the payload
            if isinstance(fact.get("rank", -1), int):
                found[str(fact.get(result.key))].append(fact)
    return {kind: sorted(facts, key=lambda fact: int(fact.get("rank", -1))) for kind, facts in found.items()}


def _by_node(result: PayloadResult, kind: str) -> Mapping[str, list[Fact]]:
    return grouped((str(fact.get("node")), fact) for fact in result.facts(kind))


def _by_rank(result: PayloadResult, kind: str) -> Mapping[int, Fact]:
    return {int(fact["rank"]): fact for fact in result.facts(kind)}


def _tasks_by_node(result: PayloadResult) -> Mapping[str, list[PayloadTask]]:
    return grouped((task.node, task) for task in result.tasks)


def judge_package(
    node_name: str, packages: PayloadResult, name: str, peers: Collection[str] | None = None, kind: str = "found"
) -> Judgement:
    """Judge the facts of a kind of a node: a package is installed, in the version of the other nodes of its kind (`peers`).

    A fact `found` has error and version; one of another kind has them under the name of the package.
    """
    part = named("software", f"package {name}")
    facts = [(str(fact["node"]), fact if kind == "found" else fact[name]) for fact in packages.facts(kind)]
    mine = [found for node, found in facts if node == node_name]
    if not mine:
        yield packages.silent(node_name).finding(named("software", "python"), f"reports whether {name} is installed")
        return
    if error := next((found["error"] for found in mine if found["error"]), ""):
        where = f"; {packages.where}" if packages.where else ""
        # if all lack it, the environment does, not the node
        action = Action.CONFIGURE if all(found["error"] for _, found in facts) else None
        yield Finding(part, Quote(f"{error}{where}"), "installed", action, code="not_installed")
        return
    versions = {
        node: found["version"] for node, found in facts if not found["error"] and (peers is None or node in peers)
    }
    yield from norm(versions.items()).judge(part, versions[node_name], worse=differs)


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


# --- the checks that every distributed framework has; each suite judges its own facts in the function below the decorator


def _suite(name: str) -> str:
    """Return the suite of a check."""
    return name.partition(".")[0]


def framework_check(name: str, package: str) -> Callable[[Callable[P, Judgement]], Check[P]]:
    """Declare SUITE.framework: each node has the package, in the version of the others."""
    return check(
        name,
        cause=f"{package} is not installed for this python on the node, or the environment differs between nodes",
        hint=f"python3 -m pip show {package} on the node; or name another python under `environments` and that under "
        f"{_suite(name)}.environment",
        action=Action.CONFIGURE,
        setting=f"{_suite(name)}.environment",
    )


def transport_check(name: str) -> Callable[[Callable[P, Judgement]], Check[P]]:
    """Declare SUITE.transport: NCCL connects the ranks by the transports of the profile."""
    return check(
        name,
        cause="NCCL does not use the adapters, or the GPUs do not reach each other directly: NCCL_* of the environment, a "
        "missing library or device in the image, or an adapter that is down",
        hint="env | grep NCCL_ in a task; ibv_devinfo there; the nccl and fabric suites",
        action=Action.MONITOR,
    )


def between_check(name: str) -> Callable[[Callable[P, Judgement]], Check[P]]:
    """Declare SUITE.between: ranks of the node exchanged right data with ranks of other nodes."""
    return check(
        name,
        cause=f"partitions, or the key {_suite(name)}.nodes, leave the node without another one",
        hint=f"test nodes of one partition together: --nodes, {_suite(name)}.nodes",
        action=Action.CONFIGURE,
    )
