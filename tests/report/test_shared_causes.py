"""What nodes of a run, or of a history, share: the same in the terminal, the page and the history."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from report_helpers import a_run, failing, passing

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.core.part import gpu
from pytest_gpucluster.report.history.run_snapshot import recorded
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.report.machine.events import read_run
from pytest_gpucluster.report.page import html
from pytest_gpucluster.report.shared_causes import factor_values, of_run

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NODES = [f"gpu{i:02}" for i in range(1, 61)]
HOT = {*NODES[:9], "gpu40"}
FACTORS = {"loop": {"B": "gpu[01-12]", "C": "gpu[13-60]"}, "feed": {"P1": "gpu[01-12]", "P2": "gpu[13-60]"}}
PAIR = "loop B or feed P1 (they hold the same nodes)"


def night(hot: Iterable[str] = HOT, number: int = 1, **fields: Any) -> list[dict[str, Any]]:
    """Return the events of a run in which some nodes have a hot GPU, and all of loop B a lower clock within its bound."""
    results = []
    for i, node in enumerate(NODES):
        metrics = [{"name": "sm_clock", "value": 1980 - i % 7 - 300 * (i < 12), "unit": "MHz", "part": gpu(k).as_dict()} for k in (0, 1)]  # fmt: skip
        versions = {"VBIOS": "96.00" if i % 2 else "97.00"}
        facts: dict[str, Any] = {"check": "gpu.temperature", "metrics": metrics, "versions": versions}
        found = {"code": "too_hot", "part": gpu(3).as_dict(), "measured": "91 C", "expected": "below 80 C"}
        results.append(failing(node, findings=[found], **facts) if node in {*hot} else passing(node, **facts))
    groups = [{"nodes": "gpu[01-60]", "profile": "h100-8"}]
    events = a_run(results, nodes=NODES, start={"groups": groups}, finish=1)
    events[1] |= {"factors": FACTORS} | fields
    return [it | {"run": f"run{number}", "time": it["time"] + number * 86400} for it in events]


def test_a_run_names_the_loop_of_its_hot_nodes_and_of_a_metric_that_passed() -> None:
    run = read_run(night())
    lines = [*of_run(run).lines()]
    assert [it.split(" (by chance")[0] for it in lines] == [
        f"shared: {PAIR}: gpu.temperature: gpu too hot: 9 of 12 nodes; elsewhere 1 of 48 nodes",
        f"shared: {PAIR}: gpu: sm_clock: median 1678 MHz on 12 nodes; elsewhere median 1977 MHz on 48 nodes",
    ]
    assert of_run(run) is of_run(run)
    page = html.render(run)
    assert '<section id="shared">' in page
    assert "9 of 12 nodes" in page


def test_what_the_run_reads_is_a_factor_too() -> None:
    place = {"group": "all", "partition": "batch", "arch": "x86_64", "image": "6.8", "switch": "leaf1", "nodes": NODES}
    part = {"part": {"kind": "gpu", "name": "GPU-1"}, "number": "692-2G520", "firmware": "96.00"}
    events = night(places=[place])
    events[2]["parts"] = [part]
    found = {it[:2]: len(it.nodes) for it in factor_values(read_run(events))}
    assert found == {
        ("loop", "B"): 12, ("loop", "C"): 48, ("feed", "P1"): 12, ("feed", "P2"): 48, ("profile", "h100-8"): 60,
        ("group", "all"): 60, ("partition", "batch"): 60, ("leaf", "leaf1"): 60, ("architecture", "x86_64"): 60,
        ("image", "6.8"): 60, ("VBIOS", "97.00"): 30, ("VBIOS", "96.00"): 30,
        ("gpu part number", "692-2G520"): 1, ("gpu firmware", "96.00 of 692-2G520"): 1,
    }  # fmt: skip


@pytest.mark.parametrize("factors", [{}, {"loop": "B", "rack": {"A": 3, "B": "gpu[01"}}, None])
def test_a_run_without_factors_or_a_foreign_log_has_no_cause(factors: Any) -> None:
    run = read_run(night(factors=factors))
    assert [*of_run(run).lines()] == []
    (line,) = of_run(run).lines(verbose=True)
    assert line.startswith("shared: no value of a factor explains")


def test_the_history_finds_what_no_single_night_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history.sqlite"
    with contextlib.closing(History(path, create=True)) as history:
        for number in range(1, 6):
            two = NODES[2 * number - 2 : 2 * number]
            events = night(two, number)
            lines = [*of_run(read_run(events)).lines()]
            assert not any("too hot" in line for line in lines)
            history.add(recorded(read_run(events)))
    assert cli.main(["history", "--history", str(path), "--shared"]) == 0
    told = capsys.readouterr().out
    pair = "feed P1 or loop B (they hold the same nodes)"
    assert f"{pair}: gpu.temperature: gpu too hot: 10 of 12 nodes; elsewhere 0 of 48 nodes" in told
    assert "sm_clock: median 1678 MHz on 12 nodes" in told
