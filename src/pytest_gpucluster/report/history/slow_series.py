"""Which parts were slow at times in the stored runs of a cluster, against the like parts of the same runs.

Like parts have the same check, metric, unit and place in their node, as GPU 3 of all nodes; all links are alike. A value counts as a
share of the part's own usual value, its upper quartile over the runs, so that groups of different hardware may be in one
cluster. It is slow if that share is more than DISTANCE, or the least step of its unit, below the median of its like in the same run: what slows all
of them accuses none. A part that is slow in more than three quarters of its runs is no matter of chance: `compare` lists it.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpucluster.core.intermittent import (
    Decision,
    IntermittentLimits,
    PartJudgement,
    SlowCount,
    beside_others,
    judge_parts,
)
from pytest_gpucluster.core.metric_direction import HIGHER, NEITHER, rule_of
from pytest_gpucluster.core.outliers import FEWEST
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.safe_json import loads
from pytest_gpucluster.report.history.run_snapshot import BEST
from pytest_gpucluster.report.history.store import EVERY_NODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.report.history.store import History

__all__ = ["DISTANCE", "SHARES", "IntermittentTable", "SlowSeries", "intermittent"]

DISTANCE = 0.12  # of the median: four standard deviations of values that scatter by 3%, as in kit.nccl.measurement
SHARES = (0.01, 0.02, 0.05, 0.1)  # of a part's measurements, for the line on parts without faults
DOUBT = 0.5  # corrected probability up to which a part that is not yet intermittent is shown

_Rows = list[tuple[int, float]]  # id of the run, and how fast the part was in it, oldest first


class _Metric(NamedTuple):
    check: str
    name: str
    unit: str


class _Series(NamedTuple):
    id: int
    metric: _Metric
    node: str
    part: Part
    distance: float
    better: str
    partners: tuple[int, ...] = ()  # of the best partner: ids of the node's links

    @property
    def is_link(self) -> bool:
        return self.part.kind == "peer"

    @property
    def like(self) -> tuple[_Metric, str]:
        return self.metric, self.part.kind if self.is_link else self.part.short

    @property
    def link(self) -> frozenset[str]:
        return frozenset((self.node, self.part.name))


@dataclass(frozen=True)
class SlowSeries:
    """One part by one metric. `newest`: how many of its newest measurements in a row were slow."""

    check: str
    metric: str
    unit: str
    node: str
    part: Part
    newest: int
    judged: PartJudgement


@dataclass(frozen=True)
class IntermittentTable:
    """The parts of a cluster over its stored runs. `series`: the judged ones, each a part by one metric.

    `suspects`: the intermittent ones, and those that may become so, the least probable by chance first. `free`: {share:
    series without faults above it}. `lasting`: series below their like in most runs.
    """

    runs: int
    simulated: bool
    series: int
    suspects: tuple[SlowSeries, ...]
    free: Mapping[float, int]
    lasting: int
    limits: IntermittentLimits


def intermittent(
    history: History, cluster: str, *, most: int, pattern: str = "*", limits: IntermittentLimits | None = None
) -> IntermittentTable:
    """Judge all parts over the last runs of a cluster, at most `most`, by the metrics whose name fits the pattern.

    The runs are those of the newest one's kind, real or simulated. Metrics without a direction, and counts, say nothing on speed.
    """
    limits = limits or IntermittentLimits()
    newest = history.runs(cluster, 1)
    simulated = bool(newest) and newest[0].simulated
    runs = history.runs_of_kind(cluster, simulated=simulated, count=most)
    since = _begins(history, cluster, simulated=simulated, first=min((it.started for it in runs), default=0.0))
    found: list[tuple[_Series, SlowCount, int]] = []
    lasting = 0
    for group in _groups(history, cluster, pattern, simulated=simulated):
        values = {it: rows for it in group if (rows := _values(history, it, since))}
        usual = {it: _usual(rows) for it, rows in values.items()}
        found += _slow(values, usual)
        lasting += _lasting(usual)
    return _table(found, lasting, len(runs), simulated=simulated, limits=limits)


def _begins(history: History, cluster: str, *, simulated: bool, first: float) -> defaultdict[str, float]:
    """Return {node: start of the first run that counts}: an accepted run begins a new baseline."""
    accepted = dict(
        history.query("SELECT node, started FROM accepted WHERE cluster = ? AND simulated = ?", (cluster, simulated))
    )
    of_all = max(first, accepted.pop(EVERY_NODE, first))
    return defaultdict(lambda: of_all, {node: max(of_all, at) for node, at in accepted.items()})


def _groups(history: History, cluster: str, pattern: str, *, simulated: bool) -> Iterable[list[_Series]]:
    known = list(_series(history, cluster, pattern, simulated=simulated))
    partners: defaultdict[tuple[_Metric, str], list[int]] = defaultdict(list)
    groups: defaultdict[tuple[_Metric, str], list[_Series]] = defaultdict(list)
    links: set[tuple[_Metric, frozenset[str]]] = set()
    for one in known:
        if one.is_link:
            partners[one.metric, one.node].append(one.id)
    for one in known:
        link = (one.metric, one.link)
        # both ends store a pair
        if one.is_link and link in links:
            continue
        links.add(link)
        beside = partners[one.metric, one.node] if one.part.name == BEST else ()
        groups[one.like].append(one._replace(partners=tuple(beside)))
    return [group for group in groups.values() if len(group) >= FEWEST]


def _series(history: History, cluster: str, pattern: str, *, simulated: bool) -> Iterator[_Series]:
    for key, node, check, name, unit, better, part in history.query(
        'SELECT s.id, n.name, s."check", s.name, s.unit, s.better, s.part FROM series s JOIN nodes n ON n.id = s.node '
        "WHERE n.cluster = ? AND n.simulated = ? AND n.name != '' AND NOT s.detail ORDER BY n.name, s.id",
        (cluster, simulated),
    ):
        rule = rule_of(unit, better)
        if rule.better != NEITHER and not rule.counted and fnmatchcase(name, pattern):
            distance = max(DISTANCE, rule.step)
            yield _Series(key, _Metric(check, name, unit), node, Part.read(loads(part)), distance, rule.better)


def _values(history: History, series: _Series, since: Mapping[str, float]) -> _Rows:
    """Return how fast a part was: a time is inverted. A node with one partner may be slow by its fault, and does not count."""
    rows = _stored(history, series.id, since[series.node])
    if series.part.name == BEST:
        met = Counter(run for it in series.partners for run, _ in _stored(history, it, since[series.node]))
        rows = [(run, value) for run, value in rows if met[run] > 1]
    return rows if series.better == HIGHER else [(run, 1 / value) for run, value in rows if value > 0]


def _stored(history: History, series: int, since: float) -> _Rows:
    return history.query(
        "SELECT run, value FROM metrics WHERE series = ? AND started >= ? AND value IS NOT NULL ORDER BY started, run",
        (series, since),
    )


def _usual(rows: _Rows) -> float:
    """Return the upper quartile: a fault lowers fewer than three quarters of the values."""
    ordered = sorted(value for _, value in rows)
    return ordered[-(-3 * (len(ordered) - 1) // 4)]


def _slow(values: Mapping[_Series, _Rows], usual: Mapping[_Series, float]) -> Iterator[tuple[_Series, SlowCount, int]]:
    """Yield each part with its count, and how many of its newest measurements were slow."""
    by_run: defaultdict[int, list[float]] = defaultdict(list)
    positive = {it: rows for it, rows in values.items() if usual[it] > 0}
    for it, rows in positive.items():
        level = usual[it]
        for run, value in rows:
            by_run[run].append(value / level)
    medians = {run: statistics.median(shares) for run, shares in by_run.items() if len(shares) >= FEWEST}
    for it, rows in positive.items():
        bound = (1 - it.distance) * usual[it]
        slow = [value < bound * medians[run] for run, value in rows if run in medians]
        if slow:
            yield it, SlowCount(sum(slow), len(slow)), sum(takewhile(bool, reversed(slow)))


def _lasting(usual: Mapping[_Series, float]) -> int:
    median = statistics.median(usual.values()) if usual else 0.0
    return sum(value < (1 - it.distance) * median for it, value in usual.items())


def _table(
    found: Sequence[tuple[_Series, SlowCount, int]],
    lasting: int,
    runs: int,
    *,
    simulated: bool,
    limits: IntermittentLimits,
) -> IntermittentTable:
    judged = judge_parts(_beside_fleet(found), limits)
    shown = [
        SlowSeries(*it.metric, it.node, it.part, newest, judged[it])
        for it, _, newest in found
        if judged[it].decision is Decision.INTERMITTENT or judged[it].corrected <= DOUBT
    ]
    shown.sort(key=lambda it: it.judged.corrected)
    free = {share: sum(it.upper <= share for it in judged.values()) for share in SHARES}
    return IntermittentTable(runs, simulated, len(judged), tuple(shown), free, lasting, limits)


def _beside_fleet(found: Iterable[tuple[_Series, SlowCount, int]]) -> dict[_Series, tuple[SlowCount, SlowCount]]:
    """Return the count of each part, and that of all others by the same metric."""
    by_metric: defaultdict[_Metric, dict[_Series, SlowCount]] = defaultdict(dict)
    for it, count, _ in found:
        by_metric[it.metric][it] = count
    return {it: both for counts in by_metric.values() for it, both in beside_others(counts).items()}
