"""One run against earlier ones: what got worse, in words and tables. Pure; report/history/store.py supplies the values.

A node is held against its own last good runs, where all that it was judged by was fit. See docs/history.md for the
rules, core/metric_direction.py for the numbers.
"""

from __future__ import annotations

import datetime as dt
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.finding import Metric
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.metric_direction import NEITHER, MetricTrend, rule_of
from pytest_gpucluster.core.safe_json import as_dict, as_dicts, as_list, finite, text
from pytest_gpucluster.core.text import quantity
from pytest_gpucluster.report.describe import number
from pytest_gpucluster.report.history.run_snapshot import RED, ItemMetric
from pytest_gpucluster.report.proof import CLUSTER
from pytest_gpucluster.report.terminal.tables import table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_NAMED = 6  # nodes that get a line each for one metric; more share one
MAX_LINES = 40
MAX_SHOWN = 500  # rows of report.html that got worse, and as many others


@dataclass(frozen=True)
class Past:
    """A run that the history holds. `exit` is pytest's, None where the run was killed."""

    run: str
    cluster: str
    simulated: bool
    started: float
    complete: bool
    good: bool
    exit: int | None = None
    passed: int = 0
    failed: int = 0
    error: int = 0
    unjudged: int = 0
    nodes: int = 0

    @property
    def outcome(self) -> str:
        """The run in a word: good, bad, or incomplete (killed, stopped, never started)."""
        return "good" if self.good else "bad" if self.complete else "incomplete"


@dataclass(frozen=True)
class FleetHistory:
    """Medians over all nodes of one metric and part: now, and over the last complete runs (None: none measured it)."""

    now: float | None
    before: float | None
    runs: int


@dataclass(frozen=True)
class Change:
    """A metric of one node in this run, judged against the node's own last good runs, beside the fleet's.

    `previous`: its value in the complete run before, good or not. `base`: the one run that it is held against, where
    that was chosen. `values`: those of the last runs, oldest first, this one last; () where they were not read.
    """

    item: ItemMetric
    judged: MetricTrend
    fleet: FleetHistory
    previous: float | None = None
    base: str = ""
    values: tuple[float | None, ...] = ()

    @property
    def metric(self) -> Metric:
        """The metric as this run measured it."""
        return self.item.metric

    @property
    def trend(self) -> str:
        """Return worse, better, same, new, 'too few', 'no direction', or gone (no longer measured)."""
        return self.judged.trend

    @property
    def label(self) -> str:
        """The metric and its part: 'nvlinks_active GPU 4'."""
        return f"{self.metric.name} {self.metric.device}".strip()


@dataclass(frozen=True)
class Turn:
    """A check that passed in the node's last good run (or in `base`), and did not now; `check` '' is all of them."""

    node: str
    check: str
    now: str
    base: str = ""


@dataclass(frozen=True)
class Worse:
    """What got worse on one node (or link) in one metric: the furthest part, and how many parts did."""

    where: str
    change: Change
    parts: int

    @property
    def text(self) -> str:
        """One line: 'gpu02: busbw all_reduce 1 GiB alone: 440 GB/s, 8.0% below 478 GB/s, ...'."""
        more = f" (and {self.parts - 1} more parts)" if self.parts > 1 else ""
        return f"{self.where}: {self.change.label}: {describe(self.change)}{more}"


@dataclass(frozen=True)
class Compared:
    """One metric of one node beside its earlier values; None: there is none.

    `last_good`: the node's value in its last run without a failure; `previous`: in its last run of any end;
    `fleet`: the median of the cluster's nodes, now or in the last good run, as `ShownComparison.fleet_is` says.
    `worse`: the change counts as a worsening, even within the threshold; `note` says so in words. `values`: those of
    the last runs, oldest first, this one last.
    """

    node: str
    metric: Metric
    last_good: float | None = None
    previous: float | None = None
    fleet: float | None = None
    worse: bool = False
    note: str = ""
    values: tuple[float | None, ...] = ()

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Compared:
        """Read a row of a log."""
        node, note = text(plain.get("node")), text(plain.get("note"))
        last_good, previous, fleet = (finite(plain.get(key)) for key in ("last_good", "previous", "fleet"))
        worse, values = plain.get("worse") is True, tuple(map(finite, as_list(plain.get("values"))))
        metric = Metric.from_dict(as_dict(plain.get("metric")))
        return cls(node, metric, last_good, previous, fleet, worse, note, values)


@dataclass(frozen=True)
class ShownComparison:
    """What the HTML report shows of earlier runs; what is not known stays at its default and is not shown.

    `last_good` and `previous` name those runs for people: date, id, verdict. `left_out`: rows that are in the history only.
    """

    source: str
    rows: tuple[Compared, ...] = ()
    last_good: str = ""
    previous: str = ""
    runs: int = 0
    fleet_is: str = "median of the nodes in this run"
    note: str = ""
    left_out: int = 0

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> ShownComparison:
        """Read the event `compared` of a log."""
        runs, left_out = (int(finite(plain.get(key)) or 0) for key in ("runs", "left_out"))
        words = {key: text(plain.get(key)) for key in ("source", "last_good", "previous", "fleet_is", "note")}
        rows = tuple(map(Compared.read, as_dicts(plain.get("rows"))))
        return cls(rows=rows, runs=runs, left_out=left_out, **words)


@dataclass(frozen=True)
class Comparison:
    """A run against earlier ones, for the summary, the HTML and `gpucluster compare`.

    `against`: the runs that it is held against, newest first; `last_good`: the last run that was good as a whole;
    `changes`: every metric; `worse`, `better` and `turned`: those to report.
    """

    run: Past
    against: tuple[Past, ...]
    last_good: Past | None
    changes: tuple[Change, ...]
    turned: tuple[Turn, ...]
    file: str

    @property
    def worse(self) -> tuple[Worse, ...]:
        """What got worse, by node and metric, the furthest first."""
        return worse_of(self.changes)

    @property
    def better(self) -> tuple[Worse, ...]:
        """What got better, likewise."""
        return worse_of(self.changes, trend="better")

    @property
    def head(self) -> str:
        """What the run is held against, in a line."""
        simulated = "simulated " if self.run.simulated else ""
        if not self.against:
            return f"history: no earlier complete {simulated}run of cluster {self.run.cluster}: nothing to compare with"
        good = f"the last good one {_named(self.last_good)}" if self.last_good else "none of them good as a whole"
        runs = f"{simulated}run" if len(self.against) == 1 else f"{len(self.against)} complete {simulated}runs"
        return f"history: against the last {runs}, {good}"

    def lines(self) -> list[str]:
        """Name what got worse, a line each: metrics, then checks."""
        lines = [f"worse: {text}" for text in _grouped(self.worse)]
        lines += [f"worse: {text}" for text in _turned(self.turned)]
        left = len(lines) - MAX_LINES
        return [*lines[:MAX_LINES], f"worse: and {left} more lines"] if left > 0 else lines

    def verdict(self) -> str:
        """Say the result in a line, also where nothing got worse."""
        if self.lines():
            where = fold(sorted({it.where for it in self.worse} | {it.node or CLUSTER for it in self.turned}))
            return f"history: got worse: {where}"
        judged = sum(change.trend in ("better", "same") for change in self.changes)
        few = sum(change.trend == "too few" for change in self.changes)
        left = f"; {few} vary too much to be judged by so few runs" if few else ""
        return f"history: {judged} metrics could be compared, none got worse{left}" if judged else ""

    def table(self, width: int, *, constant: bool = True, more: str = "-v") -> list[str]:
        """Draw one row a metric: the fleet now and before, and the node that is furthest from its own past.

        `constant` False leaves out what is as it was, but for a line that counts it and names the option `more`.
        """
        rows: dict[tuple[str, str], list[Change]] = defaultdict(list)
        for change in self.changes:
            if change.judged.level is not None and change.metric.number is not None:
                rows[change.metric.name, change.metric.unit].append(change)
        drawn, alike = [], 0
        for (name, unit), changes in sorted(rows.items()):
            if not constant and all(it.metric.value == it.judged.level for it in changes):
                alike += 1
                continue
            drawn.append(_row(name, unit, changes))
        shown = ["metric", "unit", "n", "fleet now", "fleet before", "runs"]
        shown += ["furthest", "now", "own before", "change"]
        lines = table(shown, drawn, width)
        return [*lines, f"{alike} more metrics are as they were ({more} shows them)"] if alike else lines

    def for_html(self) -> ShownComparison:
        """Return the same for the HTML report: each node beside its own median and the fleet's."""
        named = {id(it.change): it.text for it in self.worse}
        shown = sorted((it for it in self.changes if it.metric.number is not None), key=badness, reverse=True)
        rows = [
            Compared(
                node=it.item.node or CLUSTER,
                metric=it.metric,
                last_good=it.judged.level,
                previous=it.previous,
                fleet=it.fleet.before,
                # a pair is worse for itself only where neither of its ends explains it
                worse=id(it) in named or (it.trend == "worse" and not it.item.paired),
                note=describe(it) if id(it) in named else "",
                values=it.values,
            )
            for it in (shown if self.against else ())
        ]
        bounded = [it for worse in (True, False) for it in [it for it in rows if it.worse == worse][:MAX_SHOWN]]
        gone = [it.text for it in self.worse if it.change.metric.number is None]
        return ShownComparison(
            source=self.file,
            rows=tuple(bounded),
            left_out=len(rows) - len(bounded),
            last_good=_named(self.last_good) if self.last_good else "",
            previous=f"{_named(self.against[0])}, {self.against[0].outcome}" if self.against else "",
            runs=len(self.against),
            fleet_is="median of the fleet over those runs",
            note="; ".join([*_turned(self.turned), *gone]),
        )


def _row(name: str, unit: str, changes: Sequence[Change]) -> tuple[str, ...]:
    far = max(changes, key=badness)
    fleet = [it.fleet.before for it in changes if it.fleet.before is not None]
    return (
        name,
        unit,
        str(len(changes)),
        number(statistics.median(it.metric.value for it in changes)),
        number(statistics.median(fleet)) if fleet else "-",
        str(max(it.fleet.runs for it in changes)),
        f"{far.item.node or CLUSTER} {far.metric.device}".strip(),
        number(far.metric.value),
        number(far.judged.level),
        share(far.judged.distance),
    )


def badness(change: Change) -> float:
    """Return how much worse a metric is; without a direction less than 0, and more the more it changed."""
    distance = change.judged.distance
    if distance is None:
        return float("inf") if change.trend in ("worse", "gone") else 0.0
    better = rule_of(change.metric.unit, change.metric.better).better
    return -1 / (1 + abs(distance)) if better == NEITHER else -distance if better == "higher" else distance


def changed(
    item: ItemMetric,
    judged: MetricTrend,
    fleet: Mapping[tuple[str, ...], FleetHistory],
    *,
    previous: float | None = None,
    base: str = "",
) -> Change:
    """Put a judged metric beside the fleet's."""
    return Change(item, judged, fleet.get(fleet_key(item), FleetHistory(None, None, 0)), previous, base)


def fleet_key(item: ItemMetric) -> tuple[str, ...]:
    """Return what the values of one metric on all nodes have in common."""
    return (item.check, item.metric.name, item.metric.unit, item.metric.device)


def worse_of(changes: Iterable[Change], trend: str = "worse") -> tuple[Worse, ...]:
    """Gather what got worse by node, check and metric.

    A pair of nodes is named as a link, and only where neither end got worse with every other partner too.
    """
    wanted = (trend, "gone") if trend == "worse" else (trend,)
    found = [it for it in changes if it.trend in wanted]
    ends = {it.item.node for it in found if not it.item.paired}
    named: dict[tuple[str, bool, str, str], list[Change]] = defaultdict(list)
    for it in found:
        node, other = it.item.node, it.item.paired
        if not ends & {node, other} or not other:
            where = f"link {' - '.join(sorted((node, other)))}" if other else node or CLUSTER
            named[where, bool(other), it.item.check, it.metric.name].append(it)
    made = []
    for (where, is_link, *_), group in named.items():
        made.append(Worse(where, max(group, key=badness), 1 if is_link else len(group)))
    return tuple(sorted(made, key=lambda it: (-badness(it.change), it.where)))


def describe(change: Change) -> str:
    """Say the change of one metric in words, with what it is compared with."""
    metric, judged = change.metric, change.judged
    one = f"run {change.base}" if change.base else "its last good run"
    runs = one if judged.runs == 1 else f"its last {judged.runs} good runs"
    counted = rule_of(metric.unit, metric.better).counted
    if change.trend == "gone":
        return f"no longer measured, though its check passed; {_value(judged.level, metric.unit)} in {one}"
    if metric.number is None:
        return f"not a number; {_value(judged.level, metric.unit)} in {runs}"
    now = _value(metric.value, metric.unit)
    if counted:
        return f"{now}, {number(judged.level)} in {one}"
    below = "below" if metric.value < (judged.level or 0.0) else "above"
    if judged.distance is not None:  # there is no share of 0
        below = f"{share(judged.distance).lstrip('+-')} {below}"
    median = "" if judged.runs == 1 else "the median of "
    spread = f", MAD {number(judged.mad)}" if judged.runs > 1 else ""
    fleet = f"; fleet {number(change.fleet.before)} before" if change.fleet.before is not None else ""
    fleet += f", {number(change.fleet.now)} now" if fleet and change.fleet.now is not None else ""
    if change.item.node == "":
        fleet = ""
    return f"{now}, {below} {median}{runs} ({number(judged.level)}{spread}{fleet})"


def _grouped(worse: Sequence[Worse]) -> list[str]:
    """Give each node a line; where many share a metric, one line for all."""
    by_metric = grouped(((it.change.item.check, it.change.metric.name), it) for it in worse)
    lines = []
    for (_, name), group in by_metric.items():
        if len(group) <= MAX_NAMED:
            lines += [it.text for it in group]
        else:
            nodes = fold([it.where for it in group])
            lines.append(f"{nodes}: {name} on {len(group)} nodes; furthest {group[0].text}")
    return lines


def _turned(turned: Sequence[Turn]) -> list[str]:
    by_check = grouped(((turn.check, turn.now, turn.base), turn.node or CLUSTER) for turn in turned)
    order = sorted(by_check.items(), key=lambda it: (it[0][1] not in RED, it[0]))
    return [
        f"{fold(nodes)}: {check or 'the node'}: {now}; it passed in {f'run {base}' if base else 'the last good run'}"
        for (check, now, base), nodes in order
    ]


def fold(nodes: Sequence[str]) -> str:
    """Fold node names as Slurm does; names that are none stay as they are."""
    real: list[str] = []
    other: list[str] = []
    for node in nodes:
        (real if _is_name(node) else other).append(node)
    return ", ".join([*([hostlist.fold(real)] if real else []), *other])


def _is_name(text: str) -> bool:
    try:
        return hostlist.expand(text) == (text,)
    except ValueError:
        return False


def share(distance: float | None) -> str:
    """Write a relative distance: -8.0%."""
    return "-" if distance is None else f"{distance:+.1%}"


def _value(value: float | None, unit: str) -> str:
    return quantity(number(value), unit)


def when(started: float) -> str:
    """Write a time for people, in this machine's zone."""
    try:
        return dt.datetime.fromtimestamp(started).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return f"{started:.0f}"


def _named(past: Past) -> str:
    return f"{past.run} of {when(past.started)}"
