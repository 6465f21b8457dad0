# ruff: noqa: E501 - tables of cases read better unbroken
"""JSON of nccl-tests: every version, and no secret kept."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_gpucluster.errors import ProbeError
from pytest_gpucluster.probes.nccl_json import REDACTED, read
from pytest_gpucluster.probes.nccl_tests import Half, RankLine, Row, Run
from pytest_gpucluster.redact import variables

TEXT = (Path(__file__).parent / "data" / "nccl" / "nccl-json.json").read_text()
DOCUMENT: dict[str, Any] = json.loads(TEXT)


def changed(**change: Any) -> str:
    document = copy.deepcopy(DOCUMENT)
    document.update(change)
    return json.dumps(document)


def test_recording() -> None:
    report = read(TEXT)
    run = report.run
    assert run.complete, run.reasons
    assert (run.collective, run.world, run.out_of_bounds, run.avg_busbw) == ("all_reduce", 8, 0, 247.964273)
    assert (run.rows[0].root, run.rows[0].size) == (-1, 8 * 2**20)
    assert run.rows[0].out_of_place == Half(96.4063, 87.013069, 152.27287, 0)
    assert not report.exact
    assert (report.start_time, report.end_time) == ("2026-11-20 15:33:36", "2026-11-20 15:33:42")


def test_env_is_redacted() -> None:
    report = read(TEXT)
    assert report.env["API_TOKEN"] == REDACTED
    assert "not-a-real-token-000" not in repr(report)
    assert report.env["NCCL_NVLS_ENABLE"] == "0"


@pytest.mark.parametrize("version", [1, 2, 3])
def test_misspelt_keys_of_older_versions(version: int) -> None:
    document = json.loads(changed(version=version))
    document["average_bus_bandwidith"] = {"bandwidith": 247.964273, "okay": "unchecked"}
    del document["average_bus_bandwidth"]
    run = read(json.dumps(document)).run
    assert run.avg_busbw == 247.964273
    assert run.complete, run.reasons


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TEXT[:-40], "cut or damaged"),
        ("[]", "nccl_version"),
        ("{}", "nccl_version"),
        (changed(version=9), "version 9"),
        (changed(results=[{"size": 1, "out_of_place": {}}]), "not understood"),
        (changed(results=3), "not understood"),
        (changed(out_of_bounds={"count": 0, "okay": "yes"}), "'yes' is no boolean"),
    ],
)
def test_what_is_refused_is_said(text: str, words: str) -> None:
    with pytest.raises(ProbeError) as error:
        read(text)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_every_cut_is_refused() -> None:
    for end in range(0, len(TEXT.rstrip()) - 1, 7):
        with pytest.raises(ProbeError):
            read(TEXT[:end])


@pytest.mark.parametrize("key", ["time", "alg_bw", "bus_bw"])
def test_a_row_that_contradicts_itself_is_refused(key: str) -> None:
    document = copy.deepcopy(DOCUMENT)
    document["results"][2]["out_of_place"][key] *= 1.01
    run = read(json.dumps(document)).run
    assert len(run.rows) == 3
    assert "result 2: refused" in " ".join(run.reasons)
    assert not run.complete


def test_wrong_data_nan_and_no_validation() -> None:
    document = copy.deepcopy(DOCUMENT)
    document["results"][0]["out_of_place"]["nwrong"] = 7.0
    document["results"][1]["out_of_place"]["nwrong"] = None
    document["results"][2]["out_of_place"]["bus_bw"] = "nan"
    rows = read(json.dumps(document)).run.rows
    assert [row.out_of_place.wrong for row in rows[:2]] == [7, None]
    assert rows[2].out_of_place.busbw is None


def test_failures() -> None:
    run = read(changed(errors=["unhandled system error"])).run
    assert run.failures[0].text == "unhandled system error"
    assert not run.complete
    average = {"bandwidth": 247.964273, "okay": "false"}
    assert read(changed(average_bus_bandwidth=average)).run.failures[0].kind == "minimum bandwidth"


def test_per_iteration_times() -> None:
    document = copy.deepcopy(DOCUMENT)
    for result in document["results"]:
        result["out_of_place_per_iter"] = {
            "min_us": 1.0,
            "max_us": 3.0,
            "p99_us": 2.5,
            "cv_pct": 4.0,
            "times_us": [1.0],
        }
    stats = read(json.dumps(document)).run.rows[0].out_of_place.iterations
    assert stats is not None
    assert (stats.min_us, stats.max_us, stats.p99_us, stats.cv_percent) == (1.0, 3.0, 2.5, 4.0)


# Made up; put together at run time, so that no scanner takes them for real.
KEY = "AKIA" + "ABCDEFGHIJKLMNOP"


@pytest.mark.parametrize(
    "variable",
    [
        "HF_TOKEN=x", "MY_PASSWORD=x", "DB_PASS=x", "AWS_SECRET_ACCESS_KEY=x", "SSH_KEY=x", "API_KEY=x", "SIGNING_KEY=x",
        "GOOGLE_APPLICATION_CREDENTIALS=/x", "SLACK_WEBHOOK=x", "HTTP_AUTHORIZATION=x", "SESSION_COOKIE=x", "MUNGE_KEY=x",
        "URL=https://user:pw@host/x", f"THING={KEY}", "A=Bearer abc", "B=" + "gh" + "p_abcdef", "C=-----BEGIN RSA",
        "D=" + "0123456789abcdef" * 3, "E=Abcd1234" + "eFgh5678" * 4, 'F={"password": "x"}', "G=--token=abc", "H=eyJhbGci.x",
    ],
)  # fmt: skip
def test_secrets_go_by_name_and_by_shape(variable: str) -> None:
    name, _, value = variable.partition("=")
    assert variables([variable]) == {name: REDACTED}
    assert value


@pytest.mark.parametrize(
    "variable",
    [
        "PATH=/usr/local/cuda-12.4/bin:/usr/bin", "NCCL_DEBUG=INFO", "SLURM_JOB_NODELIST=gpu[01-16]", "SLURM_JOB_ID=77",
        "LD_LIBRARY_PATH=/opt/Hpcx-v2.18.1-gcc-mlnx_ofed-Ubuntu22.04-cuda12/ucx/lib", "HOME=/root", "PWD=/home/User1",
        "NCCL_IB_HCA=mlx5_0,mlx5_1", "KEYBOARD=us", "MONKEY=1", "EMPTY=", "SLURM_TASKS_PER_NODE=8(x4)",
    ],
)  # fmt: skip
def test_plain_settings_stay(variable: str) -> None:
    name, _, value = variable.partition("=")
    assert variables([variable]) == {name: value}


# --- value by value


def document(
    *halves: dict[str, Any], name: str = "broadcast", ranks: int = 2, **config: Any
) -> dict[str, Any]:
    """Return a report of a row for each out-of-place half, of 1000 bytes."""
    devices = [
        {"rank": rank, "group": 0, "pid": 7 + rank, "hostname": "vm", "device": rank, "device_hex": f"0000:0{rank}:00",
         "device_info": "NVIDIA H200"} for rank in range(ranks)
    ]  # fmt: skip
    rows = [
        {"size": 1000, "count": 250, "type": "float", "redop": "none", "root": "     0", "out_of_place": half}
        for half in halves
    ]
    return {
        "version": 3, "nccl_version": 22809, "args": [f"/opt/{name}_perf"], "results": rows, "end_time": "t",
        "config": {
            "nthreads": 1, "ngpus": 1, "minimum_bytes": 1000, "maximum_bytes": 1500, "step_bytes": 500, "validation": 1,
            "devices": devices, **config,
        },
        "out_of_bounds": {"count": 0, "okay": "true"},
    }  # fmt: skip


def half(time: float, algbw: Any, busbw: Any = None) -> dict[str, Any]:
    return {"time": time, "alg_bw": algbw, "bus_bw": algbw if busbw is None else busbw, "nwrong": 0.0}


def run_of(*halves: dict[str, Any], **change: Any) -> Run:
    return read(json.dumps(document(*halves, **change))).run


def test_every_value_of_a_report() -> None:
    report = read(json.dumps(document(half(10.0, 0.1))))
    assert report.exact
    assert report.run == Run(
        version="2.17.3 or later", collective="broadcast", out_of_bounds=0, label="", world=2, validation=True,
        ranks=(
            RankLine(0, 0, 7, "vm", 0, "0000:00:00", "NVIDIA H200"), RankLine(1, 0, 8, "vm", 1, "0000:01:00", "NVIDIA H200"),
        ),
        rows=(Row(1000, 250, "float", "none", 0, Half(10.0, 0.1, 0.1, 0), None),), sweep=(1000, 1500), nccl_version="22809",
        reasons=("1 rows for 2 sizes: rows are missing", "no summary line 'Avg bus bandwidth', or it is nan"),
    )  # fmt: skip
    assert run_of(step_factor=2).sweep == (1000,)
    assert run_of(validation=0).validation is False
    many = read(json.dumps(document(nthreads=2, ngpus=4)))
    assert (many.run.world, many.exact) == (16, False)
    assert not read(json.dumps(document(nthreads=2))).exact


def test_the_program_names_the_collective() -> None:
    for program, name in (
        ("broadcast_perf", "broadcast"),
        ("/a/b/broadcast_perf", "broadcast"),
        ("/opt/odd_perf", ""),
    ):
        report = read(json.dumps({**document(), "args": [program, "/x/all_reduce_perf"]}))
        assert (report.run.collective, report.args) == (name, (program, "/x/all_reduce_perf"))


def test_a_report_without_its_settings_proves_nothing() -> None:
    whole = document(half(10.0, 0.1))
    del whole["config"]
    report = read(json.dumps(whole))
    assert (report.run.sweep, report.run.validation, report.run.world, report.exact) == ((), False, 0, True)
    assert report.run.reasons[0] == "result 0: refused: its collective or its ranks are not known"
    for key in ("nthreads", "ngpus", "minimum_bytes", "maximum_bytes", "step_bytes", "validation"):
        whole = document()
        del whole["config"][key]
        with pytest.raises(ProbeError, match=f"KeyError '{key}'"):
            read(json.dumps(whole))


@pytest.mark.parametrize(
    ("time", "algbw", "busbw", "good"),
    [
        # 1e-4 of the bandwidth, and 1e-4 GB/s
        (0.001, 1000.0, None, True), (0.001, 1000.05, None, True), (0.01, 100.009, None, True), (0.01, 100.03, None, False),
        (1000.0, 0.00109, None, True), (1000.0, 0.00111, None, False), (1000.0, 0.00091, None, True),
        # the last digit of the time, which matters below a microsecond
        (0.001, 1001.05, None, True), (0.001, 1001.2, None, False), (0.0005, 2003.5, None, True), (0.0005, 2005.0, None, False),
        # the bus bandwidth: 1e-5, and 2e-6 GB/s
        (10.0, 0.1, 0.1000025, True), (10.0, 0.1, 0.1000035, False), (0.01, 100.0, 100.0009, True),
        (0.01, 100.0, 100.0011, False), (10.0, 0.1, 0.0999975, True), (10.0, 0.1, 0.0999965, False),
    ],
)  # fmt: skip
def test_how_far_the_numbers_of_a_row_may_differ(
    time: float, algbw: float, busbw: float | None, *, good: bool
) -> None:
    assert bool(run_of(half(time, algbw, busbw)).rows) is good


def test_a_hypercube_prints_its_bus_bandwidth_twice() -> None:
    assert run_of(half(10.0, 0.075), name="hypercube", ranks=4).rows
    assert run_of(half(10.0, 0.1, 0.075), name="all_gather", ranks=4).rows
    for name, numbers in (
        ("hypercube", (0.1, 0.075)),
        ("all_gather", (0.075, 0.075)),
        ("hypercube", (0.1, 0.1)),
    ):
        assert not run_of(half(10.0, *numbers), name=name, ranks=4).rows


def test_numbers_that_are_none() -> None:
    for key in ("time", "alg_bw", "bus_bw"):
        assert run_of({**half(10.0, 7.0, 9.0), key: "nan"}).rows
    assert run_of(half(0.0, 0.0)).rows[0].out_of_place == Half(0.0, 0.0, 0.0, 0)
    for okay, count, contradicts in (("true", 0, False), ("false", 3, False), (True, 0, False), (False, 3, False),
                                     ("false", 0, True), ("true", 3, True), (True, 3, True), (False, 0, True)):  # fmt: skip
        said = json.dumps({**document(), "out_of_bounds": {"okay": okay, "count": count}})
        assert ("out_of_bounds contradicts itself" in " ".join(read(said).run.reasons)) is contradicts
