"""The acceptance record: record.json says what a run found, and names by hash what it rests on.

`make` reads it from the events alone, so that anybody with the log can make it again and compare. Beside it stands
record.intoto.json, the same result as an in-toto statement
(https://github.com/in-toto/attestation/blob/main/spec/predicates/test-result.md).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pytest_gpucluster import __version__
from pytest_gpucluster.core import safe_json
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.safe_json import as_dict, as_dicts, as_list, finite
from pytest_gpucluster.core.values import Model
from pytest_gpucluster.report import chain
from pytest_gpucluster.report.atomic_write import take_away, write_whole
from pytest_gpucluster.report.result import RED
from pytest_gpucluster.report.run_folder import EVENTS, SIGNATURE
from pytest_gpucluster.report.run_model import one_line
from pytest_gpucluster.report.run_snapshot import check_of
from pytest_gpucluster.report.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucluster.report.run_model import Run

RECORD, STATEMENT = "record.json", "record.intoto.json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
_RESULTS = {"accepted": "PASSED", "waived": "WARNED"}
_OF_RESULT = b'"event": "result"'  # as EventLog writes it; in a text the quotes are escaped
_WORTH_A_ROW = (b'"metrics": [{', b'"outcome": "failed"', b'"outcome": "error"', b'"outcome": "waived"')
_SHA256 = "^([0-9a-f]{64})?$"  # '' is unknown
_CHUNK = 1 << 20


class Verdict(Model):
    """The verdict on the cluster."""

    outcome: Literal["accepted", "waived", "rejected", "unproved"]
    title: str = Field(description="the outcome in words")
    nodes: str = Field(description="how many of the selected nodes are fit")
    sentences: tuple[str, ...]
    waivers: tuple[str, ...] = Field(description="one line for each deviation that a waiver covers")
    unjudged: tuple[str, ...] = Field(description="what is part of no proof and could not be judged")


class ClusterFile(Model):
    """The cluster file."""

    file: str = Field(description="its path at the run")
    sha256: str = Field(pattern=_SHA256, description="of its bytes")


class ProfileUse(Model):
    """What the nodes of one group were compared with."""

    nodes: str = Field(description="hostlist")
    profile: str
    sha256: str = Field(
        pattern=_SHA256, description="of its JSON without defaults, with sorted keys and without spaces"
    )


class Waiver(Model):
    """A waiver of the cluster file."""

    at: str = Field(description="file and line")
    nodes: str = Field(description="hostlist, '' for all nodes")
    checks: tuple[str, ...]
    reason: str
    ticket: str
    until: str
    expired: bool


class Events(Model):
    """The event log: every line of it ends with the sha256 of all bytes before it."""

    lines: int
    sha256: str = Field(pattern=_SHA256, description="of the whole file")
    cut: tuple[int, ...] = Field(
        description="numbers of lines that a full disk or SIGKILL has cut: their events are lost"
    )


class Figure(Model):
    """One measured number."""

    name: str
    value: float | str = Field(description="'NaN' and 'Infinity' are texts")
    unit: str
    device: str = Field(description="part of the node, '' for the whole node")


class Evidence(Model):
    """A result with figures, or one that failed, broke or is waived, and its line in the event log."""

    line: int = Field(description="its number, from 1")
    sha256: str = Field(pattern=_SHA256, description="of the line with its newline")
    node: str = Field(description="'' for the whole cluster")
    check: str
    outcome: str
    figures: tuple[Figure, ...]


class Record(Model):
    """The acceptance record of one run."""

    format: Literal[1]
    made_by: str = Field(description="version of pytest-gpucluster that wrote the record")
    run: str
    cluster: str
    simulated: bool = Field(description="whether any hardware was simulated")
    verdict: Verdict
    exit: int | None = Field(description="exit status of pytest, null where the run did not end")
    began: str | None = Field(description="UTC, ISO 8601")
    ended: str | None = Field(description="UTC, ISO 8601; time of the last event")
    user: str
    host: str
    arguments: tuple[str, ...] = Field(description="of pytest, without secrets")
    scope: dict[str, str | tuple[str, ...]] = Field(description="options that select what is tested")
    full: bool = Field(description="whether the run has all suites and all nodes of the cluster file")
    cluster_file: ClusterFile
    profiles: tuple[ProfileUse, ...]
    versions: dict[str, str]
    waivers: tuple[Waiver, ...]
    nodes: dict[str, str] = Field(description="node: fit, failed, not proved, not tested")
    checks: dict[str, dict[str, int]] = Field(description="check: outcome: number of results")
    events: Events
    files: dict[str, str] = Field(description="sha256 of each other file of the run's folder")
    evidence: tuple[Evidence, ...]


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of record.json."""
    whole = Record.model_json_schema(mode="serialization")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **whole,
        "title": "acceptance record of pytest-gpucluster",
    }


def write(run: Run, log: Path, *, group: int | None = None) -> None:
    """Write record.json and record.intoto.json beside the log. GpuClusterError where the log is not as it was written."""
    document = make(run, log)
    data = encode(document)
    write_whole(log.with_name(RECORD), data, group=group)
    write_whole(log.with_name(STATEMENT), encode(statement(run, document, data)), group=group)


def remove(folder: Path) -> None:
    """Remove a record that its log does not fit any more, as far as that is possible."""
    for name in (RECORD, STATEMENT):
        with contextlib.suppress(OSError):
            take_away(folder / name)


def make(run: Run, log: Path) -> dict[str, Any]:
    """Return the record of a run whose log has been checked. GpuClusterError where its chain is broken."""
    checked = chain.check(log)
    if checked.problem:
        raise GpuClusterError(checked.problem)
    if run.log is not None and run.log != checked.chain:
        raise GpuClusterError(f"{log}: was changed while it was read or written")
    return {**of_events(run, checked), "files": hashes(log.parent), "evidence": list(evidence(log))}


def of_events(run: Run, checked: chain.Checked) -> dict[str, Any]:
    """Return the keys of a record that need the model of the run only."""
    start, judged = run.start, judge(run)
    file = as_dict(start.get("cluster_file"))
    versions = {**as_dict(start.get("versions")), "Slurm": start.get("slurm")}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in run.results:
        counts[one_line(result.check)][one_line(result.outcome)] += 1
    return {
        "format": 1,
        "made_by": __version__,
        "run": run.run,
        "cluster": one_line(start.get("cluster")),
        "simulated": run.simulated,
        "verdict": {
            "outcome": judged.outcome,
            "title": judged.title,
            "nodes": judged.nodes,
            "sentences": list(judged.sentences),
            "waivers": list(judged.waivers),
            "unjudged": list(judged.unjudged),
        },
        "exit": run.exit,
        "began": _iso(run.began),
        "ended": _iso(run.ended),
        **{key: one_line(start.get(key)) for key in ("user", "host")},
        "arguments": [one_line(word) for word in as_list(start.get("arguments"))],
        "scope": {
            one_line(name): [one_line(one) for one in value] if isinstance(value, list) else one_line(value)
            for name, value in as_dict(start.get("scope")).items()
        },
        "full": start.get("full") is True,
        "cluster_file": {key: one_line(file.get(key)) for key in ("file", "sha256")},
        "profiles": [
            {key: one_line(group.get(key)) for key in ("nodes", "profile", "sha256")}
            for group in as_dicts(start.get("groups"))
        ],
        "versions": {one_line(name): one_line(version) for name, version in versions.items() if version},
        "waivers": [_waiver(one) for one in as_dicts(start.get("waivers"))],
        "nodes": dict(run.proofs.nodes),
        "checks": {check: dict(sorted(counts[check].items())) for check in sorted(counts)},
        "events": {"lines": checked.chain.lines, "sha256": checked.chain.sha256, "cut": checked.cut},
    }


def _waiver(waiver: dict[str, Any]) -> dict[str, Any]:
    texts = {key: one_line(waiver.get(key)) for key in ("at", "nodes", "reason", "ticket", "until")}
    checks = [one_line(check) for check in as_list(waiver.get("checks"))]
    return {**texts, "checks": checks, "expired": waiver.get("expired") is True}


def _iso(time: float | None) -> str | None:
    try:
        return dt.datetime.fromtimestamp(time, dt.timezone.utc).isoformat() if time is not None else None
    except (OverflowError, ValueError, OSError):
        return None


def hashes(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file of a run's folder, by its path in it, without the log and the record."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if (
            name in (EVENTS, RECORD, STATEMENT, SIGNATURE)
            or path.name.startswith(".")
            or path.is_symlink()
            or not path.is_file()
        ):
            continue
        found[name] = hash_of(path)
    return found


def hash_of(path: Path) -> str:
    """Return the sha256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        for data in iter(lambda: file.read(_CHUNK), b""):
            found.update(data)
    return found.hexdigest()


def evidence(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of `evidence` from a log."""
    with log.open("rb") as file:
        for number, line in enumerate(file, 1):
            if _OF_RESULT not in line or not any(mark in line for mark in _WORTH_A_ROW):
                continue
            try:
                event = as_dict(safe_json.loads(line))
            except ValueError:  # it is cut
                continue
            figures = [_figure(one) for one in as_dicts(event.get("metrics"))]
            outcome = one_line(event.get("outcome"))
            if figures or outcome in (*RED, "waived"):
                yield {
                    "line": number,
                    "sha256": hashlib.sha256(line).hexdigest(),
                    **{key: one_line(event.get(key)) for key in ("node", "check")},
                    "outcome": outcome,
                    "figures": figures,
                }


def _figure(metric: dict[str, Any]) -> dict[str, Any]:
    value = metric.get("value")
    number = finite(value)
    texts = {key: one_line(metric.get(key)) for key in ("name", "unit", "device")}
    return {**texts, "value": one_line(value) if number is None else number}


def statement(run: Run, document: dict[str, Any], record: bytes) -> dict[str, Any]:
    """Return the in-toto statement of a record: its subjects are the record and the cluster file.

    A test is warned if it passed with a warning or only when repeated, or if a waiver covers it. What was not judged is no
    test. A run on simulated hardware never has the result PASSED.
    """
    file = document["cluster_file"]
    subject = [{"name": RECORD, "digest": {"sha256": hashlib.sha256(record).hexdigest()}}]
    configuration = {(one["profile"], one["sha256"]): None for one in document["profiles"] if one["sha256"]}
    described = [{"name": f"profile {name}", "digest": {"sha256": sha256}} for name, sha256 in configuration]
    if file["sha256"]:
        subject.append({"name": f"cluster {document['cluster']}", "digest": {"sha256": file["sha256"]}})
        described.insert(0, {"name": file["file"], "digest": {"sha256": file["sha256"]}})
    result = _RESULTS.get(document["verdict"]["outcome"], "FAILED")
    tests = _tests(run)
    return {
        "_type": STATEMENT_TYPE,
        "subject": subject,
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "result": "WARNED" if result == "PASSED" and document["simulated"] else result,
            "configuration": described,
            **{f"{kind}Tests": [name for name, own in tests.items() if own == kind] for kind in _KINDS},
        },
    }


_KINDS = ("passed", "warned", "failed")


def _tests(run: Run) -> dict[str, str]:
    found: dict[str, str] = {}
    for result in run.results:
        if result.red:
            kind = "failed"
        elif result.outcome == "waived":
            kind = "warned"
        elif result.outcome == "passed":
            warned = (
                any(verdict.advisories for verdict in result.verdicts)
                or one_line(result.nodeid) in run.retried
            )
            kind = "warned" if warned else "passed"
        else:
            continue
        node, check = check_of(result)
        name = f"{check} on {node}" if node else check
        found[name] = max(found.get(name, kind), kind, key=_KINDS.index)
    return found


def encode(document: dict[str, Any]) -> bytes:
    """Write a document as JSON: one line for each key and for each row of a list."""
    lines = ",\n".join(f"{json.dumps(key)}: {_encode(value)}" for key, value in document.items())
    return f"{{\n{lines}\n}}\n".encode()


def _encode(value: Any) -> str:
    if isinstance(value, list) and value:
        rows = ",\n".join(json.dumps(one, allow_nan=False) for one in value)
        return f"[\n{rows}\n]"
    return json.dumps(value, allow_nan=False)
