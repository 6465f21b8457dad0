"""What the items of a run prove, and what each selected node is: fit, failed, not proved or not tested. Pure.

Terminal, HTML, JUnit, metrics, history and the exit status take the nodes from here. A `selection` event says what a
run must prove: for each suite the items of its proof. A suite has proved a node if each of them has a result.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.safe_json import as_list
from pytest_gpucluster.core.waivers import AVAILABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.report.run_model import Run

FIT, FAILED, NOT_PROVED, NOT_TESTED = NODE_STATES = ("fit", "failed", "not proved", "not tested")
JUDGED = ("passed", "failed", "waived")  # outcomes that are a result
APPLIES_NOT = "not applicable"
NO_RESULT = "did not run"
CLUSTER = "(cluster)"  # stands for checks that are about no single node
RUN_SUITE = "run"  # of what no suite has: a node that could not be tested, a failure of the cluster file
ENGINE_CHECK = "proved"  # SUITE.proved: the error of a node that a suite has not proved


@dataclass(frozen=True)
class Required:
    """Items of a proof: `items` of one check on each of the `nodes`, or, `whole`, items that are about all of them."""

    suite: str
    check: str  # '': any check of the suite
    items: int
    nodes: tuple[str, ...]
    whole: bool = False
    missing: str = ""  # why the items were not collected


@dataclass
class Unproved:
    """Why a suite has not proved a node. `checks`: without a result; `nothing`: no item of the proof has one."""

    checks: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    nothing: bool = True
    reported: bool = True  # each of them is an error itself

    @property
    def key(self) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
        """Nodes with the same key are unproved alike."""
        return tuple(self.checks), tuple(self.reasons), self.nothing


@dataclass(frozen=True)
class Proofs:
    """`unproved`: (suite, node) -> why; node '' is the cluster. `proved`: pairs with a proof. `nodes`: node -> its state."""

    unproved: Mapping[tuple[str, str], Unproved]
    proved: frozenset[tuple[str, str]]
    nodes: Mapping[str, str]

    def of(self, state: str) -> tuple[str, ...]:
        """Return the nodes in one of NODE_STATES."""
        return tuple(node for node, own in self.nodes.items() if own == state)

    @property
    def counts(self) -> dict[str, int]:
        """How many of the selected nodes are in each state: each node is counted once."""
        counts = Counter(self.nodes.values())
        return {state: counts[state] for state in NODE_STATES}


def write_required(rows: Iterable[Required]) -> dict[str, Any]:
    """Return rows as the `selection` event has them: lists of nodes, which are the same for most rows, once each."""
    sets: dict[tuple[str, ...], int] = {}
    plain = [
        [row.suite, row.check, row.items, sets.setdefault(row.nodes, len(sets)), row.whole, row.missing] for row in rows
    ]
    return {"sets": [list(nodes) for nodes in sets], "required": plain}


def read_required(event: Mapping[str, Any]) -> list[Required]:
    """Return the rows of a `selection` event; those that are damaged are left out."""
    sets = [tuple(map(str, as_list(nodes))) for nodes in as_list(event.get("sets"))]
    rows = []
    for row in as_list(event.get("required")):
        suite, check, items, number, whole, missing = (*as_list(row), *[None] * 6)[:6]
        if isinstance(items, int) and isinstance(number, int) and 0 <= number < len(sets):
            rows.append(
                Required(str(suite), str(check or ""), items, sets[number], bool(whole), missing=str(missing or ""))
            )
    return rows


def _drop_waived(run: Run, unproved: dict[tuple[str, str], Unproved], proved: set[tuple[str, str]]) -> None:
    """Take what a waiver covers as proved; a node whose absence one covers has nothing to prove."""
    for suite, node in [*unproved]:
        if (f"{suite}.{ENGINE_CHECK}", node or CLUSTER) in run.waived:
            del unproved[suite, node]
            proved.add((suite, node))
        elif (AVAILABLE, node) in run.waived:
            del unproved[suite, node]


def prove(run: Run) -> Proofs:
    """Judge what the results of a run prove by now."""
    unproved: dict[tuple[str, str], Unproved] = defaultdict(Unproved)
    proved: set[tuple[str, str]] = set()
    for row in run.required or ():
        for node in row.nodes:
            if node in run.problems:  # an error of its own, or busy
                continue
            results = run.of_proof[row.suite, row.check, "" if row.whole else node]
            pair = row.suite, node
            judged = any(outcome in JUDGED for outcome, _ in results)
            if judged:
                proved.add(pair)
            reasons = _reasons(row, results, judged=judged)
            if reasons:
                one = unproved[pair]
                one.checks += [row.check] if row.check and row.check not in one.checks else []
                one.reasons += [why for why in reasons if why not in one.reasons]
                one.reported &= any(outcome == "error" for outcome, _ in results)
    if run.required is None:
        proved |= {
            (suite, node)
            for node, by_suite in run.counts.items()
            for suite, counter in by_suite.items()
            if any(counter[outcome] for outcome in JUDGED)
        }
    _drop_waived(run, unproved, proved)
    for pair, why in unproved.items():
        why.nothing = pair not in proved
    proved -= unproved.keys()
    by_node: dict[str, set[str]] = defaultdict(set)
    for suite, node in proved:
        by_node[node].add(suite)
    lacking = {node for _, node in unproved}
    selected = run.selected if run.nodes else [node for node in by_node if node]
    nodes = {node: _state(run, node, node in lacking, bool(by_node.get(node))) for node in selected}
    return Proofs(dict(unproved), frozenset(proved), nodes)


def _reasons(row: Required, results: list[tuple[str, str]], *, judged: bool) -> list[str]:
    """Return why the items of a row are no proof, nothing where they are one or do not apply."""
    if row.missing:
        return [row.missing]
    if not row.check and (judged or all(outcome in (APPLIES_NOT, "skipped") for outcome, _ in results)):
        return []  # a test of the site states no proof: any result will do, and its skips are its own
    without = [why or outcome for outcome, why in results if outcome not in (*JUDGED, APPLIES_NOT)]
    return [*dict.fromkeys(without), *([NO_RESULT] if len(results) < row.items else [])]


def _state(run: Run, node: str, lacking: bool, proved: bool) -> str:
    counts: Counter[str] = sum(run.counts.get(node, {}).values(), Counter())
    if counts["failed"]:
        return FAILED
    if node in run.problems or not (counts or proved):
        return NOT_TESTED
    # not proved: the node fails only what all nodes fail alike
    if counts["error"] or counts[NOT_PROVED] or lacking or node in run.lost:
        return NOT_PROVED
    if proved:
        return FIT
    applies = run.required is None and any(outcome not in (APPLIES_NOT, NOT_TESTED) for outcome in +counts)
    return NOT_PROVED if applies else NOT_TESTED
