"""What a run will cost before it starts: from earlier runs of the same suites in the history, else from its plan. Pure, but for the queries."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpucluster.core.text import count
from pytest_gpucluster.core.units import format_duration
from pytest_gpucluster.report.proof import NOT_TESTED

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pytest_gpucluster.report.history.store import History

RUNS = 10  # whose median counts
SEARCHED = 50  # newest runs among which they are
WHOLE = 0.8  # of the checks of the largest of them: one with fewer tested a part of the suites
PARTIAL = ("-k", "--lf", "--last-failed", "--deselect", "::")  # words of a run that tests a part of its suites
LONGER = ("--slow", "--intrusive", "--until")  # options whose runs are compared with their like only


class EarlierRun(NamedTuple):
    """Seconds that a run lasted, with its wait for nodes, and how many nodes it tested."""

    seconds: float
    nodes: int


@dataclass(frozen=True)
class Cost:
    """What testing `nodes` nodes will cost. `seconds` of wall time, None if unknown; `why`: where it is from; `most`: seconds after which the jobs end.

    `bound`: it is the longest time, not the expected one.
    """

    nodes: int
    seconds: float | None
    why: str
    most: float
    bound: bool = False

    @property
    def text(self) -> str:
        """The line of the header."""
        if self.seconds is None:
            bound = f"at most {node_hours(self.nodes * self.most)}, since jobs end after {format_duration(self.most)}"
            return f"cost: unknown {self.why}; {bound}"
        time = format_duration(self.seconds)
        about = "at most" if self.bound else "about"
        return f"cost: {about} {node_hours(self.nodes * self.seconds)}: {count(self.nodes, 'node')} for {time} ({self.why})"


def node_hours(seconds: float) -> str:
    """Write seconds of nodes as node-hours.

    >>> node_hours(36_000), node_hours(90), node_hours(5_400_000)
    ('10 node-hours', '0.025 node-hours', '1,500 node-hours')
    """
    hours = seconds / 3600
    return f"{hours:,.0f} node-hours" if hours >= 10 else f"{hours:.2g} node-hours"


def estimate(
    earlier: Sequence[EarlierRun], nodes: int, most: float, *, planned: float = 0.0, partial: bool = False
) -> Cost:
    """Return the cost of a run. `planned`: seconds that its options state (a burn-in); else the median of earlier runs counts."""
    if planned:
        return Cost(nodes, planned, "the requested time, and the margin of its jobs", most, bound=True)
    if not earlier:
        why = "for a part of the suites" if partial else "without a history of runs of these suites"
        return Cost(nodes, None, why, most)
    sizes = sorted(one.nodes for one in earlier)
    were = count(sizes[0], "node") if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]} nodes"
    why = f"median of {count(len(earlier), 'earlier run')} of the same suites on {were}, with the wait for nodes"
    return Cost(nodes, statistics.median(one.seconds for one in earlier), why, most)


def earlier_runs(
    history: History, kind: tuple[str, bool], names: Collection[str], known: Collection[str], words: Sequence[str] = ()
) -> list[EarlierRun]:
    """Return the last complete runs of exactly these suites, newest first.

    `kind`: cluster, and whether simulated. `known`: the registered suites; those of a site's own tests do not count.
    `words`: the command line of the run that is estimated; [] if it tests a part of its suites.
    """
    if is_partial(words) or not names:  # a site's own tests have no names that are compared
        return []
    rows = history.query(
        "SELECT id, started, finished, arguments FROM runs WHERE cluster = ? AND simulated = ? AND complete "
        "ORDER BY started DESC LIMIT ?",
        (*kind, SEARCHED),
    )
    found: list[tuple[int, EarlierRun]] = []
    for number, started, finished, arguments in rows:
        earlier = arguments.split()
        if is_partial(earlier) or _longer(earlier) != _longer(words):
            continue
        checks = _checks(history, kind[0], number, started)
        if {it.partition(".")[0] for it in checks} & set(known) == set(names):
            found.append((len(checks), EarlierRun(finished - started, _tested(history, number))))
    whole = max((checks for checks, _ in found), default=0) * WHOLE
    return [run for checks, run in found if checks >= whole and run.nodes][:RUNS]


def is_partial(words: Sequence[str]) -> bool:
    """Return whether a command line selects some checks of its suites."""
    return any(word.startswith(PARTIAL[:-1]) or PARTIAL[-1] in word for word in words)


def _longer(words: Sequence[str]) -> set[str]:
    return {*LONGER} & {word.partition("=")[0] for word in words}


def _checks(history: History, cluster: str, run: int, started: float) -> set[str]:
    """Return the checks of the node that has most of them, and of the cluster itself."""
    rows = history.query(
        'SELECT DISTINCT i."check" FROM items i JOIN verdicts v ON v.item = i.id AND v.started = ? AND v.run = ? '
        "WHERE v.outcome != ? AND i.node IN (SELECT id FROM nodes WHERE cluster = ? AND name = '' UNION SELECT * FROM (SELECT node "
        "FROM node_runs WHERE run = ? ORDER BY passed + failed + error + unjudged DESC LIMIT 1))",
        (started, run, NOT_TESTED, cluster, run),
    )
    return {check for (check,) in rows}


def _tested(history: History, run: int) -> int:
    ((number,),) = history.query(
        "SELECT COUNT(*) FROM node_runs n JOIN nodes d ON d.id = n.node WHERE n.run = ? AND d.name != '' "
        "AND n.passed + n.failed + n.error > 0",
        (run,),
    )
    return int(number)
