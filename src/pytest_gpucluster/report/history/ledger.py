"""The ledger: where each part was, by serial number, and how often it failed. Tables of the history file.

A part is known by its UUID (GPU) or its serial number; one that two places of a run have is no identity. A stay is the time of
a part with one firmware in one slot of one node: it begins with the first run that lists the part there, and ends with the first run that lists the
node without it, or the part elsewhere. Failures stay when runs are deleted. A failure is new (the next `episode`) if since the
last one the node was good in a run whose check passed, or if the part has moved.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpucluster.core.finding import Action
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.part import InstalledPart

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.core.part import Part
    from pytest_gpucluster.report.history.run_snapshot import Recorded

LEMON = 2  # episodes from which on a part is one
TABLES = (
    # identity: UUID of a GPU, else the serial number
    """CREATE TABLE parts (id INTEGER PRIMARY KEY, simulated INTEGER NOT NULL, kind TEXT NOT NULL, identity TEXT NOT NULL,
        serial TEXT NOT NULL, model TEXT NOT NULL, vendor TEXT NOT NULL, number TEXT NOT NULL,
        UNIQUE (simulated, kind, identity))""",
    # until: of the first run without it, NULL while it is there. name: what findings call it
    """CREATE TABLE stays (part INTEGER, since REAL, node INTEGER NOT NULL, slot TEXT NOT NULL, name TEXT NOT NULL,
        address TEXT NOT NULL, firmware TEXT NOT NULL, until REAL, PRIMARY KEY (part, since)) WITHOUT ROWID""",
    "CREATE INDEX stays_node ON stays (node, until)",
    # run is its id, as the run may be deleted
    """CREATE TABLE failures (part INTEGER, time REAL, run TEXT NOT NULL, node INTEGER NOT NULL, slot TEXT NOT NULL,
        "check" TEXT NOT NULL, action TEXT NOT NULL, words TEXT NOT NULL, episode INTEGER NOT NULL)""",
    "CREATE INDEX failures_part ON failures (part, time)",
)
# kinds of a finding's part -> what may be exchanged for it
_EXCHANGED = {"port": ("module", "cable", "adapter"), "nvlink": ("gpu",)}


class Stay(NamedTuple):
    """The time of a part in a slot; `until` None: it is there. Times are seconds since the epoch."""

    node: str
    slot: str
    firmware: str
    since: float
    until: float | None


class _LastStay(NamedTuple):
    """The newest stay of a part, as a run finds it stored; `node` is an id."""

    part: int
    kind: str
    since: float
    node: int
    slot: str
    firmware: str
    until: float | None
    name: str


class PartFailure(NamedTuple):
    """One failure of a part."""

    time: float
    run: str
    node: str
    slot: str
    check: str
    action: str
    words: str
    episode: int


@dataclass(frozen=True)
class KnownPart:
    """A part with all that is known of it, oldest first."""

    kind: str
    serial: str
    identity: str
    model: str
    vendor: str
    number: str
    stays: tuple[Stay, ...]
    failures: tuple[PartFailure, ...]

    @property
    def episodes(self) -> int:
        """How often it failed anew."""
        return max((it.episode for it in self.failures), default=0)

    @property
    def is_lemon(self) -> bool:
        """Whether it failed again after it was good, or in another slot."""
        return self.episodes >= LEMON

    @property
    def title(self) -> str:
        """Kind, model and number."""
        return " ".join(filter(None, (self.kind, self.model, self.serial or self.identity)))


class Ledger:
    """The ledger in an open history."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    # --- writing, within the transaction of a run

    def add(self, run: Recorded, nodes: Mapping[str, int]) -> None:
        """Enter the parts of a run and its failures."""
        listed = _identified(run)
        self._db.executemany(
            "INSERT INTO parts (simulated, kind, identity, serial, model, vendor, number) VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (simulated, kind, identity) DO NOTHING",
            [
                (run.simulated, kind, identity, it.part.serial, it.part.model or it.number, it.vendor, it.number)
                for (kind, identity), (_, it) in listed.items()
            ],
        )
        rows = self._db.execute("SELECT kind, identity, id FROM parts WHERE simulated = ?", (run.simulated,))
        known = {(kind, identity): number for kind, identity, number in rows}
        self._move(run, {known[key]: place for key, place in listed.items()}, nodes)
        self._fail(run, self.finder(run), nodes)

    def _move(self, run: Recorded, listed: Mapping[int, tuple[str, InstalledPart]], nodes: Mapping[str, int]) -> None:
        """End stays that are over, and begin new ones. A kind that a node lists none of was not read: its stays go on."""
        read = {(nodes[node], it.part.kind) for node, parts in run.parts.items() for it in parts}
        rows = self._db.execute(
            "SELECT s.part, p.kind, s.since, s.node, s.slot, s.firmware, s.until, s.name FROM stays s JOIN parts p ON p.id = s.part "
            "WHERE p.simulated = ? ORDER BY s.since",
            (run.simulated,),
        )
        last = {row[0]: _LastStay(*row) for row in rows}
        # a log that is imported later than its successor of the same node moves nothing
        later = {row[0] for row in self._db.execute("SELECT node FROM node_runs WHERE started > ?", (run.started,))}
        newer = {part for part, stay in last.items() if stay.since > run.started or stay.node in later}
        newer |= {part for part, (name, _) in listed.items() if part in last and nodes[name] in later}
        for part, stay in last.items():
            there = listed.get(part)
            stays = there is not None and (nodes[there[0]], there[1].slot) == (stay.node, stay.slot)
            gone = there is not None or (stay.node, stay.kind) in read
            if stay.until is None and not stays and gone and part not in newer:
                self._end(stay, run.started)
        for part, (name, it) in listed.items():
            if part in newer:
                continue
            place = (nodes[name], it.slot)
            before = last.get(part)
            # days and failures count for the firmware that was there
            if before and before.firmware != it.firmware:
                self._end(before, run.started)
            if before is None or (before.node, before.slot, before.firmware) != (*place, it.firmware):
                values = (part, run.started, *place, it.part.name, it.part.address, it.firmware)
                self._db.execute(
                    "INSERT OR REPLACE INTO stays VALUES (?, ?, ?, ?, ?, ?, ?, "
                    "(SELECT min(started) FROM node_runs WHERE node = ? AND started > ?))",
                    (*values, nodes[name], run.started),
                )
            elif (before.until, before.name) != (None, it.part.name):
                self._db.execute(
                    "UPDATE stays SET until = NULL, name = ? WHERE part = ? AND since = ?",
                    (it.part.name, part, before.since),
                )

    def _end(self, stay: _LastStay, at: float) -> None:
        """End a stay that has not ended yet."""
        self._db.execute(
            "UPDATE stays SET until = coalesce(until, ?) WHERE part = ? AND since = ?", (at, stay.part, stay.since)
        )

    def finder(self, run: Recorded) -> Callable[[Part, str], Iterable[tuple[int, str]]]:
        """Return a function of the part of a finding and its node: ids and slots of the parts that may be exchanged for it."""
        rows = self._db.execute("SELECT kind, identity, id FROM parts WHERE simulated = ?", (run.simulated,))
        known = {(kind, identity): number for kind, identity, number in rows}
        places = self._places(run)
        return lambda part, node: _concerned(part, node, known, places)

    def place(self, part: int, cluster: str) -> tuple[str, str] | None:
        """Return node and slot of a part that is in service in this cluster; None where it is not."""
        found: tuple[str, str] | None = self._db.execute(
            "SELECT n.name, s.slot FROM stays s JOIN nodes n ON n.id = s.node WHERE s.part = ? AND n.cluster = ? "
            "AND s.until IS NULL",
            (part, cluster),
        ).fetchone()
        return found

    def serials(self, parts: Iterable[int]) -> str:
        """Return kind and number of parts, in words."""
        rows = [self._db.execute("SELECT kind, serial, identity FROM parts WHERE id = ?", (it,)) for it in parts]
        return ", ".join(f"{kind} {serial or identity}" for row in rows for kind, serial, identity in row)

    def _fail(
        self, run: Recorded, find: Callable[[Part, str], Iterable[tuple[int, str]]], nodes: Mapping[str, int]
    ) -> None:
        for item in run.red:
            if item.action == Action.CONFIGURE.value or not item.node:
                continue
            for finding in item.findings:
                for part, slot in find(finding.part, item.node):
                    node = nodes[item.node]
                    episode = self._episode(part, run, node, slot)
                    values = (part, run.started, run.run, node, slot, item.check, item.action, finding.words, episode)
                    self._db.execute("INSERT INTO failures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def _places(self, run: Recorded) -> dict[tuple[str, str, str], tuple[int, str]]:
        """Return (node, kind, name or address) -> part and slot of all that are there, or were last: a GPU that is lost fails too."""
        rows = self._db.execute(
            "SELECT n.name, p.kind, s.name, s.address, s.part, s.slot FROM (SELECT *, max(since) FROM stays GROUP BY part) s "
            "JOIN parts p ON p.id = s.part JOIN nodes n ON n.id = s.node WHERE n.cluster = ? AND n.simulated = ? "
            "ORDER BY s.until IS NULL, s.until",
            (run.cluster, run.simulated),
        )
        found: dict[tuple[str, str, str], tuple[int, str]] = {}
        for node, kind, name, address, part, slot in rows:
            found |= {(node, kind, key): (part, slot) for key in (name, address) if key}
        return found

    def _episode(self, part: int, run: Recorded, node: int, slot: str) -> int:
        last = self._db.execute(
            'SELECT episode, time, node, slot, run, "check" FROM failures WHERE part = ? ORDER BY time DESC, episode DESC LIMIT 1',
            (part,),
        ).fetchone()
        if last is None:
            return 1
        episode, time, *place, earlier, check = last
        if earlier == run.run:
            return int(episode)
        good = self._db.execute(
            "SELECT 1 FROM node_runs r JOIN items i ON i.node = r.node JOIN verdicts v ON v.item = i.id AND v.started = r.started AND "
            'v.run = r.run WHERE r.node = ? AND r.started > ? AND r.started < ? AND r.good AND i."check" = ? AND '
            "v.outcome = 'passed' LIMIT 1",
            (node, time, run.started, check),
        ).fetchone()
        return int(episode) + (good is not None or place != [node, slot])

    def remove(self, run: Recorded) -> None:
        """Take out the failures of a run that is stored again."""
        self._db.execute(
            "DELETE FROM failures WHERE run = ? AND node IN (SELECT id FROM nodes WHERE cluster = ?)",
            (run.run, run.cluster),
        )

    # --- reading

    @property
    def simulated(self) -> bool:
        """Whether all known parts are simulated."""
        kinds = {bool(it) for (it,) in self._db.execute("SELECT DISTINCT simulated FROM parts")}
        return kinds == {True}

    def failed(self, *, simulated: bool) -> list[KnownPart]:
        """Return the parts that have failed, those with most episodes first."""
        rows = self._db.execute(
            "SELECT p.* FROM parts p JOIN (SELECT part, max(episode) AS often FROM failures GROUP BY part) f ON f.part = p.id "
            "WHERE p.simulated = ? ORDER BY f.often DESC, p.kind, p.serial, p.identity",
            (simulated,),
        )
        return [*map(self._known, rows.fetchall())]

    def find(self, name: str, *, simulated: bool) -> list[KnownPart]:
        """Return the parts with this serial number or UUID, or all that were in the node of this name."""
        rows = self._db.execute(
            "SELECT p.* FROM parts p WHERE p.simulated = :simulated AND (p.serial = :name OR p.identity = :name OR p.id IN "
            "(SELECT s.part FROM nodes n JOIN stays s ON s.node = n.id WHERE n.name = :name)) ORDER BY p.kind, p.serial, p.identity",
            {"simulated": simulated, "name": name},
        )
        return [*map(self._known, rows.fetchall())]

    def rates(self, *, simulated: bool, now: float) -> list[tuple[str, str, str, str, int, float, int]]:
        """Return kind, model, part number, firmware, parts, days of service, and episodes of failure."""
        return self._db.execute(
            "SELECT p.kind, p.model, p.number, s.firmware, count(DISTINCT s.part), sum(coalesce(s.until, :now) - s.since) / 86400, "
            "(SELECT count(DISTINCT f.part || ' ' || f.episode) FROM failures f JOIN parts q ON q.id = f.part JOIN stays t ON "
            "t.part = f.part AND t.since = (SELECT max(since) FROM stays WHERE part = f.part AND since <= f.time) "
            "WHERE q.simulated = :simulated AND q.kind = p.kind AND q.model = p.model AND q.number = p.number AND t.firmware = s.firmware) "
            "FROM stays s JOIN parts p ON p.id = s.part WHERE p.simulated = :simulated GROUP BY p.kind, p.model, p.number, s.firmware",
            {"simulated": simulated, "now": now},
        ).fetchall()

    def _known(self, row: Sequence[Any]) -> KnownPart:
        stays = self._db.execute(
            "SELECT n.name, s.slot, s.firmware, s.since, s.until FROM stays s JOIN nodes n ON n.id = s.node WHERE s.part = ? "
            "ORDER BY s.since",
            row[:1],
        )
        failures = self._db.execute(
            'SELECT f.time, f.run, n.name, f.slot, f."check", f.action, f.words, f.episode FROM failures f '
            "JOIN nodes n ON n.id = f.node WHERE f.part = ? ORDER BY f.time, f.rowid",
            row[:1],
        )
        kind, identity, serial, model, vendor, number = row[2:]
        found = tuple(Stay(*it) for it in stays), tuple(PartFailure(*it) for it in failures)
        return KnownPart(kind, serial, identity, model, vendor, number, *found)

    def news(self, run: Recorded) -> Iterator[str]:
        """Yield a line for each part that came with failures from elsewhere, and for faults that moved or stayed."""
        failed = self.failed(simulated=run.simulated)
        of_slot = grouped(((it.node, it.slot, it.check), part) for part in failed for it in part.failures)
        for part in failed:
            now = [it for it in part.failures if it.time == run.started]
            before = next((it for it in reversed(part.failures) if it.time < run.started), None)
            stay = next((it for it in reversed(part.stays) if it.since <= run.started), None)
            if before and stay and (before.node, before.slot) != (stay.node, stay.slot):
                yield from _moved(part, before, stay, now, run.started)
            elif now:
                last = now[-1]
                others = [it for it in of_slot[last.node, last.slot, last.check] if it is not part]
                if others:
                    yield (
                        f"{part.title}: {last.check} failed on {last.node} ({last.slot}) with {others[0].title} too: "
                        "the fault stayed with the slot"
                    )


def _moved(
    part: KnownPart, before: PartFailure, stay: Stay, now: Sequence[PartFailure], started: float
) -> Iterator[str]:
    """Yield what is known of a part that failed elsewhere, in the run that sees it first, or sees it fail again."""
    if now and now[-1].check == before.check:
        yield (
            f"{part.title}: {before.check} failed with it on {before.node} ({before.slot}) too: the fault moved with the part"
        )
    elif stay.since == started:
        yield (
            f"{part.title}: came to {stay.node}; on {before.node} {before.check} failed in run {before.run}: {before.words}"
        )


def _identified(run: Recorded) -> dict[tuple[str, str], tuple[str, InstalledPart]]:
    """Return kind and identity -> node and part; what two places have identifies none."""
    found = [
        ((it.part.kind, identity_of(it.part)), (node, it))
        for node, parts in run.parts.items()
        for it in parts
        if identity_of(it.part)
    ]
    often = Counter(key for key, _ in found)
    return {key: place for key, place in found if often[key] == 1}


def identity_of(part: Part) -> str:
    """Return what identifies a part: the UUID of a GPU, whose serial number is that of its board."""
    return part.name if part.kind == "gpu" else part.serial


def _concerned(
    part: Part, node: str, known: Mapping[tuple[str, str], int], places: Mapping[tuple[str, str, str], tuple[int, str]]
) -> Iterable[tuple[int, str]]:
    """Yield the parts, with their slots, that a finding is about."""
    owner = part.exchanged
    kinds = _EXCHANGED.get(owner.kind, (owner.kind,))
    found = {
        places[node, kind, key]
        for kind in kinds
        for key in (owner.name, owner.address)
        if key and (node, kind, key) in places
    }
    if not found and (number := known.get((owner.kind, identity_of(owner)))):
        found = {(number, InstalledPart(owner).slot)}
    return sorted(found)
