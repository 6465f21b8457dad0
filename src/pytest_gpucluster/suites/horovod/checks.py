"""Horovod: the build of each node, and the results of the ranks of a job. Pure.

The facts are those of payload_build.py and payload.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Action, Finding, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable, NotJudged
from pytest_gpucluster.core.finding import Explanation, Quantity, Quote
from pytest_gpucluster.core.majority import differs, norm
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.core.text import listed
from pytest_gpucluster.kit.framework.between import judge_between
from pytest_gpucluster.kit.framework.payload_result import (
    NO_RESULT,
    between_check,
    rank_part,
    transport_check,
    unequal,
    untrained,
    wrong_data,
)
from pytest_gpucluster.kit.nccl.nccl_transport import judge_transport

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.framework.between import Reach
    from pytest_gpucluster.kit.nccl.nccl_transport import Connections
    from pytest_gpucluster.suites.horovod.facts import Build

_HOROVOD = named("software", "Horovod")
_RANKS = Part("rank", name="ranks")
INVALID = "the ranks of the job are not valid: see horovod.ranks"
# float32, summed in another order: a few units in the last place of values around 1 (2^-23 each)
TOLERANCE = 1e-5
TIMED_BYTES = 16 << 20
WAITED = frozenset({"deadline", "rendezvous"})  # faults of ranks that waited for other ranks


@dataclass(frozen=True)
class Launch:
    """Framework, controller and launcher of a job: srun, horovodrun over the nodes, or horovodrun on `localhost`."""

    framework: str
    controller: str
    launcher: str

    def __str__(self) -> str:
        return f"{self.framework}-{self.controller}-{self.launcher}"


@dataclass(frozen=True)
class NodeBuild:
    """Horovod on one node. `problem`: why its build is unknown."""

    build: Build | None = None
    problem: Explanation = NO_RESULT
    interfaces: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    python: str = "python3"
    program: str = "horovodrun"


@dataclass(frozen=True)
class World:
    """One job on `nodes`. `hosts`: the expected node of each rank, in rank order; under horovodrun its host name.

    `ranks`, `problems`: the facts of the ranks.
    `obstacle`: why the job does not run here; `problem`: why the step failed.
    """

    launch: Launch
    hosts: tuple[str, ...] = ()
    ranks: tuple[Mapping[str, Any], ...] = ()
    problems: tuple[Mapping[str, Any], ...] = ()
    problem: Explanation | None = None
    obstacle: NotJudged | None = None
    gpus: bool = False
    nodes: tuple[str, ...] = ()
    connections: Connections | None = None

    @property
    def valid(self) -> bool:
        """Whether each rank reported once, from its expected node."""
        return not self.problems and not self.problem and not [*_placement(self)]


@check(
    "horovod.build",
    cause="Horovod is not installed for this python, or its build lacks what the cluster file requires",
    hint="horovodrun -cb; build with HOROVOD_WITH_PYTORCH=1, HOROVOD_WITH_GLOO=1, HOROVOD_GPU_OPERATIONS=NCCL; "
    "horovod.environment names the python or image",
    action=Action.CONFIGURE,
    setting="horovod.environment",
)
def build(
    node_build: NodeBuild, frameworks: Iterable[str], controllers: Iterable[str], operations: Iterable[str]
) -> Judgement:
    """Judge the build of one node against the cluster file."""
    found = node_build.build
    if found is None:
        yield node_build.problem.finding(_HOROVOD, "an installation that reports its build")
        return
    parts = (
        ("frameworks", found.frameworks, frameworks),
        ("controllers", found.controllers, controllers),
        ("tensor operations", found.operations, operations),
    )
    for name, measured, expected in parts:
        lacking = sorted(set(expected) - measured)
        if lacking:
            words = f"without {', '.join(lacking)}; with {listed(sorted(measured))}"
            yield Finding(named("software", name), words, listed(sorted(expected)), code="built_without")


@check(
    "horovod.versions",
    cause="nodes have different installations of Horovod",
    hint="install the same Horovod on all nodes, or one on shared storage",
    action=Action.CONFIGURE,
)
def version(node_name: str, known_builds: Mapping[str, NodeBuild], peers: Collection[str] | None = None) -> Judgement:
    """Judge that the node has the version that most nodes of its kind (`peers`) have."""
    versions = {
        name: it.build.version
        for name, it in known_builds.items()
        if it.build is not None and (peers is None or name in peers)
    }
    if node_name not in versions:
        raise NotAvailable("the version on the node is unknown: see horovod.build")
    yield from norm(versions.items()).judge(_HOROVOD, versions[node_name], worse=differs)


@check(
    "horovod.ranks",
    cause="the launcher, its network interface, the rendezvous, or Horovod on one node; or singletons",
    hint="horovod.build of the named node",
    action=Action.CONFIGURE,
    each="worlds",
)
def ranks(world: World) -> Judgement:
    """Judge that every rank ran once, on its node, with the requested sizes, controller and devices."""
    if world.obstacle:
        raise world.obstacle
    for fact in world.problems:
        number = str(fact.get("rank"))
        part = rank_part(int(number) if number.isdigit() else None, fact["node"])
        measured = Quote(f"{fact['problem']} (in {fact['stage']})")
        yield Finding(part, measured, f"a job by {world.launch}", code=fact["what"])
    if not world.problems:
        if world.problem:
            yield world.problem.finding(Part("job", name=str(world.launch)), "ends by itself")
        yield from _placement(world)
    elif any(fact["what"] in WAITED for fact in world.problems):
        yield from _silent(world)
    yield from _controllers(world)
    if world.gpus:
        yield from _devices(world)


@check(
    "horovod.all_reduce",
    cause="the network corrupts data, or the ranks do not reduce together",
    hint="another controller, another interface; each node alone; for GPUs -m nccl",
    action=Action.MONITOR,
    each="worlds",
)
def all_reduce(world: World) -> Judgement:
    """Judge the sums of every type against their closed form."""
    _require_valid(world)
    for fact in world.ranks:
        for dtype, count in fact["wrong"].items():
            if count:
                yield wrong_data(_rank(fact), count, f"{count} wrong elements of {dtype}")
    slowest = max(float(fact["seconds"]) for fact in world.ranks)
    yield Metric("all_reduce_16MiB", TIMED_BYTES / slowest / 1e9, "GB/s", str(world.launch))


@check(
    "horovod.broadcast",
    cause="the network corrupts data, or the ranks do not have the same root",
    hint="another controller, another interface; each node alone",
    action=Action.MONITOR,
    each="worlds",
)
def broadcast(world: World) -> Judgement:
    """Judge that every rank received the data of the first and of the last rank."""
    _require_valid(world)
    for fact in world.ranks:
        for root, count in fact["sent"].items():
            if count:
                yield wrong_data(_rank(fact), count, f"{count} wrong elements from rank {root}")


@check(
    "horovod.training",
    cause="gradients are not averaged over all ranks, or the initial parameters were not broadcast",
    hint="horovod.all_reduce and horovod.broadcast first; versions of the framework on the nodes",
    action=Action.MONITOR,
    each="worlds",
)
def training(world: World) -> Judgement:
    """Judge that one step leaves all ranks with equal parameters, changed by the mean gradient."""
    _require_valid(world)
    for when in ("before", "after"):
        values = {_rank(fact): str(fact["trained"][when]) for fact in world.ranks}
        yield from unequal(values, f"{when} the step", code=f"unequal_{when}")
    for fact in world.ranks:
        trained, error = fact["trained"], float(fact["trained"]["error"])
        yield from untrained(_rank(fact), trained["before"], trained["after"], ())
        if trained["before"] != trained["after"] and not error <= TOLERANCE:  # NaN compares false: it fails
            far = Quantity(error, "", f"{error:.3g} from the mean of all gradients")
            bound = Quantity(TOLERANCE, "", f"<= {TOLERANCE:g}")
            yield Finding(_rank(fact), far, bound, code="other_mean")


@transport_check("horovod.transport")
def transport(node_name: str, own_worlds: Iterable[World], profile: Profile) -> Judgement:
    """Judge that NCCL connects the ranks of the node by the transports of the profile, or faster ones (srun)."""
    by_srun = [world for world in own_worlds if world.launch.launcher == "srun"]
    if not any(world.gpus for world in by_srun):
        raise NotApplicable("no job by srun reduces with NCCL: the nodes have no GPUs")
    for world in by_srun:
        if world.gpus:
            yield from judge_transport(node_name, world.connections, profile, "horovod.ranks")


@between_check("horovod.between")
def between(node_name: str, reach: Reach, own_worlds: Iterable[World]) -> Judgement:
    """Judge that ranks of the node summed and trained with ranks of other nodes, in each job over the nodes."""
    exchanged = [_exchanged(world) for world in own_worlds if not world.obstacle]
    nodes = frozenset.intersection(*exchanged) if exchanged else frozenset()
    yield from judge_between(node_name, reach, nodes, "horovod.ranks and horovod.all_reduce")


def _exchanged(world: World) -> frozenset[str]:
    """Return the nodes of a job whose ranks have right sums over all ranks, and trained."""
    right = world.valid and not any(count for fact in world.ranks for count in fact["wrong"].values())
    return frozenset(world.nodes) if right and all("trained" in fact for fact in world.ranks) else frozenset()


def _placement(world: World) -> Iterable[Finding]:
    size = len(world.hosts)
    seen = Counter(int(fact["rank"]) for fact in world.ranks)
    singletons = [fact for fact in world.ranks if fact["size"] == 1]
    if size > 1 and len(singletons) == len(world.ranks) > 1:
        measured = f"{len(singletons)} jobs of one rank each (singletons)"
        yield Finding(_RANKS, measured, f"one job of {size}", code="singletons")
        return
    missing = [rank for rank in range(size) if not seen[rank]]
    if missing:
        at = Counter(world.hosts[rank] for rank in missing)
        where = ", ".join(f"{count} on {node}" for node, count in at.items())
        measured = f"{len(missing)} of {size} sent no report: {where}"
        yield Finding(_RANKS, measured, "every rank once", code="no_report")
    twice = sorted(rank for rank, count in seen.items() if count > 1)
    if twice:
        measured = f"more than once: {listed(sorted(map(str, twice)))}"
        yield Finding(_RANKS, measured, "every rank once", code="several_reports")
    for fact in world.ranks:
        yield from _placement_of(world, fact)


def _silent(world: World) -> Iterable[Finding]:
    """Yield the nodes without any report, for which the other ranks waited."""
    known = {str(it["node"]) for it in (*world.ranks, *world.problems)}
    for node in dict.fromkeys(world.hosts):
        if node not in known:
            measured = "no rank of the node sent a report"
            yield Finding(Part("node", name=node), measured, "its ranks join", code="no_report")


def _placement_of(world: World, fact: Mapping[str, Any]) -> Iterable[Finding]:
    rank, size = int(fact["rank"]), len(world.hosts)
    who = _rank(fact)
    if fact["size"] != size:
        yield Finding(who, f"size {fact['size']}", f"size {size}", code="other_size")
        return
    if not 0 <= rank < size:
        yield Finding(who, f"rank {rank}", f"a rank from 0 to {size - 1}", code="no_such_rank")
        return
    if fact["node"] != world.hosts[rank]:
        measured = f"on {fact['node']}"
        yield Finding(rank_part(rank), measured, f"on {world.hosts[rank]}", code="other_node")
    hosts = [*dict.fromkeys(world.hosts)]
    host = world.hosts[rank]
    expected = {
        "local_rank": world.hosts[:rank].count(host),
        "local_size": world.hosts.count(host),
        "cross_rank": hosts.index(host),
        "cross_size": len(hosts),
    }
    wrong = {key: fact[key] for key, value in expected.items() if fact[key] != value}
    if wrong:
        shown = ", ".join(f"{key} {value}" for key, value in wrong.items())
        right = ", ".join(f"{key} {expected[key]}" for key in wrong)
        yield Finding(who, shown, right, code="other_place")


def _controllers(world: World) -> Iterable[Finding]:
    for fact in world.ranks:
        measured, expected = f"controller {fact['controller']}", f"controller {world.launch.controller}"
        if measured != expected:
            yield Finding(_rank(fact), measured, expected, code="other_controller")


def _devices(world: World) -> Iterable[Finding]:
    for fact in world.ranks:
        if fact["device"] == "cpu":
            yield Finding(_rank(fact), "computes on the CPU", "its own GPU", code="no_gpu")
    used = Counter((fact["node"], fact["device"]) for fact in world.ranks if fact["device"] != "cpu")
    for (node, device), count in used.items():
        if count > 1:
            part = Part("gpu", name=str(device), of=Part("node", name=node))
            yield Finding(part, f"used by {count} ranks", "one rank", code="shared_gpu")


def _require_valid(world: World) -> None:
    if world.obstacle or not world.valid:
        raise world.obstacle or NotAvailable(INVALID)


def _rank(fact: Mapping[str, Any]) -> Part:
    return rank_part(int(fact["rank"]), fact["node"])
