"""Events of made-up runs, in the shape of report/machine/events.py."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.part import Part, gpu
from pytest_gpucluster.report.machine import acceptance_record as record
from pytest_gpucluster.report.machine import junit, prom
from pytest_gpucluster.report.machine.convert import measured_part
from pytest_gpucluster.report.machine.events import EventLog, read_log, read_run
from pytest_gpucluster.report.page import html
from pytest_gpucluster.report.verdict import counts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

GPU_4 = gpu(4, uuid="GPU-c12b", address="0000:9d:00.0")
FINDING = {"part": GPU_4.as_dict(), "measured": "17 active links", "expected": "18"}


def part_of(words: str) -> dict[str, Any]:
    """Return the part of a metric as a log has it: 'GPU 4', 'all_reduce 1 GiB', 'with gpu02', '' for the node."""
    return measured_part(words).as_dict()


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"time": 1795250370.0, "run": "20261121T020000-1", "event": kind, **fields}


def a_run(
    results: Iterable[dict[str, Any]],
    *,
    nodes: Sequence[str] = ("gpu01", "gpu02"),
    not_tested: Mapping[str, list[str]] | None = None,
    start: Mapping[str, Any] | None = None,
    finish: int | None = 0,
) -> list[dict[str, Any]]:
    """Return the events of a run of cluster prod; `finish` None: it was killed."""
    fields: dict[str, Any] = {"cluster": "prod", "simulated": False, "arguments": [], "slurm": "22.05.8"}
    begun = event("start", **(fields | dict(start or {})))
    chosen = event("nodes", selected=list(nodes), not_tested=dict(not_tested or {}))
    return [begun, chosen, *results, *([event("finish", exit=finish)] if finish is not None else [])]


def result(
    node: str, outcome: str, *, check: str = "gpu.nvlink_state", suite: str = "", **fields: Any
) -> dict[str, Any]:
    suite = suite or check.partition(".")[0]
    plain = {
        "nodeid": f"suites/test_{suite}.py::test_{check.partition('.')[2]}[{node}]",
        "outcome": outcome,
        "phase": "call",
        "seconds": 0.001,
        "message": "",
        "suite": suite,
        "check": check,
        "node": node,
        "verdicts": [],
        "metrics": [],
        "curves": [],
        "cells": [],
        "logs": [],
    }
    return event("result", **(plain | fields))


def passing(node: str, **fields: Any) -> dict[str, Any]:
    return result(node, "passed", **fields)


def unjudged(node: str, outcome: str, **fields: Any) -> dict[str, Any]:
    return result(node, outcome, **({"message": f"{outcome}: because", "reason": "because"} | fields))


def failing(
    node: str,
    *,
    outcome: str = "failed",
    check: str = "gpu.nvlink_state",
    findings: list[dict[str, Any]] | None = None,
    cause: str = "an NVLink is down",
    hint: str = "reseat the GPU",
    action: str = "drain",
    **fields: Any,
) -> dict[str, Any]:
    """Return a failed item; `part`, `measured` and `expected` change its only finding."""
    own = {key: fields.pop(key) for key in FINDING if key in fields}
    if isinstance(own.get("part"), Part):
        own["part"] = own["part"].as_dict()
    found = [FINDING | own] if findings is None else findings
    verdict = {"check": check, "outcome": "failed", "findings": found, "cause": cause, "hint": hint, "action": action}
    return result(
        node, outcome, **({"check": check, "verdicts": [verdict], "message": f"{check} on {node}: bad"} | fields)
    )


def junit_tree(events: Iterable[dict[str, Any]]) -> ET.Element:
    """Return the JUnit file of a run's events, without its indentation."""
    root = ET.fromstring(b"".join(junit.pieces(read_run(events))))
    for element in root.iter():
        element.tail = None
        if len(element):
            element.text = None
    return root


def write_run(folder: Path, *events: dict[str, Any]) -> Path:
    """Write a run of a few results with all its files, as a run does at its end; return its log."""
    folder.mkdir(parents=True)
    chosen = list(events) or _varied()
    log = EventLog(folder / "events.jsonl", chosen[0]["run"])
    for one in chosen:
        fields = {key: value for key, value in one.items() if key != "event"}
        counts = counts_of(log.model) if one["event"] == "finish" else {}
        log.write(one["event"], clean=counts | fields)
    log.close()
    (folder / "steps").mkdir()
    (folder / "steps" / "1.log").write_text("--- task 0 on gpu01: exit 0\n")
    write_reports(log.path)
    return log.path


def write_reports(log: Path) -> None:
    """Write the reports of a log, as `gpucluster report` and a run do."""
    run = read_log(log)
    stated = record.render(run)
    html.write(run, log.with_name("report.html"), record=stated)
    log.with_name(record.RECORD).write_bytes(stated)
    junit.write(run, log.with_name("junit.xml"))
    prom.write(run, log.with_name("metrics.prom"), "")


def _varied() -> list[dict[str, Any]]:
    sha256 = "0123456789abcdef" * 4
    start = {
        "cluster_file": {"file": "clusters/prod.yaml", "sha256": sha256},
        "groups": [{"nodes": "gpu[01-03]", "profile": "h200x8", "sha256": sha256}],
        "versions": {"pytest-gpucluster": "0.2.0", "Python": "3.11.7"},
        "waivers": [
            {
                "at": "clusters/prod.yaml:9",
                "nodes": "gpu03",
                "checks": ["gpu.ecc"],
                "reason": "ordered",
                "ticket": "OPS-1",
                "until": "2027-01-01",
                "expired": False,
            }
        ],
        "user": "ops",
        "host": "login1",
        "scope": {"-m": "gpu"},
        "full": True,
    }
    metric = {"name": "bandwidth", "value": 3071.5, "unit": "GB/s", "part": part_of("GPU 4")}
    failed = {"check": "gpu.nvlink_state", "outcome": "failed", "action": "repair", "findings": [FINDING]}
    waiver = {"at": ["clusters/prod.yaml:9"], "words": "ordered", "outcome": "failed", "message": "3 errors"}
    advisory = {"part": gpu(0).as_dict(), "measured": "1 replay", "expected": "0"}
    return a_run(
        [
            passing("gpu01", check="gpu.bandwidth", metrics=[metric, {**metric, "value": "NaN"}]),
            passing("gpu02", check="gpu.pcie", verdicts=[{"check": "gpu.pcie", "advisories": [advisory]}]),
            result("gpu02", "failed", verdicts=[failed], message="17 active links"),
            result("gpu03", "waived", check="gpu.ecc", waiver=waiver),
            result("gpu03", "not checked", check="gpu.fan", reason="no sensor"),
            result("", "passed", check="nccl.whole_bandwidth"),
        ],
        nodes=("gpu01", "gpu02", "gpu03"),
        start=start,
        finish=1,
    )
