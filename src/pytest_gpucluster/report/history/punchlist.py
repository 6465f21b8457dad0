"""The punch list for people: the items by trade and place, what a run of the list tests, what a unit lacks. Pure, but for queries."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpucluster.core.finding import Action
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.registry import parts_of_suites, suites
from pytest_gpucluster.core.scope import Scope
from pytest_gpucluster.core.text import count
from pytest_gpucluster.report.describe import folded, for_nodes
from pytest_gpucluster.report.history.work import DONE
from pytest_gpucluster.report.proof import CLUSTER, RUN_SUITE
from pytest_gpucluster.report.run_model import EVIDENCE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.report.history.store import History
    from pytest_gpucluster.report.history.work import WorkItem

TRADES = ("cabling", "server vendor", "switch", "storage", "software", "us")
CABLING, VENDOR, SWITCH, STORAGE, SOFTWARE, US = TRADES
# the first of these that an item has decides: its kind of part, its suite, its action
KINDS = {"port": CABLING, "cable": CABLING, "module": CABLING, "pair": CABLING}
KINDS |= {"switch": SWITCH, "leaf": SWITCH, "mount": STORAGE}
ACTIONS = {Action.CONFIGURE.value: SOFTWARE, Action.MONITOR.value: US}
NEIGHBOURS = 2  # of a group: with one other node no two thirds agree on what is usual
RUNS = 30  # among which a unit must have its proofs
PROOF = {"passed", "waived", "not applicable"}


@dataclass(frozen=True)
class PunchlistRow:
    """An item as a row of the list. `evidence`: path of its case file; '' without one."""

    item: WorkItem
    trade: str
    place: str
    evidence: str = ""

    @property
    def nodes(self) -> str:
        """The node, or the nodes that must still pass."""
        return self.item.node or folded(filter(None, self.item.nodes)) or CLUSTER

    @property
    def part(self) -> str:
        """The words for the part; those of the node where it has none."""
        if self.item.kind == "port" and self.item.name:  # people call it so; its place is the address of its adapter
            return f"port {self.item.name}"
        whole = "node" if self.item.node else "what the nodes share"
        return whole if self.item.place in ("", self.item.node) else self.item.place

    @property
    def step(self) -> str:
        """What to do next."""
        return for_nodes(self.item.hint, self.item.nodes) or self.item.action or "inspect"


def entries(items: Sequence[WorkItem], cluster: Cluster | None, reports: Path) -> list[PunchlistRow]:
    """Return items by trade, then by place. `reports`: the folder with the folders of the runs."""
    cables = planned_cables(cluster)
    found = [
        PunchlistRow(it, trade_of(it, cluster), _place(it, cluster, cables), case_file(reports / it.run, it))
        for it in items
    ]
    rank = {trade: number for number, trade in enumerate(TRADES)}
    return sorted(
        found,
        key=lambda it: (rank.get(it.trade, len(rank)), it.trade, natural(it.place), natural(it.nodes), it.item.id),
    )


def trade_of(item: WorkItem, cluster: Cluster | None) -> str:
    """Return who repairs this: as the cluster file states, else by the kind of part, the suite and the action."""
    check = _base(item.check)
    stated = cluster.punchlist.trades if cluster is not None else {}
    own = next((trade for pattern, trade in stated.items() if fnmatchcase(check, pattern)), "")
    of_suite = {it.name: it.trade for it in suites()}.get(_suite(check), "")
    return own or KINDS.get(item.kind) or of_suite or ACTIONS.get(item.action) or VENDOR


def planned_cables(cluster: Cluster | None) -> dict[tuple[str, str], str]:
    """Return {(node, adapter): words for its planned cable} of the cabling plans that suites read."""
    if cluster is None:
        return {}
    plans = parts_of_suites(lambda suite: suite.planned_cables)
    return {key: words for plan in plans for key, words in plan(cluster).items()}


def _place(item: WorkItem, cluster: Cluster | None, cables: Mapping[tuple[str, str], str]) -> str:
    place = cluster.place_of(item.node) if cluster is not None else ""
    cable = cables.get((item.node, item.name), "") if item.kind == "port" else ""
    return ", ".join(filter(None, (place, cable)))


def case_file(run: Path, item: WorkItem) -> str:
    """Return the folder with the evidence of an item's node in the folder of its run; '' without one."""
    folder = run / EVIDENCE / item.node
    return str(folder) if item.node and folder.is_dir() else ""


def natural(text: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a key by which 'unit 9' is before 'unit 10', and an empty text last.

    >>> sorted(["unit 10", "", "unit 9"], key=natural)
    ['unit 9', 'unit 10', '']
    """
    pieces = [(number, "".join(chars)) for number, chars in groupby(text, str.isdecimal)]
    key = tuple((not number, int(piece) if number else 0, piece) for number, piece in pieces)
    return key or ((True, 0, "\N{REPLACEMENT CHARACTER}"),)


# --- what a run of the list tests


def scope_of(
    items: Sequence[WorkItem], cluster: Cluster, free: Collection[str], exclude: Collection[str] = ()
) -> Scope:
    """Return what proves the items that are done: their checks with the proofs of these suites. `free`: nodes that Slurm can give."""
    known = {"", *(node for group in cluster.groups for node in group.names)} - {*exclude}
    done = [it for it in items if it.state == DONE]
    here = [it for it in done if known.intersection(it.nodes)]
    own = grouped((node, check) for it in here for node in it.nodes if node in known for check in proofs_of(it.check))
    every = tuple(dict.fromkeys(check for checks in own.values() for check in checks))
    # what nodes share is no fault of theirs
    others = known.intersection(free) - own.keys() - {it.node for it in items}
    neighbours = tuple(node for group in cluster.groups for node in _nearest(group.names, own.keys(), others))
    checks = {node: tuple(dict.fromkeys(found)) for node, found in own.items()}
    checks |= dict.fromkeys((*neighbours, ""), every)
    numbers, gone = ({it.id for it in found} for found in (here, done))
    if not here:
        return Scope(gone=tuple(sorted(gone)))
    asked = grouped((_base(it.check), node) for it in here for node in it.nodes if node in known)
    return Scope(tuple(sorted(numbers)), checks, neighbours, asked, tuple(sorted(gone - numbers)))


def proofs_of(check: str) -> tuple[str, ...]:
    """Return the patterns of a check, of the proof of its suite, and of what lists the parts that it is about."""
    proof = next((it.proof for it in suites() if it.name == _suite(check)), ())
    return (_base(check), *proof, *(it.lists_parts for it in suites() if it.lists_parts))


def _nearest(names: Sequence[str], tested: Collection[str], others: Collection[str]) -> list[str]:
    """Return those of the others of a group that are next to its first node under test; [] where it has none."""
    first = next((number for number, node in enumerate(names) if node in tested), None)
    if first is None:
        return []
    place = {node: abs(number - first) for number, node in enumerate(names)}
    return sorted((node for node in names if node in others), key=place.__getitem__)[:NEIGHBOURS]


def _base(check: str) -> str:
    """Return the name of a check without its parameters."""
    return check.partition("[")[0]


def _suite(check: str) -> str:
    return check.partition(".")[0]


# --- handing over


class UnitProofs(NamedTuple):
    """`suites`: those that judged a node of the cluster in the last runs. `missing`: {suite: the nodes that it has not proved}."""

    suites: tuple[str, ...]
    missing: Mapping[str, Sequence[str]]


def proofs_in(
    history: History, cluster: str, nodes: Collection[str], *, simulated: bool, runs: int = RUNS
) -> UnitProofs:
    """Return which suites have proved these nodes in any of the last runs.

    A suite has proved a node by a run in which every check of its proof passed, was waived, or did not apply.
    """
    rows = history.query(
        'SELECT v.run, n.name, i."check", v.outcome FROM verdicts v JOIN items i ON i.id = v.item JOIN nodes n ON n.id = i.node '
        "WHERE v.run IN (SELECT id FROM runs WHERE cluster = ? AND simulated = ? AND complete ORDER BY started DESC LIMIT ?)",
        (cluster, simulated, runs),
    )
    judged: set[str] = set()
    ends: dict[tuple[int, str, str], list[tuple[str, str]]] = defaultdict(list)
    runs_of: dict[str, set[int]] = defaultdict(set)
    for run, node, check, outcome in rows:
        if outcome in ("passed", "failed"):
            judged.add(_suite(check))
        if node in nodes or not node:
            runs_of[node].add(run)
            ends[run, node, _suite(check)].append((_base(check), outcome))
    known = {it.name: it.proof for it in suites()}

    def is_proved(suite: str, node: str) -> bool:
        # a result about all nodes counts for those of its run
        found = ((*ends.get((run, node, suite), ()), *ends.get((run, "", suite), ())) for run in runs_of[node])
        return any(_is_proof(known.get(suite, ()), it) for it in found)

    names = tuple(sorted(judged - {RUN_SUITE}))
    missing = {suite: [node for node in nodes if not is_proved(suite, node)] for suite in names}
    return UnitProofs(names, {suite: found for suite, found in missing.items() if found})


def _is_proof(proof: Sequence[str], ends: Sequence[tuple[str, str]]) -> bool:
    """Return whether the results of a suite in a run prove a node; without a stated proof all that it has must be good."""
    by_pattern = ([outcome for check, outcome in ends if fnmatchcase(check, it)] for it in proof or ("*",))
    return all(own and set(own) <= PROOF for own in by_pattern)


def handover(unit: str, nodes: Collection[str], items: Sequence[WorkItem], proofs: UnitProofs) -> str:
    """Return whether a unit is handed over, or what is missing."""
    missing = [f"{count(len(items), 'item')} not proved"] if items else []
    missing += [] if proofs.suites else ["no run has judged a node of the cluster"]
    missing += [f"{suite} has not proved {folded(found)}" for suite, found in proofs.missing.items()]
    of = f"unit {unit} ({folded(nodes)})"
    if missing:
        return f"{of}: not handed over: {'; '.join(missing)}"
    return f"{of}: handed over: the list is empty, and each node is proved by {', '.join(proofs.suites)}"
