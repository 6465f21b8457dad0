"""What the tasks of the storage step report, by node and path; which nodes are slow. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.outliers import outliers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.kit.framework.payload_result import Fact, PayloadResult

UNMEASURED = "not measured: see storage.operations and storage.space"


def of_path(result: PayloadResult, kind: str, path: str, node: str = "", **values: Any) -> list[Fact]:
    """Return the facts of a kind, of one path and of one node or all, that have these values."""
    facts = result.of_node(node, kind) if node else result.facts(kind)
    return [
        it for it in facts if it["path"] == path and all(it[name] == value for name, value in values.items())
    ]


def one(result: PayloadResult, kind: str, path: str, node: str, **values: Any) -> Fact | None:
    """Return the fact of one node, None if it did not take the step."""
    return next(iter(of_path(result, kind, path, node, **values)), None)


def required(result: PayloadResult, kind: str, path: str, node: str) -> list[Fact]:
    """Return the facts of one node; NotAvailable if it has none."""
    found = of_path(result, kind, path, node)
    if not found:
        raise NotAvailable(f"{path}: {UNMEASURED}")
    return found


@dataclass(frozen=True)
class Figure:
    """One figure of all nodes: `name` and `unit` of its metric, {node: value}, and whether less is worse."""

    name: str
    unit: str
    values: Mapping[str, float]
    less_is_worse: bool = True

    @property
    def median(self) -> float:
        """The median of all nodes; 0 without values."""
        return statistics.median(self.values.values()) if self.values else 0.0

    def slow(self, node: str, min_relative: float) -> bool:
        """Return whether a node is an outlier in the direction that is worse."""
        if node not in self.values:
            return False
        found = outliers(self.values, min_relative=min_relative)
        return node in (found.low if self.less_is_worse else found.high)


def rates(result: PayloadResult, path: str, what: str, how: str = "together") -> Figure:
    """Return the sequential rates in GB/s: `what` is write or read, `how` together or alone. Of two readings the better counts."""
    values: dict[str, float] = {}
    for it in of_path(result, what, path, how=how):
        values[str(it["node"])] = max(it["rate"], values.get(str(it["node"]), 0.0))
    suffix = "" if how == "together" else "_alone"
    return Figure(f"storage_{what}{suffix}", "GB/s", values)


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
    return [
        Figure(
            f"storage_{what}_files",
            "files/s",
            {
                str(it["node"]): it["count"] / it["seconds"]
                for it in of_path(result, "metadata", path, what=what)
                if it["count"]
            },
        )
        for what in ("create", "stat", "list", "remove")
    ]


def node_of(result: PayloadResult, rank: int) -> str:
    """Return the node of a rank of the step, which has one task per node."""
    return next((task.node for task in result.tasks if task.task == rank), f"task {rank}")


def total(figure: Figure) -> float:
    """Return the sum over all nodes."""
    return sum(figure.values.values())


def best(figures: Iterable[Figure]) -> float:
    """Return the highest value; 0 without any."""
    return max((value for figure in figures for value in figure.values.values()), default=0.0)
