"""Measurements of groups of nodes, the bounds of their bandwidth, and the result of a localisation. Pure."""

from __future__ import annotations

import enum
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpucluster.core.finding import Explanation, Quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.core.part import Part
    from pytest_gpucluster.kit.nccl.pairing import Group
    from pytest_gpucluster.kit.nccl.sensitivity import SmallestFault

MIN_DISTANCE = 0.12  # of the median: four standard deviations of a fabric that scatters by 3%
SIGMAS = 4.0
MAX_DISTANCE = 1 / 3  # of the median: two speeds scatter so widely that no fault would be beyond the bound
EXPECTED = "expected"


class GroupKind(str, enum.Enum):
    """Kind of a measured group; each has its own bound."""

    ALONE = "alone"  # the GPUs of one node
    WITHIN = "within"  # two nodes on one leaf, or of a fabric without known leaves
    ACROSS = "across"  # two nodes on different leaves
    RAIL = "rail"  # one GPU of one node with one of another
    LOCAL = "local"  # two GPUs of one node


class Status(str, enum.Enum):
    """Result of the comparison of a measurement with its bound."""

    GOOD = "good"
    SLOW = "slow"
    FAILED = "failed"
    SKIPPED = "skipped"
    UNJUDGED = "unjudged"


@dataclass(frozen=True)
class Measurement:
    """Measurement of one group in one round.

    `members` are nodes, or GPUs as 'node:local rank'. `busbw` in GB/s; None if nothing was measured, with the reason in
    `problem` (crashed, hung, wrong data). `skipped`: the group was not run; `problem` may hold the reason. `wrong`: the
    data arrived changed.
    """

    members: Group
    busbw: float | None = None
    problem: str = ""
    skipped: bool = False
    wrong: bool = False

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Measurement:
        """Read one JSON line of the collective payload; KeyError or ValueError if it is no measurement."""
        members = tuple(str(member) for member in line["members"])
        if not members:
            raise ValueError("a measurement without members")
        wrong = int(line.get("wrong") or 0)
        problem = str(line.get("problem") or "") or (f"wrong data: {wrong} elements" if wrong else "")
        busbw = line.get("busbw")
        if busbw is None and not problem and not line.get("skipped"):
            raise ValueError(f"neither busbw nor problem for {' '.join(members)}")
        value = None if busbw is None else float(busbw)
        return cls(members, value, problem, bool(line.get("skipped")), wrong > 0 and value is not None)


@dataclass(frozen=True)
class Bound:
    """The lowest accepted value of a kind (GB/s) and its source."""

    value: float
    origin: str

    @property
    def quantity(self) -> Quantity:
        """The bound as findings and metrics have it."""
        return Quantity(self.value, "GB/s", str(self))

    def __str__(self) -> str:
        return f"at least {self.value:.4g} GB/s ({self.origin})"


@dataclass(frozen=True)
class JudgedMeasurement:
    """A measurement, the kind of its group, and the result of the comparison with the bound of that kind."""

    measured: Measurement
    kind: GroupKind
    status: Status


class Evidence(NamedTuple):
    """One measurement as text, with its nodes."""

    text: str
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Unresolved:
    """An open question: the candidates for the bad part, and why the measurements cannot decide between them."""

    candidates: tuple[str, ...]
    reason: Explanation


@dataclass(frozen=True)
class Localisation:
    """The result. `evidence`: each relevant measurement with its members, GB/s and bound.

    `bad_parts` maps a bad node to its bad GPUs or adapters, if they can be identified. `rounds` counts rounds of pairs
    of nodes, `part_rounds` those of pairs of GPUs, `steps` the batches that were run. `smallest`: what the pairs would have shown.
    """

    bad_nodes: tuple[str, ...] = ()
    bad_links: tuple[Group, ...] = ()
    bad_leaves: tuple[str, ...] = ()
    bad_parts: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)
    why: Mapping[str, Explanation] = field(default_factory=dict)
    unresolved: tuple[Unresolved, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    rounds: int = 0
    part_rounds: int = 0
    steps: int = 0
    smallest: SmallestFault | None = None

    @property
    def clean(self) -> bool:
        """Whether nothing is bad and no question is open."""
        return not (self.bad_nodes or self.bad_links or self.bad_leaves or self.unresolved)

    def reason(self, part: str) -> Explanation:
        """Return why a node or a leaf is bad."""
        return self.why.get(part, Explanation("bad", "bad"))

    def evidence_of(self, *nodes: str) -> list[str]:
        """Return the texts of the measurements that these nodes took part in together."""
        return [one.text for one in self.evidence if one.nodes.issuperset(nodes)]


def fleet_bound(values: Iterable[float], min_distance: float = MIN_DISTANCE) -> Bound | None:
    """Return the bound from the values of a fleet; None for fewer than two values.

    Values within a quarter of the 90th percentile are good, since faults only lower a value.
    """
    ordered = sorted(values)
    if len(ordered) < 2:
        return None
    anchor = ordered[-(-9 * (len(ordered) - 1) // 10)]
    good = [value for value in ordered if abs(value - anchor) <= 0.25 * anchor]
    median = statistics.median(good)
    spread = 1.4826 * statistics.median(abs(value - median) for value in good)
    distance = max(min_distance * median, min(SIGMAS * spread, MAX_DISTANCE * median))
    share = 100 * distance / median if median else 0
    return Bound(median - distance, f"fleet median {median:.4g} less {share:.0f}%")


def kind_of(members: Group, leaves: Mapping[str, str]) -> GroupKind:
    """Return the kind of a group. `leaves`: {node: leaf switch}, may lack nodes."""
    hosts = {member.partition(":")[0] for member in members}
    if ":" in str(members):
        return GroupKind.LOCAL if len(hosts) == 1 else GroupKind.RAIL
    if len(hosts) == 1:
        return GroupKind.ALONE
    return GroupKind.ACROSS if len({leaves.get(host) for host in hosts}) > 1 else GroupKind.WITHIN


def slowest_pair(measured: Iterable[Measurement], node: str = "") -> Group:
    """Return the two nodes with the lowest bandwidth, of which one is `node`; () for none. One that failed has none."""
    pairs = [it for it in measured if len(it.members) == 2 and ":" not in "".join(it.members)]
    known = [it for it in pairs if not it.skipped and (not node or node in it.members)]
    return min(known, key=lambda it: it.busbw or 0.0).members if known else ()


def judge(measured: Measurement, bound: Bound | None) -> Status:
    """Compare a measurement with the bound of its kind."""
    if measured.skipped:
        return Status.SKIPPED
    if measured.problem or measured.busbw is None:
        return Status.FAILED
    if bound is None:
        return Status.UNJUDGED
    return Status.GOOD if measured.busbw >= bound.value else Status.SLOW
