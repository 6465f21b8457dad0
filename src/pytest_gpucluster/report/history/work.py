"""The items of the punch list: open findings as work for hands. A table of the history file.

A failed check opens an item for each part that it found, or for the node. People claim it and report it done; only a later
run in which the check passed proves it. A run in which it failed again opens an item that was done. A finding that nodes
share is one item of the cluster, which each of its nodes must pass. An item of a part follows its serial number to
another node; the part that replaced it proves it too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.finding import Action, Finding, summed
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.part_commands import for_parts
from pytest_gpucluster.core.text import some
from pytest_gpucluster.report.describe import folded
from pytest_gpucluster.report.history.ledger import identity_of
from pytest_gpucluster.report.proof import CLUSTER

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pytest_gpucluster.core.part import Part
    from pytest_gpucluster.report.history.ledger import Ledger
    from pytest_gpucluster.report.history.run_snapshot import Recorded, RecordedItem

    Finder = Callable[[Part, str], Iterable[tuple[int, str]]]

OPEN, CLAIMED, DONE, PROVED = ("open", "claimed", "done", "proved")
# what a person may change: the new state, and the states before it
FROM = {OPEN: (OPEN, CLAIMED, DONE), CLAIMED: (OPEN, CLAIMED), DONE: (OPEN, CLAIMED, DONE)}
MAX_TEXT = 1_000  # characters of a note
MAX_NUMBERS = 20  # of items in one line
# of a port, cable or module it is unknown which part is at fault
FOLLOWED = ("gpu", "adapter", "disk", "dimm", "nvswitch")
TABLES = (
    # part: of the ledger. nodes: JSON, those that must still pass. seen: start of the last run that failed. proof: run
    """CREATE TABLE work (id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, simulated INTEGER NOT NULL, node TEXT NOT NULL,
        "check" TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, place TEXT NOT NULL, part INTEGER, slot TEXT NOT NULL,
        serials TEXT NOT NULL, code TEXT NOT NULL, action TEXT NOT NULL, words TEXT NOT NULL, hint TEXT NOT NULL,
        since REAL NOT NULL, seen REAL NOT NULL, run TEXT NOT NULL, nodes TEXT NOT NULL, state TEXT NOT NULL,
        who TEXT NOT NULL, note TEXT NOT NULL, changed REAL NOT NULL, reopened INTEGER NOT NULL, proof TEXT NOT NULL)""",
    "CREATE INDEX work_state ON work (cluster, simulated, state)",
)
_STORE = (
    "INSERT OR REPLACE INTO work VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True)
class WorkItem:
    """One item; the fields are the columns. `id` 0: not stored yet. Times are seconds since the epoch.

    `node`: '' is the cluster. `name`: of the part, like an adapter; `place`: the words for it.
    """

    id: int
    cluster: str
    simulated: bool
    node: str
    check: str
    kind: str
    name: str
    place: str
    part: int | None
    slot: str
    serials: str
    code: str
    action: str
    words: str
    hint: str
    since: float
    seen: float
    run: str
    nodes: tuple[str, ...]
    state: str = OPEN
    who: str = ""
    note: str = ""
    changed: float = 0.0
    reopened: int = 0
    proof: str = ""

    @property
    def keys(self) -> Iterator[tuple[object, ...]]:
        """What the same fault of another run has in common with this one: its part, else its place."""
        if self.part is not None:
            yield self.check, self.part
        yield self.check, self.node, self.kind, self.place, "" if self.node else self.code


class WorkTable:
    """The items in an open history."""

    def __init__(self, db: sqlite3.Connection, ledger: Ledger) -> None:
        self._db, self._ledger = db, ledger

    # --- writing, within a transaction

    def add(self, run: Recorded) -> None:
        """Open, follow and prove items by a run whose parts are in the ledger."""
        judged = self._judged_later(run)
        known = {it.id: it for it in self.items(run.cluster, simulated=run.simulated)}
        left = {number: self._followed(it, run) for number, it in known.items()}
        same = {key: it.id for it in left.values() for key in it.keys}
        for found in self._failures(run, judged):
            number = next((same[key] for key in found.keys if key in same), 0)
            if number:
                left[number] = _again(left[number], found)
            else:
                self._store(found)
        passes = _Passes(run)
        for number, it in left.items():
            changed = passes.prove(it) if run.complete and it.seen < run.started else it
            if changed != known[number]:
                self._store(changed)

    def change(self, numbers: Sequence[int], state: str, who: str, note: str, at: float) -> list[WorkItem]:
        """Give items a state; ConfigError for an unknown number or a change that no person may make. All or none."""
        found = []
        for number in dict.fromkeys(numbers):
            row = self._db.execute("SELECT * FROM work WHERE id = ?", (number,)).fetchone()
            if row is None:
                raise ConfigError(f"item {number}: there is none; gpucluster punchlist lists the items")
            it = _made(row)
            if it.state == PROVED:
                raise ConfigError(f"item {number}: is proved by run {it.proof}; a new failure gets a new number")
            if it.state not in FROM[state]:
                raise ConfigError(f"item {number}: is {it.state}; gpucluster punchlist open {number} reopens it")
            if it.state == state == CLAIMED and it.who != who:
                raise ConfigError(
                    f"item {number}: {it.who} has claimed it; gpucluster punchlist open {number} releases it"
                )
            owner = "" if state == OPEN else who
            changed = replace(it, state=state, who=owner, note=note or it.note, changed=at)
            self._store(changed)
            found.append(changed)
        return found

    def _judged_later(self, run: Recorded) -> set[tuple[str, str]]:
        """Return the (node, check) that later runs have judged: a log that is imported late says nothing new of them."""
        rows = self._db.execute(
            'SELECT DISTINCT n.name, i."check" FROM runs r JOIN verdicts v ON v.run = r.id JOIN items i ON i.id = v.item '
            "JOIN nodes n ON n.id = i.node WHERE r.cluster = ? AND r.simulated = ? AND r.started > ? "
            "AND v.outcome IN ('passed', 'failed')",
            (run.cluster, run.simulated, run.started),
        )
        return {(node, check) for node, check in rows}

    def _followed(self, item: WorkItem, run: Recorded) -> WorkItem:
        """Return the item at the present place of its part."""
        place = self._ledger.place(item.part, item.cluster) if item.part is not None else None
        if place is None or place == (item.node, item.slot):
            return item
        moved = f"moved from {item.node} ({item.slot}), seen in run {run.run}"
        note = f"{item.note}; {moved}" if item.note else moved
        node, slot = place
        return replace(item, node=node, slot=slot, place=slot, nodes=(node,), note=note[-MAX_TEXT:])

    def _failures(self, run: Recorded, judged: set[tuple[str, str]]) -> Iterator[WorkItem]:
        """Yield an item for each part that failed, and for each finding that nodes share."""
        failed = [it for it in run.items if it.outcome == "failed" and (it.node, it.check) not in judged]
        if not failed:
            return
        find = self._ledger.finder(run)
        # '': a check of the cluster, in a run without nodes
        selected = tuple(sorted({it.node for it in run.items} - {""})) or ("",)
        shared: dict[tuple[object, ...], list[tuple[RecordedItem, Finding]]] = defaultdict(list)
        for item in failed:
            for it in item.common:
                shared[item.check, it.code, it.part.exchanged.likeness].append((item, it))
            own = [it for it in item.findings if it not in item.common]
            nodes = (item.node,) if item.node else selected
            if own or not item.findings:  # without findings: a plain assertion of a site's test
                yield from (replace(it, nodes=nodes) for it in self._of_parts(run, item, own, find))
        for entries in shared.values():
            item, finding = entries[0]
            part = finding.part.exchanged
            nodes = tuple(sorted({it.node for it, _ in entries}))
            place = part.name if part.is_named else ""
            found = replace(_item(run, item, (finding,)), kind=part.kind, place=place)
            yield replace(found, node="", nodes=nodes)

    def _of_parts(
        self, run: Recorded, item: RecordedItem, findings: Sequence[Finding], find: Finder
    ) -> Iterator[WorkItem]:
        """Yield an item for each part that the findings are about."""
        by_part: dict[tuple[str, str], list[Finding]] = grouped(
            ((it.part.exchanged.kind, it.part.exchanged.place), it) for it in findings
        )
        for (kind, place), own in by_part.items():
            known = [*find(own[0].part, item.node)]
            is_known = len(known) == 1 and kind in FOLLOWED and _is_repair(item, own[0])
            part, slot = known[0] if is_known else (None, "")
            serials = self._ledger.serials(it for it, _ in known)
            found = replace(_item(run, item, own), kind=kind, name=own[0].part.exchanged.name, place=place)
            yield replace(found, part=part, slot=slot, serials=serials)
        if not findings:
            yield _item(run, item, ())

    def _store(self, item: WorkItem) -> None:
        values = (item.id or None, *(getattr(item, it.name) for it in fields(item)[1:]))
        self._db.execute(_STORE, [json.dumps(it) if isinstance(it, tuple) else it for it in values])

    # --- reading

    def items(self, cluster: str, *, simulated: bool, proved: bool = False) -> list[WorkItem]:
        """Return the items of a cluster by number, without those that are proved unless `proved`."""
        rows = self._db.execute(
            "SELECT * FROM work WHERE cluster = ? AND simulated = ? AND (? OR state != 'proved') ORDER BY id",
            (cluster, simulated, proved),
        )
        return [*map(_made, rows)]

    def news(self, run: Recorded) -> Iterator[str]:
        """Yield what a stored run changed."""
        known = self.items(run.cluster, simulated=run.simulated, proved=True)
        changed = {
            "new": [it.id for it in known if it.since == run.started and it.run == run.run],
            "failed again and open": [
                it.id for it in known if it.reopened and it.changed == run.started and it.state == OPEN
            ],
            "proved": [it.id for it in known if it.proof == run.run],
        }
        yield from (f"punch list: {words}: {numbered(found)}" for words, found in changed.items() if found)

    def undecided(self, run: Recorded, tested: Collection[int]) -> Iterator[str]:
        """Yield why items that a run should have decided are still done: nothing is proved by absence."""
        passes = _Passes(run)
        for it in self.items(run.cluster, simulated=run.simulated):
            if it.id in tested and it.state == DONE:
                yield f"punch list: item {it.id} is not proved: {passes.why_not(it)}"


def _made(row: Sequence[Any]) -> WorkItem:
    found = dict(zip((it.name for it in fields(WorkItem)), row, strict=True))
    found |= {"nodes": tuple(json.loads(found["nodes"])), "simulated": bool(found["simulated"])}
    return WorkItem(**found)


def _is_repair(item: RecordedItem, finding: Finding) -> bool:
    return (finding.action or Action.read(item.action)) is not Action.CONFIGURE


def _item(run: Recorded, item: RecordedItem, findings: Sequence[Finding]) -> WorkItem:
    """Return a new item, without its part."""
    return WorkItem(
        id=0,
        cluster=run.cluster,
        simulated=run.simulated,
        node=item.node,
        check=item.check,
        kind="",
        name="",
        place="",
        part=None,
        slot="",
        serials="",
        code=findings[0].code if findings else "",
        action=next((it.action.value for it in findings if it.action), item.action),
        words=summed(findings) if findings else item.message,
        hint=for_parts(item.hint, dict.fromkeys(it.part for it in findings)),
        since=run.started,
        seen=run.started,
        run=run.run,
        nodes=(),
        changed=run.started,
    )


def _again(item: WorkItem, found: WorkItem) -> WorkItem:
    """Return an item that failed again: what was done since an earlier time did not help."""
    if found.seen < item.seen:
        return replace(item, since=min(item.since, found.since))
    lasting: tuple[str, ...] = ("id", "since", "state", "who", "note", "changed", "reopened", "proof")
    # a part that cannot be read now is still the one that failed
    lasting += ("part", "slot", "serials") if found.part is None else ()
    kept = {name: getattr(item, name) for name in lasting}
    if item.state == DONE and found.seen > item.changed:
        kept |= {"state": OPEN, "changed": found.seen, "reopened": item.reopened + 1}
    nodes = found.nodes if item.node else tuple(sorted({*item.nodes, *found.nodes}))
    return replace(found, **{**kept, "nodes": nodes})


class _Passes:
    """What passed in a run."""

    def __init__(self, run: Recorded) -> None:
        self.run, self.selected = run, {it.node for it in run.items}
        self._nodes = grouped((it.check, it.node) for it in run.items if it.outcome == "passed")

    def prove(self, item: WorkItem) -> WorkItem:
        """Return an item without the nodes that passed; it is proved when none is left."""
        passed = {*self._nodes.get(item.check, ())}
        if "" in passed:  # one result of all nodes, which proves only a run that has them all
            passed = {*item.nodes} if self.selected.issuperset(item.nodes) else set()
        elif item.part is not None and not self._is_listed(item):
            return item
        if left := tuple(node for node in item.nodes if node not in passed):
            return replace(item, nodes=left)
        return replace(item, nodes=(), state=PROVED, proof=self.run.run, changed=self.run.started)

    def why_not(self, item: WorkItem) -> str:
        """Return why the run does not prove an item that is done."""
        if not self.run.complete:
            return "the run was stopped"
        if set(item.nodes) <= {*self._nodes.get(item.check, ())}:
            return f"the run lists no part in {item.slot} of {item.node}; select the suite that lists the parts"
        return f"{item.check} did not pass on {folded(filter(None, item.nodes)) or CLUSTER}"

    def _is_listed(self, item: WorkItem) -> bool:
        """Return whether the run lists the part, or another one in its slot: a slot that is empty proves nothing."""
        parts = self.run.parts.get(item.node, ())
        return any(it.slot == item.slot and identity_of(it.part) for it in parts)


def numbered(numbers: Iterable[int]) -> str:
    """Return numbers of items in words: 'item 3', 'items 3, 5'."""
    known = sorted(numbers)
    return f"item{'s' * (len(known) > 1)} {some(known, MAX_NUMBERS)}"
