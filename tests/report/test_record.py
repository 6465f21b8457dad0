"""The record that a delivery is signed with: figures with bounds and sources, waivers, parts; shown and as JSON."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from report_helpers import a_run, failing, passing, unjudged, write_run

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.core.finding import Metric, Quantity
from pytest_gpucluster.core.part import InstalledPart, Part, gpu
from pytest_gpucluster.report.machine import acceptance_record as record
from pytest_gpucluster.report.machine.events import read_log, read_run
from pytest_gpucluster.report.page import html

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

LEAST = Quantity(300.0, "GB/s", "at least 300 GB/s (profile h200-8)")
GROUPS = [{"nodes": "gpu[01-02]", "profile": "h200-8"}, {"nodes": "gpu03", "profile": "h100-8"}]
SOLD = InstalledPart(gpu(0, uuid="GPU-1", address="0000:1b:00.0", serial="165"), "NVIDIA", "692-2G520", "96.00")
CABLE = InstalledPart(Part("cable", None, "mlx5_0", serial="MT9"), "Mellanox", "MCP1", length="2")

FOREIGN = {"part": {"kind": "\x1b[31m", "serial": "166"}}, {"part": {"kind": "\ud800"}}
HUGE = Metric("share", 1.7e308, "GB/s")


def of(node: str, *metrics: Metric, **more: Any) -> dict[str, Any]:
    return passing(node, check="nccl.alone", metrics=[it.as_dict() for it in metrics], **more)


def busbw(value: float, bound: Quantity | None = LEAST) -> Metric:
    return Metric("bandwidth", value, "GB/s", bound=bound) if bound else Metric("rate", value, "GB/s")


EVENTS = a_run(
    [
        of("gpu01", busbw(310.0), parts=[SOLD.as_dict(), InstalledPart(gpu(1)).as_dict(), CABLE.as_dict(), *FOREIGN]),
        of("gpu02", busbw(330.0), Metric("bandwidth", 330.0, "GB/s", gpu(0))),  # as much: the first is named
        of("gpu02", Metric("rounds", 3, "rounds"), Metric("ports", 8, "ports")),
        of("gpu03", busbw(250.0)),
        failing("gpu03", check="gpu.bad"),
        unjudged("gpu01", "not applicable", check="mpi.x"),
        of("", busbw(290.0, None), HUGE, HUGE),
    ],
    nodes=("gpu01", "gpu02", "gpu03", "gpu04"),
    not_tested={"gpu04": ["unavailable", "DRAINED"]},
    start={"groups": GROUPS, "full": False, "not_applicable": {"os.load": "shared"}},
)


def test_figures_are_of_a_suite_and_a_kind_of_node_with_the_bound_and_its_source() -> None:
    found = record.record_of(read_run(EVENTS))
    named = [(it["suite"], it["profile"], it["metric"], it["measurements"]) for it in found["figures"]]
    # of the whole cluster apart; counts of parts and what has no direction are no figures
    assert named == [
        ("nccl", "h100-8", "bandwidth", 1),
        ("nccl", "h200-8", "bandwidth", 3),
        ("nccl", "whole cluster", "rate", 1),
        ("nccl", "whole cluster", "share", 2),
    ]
    figure = found["figures"][1]
    ends = figure["least"], figure["least_at"], figure["median"], figure["greatest_at"]
    assert ends == (310, "gpu01", 330, "gpu02")
    assert figure["bounds"] == [{"bound": 300.0, "words": LEAST.text}]
    known = {"kind": "gpu", "vendor": "NVIDIA", "number": "692-2G520", "firmware": "96.00"}
    places = {"slots": ["gpu 0000:1b:00.0"], "names": ["GPU-1"], "serials": ["165"]}
    assert found["parts"]["gpu01"][0] == known | places


def test_page_and_command_show_what_the_record_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_run(tmp_path / "run", *EVENTS)
    page = html.render(read_log(log))
    sha256 = hashlib.sha256((log.parent / record.RECORD).read_bytes()).hexdigest()
    for shown in (LEAST.text, "h200-8", "165", "692-2G520", "result: mpi<br>narrowed by: <code>a path", sha256):
        assert shown in page.replace("<wbr>", "")
    assert cli.main(["record", "show", str(log)]) == 0
    printed = capsys.readouterr().out
    for shown in (
        "prod, run 20261121T020000-1: ",
        "not tested: gpu04: DRAINED",
        "by the cluster file: os.load (shared)",
        "failure: gpu.bad on gpu03 (drain)",
        "judged by: gpu, nccl\nnarrowed by: a path or another option\nwithout a result: mpi\n",
        "gpu01   cable   Mellanox 2 m",
        "parts: 2 gpu on gpu01 (2)",
        "165",
    ):
        assert shown in printed
    for shown in (f"330 330 gpu02 {LEAST.text}", "MCP1 1 MT9"):
        assert shown in " ".join(printed.split())
    assert "\x1b" not in printed
    assert cli.main(["record", "show", "--json", str(log)]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((log.parent / record.RECORD).read_text())
