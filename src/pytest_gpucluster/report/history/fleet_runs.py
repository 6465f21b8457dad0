"""All nodes over all runs of a history, as its HTML page shows them. Pure, but for the queries.

    found = read_fleet(history, "prod", now=time.time())

The runs are of one kind, real or simulated: that of the newest run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpucluster.report.proof import NOT_PROVED, NOT_TESTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.report.history.regression import Past
    from pytest_gpucluster.report.history.store import History

MAX_RUNS = 400
MAX_WORST = 30
MAX_CHECKS = 4  # of one of the worst nodes
MAX_ACTS = 1_000


class LastVerdict(NamedTuple):
    """The last time that a suite judged a node: seconds since the epoch, and passed or failed."""

    started: float
    outcome: str


class Worst(NamedTuple):
    """A node that failed: in how many of how many runs, when last, and the checks that failed most often."""

    node: str
    failed: int
    runs: int
    last: float
    checks: tuple[tuple[str, int], ...]


class Act(NamedTuple):
    """What a run did to a node in Slurm."""

    time: float
    node: str
    result: str
    user: str
    run: str
    reason: str


@dataclass(frozen=True)
class FleetRuns:
    """The runs, oldest first, and of each node its state in each of them ('' where the run did not have it)."""

    cluster: str
    simulated: bool
    now: float
    runs: tuple[Past, ...] = ()
    more_runs: int = 0  # older ones
    states: dict[str, list[str]] = field(default_factory=dict)
    verdicts: dict[str, dict[str, LastVerdict]] = field(default_factory=dict)  # node -> suite
    worst: tuple[Worst, ...] = ()
    acts: tuple[Act, ...] = ()  # newest first


def read_fleet(history: History, cluster: str, *, now: float, most: int = MAX_RUNS) -> FleetRuns:
    """Read the last runs of a cluster."""
    newest = history.runs(cluster, 1)
    if not newest:
        return FleetRuns(cluster, False, now)
    simulated = newest[0].simulated
    kind = (cluster, simulated)
    runs = history.runs_of_kind(cluster, simulated=simulated, count=min(most, MAX_RUNS))[::-1]
    ((total,),) = history.query("SELECT COUNT(*) FROM runs WHERE cluster = ? AND simulated = ?", kind)
    states = _states(history, kind, runs)
    return FleetRuns(
        cluster,
        simulated,
        now,
        runs,
        total - len(runs),
        states,
        last_verdicts(history, kind),
        _worst(history, kind, runs, states),
        tuple(
            Act(*row)
            for row in history.query(
                "SELECT a.time, d.name, a.result, a.user, r.run, a.reason FROM acts a JOIN nodes d ON d.id = a.node "
                "JOIN runs r ON r.id = a.run WHERE d.cluster = ? AND d.simulated = ? ORDER BY a.time DESC LIMIT ?",
                (*kind, MAX_ACTS),
            )
        ),
    )


def _states(history: History, kind: tuple[str, bool], runs: Sequence[Past]) -> dict[str, list[str]]:
    places = {run.run: place for place, run in enumerate(runs)}
    found: dict[str, list[str]] = {}
    rows = history.query(
        "SELECT r.run, d.name, n.good, n.passed, n.failed, n.error FROM node_runs n JOIN runs r ON r.id = n.run "
        "JOIN nodes d ON d.id = n.node WHERE r.cluster = ? AND r.simulated = ? AND r.started >= ?",
        (*kind, runs[0].started),
    )
    for run, node, *ends in rows:
        if run in places:
            found.setdefault(node, [""] * len(runs))[places[run]] = _state(*ends)
    return found


def _state(good: int, passed: int, failed: int, error: int) -> str:
    if failed or error:
        return "failed" if failed else "error"
    return "passed" if good else NOT_PROVED if passed else NOT_TESTED


def last_verdicts(history: History, kind: tuple[str, bool]) -> dict[str, dict[str, LastVerdict]]:
    """Return the newest verdict of each suite on each node; of several of one run, failed counts."""
    found: dict[str, dict[str, LastVerdict]] = defaultdict(dict)
    rows = history.query(
        'SELECT n.name, i."check", v.started, v.outcome FROM items i JOIN nodes n ON n.id = i.node '
        "JOIN verdicts v ON v.item = i.id AND v.outcome IN ('passed', 'failed') AND v.started = "
        "(SELECT w.started FROM verdicts w WHERE w.item = i.id AND w.outcome IN ('passed', 'failed') "
        "ORDER BY w.started DESC LIMIT 1) WHERE n.cluster = ? AND n.simulated = ?",
        kind,
    )
    for node, check, started, outcome in rows:
        suite = check.partition(".")[0]
        known = found[node].get(suite)
        later = LastVerdict(started, outcome)
        if known is None or (known.started, known.outcome == "failed") < (started, outcome == "failed"):
            found[node][suite] = later
    return dict(found)


def _worst(
    history: History, kind: tuple[str, bool], runs: Sequence[Past], states: dict[str, list[str]]
) -> tuple[Worst, ...]:
    counts = {node: Counter(row) for node, row in states.items()}
    failing = sorted(
        (node for node in counts if counts[node]["failed"]), key=lambda node: (-counts[node]["failed"], node)
    )
    found = []
    for node in failing[:MAX_WORST]:
        checks = history.query(
            'SELECT i."check", COUNT(*) FROM nodes n JOIN items i ON i.node = n.id JOIN verdicts v ON v.item = i.id '
            "WHERE n.cluster = ? AND n.simulated = ? AND n.name = ? AND v.outcome = 'failed' AND v.started >= ? "
            "GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT ?",
            (*kind, node, runs[0].started, MAX_CHECKS),
        )
        row = states[node]
        last = max(place for place, state in enumerate(row) if state == "failed")
        seen = len(row) - counts[node][""]
        found.append(Worst(node, counts[node]["failed"], seen, runs[last].started, tuple(map(tuple, checks))))
    return tuple(found)
