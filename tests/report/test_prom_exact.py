"""Metrics for Prometheus, line by line: whole pages of small runs, without a parser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from report.test_prom import events, lines, metric, result

from pytest_gpucluster.report import prom
from pytest_gpucluster.report.proof import NODE_STATES
from pytest_gpucluster.report.run_model import read_run

if TYPE_CHECKING:
    from pathlib import Path

OUTCOMES = ("passed", "failed", "error", "waived", "not checked", "not tested", "not applicable", "skipped")


def test_the_page_of_a_run_that_says_nothing() -> None:
    about = (
        "# HELP gpucluster_checks Checks of the run, by how they ended.",
        "# TYPE gpucluster_checks gauge",
    )
    assert prom.render(read_run([])).split("\n") == [
        "# HELP gpucluster_run_info The run that this file is of.",
        "# TYPE gpucluster_run_info gauge",
        'gpucluster_run_info{simulated="false"} 1.0',
        "# HELP gpucluster_run_start_timestamp_seconds When the run began, Unix time.",
        "# TYPE gpucluster_run_start_timestamp_seconds gauge",
        "gpucluster_run_start_timestamp_seconds 0.0",
        "# HELP gpucluster_run_duration_seconds How long the run took.",
        "# TYPE gpucluster_run_duration_seconds gauge",
        "gpucluster_run_duration_seconds 0.0",
        "# HELP gpucluster_run_success 1 where the run ended with exit status 0.",
        "# TYPE gpucluster_run_success gauge",
        "gpucluster_run_success 0.0",
        *about,
        *(f'gpucluster_checks{{outcome="{outcome}"}} 0.0' for outcome in OUTCOMES),
        "# HELP gpucluster_nodes Selected nodes, each counted once.",
        "# TYPE gpucluster_nodes gauge",
        *(f'gpucluster_nodes{{state="{state}"}} 0.0' for state in NODE_STATES),
        "",
    ]


def test_the_page_of_a_bad_node() -> None:
    red = result("gpu.a", "failed", inside="-4G", verdicts=[{"findings": [{"part": "GPU 4"}, {"part": "x"}]}])
    broken = result(
        "gpu.b", "error", metrics=[metric("p", 2, "W", "mlx5_0"), metric("q", 3, "KiB", "GPU 1 (x)")]
    )
    about = "Warnings of a check: they fail no check and drain no node."
    warned = [
        {"findings": [], "advisories": [{}, {}]},
        {"findings": [], "advisories": [{}]},
        {"findings": []},
    ]
    page = prom.render(
        read_run(events(red, broken, result("gpu.c", inside="-1-x", verdicts=warned), exit_=1))
    )
    fit = "1 where all that was selected of the node is proved and nothing failed; 0 otherwise."
    states = zip(NODE_STATES, (0.0, 1.0, 0.0, 0.0), strict=True)
    assert page.split("\n")[-26:] == [
        f"# HELP gpucluster_node_fit {fit}",
        "# TYPE gpucluster_node_fit gauge",
        'gpucluster_node_fit{cluster="prod",node="gpu01"} 0.0',
        "# HELP gpucluster_nodes Selected nodes, each counted once.",
        "# TYPE gpucluster_nodes gauge",
        *(f'gpucluster_nodes{{cluster="prod",state="{state}"}} {number}' for state, number in states),
        "# HELP gpucluster_check_failed 1 for a check that failed; gpu is the index of the GPU at fault, if it is one.",
        "# TYPE gpucluster_check_failed gauge",
        'gpucluster_check_failed{check="gpu.a",cluster="prod",gpu="4",node="gpu01"} 1.0',
        'gpucluster_check_failed{check="gpu.a",cluster="prod",node="gpu01"} 1.0',
        "# HELP gpucluster_check_broken 1 for a check that could not be made: the infrastructure broke.",
        "# TYPE gpucluster_check_broken gauge",
        'gpucluster_check_broken{check="gpu.b",cluster="prod",node="gpu01"} 1.0',
        "# HELP gpucluster_measured_p_watts p as the last run measured it, in watts.",
        "# TYPE gpucluster_measured_p_watts gauge",
        'gpucluster_measured_p_watts{check="gpu.b",cluster="prod",device="mlx5_0",node="gpu01"} 2.0',
        "# HELP gpucluster_measured_q_bytes q as the last run measured it, in bytes.",
        "# TYPE gpucluster_measured_q_bytes gauge",
        'gpucluster_measured_q_bytes{check="gpu.b",cluster="prod",gpu="1",node="gpu01"} 3072.0',
        f"# HELP gpucluster_check_warnings {about}",
        "# TYPE gpucluster_check_warnings gauge",
        'gpucluster_check_warnings{check="gpu.c",cluster="prod",node="gpu01",parameters="1-x"} 3.0',
        "",
    ]


def test_a_series_has_the_parameters_of_its_check() -> None:
    told = [
        result("nccl.busbw", inside=f"-{size}", metrics=[metric("busbw a b", value, "GB/s")])
        for size, value in (("1M", 1), ("4G", 2), ("4G", 3))
    ]
    labels = 'check="nccl.busbw",cluster="prod",node="gpu01",of="a b"'
    start = f"gpucluster_measured_busbw_bytes_per_second{{{labels},parameters="
    assert lines(*told)[1:] == [f'{start}"1M"}} 1e+09', f'{start}"4G"}} 3e+09']
    hidden = result("nccl.x", metrics=[metric("x", 1, "s", detail=True)])
    assert lines(hidden) == ['gpucluster_node_fit{cluster="prod",node="gpu01"} 1.0']


@pytest.mark.parametrize("ending", ["count", "sum", "bucket", "total", "info"])
def test_an_ending_that_means_something_else_gets_a_word(ending: str) -> None:
    assert prom._series(f"x_{ending}", "odd") == (
        f"gpucluster_measured_x_{ending}_value", f"x_{ending} as the last run measured it (odd).", "", 1.0,
    )  # fmt: skip
    assert prom._series(f"x{ending}", "")[0] == f"gpucluster_measured_x{ending}"


def test_a_help_line_has_plain_quotes() -> None:
    page = prom.render(read_run(events(result("gpu.a", metrics=[metric('a"b', 1, "W")]))))
    assert '# HELP gpucluster_measured_a_b_watts a"b as the last run measured it, in watts.\n' in page


def test_a_duration_is_in_milliseconds_and_of_two_finishes_the_last_counts() -> None:
    told: list[dict[str, Any]] = [
        {"event": "start", "time": 100.0, "cluster": "a", "simulated": True},
        {"event": "start", "time": 101.0, "cluster": "b", "simulated": False},
        {"event": "nodes", "time": 101.0, "selected": ["n1"]},
        {"event": "nodes", "time": 101.0, "selected": ["n2"]},
        {"event": "finish", "time": 102.0, "exit": 0},
        {"event": "finish", "time": 110.12345, "exit": 3},
    ]
    page = prom.render(read_run(told)).splitlines()
    assert [
        line for line in page if line.startswith(("gpucluster_run", "gpucluster_last", "gpucluster_node_fit"))
    ] == [
        'gpucluster_run_info{cluster="a",simulated="true"} 1.0',
        'gpucluster_run_start_timestamp_seconds{cluster="a"} 100.0',
        'gpucluster_run_duration_seconds{cluster="a"} 10.123',
        'gpucluster_run_success{cluster="a"} 0.0',
        'gpucluster_run_exit_status{cluster="a"} 3.0',
        'gpucluster_node_fit{cluster="a",node="n1"} 0.0',
    ]


def test_results_without_a_start_have_no_cluster() -> None:
    page = prom.render(read_run([result("gpu.a", metrics=[metric("x", 1, "W")])]))
    assert 'gpucluster_measured_x_watts{check="gpu.a",node="gpu01"} 1.0\n' in page


def test_a_success_is_carried_over_from_the_file_before(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"
    prom.write(read_run(events(exit_=1)), path, prom.read(path))  # there is none
    assert "last_success" not in path.read_text()
    prom.write(read_run(events(exit_=0)), path, prom.read(path))
    prom.write(read_run(events(exit_=1)), path, prom.read(path))
    assert path.read_text().endswith("\n")
    line = 'gpucluster_last_success_timestamp_seconds{cluster="prod"} 110.0\n'
    assert line in path.read_text()
    path.write_bytes(b"\xff\n" + line.encode())
    prom.write(read_run(events(exit_=1)), path, prom.read(path))
    assert line in path.read_text()
