"""Whole reports of two made-up runs, as people and Prometheus read them, against tests/data/report.

Where a report changes on purpose: `PYTHONPATH=src:tests python tests/report/test_html_whole.py` writes them again; read the
difference before it is committed.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from paths import DATA
from report_helpers import a_run, event, failing, passing, unjudged

from pytest_gpucluster.core.finding import Metric
from pytest_gpucluster.report import html, junit, prom
from pytest_gpucluster.report.regression import Compared, ShownComparison
from pytest_gpucluster.report.run_model import read_run

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = DATA / "report"
SIZES = ("1 KiB", "1 MiB", "1 GiB")


def metric(name: str, value: float | str, unit: str, device: str = "", **more: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "device": device, **more}


def measured(node: str, place: int, share: float = 1.0) -> dict[str, Any]:
    """Return the result of a node with metrics of every kind."""
    sizes = enumerate(SIZES, 1)
    metrics = [
        *(metric("busbw", 100.0 * n * share, "GB/s", f"all_reduce {size}") for n, size in sizes),
        *(metric("bound all_reduce 1 GiB alone", 280, "GB/s"), metric("gpu_count", 8, "GPUs")),
        *(metric("power", 80.0 + place, "W", f"GPU {gpu} (GPU-{node}-{gpu}, 0:1)") for gpu in (0, 1)),
        *(metric("free", 5.5 + place, "GiB", "/scratch"), metric("odd", "NaN", "W")),
        *(metric("in", "Infinity", "C"), metric("hidden", 1, "s", detail=True)),
        metric("busbw all_reduce 1 GiB alone", 300.0 * share, "GB/s"),
        metric("busbw_bound", 290, "GB/s", "all_reduce 1 MiB"),
    ]
    versions = {"driver": "580.1" if place % 3 else "570.9"}
    return passing(node, check="nccl.alone", metrics=metrics, versions=versions)


def run_of(nodes: list[str]) -> list[dict[str, Any]]:
    """Return the events of a run in which everything that a report shows has happened; the last four nodes are bad."""
    *good, bad, broken, drained, lost = nodes
    results = [measured(node, place, 0.9 if place == 1 else 1.0) for place, node in enumerate(good)]
    results += [passing(node) for node in good]
    findings = [
        {"part": "GPU 1 (GPU-a, 0:1)", "measured": "17", "expected": "18", "action": "monitor"},
        {"part": "GPU 2", "measured": "<0>", "expected": "18"},
    ]
    told = [
        "Slurm state: IDLE",
        "why it idles",
        "by hand: srun a",
        "by hand:  srun b",
        "again: pytest x",
        "note: y",
    ]
    said: dict[str, Any] = {
        "text": "the text",
        "output": "the output",
        "logs": ["steps/0001-gpu.log", "../x"],
    }
    results.append(failing(bad, findings=findings, annotation=told, **said))
    for node, part in ((good[0], "GPU 0 (GPU-b, 0:2)"), (good[1], "GPU 0 (GPU-c, 0:3)")):
        results.append(failing(node, check="gpu.other", action="reboot", part=part, cause="", hint=""))
    whole: dict[str, Any] = {"suite": "nccl", "measured": "1", "expected": "2", "part": "4 GiB"}
    silent = f"{broken} did not answer in 30 s"
    results += [
        failing("", check="nccl.whole", action="monitor", **whole),
        failing(broken, outcome="error", findings=[], check="os.disk", message=silent),
        unjudged(drained, "not tested", check="gpu.nvlink_state"),
        *(unjudged(node, "not checked", check="os.mce", message="not checked: no right") for node in good),
        unjudged(good[0], "not applicable", check="gpu.mig"),
        unjudged(good[1], "skipped", check="own.x", message="own"),
        failing(good[1], check="gpu.flaky", message=f"gpu.flaky on {good[1]}: flaked") | {"event": "rerun"},
        passing(good[1], check="gpu.flaky"),
    ]
    warning = {"part": "GPU 3 (GPU-d, 0:4)", "measured": "1 replay", "expected": "0"}
    results.append(passing(good[0], check="gpu.pcie", verdicts=[{"findings": [], "advisories": [warning]}]))
    cells = [
        {
            "title": "matrix",
            "row": "srun",
            "column": "MPI",
            "text": "fails",
            "note": "no PMI",
            "place": [1, 0],
        },
        {"title": "matrix", "row": "mpirun", "column": "UCX", "text": "works", "note": "", "place": [0, 1]},
    ]
    points = [[1024, 10.0], [1 << 20, 200.0], [1 << 30, "x"], ["x", 1.0]]
    curve = {"title": "all_reduce, 2 nodes x 8 GPUs", "points": points}
    once = [metric("bound all_reduce 1 MiB 2 nodes", 250, "GB/s"), metric("once", 3, "s")]
    last = passing(
        "", check="nccl.curve", metrics=once, curves=[curve], cells=cells, logs=["steps/0002-w.log"]
    )
    start = {
        "time": 1795250000.0,
        "simulated": True,
        "arguments": ["--cluster=prod", "-m", "gpu or os"],
        "description": "the new hall",
        "user": "ops",
        "host": "login1",
        "folder": "/home/ops",
        "system": "Linux 6",
        "versions": {"pytest-gpucluster": "1.2.3", "python": "3.11"},
        "scope": {"-m": "gpu or os"},
        "not_applicable": {"fabric.*": "no InfiniBand"},
        "groups": [
            {"nodes": "gpu[01-02]", "profile": "h100", "description": "8 H100", "source": "a sheet"},
            "odd",
        ],
        "slurmd": {"22.05.8": nodes[:2], "23.02": nodes[2:3]},
    }
    not_tested = {drained: ["unavailable", 'DRAINED: "cable" by root']}
    run = a_run([*results, last], nodes=nodes, not_tested=not_tested, start=start, finish=None)
    run[2:2] = [event("allocation", job=42, nodes=nodes[:3])]
    run[1]["slurm"] = {bad: {"state": "IDLE", "reason": "a & b"}}

    def decided(node: str, decision: str, check: str, **more: Any) -> dict[str, Any]:
        why = f"{node} failed"
        return event("drain_decision", node=node, decision=decision, why=why, checks=[check], **more)

    end = event("finish", exit=1, complaints=["gpu02 was lost"], processes={"srun": 5})
    return [
        *run,
        event("lost", node=lost, why="the agent ended"),
        event("error", message="slurm.epilog failed"),
        decided(bad, "drain", "gpu.nvlink_state", dry_run=False),
        *(decided(node, "spare", "gpu.other") for node in good[:2]),
        event("drain_over_budget", nodes=[good[0], good[1]], budget="10%"),
        end | {"time": 1795254000.5},
    ]


COMPARISON = ShownComparison(
    "history.db",
    (
        Compared("gpu01", Metric("busbw", 440, "GB/s", "GPU 1"), 478, 477, 476, worse=True, note="8% below"),
        Compared("gpu02", Metric("busbw", 477, "GB/s"), previous=478.5),
        Compared("gpu03", Metric("new", 1, "s")),
    ),
    last_good="2026-11-20 02:00",
    previous="night 2, good",
    runs=5,
    note="gpu04: gpu.x: failed",
)
FEW = [f"gpu{number:02}" for number in range(1, 9)]
MANY = [f"gpu{number:03}" for number in range(1, 46)]


@contextmanager
def in_utc() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
        time.tzset()


def page(nodes: list[str], comparison: ShownComparison | None) -> str:
    """Return the page without its style and script."""
    with in_utc():
        text = html.render(read_run(run_of(nodes)), comparison=comparison)
    text = re.sub(r"(?s)<(style|script)>.*?</\1>", "", text)
    return re.sub(r"sha256-[^']*", "sha256-HASH", text)


def reports() -> dict[str, str]:
    return {
        "few.html": page(FEW, COMPARISON),
        "many.html": page(MANY, None),
        "few.prom": prom.render(
            read_run(run_of(FEW)), before='gpucluster_last_success_timestamp_seconds{cluster="prod"} 17.0\n'
        ),
        "few.xml": b"".join(junit.pieces(read_run(run_of(FEW)))).decode().partition("\n")[2],
    }


@pytest.mark.parametrize("name", ["few.html", "many.html", "few.prom", "few.xml"])
def test_a_report_is_as_it_was_read_and_found_right(name: str) -> None:
    # line by line: the difference of two whole texts says little
    assert reports()[name].splitlines() == (GOLDEN / name).read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    for name, text in reports().items():
        (GOLDEN / name).write_text(text, encoding="utf-8")
