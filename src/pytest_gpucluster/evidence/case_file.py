"""The case of a failed part, made from a run: what is wrong, its repeat, the control, what is excluded, what was read. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import CHECKS, Outcome
from pytest_gpucluster.core.part_commands import for_parts
from pytest_gpucluster.core.safe_json import as_dict, as_dicts
from pytest_gpucluster.core.text import count, quantity
from pytest_gpucluster.report.describe import clock, for_nodes, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.core.finding import Finding, Metric
    from pytest_gpucluster.core.part import InstalledPart, Part
    from pytest_gpucluster.report.result import DeviatingVerdict, Result
    from pytest_gpucluster.report.run_model import Run

VERSION = 1  # of case.json


@dataclass
class Case:
    """The failures of one part of a node. `installed`: the part with its numbers, and those that belong to it."""

    node: str
    part: Part
    failures: list[tuple[Result, DeviatingVerdict, Finding]] = field(default_factory=list)
    installed: tuple[InstalledPart, ...] = ()

    @property
    def name(self) -> str:
        """What people call the part: its words without UUID and serial number."""
        return self.part.place or "node"

    @property
    def checks(self) -> list[str]:
        """The checks that failed, each once."""
        return list(dict.fromkeys(result.check for result, _, _ in self.failures))


def cases_of(run: Run, *, every: bool = False) -> list[Case]:
    """Return the cases of a run by node and part. `every`: also of failures that require no repair, or of all nodes alike."""
    found: dict[tuple[str, str], Case] = {}
    for result, verdict, finding in deciding(run.results, every=every):
        part = finding.part.exchanged
        case = found.setdefault((result.node, part.place), Case(result.node, part))
        case.failures.append((result, verdict, finding))
    for case in found.values():
        case.installed = tuple(_installed(case.part, run.parts.get(case.node, ())))
    return [found[key] for key in sorted(found)]


def deciding(results: Iterable[Result], *, every: bool = False) -> Iterator[tuple[Result, DeviatingVerdict, Finding]]:
    """Yield the findings that take a node out of service; `every`: all findings of nodes that failed."""
    for result in results:
        if result.outcome != "failed" or not result.node or (result.common and not every):
            continue
        for verdict in result.verdicts:
            for finding in verdict.findings if verdict.outcome == Outcome.FAILED.value else ():
                if every or (finding.action or verdict.action).is_repair:
                    yield result, verdict, finding


def _installed(part: Part, listed: Sequence[InstalledPart]) -> Iterator[InstalledPart]:
    """Yield the listed part that this is, and a module or cable of its adapter."""
    keys = {key for key in (part.address, part.name) if key}
    for it in listed:
        other = it.part
        same = other.kind == part.kind and keys & {other.address, other.name} and keys
        if same or (part.kind == "port" and part.name in (other.name, other.of.name if other.of else "")):
            yield it


# --- the record of a case


def record_of(run: Run, case: Case) -> dict[str, Any]:
    """Return a case as plain data."""
    evidence = as_dict(run.evidence.get(case.node))
    excluded, left = _excluded(run, case.node)
    return {
        "case": VERSION,
        "cluster": run.start.get("cluster", ""),
        "run": run.run,
        "simulated": run.simulated,
        "when": clock(run.began, run),
        "node": case.node,
        "part": {"words": case.name, **case.part.as_dict()},
        "installed": [it.as_dict() for it in case.installed],
        "versions": {
            what: version
            for what, by_version in run.versions.items()
            for version, nodes in by_version.items()
            if case.node in nodes
        },
        "findings": [_finding(*failure) for failure in case.failures],
        "repeated": [*_repeats(run, case)],
        "control": [*_controls(run, case)],
        "excluded": [{"cause": cause, "by": by} for cause, by in excluded.items()],
        "not_excluded": left,
        "folder": evidence.get("folder", ""),
        "files": as_dicts(evidence.get("files")),
        "missing": as_dict(evidence.get("missing")),
        "problem": evidence.get("problem", "") if evidence else not_captured(run, case.node),
        "owner": evidence.get("owner", ""),
        "steps": sorted({log for it in case.checks for log in _logs(run, it)}),
    }


def not_captured(run: Run, node: str) -> str:
    """Say why a run has no evidence of a node."""
    if node in run.lost:
        return f"the node was lost: {run.lost[node]}"
    if run.finish is None:
        return "the run was killed before it read the evidence; the node was released"
    return "the run did not read it (--evidence=off, or the run was stopped)"


def _finding(result: Result, verdict: DeviatingVerdict, finding: Finding) -> dict[str, Any]:
    bounds = [it.bound for it in result.metrics if it.bound is not None and it.part.place == finding.part.place]
    return {
        "check": result.check,
        **finding.as_dict(),
        "words": finding.words,
        "action": (finding.action or verdict.action).value,
        "bound": [str(it) for it in dict.fromkeys(bounds)],
        "source": finding.setting or verdict.setting,
        "cause": verdict.cause,
        "hint": for_nodes(for_parts(verdict.hint, [finding.part]), [result.node]),
    }


def _repeats(run: Run, case: Case) -> Iterator[dict[str, Any]]:
    for act in run.acts:
        if act.get("event") == "drain_confirm" and act.get("node") == case.node and act.get("check") in case.checks:
            yield {key: act.get(key) for key in ("check", "attempts", "confirmed", "why")}
    for result, verdict, _ in case.failures:
        if verdict.repeated:
            yield {"check": result.check, "attempts": 0, "confirmed": True, "why": "it is many measurements"}


def _controls(run: Run, case: Case) -> Iterator[dict[str, Any]]:
    """Yield what the same check measured at neighbours of the part and on nodes of its group, where it found nothing wrong."""
    place = run.places.get(case.node)
    for check in case.checks:
        bad = {finding.part.place for result, _, finding in case.failures if result.check == check}
        own = next(result for result, _, _ in case.failures if result.check == check)
        near = [it for it in own.metrics if it.part.kind == case.part.kind and it.part.place not in bad]
        if case.part.kind and near:
            yield {"check": check, "where": f"{case.node}, other parts", "figures": [*_figures(near)]}
        peers = [
            it
            for it in run.results
            if it.check == check and it.outcome == "passed" and run.places.get(it.node) == place
        ]
        if peers:
            metrics = [metric for it in peers for metric in it.metrics]
            nodes = [it.node for it in peers]
            yield {
                "check": check,
                "where": f"passed on {hostlist.fold(nodes)} ({count(len(nodes), 'node')})",
                "figures": [*_figures(metrics)],
            }


def _figures(metrics: Sequence[Metric]) -> Iterator[str]:
    values: dict[tuple[str, str], list[float]] = {}
    for it in metrics:
        if it.number is not None and not it.detail:
            values.setdefault((it.name, it.unit), []).append(it.number)
    for (name, unit), found in values.items():
        low, middle, high = min(found), statistics.median(found), max(found)
        yield f"{name}: {number(low)} to {quantity(number(high), unit)}, median {number(middle)}, n={len(found)}"


def _excluded(run: Run, node: str) -> tuple[dict[str, str], list[str]]:
    """Return {cause: the check of this node that excludes it}, and the causes that nothing has excluded."""
    ends = {it.check: it.outcome for it in run.results if it.node == node}
    found: dict[str, str] = {}
    left: dict[str, None] = {}
    for name, check in CHECKS.items():
        if not check.rules_out:
            continue
        if ends.get(name) == "passed":
            found[check.rules_out] = f"{name} passed"
        else:
            left[check.rules_out] = None
    return found, [cause for cause in left if cause not in found]


def _logs(run: Run, check: str) -> list[str]:
    return [log for logs in run.logs.values() for log, own in logs.items() if own == check]


# --- its forms


def text_of(record: Mapping[str, Any]) -> str:
    """Return a case for a form of a vendor."""
    return "\n".join(_lines(record)) + "\n"


def _lines(record: Mapping[str, Any]) -> Iterator[str]:
    simulated = "SIMULATED hardware; " if record["simulated"] else ""
    yield f"{simulated}cluster {record['cluster']}, node {record['node']}, part {record['part']['words']}"
    yield f"run {record['run']}, {record['when']}"
    for title, lines in (
        ("Part", [_part_line(it) for it in record["installed"]] or ["its numbers were not read: a full run, or -m parts, reads them"]),
        ("Versions", [f"{key}: {value}" for key, value in record["versions"].items()]),
        ("What is wrong", [line for it in record["findings"] for line in _finding_lines(it)]),
        ("Repeated", [f"{it['check']}: {_repeat(it)}" for it in record["repeated"]] or ["no: the run had no --drain"]),
        ("Control", [f"{it['check']}: {it['where']}{''.join(f'; {figure}' for figure in it['figures'])}" for it in record["control"]]
         or ["none: no other part or node passed the check"]),
        ("Excluded", [f"{it['cause']}: {it['by']}" for it in record["excluded"]] or ["nothing"]),
        ("Not excluded", record["not_excluded"]),
        ("Files", [_file_line(it) for it in record["files"]] + record["steps"]),
        ("Not read, or with an error", [f"{name}: {why}" for name, why in record["missing"].items()]),
        ("Evidence", [it for it in (record["problem"], record["owner"]) if it]),
    ):  # fmt: skip
        if lines:
            yield from ("", title, *(f"  {line}" for line in lines))


def _part_line(installed: Mapping[str, Any]) -> str:
    part = installed["part"]
    known = {
        "serial number": part.get("serial"),
        "part number": installed.get("number"),
        "firmware": installed.get("firmware"),
        "vendor": installed.get("vendor"),
        "UUID": part.get("name") if part["kind"] == "gpu" else "",
        "address": part.get("address"),
    }
    shown = "; ".join(f"{key} {value}" for key, value in known.items() if value)
    return f"{part['kind']} {part.get('model', '')}: {shown or 'no number is known'}"


def _finding_lines(finding: Mapping[str, Any]) -> Iterator[str]:
    yield f"{finding['check']} ({finding['action']}): {finding['words']}"
    yield from (f"  bound: {it}" for it in finding["bound"])
    for key in ("source", "cause", "hint"):
        if finding[key]:
            yield f"  {key}: {finding[key]}"


def _repeat(repeat: Mapping[str, Any]) -> str:
    if repeat["confirmed"]:
        return (
            f"failed again in {count(repeat['attempts'], 'new attempt')}" if repeat["attempts"] else str(repeat["why"])
        )
    return f"not confirmed: {repeat['why']}"


def _file_line(entry: Mapping[str, Any]) -> str:
    return f"{entry.get('name')}: {entry.get('bytes')} bytes, sha256 {entry.get('sha256')}, {entry.get('seconds')} s"


def dcgm_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case as DCGM 4 prints a diagnostic (dcgm_diag_schema.json), for tools of vendors that read it.

    Entities other than GPUs are of the group CPU or None, as DCGM has no others. Errors have no number: they are not DCGM's.
    """
    part = record["part"]
    gpu = part.get("kind") == "gpu"
    entity = {
        "entity_group": "GPU" if gpu else "None",
        "entity_group_id": 1 if gpu else 0,
        "entity_id": part.get("index", 0),
    }
    tests = [
        {
            "name": it["check"],
            "results": [{**entity, "status": "Fail", "warnings": [{"warning": it["words"]}]}],
            "test_summary": {"status": "Fail"},
        }
        for it in record["findings"]
    ]
    serials = {str(part.get("index", 0)): it["part"].get("serial", "") for it in record["installed"] if gpu}
    return {
        "DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]},
        "metadata": {"Driver Version Detected": record["versions"].get("NVIDIA driver", ""), "gpu_serials": serials},
    }
