"""Which nodes are under test, which are not, and why. Pure: cluster file + Slurm's inventory + options -> plan."""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.config.models import Cluster


class ProblemKind(str, enum.Enum):
    """Why a node is not tested."""

    UNAVAILABLE = "unavailable"  # drained, down, unknown to Slurm: an administrator must act
    BUSY = "busy"  # at work for others: nothing is wrong
    LOST = "lost"  # went away during the run
    DISCONNECTED = "cut"  # went with the channel to all nodes: nothing is known against it


@dataclass(frozen=True)
class Problem:
    """Why one node is not tested, in one line."""

    kind: ProblemKind
    text: str
    code: str = ""  # of a lost node

    @property
    def lost(self) -> bool:
        """Whether the node was there when the run began."""
        return self.kind in (ProblemKind.LOST, ProblemKind.DISCONNECTED)


@dataclass(frozen=True)
class Selection:
    """The nodes of --nodes and --exclude-nodes. None: the option was not given."""

    nodes: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()

    @classmethod
    def parse(cls, nodes: str | None, exclude: str | None) -> Selection:
        """Expand the hostlists of --nodes and --exclude-nodes; ConfigError where one is none."""
        without = () if exclude is None else _expand("--exclude-nodes", exclude)
        return cls(None if nodes is None else _expand("--nodes", nodes), without)


@dataclass(frozen=True)
class Plan:
    """`selected`: every node that this run is to judge. `problems`: those of them that cannot be tested.

    `wait`: --nodes named them, and the run waits for busy ones. `unreached`: those on which no command can be run, since
    only one section of the cluster file names them: they are never allocated.
    """

    selected: tuple[str, ...]
    problems: Mapping[str, Problem] = field(default_factory=dict)
    wait: bool = False
    unreached: frozenset[str] = frozenset()

    @property
    def testable(self) -> tuple[str, ...]:
        """The nodes to allocate, in the order of the cluster file."""
        return tuple(node for node in self.judged if node not in self.unreached)

    @property
    def judged(self) -> tuple[str, ...]:
        """The nodes without a problem, in the order of the cluster file."""
        return tuple(node for node in self.selected if node not in self.problems)


def make_plan(
    cluster: Cluster,
    inventory: Mapping[str, NodeInfo],
    selection: Selection,
    *,
    reserved: Collection[str] | None = None,
    to_retest: Collection[str] = (),
) -> Plan:
    """Choose the nodes; ConfigError where none is left or one is named that the cluster does not have.

    `reserved`: the nodes of the chosen reservation (None: no reservation, or one without nodes of its own); without
    --nodes only they are under test. `to_retest`: drained nodes that will be undrained for the run.
    """
    expected = tuple(node for group in cluster.groups for node in group.names)
    named = expected if selection.nodes is None else selection.nodes
    if selection.nodes is None and reserved is not None:
        named = tuple(node for node in expected if node in reserved)
        if not named:
            has = f"cluster {cluster.name}, which has {hostlist.fold(expected)}"
            raise ConfigError(f"reservation {cluster.slurm.reservation} holds no node of {has}")
    _refuse_unknown("--nodes", named, expected, cluster.name)
    _refuse_unknown("--exclude-nodes", selection.exclude, expected, cluster.name)
    excluded = set(selection.exclude)
    selected = tuple(node for node in named if node not in excluded)
    if not selected:
        raise ConfigError(f"--exclude-nodes leaves no node of {hostlist.fold(named)} to test")
    unreached = frozenset(node for node in selected if cluster.unreachable(node))
    if cluster.why_no_slurm:
        return Plan(selected, unreached=unreached)
    wait = selection.nodes is not None
    problems = {
        node: problem
        for node in selected
        if node not in to_retest and node not in unreached and (problem := judge_node(node, inventory, wait=wait))
    }
    outside = set(selected) - problems.keys() - unreached - set(selected if reserved is None else reserved)
    why = f"not in reservation {cluster.slurm.reservation}"
    problems |= {node: Problem(ProblemKind.UNAVAILABLE, why) for node in outside}
    return Plan(selected, problems, wait, unreached)


def judge_node(node: str, inventory: Mapping[str, NodeInfo], *, wait: bool) -> Problem | None:
    """Return why Slurm would not allocate this node now. `wait`: the run waits for a busy node."""
    info = inventory.get(node)
    if info is None:
        why = "Slurm does not know this node: add it to slurm.conf, or correct the file"
        return Problem(ProblemKind.UNAVAILABLE, why)
    at_work = info.busy and info.schedulable  # one that drains is busy too, but will not come
    if info.available or (wait and at_work):
        return None
    return Problem(ProblemKind.BUSY if at_work else ProblemKind.UNAVAILABLE, info.why_unavailable())


def shares(
    cluster: Cluster, inventory: Mapping[str, NodeInfo], nodes: tuple[str, ...]
) -> dict[tuple[str | None, int], tuple[str, ...]]:
    """Sort nodes by (partition, GPUs that Slurm counts there): one allocation each.

    The allocation must request GPUs by number: a step without gres of its own gets those of the allocation, and
    without any it would see no GPU where cgroups constrain devices.
    """
    chosen = set(nodes)
    found: dict[tuple[str | None, int], list[str]] = {}
    for group in cluster.groups:
        partition = group.partition or cluster.slurm.partition
        for node in filter(chosen.__contains__, group.names):
            found.setdefault((partition, inventory[node].gpus), []).append(node)
    return {key: tuple(names) for key, names in found.items()}


def _refuse_unknown(option: str, named: tuple[str, ...], expected: tuple[str, ...], cluster: str) -> None:
    unknown = set(named) - set(expected)
    if unknown:
        has = f"cluster {cluster}, which has {hostlist.fold(expected)}"
        raise ConfigError(f"{option}: {hostlist.fold(unknown)} not in {has}")


def _expand(option: str, text: str) -> tuple[str, ...]:
    try:
        nodes = hostlist.expand(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error
    if not nodes:
        raise ConfigError(f"{option}: names no node")
    return nodes


Lanes = tuple[tuple[str, ...], ...]

ALL, ANY = "all", ""  # beside the numbers of lanes


@dataclass(frozen=True)
class NodeLease:
    """Where an item runs: a lane's number, ALL or ANY; its nodes; `load`: no other item may use them meanwhile."""

    lane: str
    nodes: frozenset[str]
    load: bool


def make_lanes(nodes: Sequence[str], count: int, leaves: Mapping[str, str]) -> Lanes:
    """Divide nodes into at most `count` lanes of equal size, to within one: {node: leaf switch} keeps a leaf together.

    Nodes keep Slurm's order within their leaf, leaves that of their first node; no lane is empty.
    """
    first = {leaf: at for at, leaf in reversed(list(enumerate(leaves.get(node, "") for node in nodes)))}
    ordered = sorted(nodes, key=lambda node: first[leaves.get(node, "")])
    count = max(1, min(count, len(ordered)))
    ends = [len(ordered) * at // count for at in range(count + 1)]
    return tuple(tuple(ordered[begin:end]) for begin, end in itertools.pairwise(ends))
