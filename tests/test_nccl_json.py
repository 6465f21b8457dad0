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
from pytest_gpucluster.probes.nccl_tests import Half
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
