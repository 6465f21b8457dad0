"""Event logs and histories of 0.2.0 and 0.3.0 in the present form, once, by `gpucluster history --convert`.

No other code reads the earlier forms: a part was a text, a check may have had a former name (core/former_names.py).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import safe_json
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.former_names import CHECKS
from pytest_gpucluster.core.part import Part, gpu, named
from pytest_gpucluster.core.safe_json import as_dicts, as_list
from pytest_gpucluster.core.units import parse_size
from pytest_gpucluster.report.machine.atomic_write import write_whole
from pytest_gpucluster.report.machine.events import strict_json
from pytest_gpucluster.report.machine.run_folder import SIGNATURES, is_written
from pytest_gpucluster.report.run_model import STATES

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from pathlib import Path

MANY = ("limits", "mtu", "packages", "sysctls")  # settings of os.drift with a name each, which was the part
_RESULTS = ("result", "rerun")
_GPU = re.compile(r"GPU (\d+)(?: \(([^,()]+), ([^,()]+)\))?")
_SIZE = re.compile(r"([a-z_]+) (\d+ [KMG]?i?B)")


def present(check: str) -> tuple[str, str]:
    """Return the present name of a check, and the setting of it that the former one judged, '' for none."""
    name, bracket, inside = check.partition("[")
    new, _, setting = (CHECKS[name].new if name in CHECKS else "").partition("/")
    return (new or name) + bracket + inside, setting


def present_part(text: str, setting: str) -> Part:
    """Return the part that the text of a finding named."""
    if setting:
        return named("setting", f"{setting} {text}" if setting in MANY else setting)
    return Part(name=text)


def measured_part(device: str) -> Part:
    """Return the part that the device of a metric named: a GPU, the size of messages, another node, or something else."""
    if found := _GPU.fullmatch(device):
        return gpu(int(found[1]), uuid=found[2] or "", address=found[3] or "")
    if found := _SIZE.fullmatch(device):
        return Part("size", parse_size(found[2]), of=named("run", found[1]))
    return named("peer", device[5:]) if device.startswith("with ") else Part(name=device)


def convert_rows(db: sqlite3.Connection) -> None:
    """Give the rows of a history the present names, in the caller's transaction. Of several results of one check the worst stays."""
    db.execute(  # a message began with 'CHECK on NODE: ', which are columns
        "UPDATE verdicts SET message = replace(message, (SELECT i.\"check\" || ' on ' || n.name || ': ' FROM items i "
        "JOIN nodes n ON n.id = i.node WHERE i.id = item), '')"
    )
    for item, node, former in db.execute('SELECT id, node, "check" FROM items').fetchall():
        name, setting = present(former)
        if name == former:
            continue
        db.execute('INSERT OR IGNORE INTO items (node, "check") VALUES (?, ?)', (node, name))
        (target,) = db.execute('SELECT id FROM items WHERE node = ? AND "check" = ?', (node, name)).fetchone()
        for row, text in db.execute("SELECT rowid, part FROM findings WHERE item = ?", (item,)).fetchall():
            part = present_part(text, setting)
            values = (target, str(part), part.kind, part.name, row)
            db.execute("UPDATE findings SET item = ?, part = ?, kind = ?, name = ? WHERE rowid = ?", values)
        of_run = "SELECT started, run, outcome, message, action FROM verdicts WHERE item = ?"
        there = {tuple(key): outcome for *key, outcome, _, _ in db.execute(of_run, (target,))}
        for row in db.execute(of_run, (item,)).fetchall():
            other = there.get(row[:2])
            if other is None or _rank(row[2]) < _rank(other):
                db.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?, ?, ?)", (target, *row))
        db.execute("DELETE FROM verdicts WHERE item = ?", (item,))
        db.execute("DELETE FROM items WHERE id = ?", (item,))
    parts = db.execute("SELECT DISTINCT device FROM series WHERE device != ''").fetchall()
    as_json = [(json.dumps(measured_part(device).as_dict()), device) for (device,) in parts]
    db.executemany("UPDATE series SET part = ? WHERE device = ?", as_json)
    for checks, rename in (
        ('SELECT DISTINCT "check" FROM series', 'UPDATE OR IGNORE series SET "check" = ? WHERE "check" = ?'),
        ('SELECT DISTINCT "check" FROM fleet', 'UPDATE OR IGNORE fleet SET "check" = ? WHERE "check" = ?'),
    ):
        db.executemany(rename, [(present(former)[0], former) for (former,) in db.execute(checks).fetchall()])


def convert_log(path: Path) -> bool:
    """Write an event log again in the present form; False: it has that form. OSError where it cannot be read.

    GpuClusterError where a run still writes it, or its folder is signed.
    """
    signed = next((it for it in path.resolve().parents[:3] if any((it / name).exists() for name in SIGNATURES)), None)
    if signed is not None or is_written(path):
        why = "the run still writes it" if signed is None else f"{signed} is signed: convert a copy"
        raise GpuClusterError(f"{path}: not converted: {why}")
    with path.open("rb") as file:
        changed = any(_converted(line) != line for line in file)
    if changed:
        write_whole(path, _lines(path))
    return changed


def _rank(outcome: str) -> int:
    return STATES.index(outcome) if outcome in STATES else len(STATES)


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from map(_converted, file)


def _converted(line: bytes) -> bytes:
    """Return a line in the present form; one that is cut, or is right, as it is."""
    try:
        event = safe_json.loads(line)
    except ValueError:
        return line
    if not isinstance(event, dict) or not _change(event):
        return line
    return f"{strict_json(event)}\n".encode()


def _change(event: dict[str, Any]) -> bool:
    """Bring an event to the present form; return whether it had another one."""
    changed = event.pop("sha256_before", None) is not None  # of version 0.3
    if event.get("event") == "selection":
        for row in as_list(event.get("required")):
            if isinstance(row, list) and row[1:] and isinstance(row[1], str) and row[1] in CHECKS:
                row[1], changed = present(row[1])[0], True
    if event.get("event") not in _RESULTS:
        return changed
    changed |= _fields(event)
    for metric in (
        it for holder in (event, *as_dicts(event.get("verdicts"))) for it in as_dicts(holder.get("metrics"))
    ):
        if (device := metric.pop("device", None)) is not None:
            metric["part"], changed = measured_part(str(device)).as_dict(), True
    settings = [_rename(event), *map(_rename, as_dicts(event.get("verdicts")))]
    for verdict, (renamed, setting) in zip(as_dicts(event.get("verdicts")), settings[1:], strict=True):
        changed |= renamed
        for found in (*as_dicts(verdict.get("findings")), *as_dicts(verdict.get("advisories"))):
            if isinstance(found.get("part"), str):
                found["part"], changed = present_part(found["part"], setting).as_dict(), True
    return changed or settings[0][0]


def _fields(event: dict[str, Any]) -> bool:
    """Bring the reason and the annotation of a result, which were text, to fields; return whether one was."""
    outcome, colon, reason = str(event.get("message")).partition(": ")
    if prefixed := colon and outcome == event.get("outcome") and "reason" not in event:
        event["reason"] = reason
    if not isinstance(lines := event.get("annotation"), list):
        return bool(prefixed)
    labels = {"Slurm state": "state", "reason": "reason", "rerun": "rerun", "note": "note"}
    parted = [(label, rest.strip()) for label, _, rest in (str(line).partition(":") for line in lines)]
    fields = {labels[label]: rest for label, rest in parted if label in labels}
    event["annotation"] = {**fields, "reproduce": [rest for label, rest in parted if label == "reproduce"]}
    return True


def _rename(holder: dict[str, Any]) -> tuple[bool, str]:
    """Give a result or a verdict the present name of its check; return whether it had another, and the setting."""
    former = str(holder.get("check", ""))
    name, setting = present(former)
    if name == former:
        return False, ""
    holder["check"] = name
    return True, setting
