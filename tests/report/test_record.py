"""The acceptance record and its in-toto statement: what they name, and that a stranger can check it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from report_helpers import a_run, passing, write_run

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.report import record
from pytest_gpucluster.report.events import read_log

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run").parent


@pytest.fixture
def made(folder: Path) -> Any:
    return json.loads((folder / "record.json").read_text())


def test_a_record_fits_the_published_schema(made: dict[str, Any]) -> None:
    schema = json.loads((ROOT / "docs" / "record.schema.json").read_text())
    assert schema == record.schema(), "gpucluster schema record --output docs/record.schema.json"
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(made)
    for key in made:
        assert not validator.is_valid({name: value for name, value in made.items() if name != key}), key
    assert not validator.is_valid({**made, "more": 1})


def test_a_record_names_what_it_rests_on(made: dict[str, Any], folder: Path) -> None:
    hashed = "0123456789abcdef" * 4
    assert made["cluster_file"] == {"file": "clusters/prod.yaml", "sha256": hashed}
    assert made["profiles"] == [{"nodes": "gpu[01-03]", "profile": "h200x8", "sha256": hashed}]
    assert made["versions"] == {"pytest-gpucluster": "0.2.0", "Python": "3.11.7", "Slurm": "22.05.8"}
    assert made["waivers"][0]["ticket"] == "OPS-1"
    assert (made["user"], made["host"], made["scope"]) == ("ops", "login1", {"-m": "gpu"})
    assert made["verdict"]["outcome"] == "rejected"
    assert made["nodes"] == {"gpu01": "fit", "gpu02": "failed", "gpu03": "fit"}
    assert made["checks"]["gpu.pcie"] == {"passed": 1}
    assert made["began"] == "2026-11-21T08:39:30+00:00"
    log = (folder / "events.jsonl").read_bytes()
    assert made["events"] == {"lines": log.count(b"\n"), "sha256": sha256(log), "cut": []}
    names = ["junit.xml", "report.html", "steps/1.log"]
    assert made["files"] == {name: sha256((folder / name).read_bytes()) for name in names}
    assert sha256(log) in (folder / "report.html").read_text()
    assert hashed in (folder / "report.html").read_text()


def test_every_figure_and_failure_names_its_line_by_hash(made: dict[str, Any], folder: Path) -> None:
    lines = (folder / "events.jsonl").read_bytes().splitlines(keepends=True)
    for row in made["evidence"]:
        line = lines[row["line"] - 1]
        assert row["sha256"] == sha256(line)
        event = json.loads(line)
        assert [row[key] for key in ("node", "check", "outcome")] == [
            event[key] for key in ("node", "check", "outcome")
        ]
    rows = {row["check"]: row for row in made["evidence"]}
    assert list(rows) == ["gpu.bandwidth", "gpu.nvlink_state", "gpu.ecc"]
    assert [figure["value"] for figure in rows["gpu.bandwidth"]["figures"]] == [3071.5, "NaN"]


def test_the_statement_is_an_in_toto_test_result(folder: Path) -> None:
    statement = json.loads((folder / "record.intoto.json").read_text())
    hashed = {"sha256": "0123456789abcdef" * 4}
    assert statement == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": "record.json", "digest": {"sha256": sha256((folder / "record.json").read_bytes())}},
            {"name": "cluster prod", "digest": hashed},
        ],
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": {
            "result": "FAILED",
            "configuration": [
                {"name": "clusters/prod.yaml", "digest": hashed},
                {"name": "profile h200x8", "digest": hashed},
            ],
            "passedTests": ["gpu.bandwidth on gpu01", "nccl.whole_bandwidth[]"],
            "warnedTests": ["gpu.pcie on gpu02", "gpu.ecc on gpu03"],
            "failedTests": ["gpu.nvlink_state on gpu02"],
        },
    }


@pytest.mark.parametrize(
    ("events", "result"),
    [
        (a_run([passing("gpu01")], nodes=("gpu01",)), "PASSED"),
        (a_run([passing("gpu01")], nodes=("gpu01",), start={"simulated": True}), "WARNED"),
        (a_run([passing("gpu01")], nodes=("gpu01",), finish=None), "FAILED"),
        (a_run([], nodes=("gpu01",)), "FAILED"),
    ],
)
def test_only_an_accepted_run_on_real_hardware_has_passed(
    tmp_path: Path, events: list[dict[str, Any]], result: str
) -> None:
    folder = write_run(tmp_path / "run", *events).parent
    assert json.loads((folder / "record.intoto.json").read_text())["predicate"]["result"] == result


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda log: log.replace(b'"login1"', b'"login2"'), ":2: does not follow from line 1: "),
        (lambda log: log[:-1].rpartition(b"\n")[0] + b"\n", ": was changed while it was read or written"),
    ],
)
def test_a_changed_log_gets_no_record(folder: Path, change: Callable[[bytes], bytes], why: str) -> None:
    log = folder / "events.jsonl"
    run = read_log(log)
    log.write_bytes(change(log.read_bytes()))
    with pytest.raises(GpuClusterError) as caught:
        record.write(run, log)
    assert str(caught.value).startswith(f"{log}{why}")
