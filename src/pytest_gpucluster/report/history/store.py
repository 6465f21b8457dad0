"""The history: runs with metrics and verdicts of every node, stored in one file for later runs."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.finding import Metric, Quantity
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.metric_direction import LOWER, NEITHER, MetricTrend, judge, rule_of
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.core.safe_json import loads
from pytest_gpucluster.report.history.history_file import HistoryFile
from pytest_gpucluster.report.history.ledger import Ledger
from pytest_gpucluster.report.history.regression import (
    Change,
    Comparison,
    FleetHistory,
    Past,
    Turn,
    badness,
    changed,
    fleet_key,
    when,
)
from pytest_gpucluster.report.history.run_snapshot import RED, ItemMetric, Recorded
from pytest_gpucluster.report.history.work import WorkTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.core.finding import Finding
    from pytest_gpucluster.core.metric_direction import ComparisonRule
    from pytest_gpucluster.report.history.work import WorkItem

__all__ = ["LAST", "LAST_GOOD", "WINDOW", "History", "MetricHistory"]

WINDOW = 10  # earlier good runs of a node that make its baseline: two weeks of working nights
MAX_TRENDS = 1_000  # metrics of a comparison whose values of the last runs are read
LAST, LAST_GOOD = "last", "last-good"
EVERY_NODE = "*"  # accepted for the whole cluster; no node can be called so
_OF_RUN = ("metrics", "verdicts", "findings", "fleet", "node_runs", "acts")
# the fields of Past
_PAST = "run, cluster, simulated, started, complete, good, exit, passed, failed, error, unjudged, nodes"


@dataclass(frozen=True)
class MetricHistory:
    """One metric of a node, with its last value, and its `values` of the last runs, oldest first.

    Each value (None: it was no number) is with whether it may serve as a baseline.
    """

    item: ItemMetric
    values: tuple[tuple[float | None, bool], ...]


def _columns(finding: Finding) -> tuple[object, ...]:
    """Return the texts of a finding, then what programs read of it."""
    part, found = finding.part, finding.measured
    number = (found.unit, found.number) if isinstance(found, Quantity) else ("", None)
    data = (finding.code, part.kind, part.name, part.address, part.serial, number[0], part.index, number[1])
    return (str(part), str(found), str(finding.expected), *data)


class History(HistoryFile):
    """An open history: runs are added, found and compared. Errors are those of its file."""

    @property
    def ledger(self) -> Ledger:
        """Where each part was, and how often it failed."""
        return Ledger(self._db)

    @property
    def work(self) -> WorkTable:
        """The items of the punch list."""
        return WorkTable(self._db, self.ledger)

    # --- writing

    def add(self, run: Recorded) -> bool:
        """Store a run in one transaction. False: it is there already; one that was incomplete is replaced by more."""
        with self._readable_errors(), self._transaction():
            there = self._db.execute(
                "SELECT id, complete FROM runs WHERE cluster = ? AND run = ?", (run.cluster, run.run)
            ).fetchone()
            if there is not None:
                if there[1] or not run.complete:
                    return False
                self._delete([there[0]])
                self.ledger.remove(run)
            number = self._insert_run(run)
            nodes = self._insert_nodes(run, number)
            self._insert_items(run, number, nodes)
            self._insert_metrics(run, number, nodes)
            self._insert_factors(run, nodes)
            self._db.executemany(
                "INSERT INTO acts VALUES (?, ?, ?, ?, ?, ?)",
                [(number, nodes[it.node], it.time, it.result, it.reason, run.user) for it in run.acts],
            )
            (past,) = self._past("id = ?", (number,))
            self.ledger.add(run, nodes)
            self.work.add(run)
            worse = [it for it in self._changes(number, past, None) if it.trend == "worse"]
            self._mark(number, nodes, (it.item for it in worse))
        return True

    def _insert_run(self, run: Recorded) -> int:
        ends = Counter(item.outcome for item in run.items)
        unjudged = sum(ends.values()) - ends["passed"] - ends["failed"] - ends["error"]
        nodes = len({item.node for item in run.items} - {""})
        # fmt: off
        values = (
            run.run, run.cluster, run.simulated, run.started, run.finished, run.complete, run.good, run.exit,
            run.arguments, ends["passed"], ends["failed"], ends["error"], unjudged, nodes,
        )
        # fmt: on
        return int(
            self._db.execute(
                "INSERT INTO runs (run, cluster, simulated, started, finished, complete, good, exit, arguments, "
                "passed, failed, error, unjudged, nodes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            ).lastrowid
            or 0
        )

    def _insert_nodes(self, run: Recorded, number: int) -> dict[str, int]:
        """Count each node's items. A node is good where the run was complete and the node is fit."""
        ends: dict[str, Counter[str]] = defaultdict(Counter)
        for item in run.items:
            ends[item.node][item.outcome] += 1
        for node in (*(one.node for one in run.metrics), *(act.node for act in run.acts), *run.parts):
            _ = ends[node]
        self._db.executemany(
            "INSERT OR IGNORE INTO nodes (cluster, simulated, name) VALUES (?, ?, ?)",
            [(run.cluster, run.simulated, node) for node in ends],
        )
        known = self._node_ids(run.cluster, simulated=run.simulated)
        rows = []
        for node, count in ends.items():
            red = sum(count[outcome] for outcome in RED)
            good = run.complete and (node in run.fit if node else count["passed"] > 0 and not red)
            unjudged = sum(count.values()) - count["passed"] - red
            rows.append(
                (known[node], run.started, number, good, count["passed"], count["failed"], count["error"], unjudged)
            )
        self._db.executemany("INSERT INTO node_runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        return known

    def _insert_factors(self, run: Recorded, nodes: dict[str, int]) -> None:
        self._db.executemany(
            "INSERT INTO factors VALUES (?, ?, ?, ?) ON CONFLICT (node, factor, value) DO UPDATE SET "
            "seen = max(seen, excluded.seen)",
            [
                (nodes[node], it.factor, it.value, run.started)
                for it in run.factors
                for node in it.nodes
                if node in nodes
            ],
        )

    def _node_ids(self, cluster: str, *, simulated: bool) -> dict[str, int]:
        return dict(
            self._db.execute("SELECT name, id FROM nodes WHERE cluster = ? AND simulated = ?", (cluster, simulated))
        )

    def _insert_items(self, run: Recorded, number: int, nodes: dict[str, int]) -> None:
        self._db.executemany(
            'INSERT OR IGNORE INTO items (node, "check") VALUES (?, ?)',
            [(nodes[item.node], item.check) for item in run.items],
        )
        known = self._items(run.cluster, simulated=run.simulated)
        ids = [known[nodes[item.node], item.check] for item in run.items]
        self._db.executemany(
            "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?)",
            [
                (key, run.started, number, item.outcome, item.message, item.action)
                for key, item in zip(ids, run.items, strict=True)
            ],
        )
        self._db.executemany(
            "INSERT INTO findings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(number, key, *_columns(it)) for key, item in zip(ids, run.items, strict=True) for it in item.findings],
        )

    def _items(self, cluster: str, *, simulated: bool) -> dict[tuple[int, str], int]:
        rows = self._db.execute(
            'SELECT i.node, i."check", i.id FROM items i JOIN nodes n ON n.id = i.node '
            "WHERE n.cluster = ? AND n.simulated = ?",
            (cluster, simulated),
        )
        return {(node, check): key for node, check, key in rows}

    def _insert_metrics(self, run: Recorded, number: int, nodes: dict[str, int]) -> None:
        keys = [(nodes[it.node], *series_key(it)) for it in run.metrics]
        known = self._series(run)
        if missing := [(key, it) for key, it in zip(keys, run.metrics, strict=True) if key not in known]:
            self._by_address(missing, known)
        self._db.executemany(
            'INSERT INTO series (node, "check", name, unit, device, better, detail, part) VALUES (?, ?, ?, ?, ?, ?, ?, ?) '
            'ON CONFLICT (node, "check", name, unit, device) DO UPDATE SET better = excluded.better, '
            "detail = excluded.detail, part = excluded.part WHERE better != excluded.better OR detail != excluded.detail "
            "OR part != excluded.part",
            [
                (*key, it.metric.better, it.metric.detail, json.dumps(it.metric.part.as_dict()))
                for key, it in zip(keys, run.metrics, strict=True)
            ],
        )
        known = self._series(run) if missing else known
        good = {node for (node,) in self._db.execute("SELECT node FROM node_runs WHERE run = ? AND good", (number,))}
        waived = {(item.node, item.check) for item in run.items if item.outcome == "waived"}
        self._db.executemany(
            "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?, ?)",
            [
                (known[key], run.started, number, it.metric.number, _is_fit(it, good=key[0] in good, waived=waived))
                for key, it in zip(keys, run.metrics, strict=True)
            ],
        )
        self._insert_fleet(run, number)

    def _series(self, run: Recorded) -> dict[tuple[object, ...], int]:
        rows = self._db.execute(
            'SELECT s.node, s."check", s.name, s.unit, s.device, s.id FROM series s JOIN nodes n ON n.id = s.node '
            "WHERE n.cluster = ? AND n.simulated = ?",
            (run.cluster, run.simulated),
        )
        return {tuple(row[:5]): row[5] for row in rows}

    def _by_address(
        self, missing: Iterable[tuple[tuple[object, ...], ItemMetric]], known: Mapping[tuple[object, ...], int]
    ) -> None:
        """Give series that an earlier version kept by number to the part that has this number."""
        numbers = ((key[-1], known.get((*key[:-1], it.metric.device))) for key, it in missing)
        rows = [(place, number) for place, number in numbers if number is not None]
        self._db.executemany("UPDATE series SET device = ? WHERE id = ?", rows)

    def _insert_fleet(self, run: Recorded, number: int) -> None:
        values: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for it in run.metrics:
            if it.metric.number is not None and not it.metric.detail and it.node:
                values[fleet_key(it)].append(it.metric.number)
        self._db.executemany(
            "INSERT INTO fleet VALUES (?, ?, ?, ?, ?, ?)",
            [(number, *key, statistics.median(found)) for key, found in values.items()],
        )

    def _mark(self, number: int, nodes: dict[str, int], worse: Iterable[ItemMetric]) -> None:
        """Keep what got worse out of the baseline: else it would become the norm within a few nights."""
        self._db.executemany(
            "UPDATE metrics SET fit = 0 WHERE run = ? AND series = (SELECT id FROM series WHERE node = ? "
            'AND "check" = ? AND name = ? AND unit = ? AND device = ?)',
            [(number, nodes[it.node], *series_key(it)) for it in worse],
        )

    def accept(self, past: Past, node: str | None = None) -> None:
        """Let the baseline of a node (None: of all) begin with this run: what got worse is the norm from here on."""
        if not past.complete:
            raise ConfigError(f"run {past.run} is incomplete: it cannot be a baseline")
        with self._readable_errors(), self._transaction():
            self._db.execute(
                "UPDATE metrics SET fit = 1 WHERE run = ? AND value IS NOT NULL AND series IN (SELECT s.id "
                "FROM node_runs r JOIN nodes n ON n.id = r.node JOIN series s ON s.node = n.id "
                "WHERE r.run = ? AND r.good AND (? IS NULL OR n.name = ? OR s.device = ?))",
                (self._id(past), self._id(past), node, node, str(named("peer", node or ""))),
            )
            self._db.execute(
                "INSERT OR REPLACE INTO accepted VALUES (?, ?, ?, ?)",
                (past.cluster, past.simulated, EVERY_NODE if node is None else node, past.started),
            )

    def change_work(self, numbers: Sequence[int], state: str, *, who: str, note: str, at: float) -> list[WorkItem]:
        """Give items of the punch list a state, all or none; ConfigError where that cannot be."""
        with self._readable_errors(), self._transaction():
            return self.work.change(numbers, state, who, note, at)

    def keep(self, count: int) -> int:
        """Delete all but the newest runs of each cluster, and the last good one; return how many went."""
        with self._readable_errors():
            with self._transaction():
                rows = self._db.execute(
                    "SELECT id, good, ROW_NUMBER() OVER (PARTITION BY cluster, simulated ORDER BY started DESC, id "
                    "DESC), ROW_NUMBER() OVER (PARTITION BY cluster, simulated, good ORDER BY started DESC, id DESC) "
                    "FROM runs"
                ).fetchall()
                old = [key for key, good, rank, among in rows if rank > count and not (good and among == 1)]
                self._delete(old)
                for table, rows_in, column in (("series", "metrics", "series"), ("items", "verdicts", "item")):
                    self._db.execute(
                        f"DELETE FROM {table} WHERE NOT EXISTS (SELECT 1 FROM {rows_in} WHERE {column} = {table}.id)"
                    )
            if old:
                self._db.execute("VACUUM")
        return len(old)

    def _delete(self, runs: Sequence[int]) -> None:
        for table in _OF_RUN:
            self._db.executemany(f"DELETE FROM {table} WHERE run = ?", [(run,) for run in runs])
        self._db.executemany("DELETE FROM runs WHERE id = ?", [(run,) for run in runs])

    # --- reading

    def clusters(self) -> tuple[str, ...]:
        """Return the names of the clusters that have runs here."""
        with self._readable_errors():
            return tuple(name for (name,) in self._db.execute("SELECT DISTINCT cluster FROM runs ORDER BY cluster"))

    def nodes(self, cluster: str) -> tuple[str, ...]:
        """Return the names of a cluster's nodes; '' is what is about no single node."""
        with self._readable_errors():
            rows = self._db.execute("SELECT DISTINCT name FROM nodes WHERE cluster = ? ORDER BY name", (cluster,))
            return tuple(name for (name,) in rows)

    def runs(self, cluster: str, count: int = 20) -> tuple[Past, ...]:
        """Return the last runs of a cluster, newest first."""
        with self._readable_errors():
            return self._past("cluster = ?", (cluster,), count)

    def runs_of_kind(self, cluster: str, *, simulated: bool, count: int) -> tuple[Past, ...]:
        """Return the last real, or simulated, runs of a cluster, newest first."""
        with self._readable_errors():
            return self._past("cluster = ? AND simulated = ?", (cluster, simulated), count)

    def ids(self) -> set[str]:
        """Return the ids of the runs of all clusters."""
        with self._readable_errors():
            return {run for (run,) in self._db.execute("SELECT run FROM runs")}

    def has(self, cluster: str, run: str) -> bool:
        """Return True for a stored run, by its whole id."""
        with self._readable_errors():
            return bool(self._past("cluster = ? AND run = ?", (cluster, run), 1))

    def find(self, cluster: str, name: str, *, before: Past | None = None) -> Past:
        """Return a run by its id, the beginning of its id, 'last' or 'last-good'; ConfigError where there is none.

        `before`: 'last' and 'last-good' are of the time before this run, and of its kind (real or simulated).
        """
        where = "cluster = ?"
        values: list[object] = [cluster]
        if name in (LAST, LAST_GOOD):
            where += " AND good" if name == LAST_GOOD else ""
            if before is not None:
                where += " AND simulated = ? AND (started, run) < (?, ?)"
                values += [before.simulated, before.started, before.run]
            count = 1
        else:
            where, count = f"{where} AND substr(run, 1, ?) = ?", 3
            values += [len(name), name]
        with self._readable_errors():
            # an id may begin many others
            exact = self._past("cluster = ? AND run = ?", (cluster, name))
            found = exact or self._past(where, tuple(values), count)
        if len(found) == 1:
            (past,) = found
            return past
        if found:
            raise ConfigError(f"history {self.path}: {name!r} begins several runs: {_listed(found)}")
        known = self.runs(cluster, 5)
        what = {LAST: "no run", LAST_GOOD: "no good run"}.get(name, f"no run {name!r}")
        earlier = f" before {before.run}" if before is not None and name in (LAST, LAST_GOOD) else ""
        has = f"the last are {_listed(known)}" if known else f"it has clusters: {', '.join(self.clusters()) or 'none'}"
        raise ConfigError(f"history {self.path}: {what} of cluster {cluster}{earlier}; {has}")

    def compare(self, past: Past, against: Past | None = None) -> Comparison:
        """Hold a stored run against one other run, or against each node's last good runs."""
        if against is not None and against.simulated != past.simulated:
            real, other = (against, past) if past.simulated else (past, against)
            raise ConfigError(f"run {other.run} is simulated and {real.run} is real: they cannot be compared")
        with self._readable_errors():
            number = self._id(past)
            if against is None:
                earlier = self._earlier(past)
                good = self._past(
                    "cluster = ? AND simulated = ? AND good AND (started, run) < (?, ?)",
                    (past.cluster, past.simulated, past.started, past.run),
                )
                last_good = next(iter(good), None)
            else:
                earlier, last_good = (against,), against if against.good else None
            return Comparison(
                past,
                earlier,
                last_good,
                self._with_values(self._changes(number, past, against), past, number),
                tuple(self._turned(number, past, against)),
                str(self.path),
            )

    def factors(self, cluster: str, simulated: bool) -> dict[tuple[str, str], list[str]]:
        """Return {(factor, value): nodes}, as the newest run found each factor of a node."""
        rows = self.query(
            "SELECT f.factor, f.value, n.name FROM factors f JOIN nodes n ON n.id = f.node WHERE n.cluster = ? AND n.simulated = ? "
            "AND f.seen = (SELECT max(seen) FROM factors g WHERE g.node = f.node AND g.factor = f.factor) "
            "ORDER BY f.factor, f.value",
            (cluster, simulated),
        )
        return grouped(((factor, value), node) for factor, value, node in rows)

    def last_good(self, cluster: str, *, simulated: bool) -> dict[str, float]:
        """Return {node: start of the last run that found it good}, in seconds since the epoch."""
        rows = self.query(
            "SELECT d.name, MAX(r.started) FROM node_runs n JOIN runs r ON r.id = n.run JOIN nodes d ON d.id = n.node "
            "WHERE r.cluster = ? AND r.simulated = ? AND n.good AND NOT n.failed AND NOT n.error GROUP BY d.name",
            (cluster, simulated),
        )
        return dict(rows)

    def accepted(self, cluster: str, *, simulated: bool) -> dict[tuple[str, str], float]:
        """Return {(check, metric): value} of the cluster's own items, each from the last good run that has it."""
        rows = self.query(
            'SELECT s."check", s.name, m.value, MAX(m.started) FROM metrics m JOIN series s ON s.id = m.series '
            "JOIN nodes n ON n.id = s.node JOIN runs r ON r.id = m.run "
            "WHERE n.cluster = ? AND n.simulated = ? AND n.name = '' AND r.good AND m.value IS NOT NULL AND NOT s.detail "
            "GROUP BY s.id",
            (cluster, simulated),
        )
        return {(check, name): value for check, name, value, _ in rows}

    def last_accepted(self, cluster: str, check: str, *, simulated: bool) -> float | None:
        """Return the start of the last good run in which this check of the cluster passed, in seconds since the epoch."""
        ((started,),) = self.query(
            "SELECT MAX(r.started) FROM runs r JOIN verdicts v ON v.run = r.id JOIN items i ON i.id = v.item "
            "JOIN nodes n ON n.id = i.node WHERE n.cluster = ? AND n.simulated = ? AND n.name = '' "
            "AND i.\"check\" = ? AND v.outcome = 'passed' AND r.good",
            (cluster, simulated, check),
        )
        return None if started is None else float(started)

    def node_runs(self, cluster: str, node: str, count: int = 20) -> list[tuple[Past, dict[str, int]]]:
        """Return the last runs with a node, newest first, and how its items ended in each."""
        with self._readable_errors():
            rows = self._db.execute(
                f"SELECT {_prefixed('r')}, n.good, n.passed, n.failed, n.error, n.unjudged FROM node_runs n "
                "JOIN runs r ON r.id = n.run JOIN nodes d ON d.id = n.node WHERE d.cluster = ? AND d.name = ? "
                "ORDER BY n.started DESC, n.run DESC LIMIT ?",
                (cluster, node, count),
            ).fetchall()
        keys = ("good", "passed", "failed", "error", "unjudged")
        return [(_made(row), dict(zip(keys, row[-len(keys) :], strict=True))) for row in rows]

    def node_red(self, cluster: str, node: str, runs: Iterable[str]) -> list[tuple[str, str, str, str]]:
        """Return (run, check, outcome, message) of what was red on a node in these runs, or waived with its ticket, newest first."""
        wanted = list(runs)
        with self._readable_errors():
            return self._db.execute(
                'SELECT r.run, i."check", v.outcome, v.message FROM items i JOIN nodes d ON d.id = i.node '
                "JOIN verdicts v ON v.item = i.id JOIN runs r ON r.id = v.run WHERE d.cluster = ? AND d.name = ? "
                f"AND v.outcome IN ('failed', 'error', 'waived') AND r.run IN ({', '.join('?' * len(wanted))}) "
                'ORDER BY v.started DESC, i."check"',
                (cluster, node, *wanted),
            ).fetchall()

    def node_acts(self, cluster: str, node: str, *, simulated: bool) -> list[tuple[float, str, str, str, str]]:
        """Return (time, result, user, run, reason) of what all runs did to a node in Slurm, newest first."""
        with self._readable_errors():
            return self._db.execute(
                "SELECT a.time, a.result, a.user, r.run, a.reason FROM acts a JOIN nodes d ON d.id = a.node "
                "JOIN runs r ON r.id = a.run WHERE d.cluster = ? AND d.simulated = ? AND d.name = ? ORDER BY a.time DESC",
                (cluster, simulated, node),
            ).fetchall()

    def node_values(self, cluster: str, node: str, *, simulated: bool, count: int = 20) -> list[MetricHistory]:
        """Return the metrics of a node over its last runs."""
        with self._readable_errors():
            series = self._db.execute(
                'SELECT s.id, s."check", s.name, s.unit, s.part, s.better FROM series s '
                "JOIN nodes d ON d.id = s.node WHERE d.cluster = ? AND d.simulated = ? AND d.name = ? "
                'AND NOT s.detail ORDER BY s."check", s.name, s.device',
                (cluster, simulated, node),
            ).fetchall()
            found = []
            for key, check, *metric in series:
                rows = self._db.execute(
                    "SELECT value, fit FROM metrics WHERE series = ? ORDER BY started DESC, run DESC LIMIT ?",
                    (key, count),
                ).fetchall()
                values = tuple((value, bool(fit)) for value, fit in reversed(rows))
                last = values[-1][0] if values else None
                found.append(MetricHistory(_item_metric(node, check, metric, last), values))
            return found

    def _id(self, past: Past) -> int:
        row = self._db.execute("SELECT id FROM runs WHERE cluster = ? AND run = ?", (past.cluster, past.run)).fetchone()
        if row is None:
            raise ConfigError(f"history {self.path}: no run {past.run!r} of cluster {past.cluster}")
        return int(row[0])

    def _past(self, where: str, values: Sequence[Any], count: int = 1) -> tuple[Past, ...]:
        rows = self._db.execute(
            f"SELECT {_PAST} FROM runs WHERE {where} ORDER BY started DESC, id DESC LIMIT ?", (*values, count)
        )
        return tuple(_made(row) for row in rows)

    def _earlier(self, past: Past) -> tuple[Past, ...]:
        """Return the last complete runs before this one, of the same cluster and kind."""
        return self._past(
            "cluster = ? AND simulated = ? AND complete AND (started, run) < (?, ?)",
            (past.cluster, past.simulated, past.started, past.run),
            WINDOW,
        )

    # --- comparing

    def _changes(self, number: int, past: Past, against: Past | None) -> Iterator[Change]:
        earlier_runs = self._earlier(past) if against is None else (against,)
        fleet, base = self._fleet(number, earlier_runs), against.run if against else ""
        last = self._values(self._id(earlier_runs[0])) if earlier_runs else {}
        floor = self._floors(past)
        other = None if against is None else last
        rows = self._db.execute(
            'SELECT s.id, n.id, n.name, s."check", s.name, s.unit, s.part, s.better, m.value '
            "FROM metrics m JOIN series s ON s.id = m.series JOIN nodes n ON n.id = s.node "
            "WHERE m.run = ? AND NOT s.detail",
            (number,),
        ).fetchall()
        for series, node_id, node, check, *metric, value in rows:
            item = _item_metric(node, check, metric, value)
            if other is not None:
                earlier = [other[series]] if other.get(series) is not None else []
            else:
                ends = [EVERY_NODE, node]
                ends += [item.paired] if item.paired else []
                least = max(floor.get(end, 0.0) for end in ends)
                earlier = self._baseline(series, past, number, least)
            if not earlier and self._was_zero(item, node_id, past, against):
                earlier = [0.0]
            known = [value for value in earlier if value is not None]
            judged = judge(item.metric.number, known, _rule_of(item))
            yield changed(item, judged, fleet, previous=last.get(series), base=base)
        yield from self._gone(number, past, against, {row[0] for row in rows}, fleet)

    def _with_values(self, changes: Iterable[Change], past: Past, number: int) -> tuple[Change, ...]:
        """Add the values of the last runs to the changes that a report shows: those that are the furthest."""
        found = list(changes)
        order = sorted(range(len(found)), key=lambda place: badness(found[place]), reverse=True)
        for place in order[:MAX_TRENDS]:
            item = found[place].item
            rows = self._db.execute(
                "SELECT m.value FROM nodes n JOIN series s ON s.node = n.id JOIN metrics m ON m.series = s.id "
                'WHERE n.cluster = ? AND n.simulated = ? AND n.name = ? AND s."check" = ? AND s.name = ? AND s.unit = ? '
                "AND s.device = ? AND (m.started, m.run) <= (?, ?) ORDER BY m.started DESC, m.run DESC LIMIT ?",
                (past.cluster, past.simulated, item.node, *series_key(item), past.started, number, WINDOW + 1),
            ).fetchall()
            found[place] = replace(found[place], values=tuple(value for (value,) in reversed(rows)))
        return tuple(found)

    def _values(self, number: int) -> dict[int, float | None]:
        return dict(self._db.execute("SELECT series, value FROM metrics WHERE run = ?", (number,)))

    def _baseline(self, series: int, past: Past, number: int, least: float) -> list[float | None]:
        """Return the last values of a series that may serve as a baseline, oldest first."""
        rows = self._db.execute(
            "SELECT value FROM metrics WHERE series = ? AND (started, run) < (?, ?) AND started >= ? AND fit "
            "ORDER BY started DESC, run DESC LIMIT ?",
            (series, past.started, number, least, WINDOW),
        ).fetchall()
        return [value for (value,) in reversed(rows)]

    def _was_zero(self, item: ItemMetric, node: int, past: Past, against: Past | None) -> bool:
        """Return True where errors that appear now were checked before, and none were recorded."""
        return _counts_errors(item) and self._before(node, item.check, past, against) == "passed"

    def _before(self, node: int, check: str, past: Past, against: Past | None) -> str | None:
        """Return how an item ended in the other run, or in the node's last good run that has it."""
        item = self._db.execute('SELECT id FROM items WHERE node = ? AND "check" = ?', (node, check)).fetchone()
        if item is None:
            return None
        values: list[object]
        if against is not None:
            where, values = "v.run = ?", [self._id(against)]
        else:
            where, values = "v.started < ? AND r.good", [past.started]
        row = self._db.execute(
            "SELECT v.outcome FROM verdicts v JOIN node_runs r ON r.node = ? AND r.started = v.started AND "
            f"r.run = v.run WHERE v.item = ? AND {where} ORDER BY v.started DESC LIMIT 1",
            (node, item[0], *values),
        ).fetchone()
        return None if row is None else str(row[0])

    def _floors(self, past: Past) -> dict[str, float]:
        return dict(
            self._db.execute(
                "SELECT node, started FROM accepted WHERE cluster = ? AND simulated = ? AND started <= ?",
                (past.cluster, past.simulated, past.started),
            )
        )

    def _fleet(self, number: int, earlier: Sequence[Past]) -> dict[tuple[str, ...], FleetHistory]:
        medians: dict[tuple[str, ...], list[float]] = defaultdict(list)
        columns = '"check", name, unit, device, median'
        for past in earlier:
            for *key, median in self._db.execute(f"SELECT {columns} FROM fleet WHERE run = ?", (self._id(past),)):
                medians[tuple(key)].append(median)
        now = {
            tuple(key): median
            for *key, median in self._db.execute(f"SELECT {columns} FROM fleet WHERE run = ?", (number,))
        }
        return {
            key: FleetHistory(
                now.get(key), statistics.median(medians[key]) if key in medians else None, len(medians.get(key, ()))
            )
            for key in {*now, *medians}
        }

    def _gone(
        self, number: int, past: Past, against: Past | None, there: set[int], fleet: dict[tuple[str, ...], FleetHistory]
    ) -> Iterator[Change]:
        """Yield the metrics that a node's last good run has and this one lacks, though their check passed."""
        passed = {
            (node, check)
            for node, check in self._db.execute(
                'SELECT i.node, i."check" FROM verdicts v JOIN items i ON i.id = v.item '
                "WHERE v.run = ? AND v.outcome = 'passed'",
                (number,),
            )
        }
        for run, nodes in self._last_good({node for node, _ in passed}, past, against).items():
            rows = self._db.execute(
                'SELECT s.id, n.id, m.value, n.name, s."check", s.name, s.unit, s.part, s.better FROM metrics m '
                "JOIN series s ON s.id = m.series JOIN nodes n ON n.id = s.node "
                "WHERE m.run = ? AND m.value IS NOT NULL AND NOT s.detail",
                (run,),
            )
            for series, node, value, name, check, *metric in rows:
                item = _item_metric(name, check, metric, None)
                absent = node in nodes and series not in there and (node, item.check) in passed
                directed = _rule_of(item).better != NEITHER
                # no errors: nothing to record
                if absent and directed and not _counts_errors(item) and not item.paired:
                    gone = MetricTrend("gone", value, runs=1)
                    yield changed(item, gone, fleet, base=against.run if against else "")

    def _last_good(self, nodes: set[int], past: Past, against: Past | None) -> dict[int, set[int]]:
        """Return {run: nodes whose last good run it is}."""
        if against is not None:
            return {self._id(against): nodes}
        found: dict[int, set[int]] = defaultdict(set)
        for node in nodes:
            row = self._db.execute(
                "SELECT run FROM node_runs WHERE node = ? AND started < ? AND good ORDER BY started DESC LIMIT 1",
                (node, past.started),
            ).fetchone()
            if row is not None:
                found[row[0]].add(node)
        return found

    def _turned(self, number: int, past: Past, against: Past | None) -> Iterator[Turn]:
        """Yield what passed before and did not now; a node that was not tested is one turn, not one a check."""
        rows = self._db.execute(
            'SELECT n.id, n.name, i."check", v.outcome FROM verdicts v JOIN items i ON i.id = v.item '
            "JOIN nodes n ON n.id = i.node WHERE v.run = ? "
            "AND v.outcome IN ('failed', 'error', 'not checked', 'not tested')",
            (number,),
        ).fetchall()
        untested: set[int] = set()
        for node, name, check, outcome in rows:
            if node in untested and outcome == "not tested":
                continue
            if self._before(node, check, past, against) == "passed":
                whole = outcome == "not tested"
                untested.update({node} if whole else ())
                yield Turn(name, "" if whole else check, outcome, against.run if against else "")


def _made(row: Sequence[Any]) -> Past:
    run, cluster, simulated, started, complete, good, *rest = row[:12]
    return Past(run, cluster, bool(simulated), started, bool(complete), bool(good), *rest)


def _prefixed(table: str) -> str:
    return ", ".join(f"{table}.{column.strip()}" for column in _PAST.split(","))


def series_key(item: ItemMetric) -> tuple[str, ...]:
    """Return what the values of one metric of a node have in common: of a part its address, where it has one."""
    return (*fleet_key(item)[:-1], item.metric.part.place)


def _item_metric(node: str, check: str, metric: Sequence[str], value: float | None) -> ItemMetric:
    """Return a metric of the columns name, unit, part and better; a value that is NULL was no number."""
    name, unit, part, better = metric
    number = math.nan if value is None else value
    return ItemMetric(node, check, Metric(name, number, unit, Part.read(loads(part)), better=better))


def _rule_of(item: ItemMetric) -> ComparisonRule:
    return rule_of(item.metric.unit, item.metric.better)


def _counts_errors(item: ItemMetric) -> bool:
    rule = _rule_of(item)
    return rule.counted and rule.better == LOWER


def _is_fit(item: ItemMetric, *, good: bool, waived: set[tuple[str, str]]) -> bool:
    """Return whether a value may be part of a baseline: what a waiver covers is no norm."""
    return good and item.metric.number is not None and (item.node, item.check) not in waived


def _listed(runs: Iterable[Past]) -> str:
    return ", ".join(f"{past.run} ({when(past.started)}, {past.outcome})" for past in runs)
