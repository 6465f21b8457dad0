"""Horovod: what each node's build can do, and what the ranks of a job found. Pure.

The facts are what suites/horovod/payload_build.py and suites/horovod/payload.py tell.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Finding, Metric, NotApplicable, check
from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.core.text import listed
from pytest_gpucluster.kit.payload_result import most_common

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.suites.horovod.facts import Build

NOT_BELIEVED = "the job is not believed: see horovod.ranks"
# float32, sums in another order: a few units in the last place of values around 1 (2^-23 each)
TOLERANCE = 1e-5
TIMED_BYTES = 16 << 20
WAITED = frozenset({"deadline", "rendezvous"})  # faults of ranks that waited for others


@dataclass(frozen=True)
class Launch:
    """One way to run: framework, controller, and srun, horovodrun over the nodes, or horovodrun on `localhost`."""

    framework: str
    controller: str
    launcher: str

    def __str__(self) -> str:
        return f"{self.framework}-{self.controller}-{self.launcher}"


@dataclass(frozen=True)
class NodeBuild:
    """Horovod on one node: `problem` says why there is none."""

    build: Build | None = None
    problem: str = ""
    interfaces: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    python: str = "python3"
    program: str = "horovodrun"


@dataclass(frozen=True)
class World:
    """One job: `places` is where each rank was to be, in rank order; `ranks` and `problems` are what they told.

    `not_applicable` says why it could not be asked for here; `problem` why it ended otherwise than by itself.
    """

    way: Launch
    places: tuple[str, ...] = ()
    ranks: tuple[Mapping[str, Any], ...] = ()
    problems: tuple[Mapping[str, Any], ...] = ()
    problem: str = ""
    not_applicable: str = ""
    gpus: bool = False

    @property
    def believed(self) -> bool:
        """Whether each rank was there once, where it was to be."""
        return not self.problems and not self.problem and not [*_places(self)]


@check(
    "horovod.build",
    cause="Horovod is not installed for this python, or was built without what the cluster file expects",
    hint="horovodrun -cb; build with HOROVOD_WITH_PYTORCH=1, HOROVOD_WITH_GLOO=1, HOROVOD_GPU_OPERATIONS=NCCL; "
    "horovod.environment names the python or image",
)
def build(
    here: NodeBuild, frameworks: Iterable[str], controllers: Iterable[str], operations: Iterable[str]
) -> Judgement:
    """Judge the build of one node against what the cluster file expects."""
    if here.build is None:
        yield Finding("Horovod", here.problem or "nothing was told", "a Horovod that tells its build")
        return
    parts = (
        ("frameworks", here.build.frameworks, frameworks),
        ("controllers", here.build.controllers, controllers),
        ("tensor operations", here.build.operations, operations),
    )
    for name, measured, expected in parts:
        lacking = sorted(set(expected) - measured)
        if lacking:
            yield Finding(
                name,
                f"without {', '.join(lacking)}; with {listed(sorted(measured))}",
                listed(sorted(expected)),
            )


@check(
    "horovod.versions",
    cause="nodes have other installations of Horovod",
    hint="install the same Horovod on all nodes, or one on shared storage",
)
def version(node_name: str, known_builds: Mapping[str, NodeBuild]) -> Judgement:
    """Judge that the node has the version that most nodes have."""
    known = {name: it.build.version for name, it in known_builds.items() if it.build is not None}
    if node_name not in known:
        yield NotApplicable("the node told no version: see horovod.build")
        return
    yield from norm(known.items()).judge("Horovod", known[node_name])


@check(
    "horovod.interface",
    cause="the interface that horovod.interface names is down, named otherwise, or without IPv4 on this node",
    hint="ip -4 addr; one name for the same network on all nodes",
)
def interface(here: NodeBuild, wanted_interface: str | None) -> Judgement:
    """Judge that the chosen network interface is there with an IPv4 address."""
    if wanted_interface is None:
        yield NotApplicable("the cluster file chooses no interface (horovod.interface)")
    elif wanted_interface not in here.interfaces:
        there = ", ".join(f"{name} {address}" for name, address in sorted(here.interfaces.items()))
        yield Finding(
            f"interface {wanted_interface}", f"not there; there are: {there or 'none'}", "an IPv4 address"
        )


@check(
    "horovod.ranks",
    cause="the launcher, its network interface, the rendezvous, or Horovod on one node; or singletons",
    hint="horovod.build of the named node; horovod.interface; for MPI: srun --mpi=list, and the MPI of the build",
    each="worlds",
)
def ranks(world: World, wanted_interface: str | None = None) -> Judgement:
    """Judge that every rank was there once, on its node, with the sizes, controller and devices asked for."""
    if world.not_applicable:
        yield NotApplicable(world.not_applicable)
        return
    for told in world.problems:
        part = f"rank {told.get('rank', '?')} on {told['node']}"
        yield Finding(part, f"{told['problem']} (in {told['stage']})", f"a job by {world.way}")
    if not world.problems:
        if world.problem:
            yield Finding(f"{world.way}", world.problem, "ends by itself")
        yield from _places(world)
    elif any(told["what"] in WAITED for told in world.problems):
        yield from _silent(world)
    yield from _controllers(world, wanted_interface)
    if world.gpus:
        yield from _devices(world)


@check(
    "horovod.all_reduce",
    cause="data is changed on its way, or the ranks do not reduce together",
    hint="another controller, another interface; each node alone; for GPUs -m nccl",
    each="worlds",
)
def all_reduce(world: World) -> Judgement:
    """Judge the sums against the closed form, in every type."""
    if (reason := _unfit(world)) is not None:
        yield reason
        return
    for told in world.ranks:
        for kind, count in told["wrong"].items():
            if count:
                yield Finding(
                    f"rank {told['rank']} on {told['node']}", f"{count} wrong elements of {kind}", "none"
                )
    slowest = max(float(told["seconds"]) for told in world.ranks)
    yield Metric("all_reduce_16MiB", TIMED_BYTES / slowest / 1e9, "GB/s", str(world.way))


@check(
    "horovod.broadcast",
    cause="data is changed on its way, or the ranks do not have the same root",
    hint="another controller, another interface; each node alone",
    each="worlds",
)
def broadcast(world: World) -> Judgement:
    """Judge that every rank has what the first, and what the last rank sent."""
    if (reason := _unfit(world)) is not None:
        yield reason
        return
    for told in world.ranks:
        for root, count in told["sent"].items():
            if count:
                yield Finding(
                    f"rank {told['rank']} on {told['node']}",
                    f"{count} wrong elements from rank {root}",
                    "none",
                )


@check(
    "horovod.training",
    cause="gradients are not averaged over all ranks, or the parameters were not made equal first",
    hint="horovod.all_reduce and horovod.broadcast first; versions of the framework on the nodes",
    each="worlds",
)
def training(world: World) -> Judgement:
    """Judge that one step leaves all ranks with equal parameters, changed as the mean gradient says."""
    if (reason := _unfit(world)) is not None:
        yield reason
        return
    for when in ("before", "after"):
        usual = most_common(str(told["trained"][when]) for told in world.ranks)
        if other := [told for told in world.ranks if told["trained"][when] != usual]:
            names = listed(sorted(f"{told['rank']} ({told['node']})" for told in other))
            yield Finding(f"parameters {when} the step", f"ranks {names} differ", "equal on all ranks")
    for told in world.ranks:
        if told["trained"]["before"] == told["trained"]["after"]:
            yield Finding(f"rank {told['rank']} on {told['node']}", "the step changed nothing", "a step")
        elif not float(told["trained"]["error"]) <= TOLERANCE:  # NaN compares false: it fails
            error = f"{float(told['trained']['error']):.3g} from the mean of all gradients"
            yield Finding(f"rank {told['rank']} on {told['node']}", error, f"<= {TOLERANCE:g}")


def _places(world: World) -> Iterable[Finding]:
    size = len(world.places)
    seen = Counter(int(told["rank"]) for told in world.ranks)
    singletons = [told for told in world.ranks if told["size"] == 1]
    if size > 1 and len(singletons) == len(world.ranks) > 1:
        yield Finding("size", f"{len(singletons)} jobs of one rank each (singletons)", f"one job of {size}")
        return
    missing = [rank for rank in range(size) if not seen[rank]]
    if missing:
        at = Counter(world.places[rank] for rank in missing)
        where = ", ".join(f"{count} on {node}" for node, count in at.items())
        yield Finding("ranks", f"{len(missing)} of {size} told nothing: {where}", "every rank once")
    twice = sorted(rank for rank, count in seen.items() if count > 1)
    if twice:
        yield Finding("ranks", f"more than once: {listed(sorted(map(str, twice)))}", "every rank once")
    for told in world.ranks:
        yield from _place(world, told)


def _silent(world: World) -> Iterable[Finding]:
    """Yield what the others waited for: nodes of which no rank told anything."""
    told = {str(it["node"]) for it in (*world.ranks, *world.problems)}
    for node in dict.fromkeys(world.places):
        if node not in told:
            yield Finding(node, "no rank of it told anything", "its ranks join")


def _place(world: World, told: Mapping[str, Any]) -> Iterable[Finding]:
    rank, size = int(told["rank"]), len(world.places)
    who = f"rank {rank} on {told['node']}"
    if told["size"] != size:
        yield Finding(who, f"size {told['size']}", f"size {size}")
        return
    if not 0 <= rank < size:
        yield Finding(who, f"rank {rank}", f"a rank from 0 to {size - 1}")
        return
    if told["node"] != world.places[rank]:
        yield Finding(f"rank {rank}", f"on {told['node']}", f"on {world.places[rank]}")
    hosts = [*dict.fromkeys(world.places)]
    place = world.places[rank]
    expected = {
        "local_rank": world.places[:rank].count(place),
        "local_size": world.places.count(place),
        "cross_rank": hosts.index(place),
        "cross_size": len(hosts),
    }
    wrong = {key: told[key] for key, value in expected.items() if told[key] != value}
    if wrong:
        shown = ", ".join(f"{key} {value}" for key, value in wrong.items())
        yield Finding(who, shown, ", ".join(f"{key} {expected[key]}" for key in wrong))


def _controllers(world: World, wanted: str | None) -> Iterable[Finding]:
    for told in world.ranks:
        who = f"rank {told['rank']} on {told['node']}"
        if told["controller"] != world.way.controller:
            yield Finding(f"controller of {who}", str(told["controller"]), world.way.controller)
        if wanted and world.way.controller == "gloo" and told["interface"] != wanted:
            yield Finding(f"interface of {who}", str(told["interface"]) or "none", wanted)


def _devices(world: World) -> Iterable[Finding]:
    for told in world.ranks:
        if told["device"] == "cpu":
            yield Finding(f"rank {told['rank']} on {told['node']}", "computes on the CPU", "a GPU of its own")
    used = Counter((told["node"], told["device"]) for told in world.ranks if told["device"] != "cpu")
    for (node, device), count in used.items():
        if count > 1:
            yield Finding(f"GPU {device} of {node}", f"used by {count} ranks", "one rank")


def _unfit(world: World) -> NotApplicable | None:
    if world.not_applicable:
        return NotApplicable(world.not_applicable)
    return None if world.believed else NotApplicable(NOT_BELIEVED)
