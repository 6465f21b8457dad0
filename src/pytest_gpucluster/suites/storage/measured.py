"""What the tasks of the storage step report, by node and path; which nodes are slow. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.majority import decides
from pytest_gpucluster.core.outliers import outliers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pytest_gpucluster.kit.framework.payload_result import Fact, PayloadResult

UNMEASURED = "not measured: see storage.operations and storage.space"
# s by which a slow node is late; a healthy one is as late by its first connection, lock or a pause of the server
LATE = 0.1


def of_path(result: PayloadResult, kind: str, path: str, node: str = "", **values: Any) -> list[Fact]:
    """Return the facts of a kind, of one path and of one node or all, that have these values."""
    facts, wanted = result.of_node(node, kind) if node else result.facts(kind), {"path": path, **values}
    return [it for it in facts if all(it[name] == value for name, value in wanted.items())]


def required(result: PayloadResult, kind: str, path: str, node: str) -> list[Fact]:
    """Return the facts of one node; NotAvailable if it has none."""
    found = of_path(result, kind, path, node)
    if not found:
        raise NotAvailable(f"{path}: {UNMEASURED}")
    return found


@dataclass(frozen=True)
class Figure:
    """One figure of all nodes: `name` and `unit` of its metric, {node: value}, and whether less is worse.

    seconds: {node: how long the work took}, of figures whose measurement ends with the work.
    """

    name: str
    unit: str
    values: Mapping[str, float]
    less_is_worse: bool = True
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """The median of all nodes; 0 without values."""
        return statistics.median(self.values.values()) if self.values else 0.0

    @property
    def measurement(self) -> str:
        """What was measured: accesses per second and their latencies are figures of one measurement."""
        return self.name.split("_")[1]

    def among(self, nodes: Collection[str]) -> Figure:
        """Return the figure of these nodes; of all without any."""
        values = {node: value for node, value in self.values.items() if node in nodes or not nodes}
        return replace(self, values=values)

    def slow(self, node: str, min_relative: float) -> bool:
        """Return whether a node is an outlier in the direction that is worse."""
        if node not in self.values or not self.late(node, self.median):
            return False
        found = outliers(self.values, min_relative=min_relative)
        return node in (found.low if self.less_is_worse else found.high)

    def late(self, node: str, reference: float) -> bool:
        """Return whether the work of a node took noticeably longer than at a rate of `reference`."""
        took = self.seconds.get(node)
        return took is None or not reference or took * (1 - self.values[node] / reference) >= LATE

    def has_faster_majority(self, node: str, min_relative: float) -> bool:
        """Return whether two thirds of the nodes are clearly faster: else the slow ones share a cause, or are of another kind."""
        mine, factor = self.values[node], 1 + min_relative
        others = self.values.values()
        faster = [it > factor * mine if self.less_is_worse else mine > factor * it for it in others]
        return decides(sum(faster), len(faster))


def rates(result: PayloadResult, path: str, what: str, how: str = "together") -> Figure:
    """Return the sequential rates in GB/s: `what` is write or read, `how` together or alone. Of two readings the better counts."""
    readings = sorted(of_path(result, what, path, how=how), key=itemgetter("rate"))
    values, seconds = ({str(it["node"]): it[key] for it in readings} for key in ("rate", "seconds"))
    suffix = "" if how == "together" else "_alone"
    return Figure(f"storage_{what}{suffix}", "GB/s", values, seconds=seconds)


def latencies(result: PayloadResult, path: str) -> list[Figure]:
    """Return random accesses per second, the latencies of most of them in ms, and the median of fsync in ms."""
    found = []
    for what in ("read", "write"):
        facts = of_path(result, "random", path, what=what)
        found.append(Figure(f"storage_{what}_iops", "IO/s", {str(it["node"]): it["iops"] for it in facts}))
        for share in ("50", "99"):
            times = {str(it["node"]): it["latency"][share] for it in facts if share in it["latency"]}
            found.append(Figure(f"storage_{what}_p{share}", "ms", times, less_is_worse=False))
    syncs = {str(it["node"]): it["latency"]["50"] for it in of_path(result, "fsync", path)}
    return [*found, Figure("storage_fsync_p50", "ms", syncs, less_is_worse=False)]


def operations(result: PayloadResult, path: str) -> list[Figure]:
    """Return created, examined and removed files per second."""
    found = []
    for what in ("create", "stat", "list", "remove"):
        facts = [it for it in of_path(result, "metadata", path, what=what) if it["count"]]
        seconds = {str(it["node"]): it["seconds"] for it in facts}
        values = {str(it["node"]): it["count"] / it["seconds"] for it in facts}
        found.append(Figure(f"storage_{what}_files", "files/s", values, seconds=seconds))
    return found


def node_of(result: PayloadResult, rank: int) -> str:
    """Return the node of a rank of the step, which has one task per node."""
    return next((task.node for task in result.tasks if task.task == rank), f"task {rank}")


def total(figure: Figure) -> float:
    """Return the sum over all nodes."""
    return sum(figure.values.values())


def best(figures: Iterable[Figure]) -> float:
    """Return the highest value; 0 without any."""
    return max((value for figure in figures for value in figure.values.values()), default=0.0)
