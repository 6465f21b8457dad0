"""One run as plain values: what the history keeps. Pure.

Events may come from a foreign or damaged file: every text is cleaned and cut, every number is checked.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.finding import Finding, Metric, mapped
from pytest_gpucluster.core.metric_direction import HIGHER, rule_of
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.safe_json import as_list, finite
from pytest_gpucluster.core.sanitize import printable
from pytest_gpucluster.core.shared_causes import FactorValue
from pytest_gpucluster.report.machine import junit
from pytest_gpucluster.report.proof import FIT
from pytest_gpucluster.report.result import RED
from pytest_gpucluster.report.run_model import cleaned, one_line
from pytest_gpucluster.report.shared_causes import factor_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.core.part import InstalledPart
    from pytest_gpucluster.report.result import Result
    from pytest_gpucluster.report.run_model import Run

__all__ = ["BEST", "RED", "ItemMetric", "Recorded", "RecordedItem", "plain", "recorded"]

JUDGED_EXITS = (0, 1)  # pytest's: everything ran; others were stopped or never started
MAX_TEXT = 1000
BEST = "best partner"  # a node is as good as its best pair: a bad partner is not its fault


@dataclass(frozen=True, slots=True)
class RecordedItem:
    """How one item ended. `check` is SUITE.WHAT, with the parameters in brackets; `node` '' is the cluster.

    `common`: those of the findings that are findings of the cluster. `hint`: what to do.
    """

    node: str
    check: str
    outcome: str
    message: str = ""
    action: str = ""
    findings: tuple[Finding, ...] = ()
    common: tuple[Finding, ...] = ()
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ItemMetric:
    """One metric of an item of one run. Its series is that of the slot (core.part.Part.place), not of the serial."""

    node: str
    check: str
    metric: Metric

    @property
    def paired(self) -> str:
        """The other node, if the two were measured together; else ''."""
        return self.metric.part.name if self.metric.part.kind == "peer" else ""


@dataclass(frozen=True, slots=True)
class NodeAct:
    """What a run did to a node in Slurm: `result` is drained, undrained, resumed or what went wrong; `reason` is Slurm's then."""

    node: str
    time: float
    result: str
    reason: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """One run. `started` and `finished` are seconds since the epoch; `exit` is pytest's, None where it was killed."""

    run: str
    cluster: str
    simulated: bool
    started: float
    finished: float
    exit: int | None
    arguments: str
    items: tuple[RecordedItem, ...]
    metrics: tuple[ItemMetric, ...]
    fit: frozenset[str] = frozenset()  # nodes
    acts: tuple[NodeAct, ...] = ()
    user: str = ""
    parts: Mapping[str, Sequence[InstalledPart]] = field(default_factory=dict)  # of a node
    factors: tuple[FactorValue, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the run came to its end: neither killed nor stopped."""
        return self.exit in JUDGED_EXITS

    @property
    def good(self) -> bool:
        """Whether the run was complete and all that was judged is fit. A killed run never is."""
        return self.exit == 0 and any(item.outcome == "passed" for item in self.items) and not self.red

    @property
    def red(self) -> tuple[RecordedItem, ...]:
        """The items that failed or broke."""
        return tuple(item for item in self.items if item.outcome in RED)


def recorded(log: Run, where: str = "the event log") -> Recorded:
    """Return what the history stores of a run; GpuClusterError where its events are not those of a run."""
    start = log.start
    run, cluster, began = plain(start.get("run")), plain(start.get("cluster")), finite(start.get("time"))
    if not run or not cluster or began is None:
        raise GpuClusterError(f"{where}: not the event log of a run: it has no start event with run and cluster")
    return Recorded(
        run=run,
        cluster=cluster,
        # what does not say that it is real does not count as real
        simulated=start.get("simulated") is not False,
        started=began,
        finished=log.ended or 0.0,
        exit=log.exit,
        arguments=plain(" ".join(map(str, as_list(start.get("arguments"))))),
        items=tuple(_items(log).values()),
        metrics=tuple(_metrics(log.results)),
        fit=frozenset(plain(it.node) for it in log.results if log.proofs.nodes.get(one_line(it.node)) == FIT)
        | frozenset(map(plain, log.proofs.of(FIT))),  # by checks of the whole cluster alone
        acts=tuple(node_acts(log)),
        user=plain(start.get("user") or ""),
        factors=tuple(FactorValue(plain(it.factor), plain(it.value), it.nodes) for it in factor_values(log)),
        parts={plain(node): [it.mapped(plain) for it in parts] for node, parts in log.parts.items()},
    )


def node_acts(log: Run) -> Iterator[NodeAct]:
    """Yield what a run did to nodes in Slurm."""
    for event in log.acts:
        if event.get("event") == "node_result":
            why = plain(event.get("problem") or event.get("reason") or "")
            yield NodeAct(plain(event.get("node")), finite(event.get("time")) or 0.0, plain(event.get("result")), why)


@lru_cache(1 << 16)  # most are the same for many items
def plain(text: object) -> str:
    """Return a text on one line, without control characters and lone surrogates, cut to a length."""
    return " ".join(printable(text).split())[:MAX_TEXT]


def check_of(result: Result) -> tuple[str, str]:
    """Return (node, check with its parameters) of a result: gpu03, nccl.whole_bandwidth[all_reduce]."""
    _, bracket, inside = junit.name(result.nodeid, result.node).partition("[")
    return plain(result.node), plain(result.check) + plain(bracket + inside)


def _items(log: Run) -> dict[tuple[str, str], RecordedItem]:
    """Return the items by node and check; of several results of one (a teardown that broke) a red one stands, with all findings."""
    found: dict[tuple[str, str], RecordedItem] = {}
    for result in log.results:
        key = check_of(result)
        failed = [verdict for verdict in result.verdicts if verdict.findings]
        findings = tuple(mapped(it, plain) for verdict in failed for it in verdict.findings)
        common = tuple(mapped(it, plain) for it in _common(log, result))
        if key in found and found[key].outcome in RED:
            earlier = found[key]
            findings, common = (*earlier.findings, *findings), (*earlier.common, *common)
            found[key] = replace(earlier, findings=findings, common=common)
            continue
        found[key] = RecordedItem(
            *key,
            outcome=plain(result.outcome),
            message=plain(result.message if result.waiver else result.brief),
            action=failed[0].action.value if failed else "",
            findings=findings,
            common=common,
            hint=plain(failed[0].hint) if failed else "",
        )
    return found


def _common(log: Run, result: Result) -> Iterator[Finding]:
    """Yield the findings of a node that are findings of the cluster."""
    node = one_line(result.node)
    common = log.common if result.verdicts else ()  # most results have no finding
    owners = [it for it in common if it.check == result.check and node in it.nodes]
    for verdict in result.verdicts if owners else ():
        for it in verdict.findings:
            # the rule compares with the setting of the verdict, where it is no repair
            forms = (cleaned(it), replace(cleaned(it), setting=it.setting or verdict.setting))
            if any(owner.has(node, form) for owner in owners for form in forms):
                yield it


def _metrics(results: Iterable[Result]) -> Iterator[ItemMetric]:
    """Yield each metric once: the median where an item measured it several times, and each node's best pair."""
    values: dict[ItemMetric, list[float]] = defaultdict(list)
    for result in results:
        node, check = check_of(result)
        for metric in result.metrics:
            like = Metric(
                plain(metric.name),
                0.0,
                plain(metric.unit),
                metric.part.slot.mapped(plain),
                metric.detail,
                plain(metric.better),
            )
            values[ItemMetric(node, check, like)].append(metric.value)
    pairs: dict[ItemMetric, list[float]] = defaultdict(list)
    for one, found in values.items():
        value = statistics.median(found) if all(map(math.isfinite, found)) else math.nan
        yield _with(one, value=value)
        if one.paired and math.isfinite(value):
            pairs[_with(one, part=Part(name=BEST))].append(value)
    for one, found in pairs.items():
        if rule_of(one.metric.unit, one.metric.better).better == HIGHER:
            yield _with(one, value=max(found))


def _with(one: ItemMetric, **changes: Any) -> ItemMetric:
    return replace(one, metric=replace(one.metric, **changes))
