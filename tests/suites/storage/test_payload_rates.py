"""Rates: fio's output of several versions, and the same accesses in Python."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.suites.storage import payload_rates as rates

if TYPE_CHECKING:
    from pathlib import Path

SIDE = {"io_bytes": 0, "runtime": 0, "clat_ns": {"min": 0}, "lat_ns": {"min": 0}}
PERCENTILES = {"1.000000": 100, "50.000000": 2_000_000, "95.000000": 3_000_000, "99.000000": 4_000_000}


def output(**job: Any) -> dict[str, Any]:
    """What fio 3.7 to 3.38 print of one group; fio 3.33 on a local disk had these keys."""
    group = {"jobname": "gpucluster", "error": 0, "read": SIDE, "write": SIDE, **job}
    return {"fio version": "fio-3.33", "jobs": [group]}


def wrote(**values: Any) -> dict[str, Any]:
    side = {"io_bytes": 67108864, "bw": 862315, "runtime": 76}
    return {**side, "clat_ns": {"N": 64, "percentile": PERCENTILES}, **values}


def test_the_direction_that_moved_bytes_is_read_between_notes() -> None:
    text = f"note: both iodepth >= 1 and synchronous I/O engine\n{json.dumps(output(write=wrote()))}\n===DONE===\n"
    latency = {"50": 2.0, "95": 3.0, "99": 4.0}
    assert rates.read_fio(text) == {"bytes": 67108864, "seconds": 0.076, "latency": latency}
    tree = output(read=wrote(clat_ns={"N": 64, "bins": {"100": 1}}, lat_ns={"percentile": PERCENTILES}))
    tree["client_stats"] = tree.pop("jobs")  # of a server, with total latencies
    assert rates.read_fio(json.dumps(tree))["latency"]["99"] == 4.0


def test_an_error_of_a_job_is_that_of_the_file_system() -> None:
    errors = "fio: io_u error on file /shared/f: No space left on device: write offset=8388608, buflen=1048576\n"
    with pytest.raises(OSError, match=re.escape("No space left on device (write offset=8388608)")) as raised:
        rates.read_fio(json.dumps(output(error=28)), errors)
    assert raised.value.errno == 28


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("echo fio-3.33", True),
        ("echo fio-3.41-12-g6d0b", True),
        ("echo fio-2.2.10", False),  # Ubuntu 16.04: io_bytes are KiB
        ("echo fio-3.33; exit 127", False),
        ("exit 0", False),
        (None, False),
    ],
)
def test_a_fio_that_cannot_run_or_counts_otherwise_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, *, runs: bool
) -> None:
    """Seen on a host whose fio lacked libaio.so.1: the rates of the file system are then taken without it."""
    if text is not None:
        (tmp_path / "fio").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "fio").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert rates.fio_runs() is runs


@pytest.mark.parametrize("engine", ["python", pytest.param("fio", marks=pytest.mark.thorough)])
def test_both_engines_move_what_is_requested_and_agree_on_sizes(engine: str, tmp_path: Path) -> None:
    if engine == "fio" and shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    stem, part = str(tmp_path / "rate-0"), 2 << 20
    written = rates.sequential_rate(engine, "write", stem, part, 5.0)
    assert written["bytes"] == rates.JOBS * part == sum(path.stat().st_size for path in tmp_path.iterdir())
    read = rates.sequential_rate(engine, "read", stem, 0, 5.0)
    assert read["bytes"] == rates.JOBS * part
    assert min(written["rate"], read["rate"]) > 0
    for what in ("read", "write"):
        found = rates.random_rate(engine, what, stem, 0.05)
        assert found["iops"] > 0
        assert found["latency"]["50"] <= found["latency"]["99"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == rates.JOBS * part


def test_a_size_is_in_whole_blocks_and_the_end_of_a_file_ends_its_reading(tmp_path: Path) -> None:
    for job in range(rates.JOBS):
        (tmp_path / f"f.{job}").write_bytes(bytes((2 << 20) + job))
        (tmp_path / f"empty.{job}").touch()
    assert (rates.smallest(str(tmp_path / "f")), rates.smallest(str(tmp_path / "empty"))) == (2 << 20, 0)
    found = rates.in_threads("read", [str(tmp_path / "f.0")] * 2, 8 << 20, 600.0)
    assert found["bytes"] == 4 << 20


@pytest.mark.parametrize(
    ("what", "direct", "calls"),
    [
        ("write", True, ["fsync"]),
        ("write", False, ["fsync", "fadvise"]),
        ("read", False, ["fadvise"]),
        ("randwrite", True, []),
    ],
)
def test_what_is_written_is_synced_and_without_direct_io_no_page_stays_in_the_cache(
    what: str, direct: bool, calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(bytes(1 << 20))
    done = []
    monkeypatch.setattr(rates, "has_direct", lambda _path: direct)
    monkeypatch.setattr("os.fsync", lambda _handle: done.append("fsync"))
    monkeypatch.setattr("os.posix_fadvise", lambda *_: done.append("fadvise"))
    assert rates.in_threads(what, [str(tmp_path / "f")], 1 << 20, 0.01)["direct"] is direct
    assert done == calls


def test_fsync_is_measured_at_least_once(tmp_path: Path) -> None:
    found = rates.fsyncs(str(tmp_path / "f"), 0.0)
    assert found["count"] == 1
    assert found["latency"]["50"] > 0
    assert (tmp_path / "f").stat().st_size == 4096
    assert rates.fsyncs(str(tmp_path / "f"), 0.3)["count"] > 1


def test_fio_measures_the_disk_and_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        started.append(command)
        return subprocess.CompletedProcess(command, 0, json.dumps(output(write=wrote())).encode(), b"")

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr(rates, "has_direct", lambda _path: True)
    for what in ("write", "read"):
        rates.fio(what, [f"{tmp_path}/f-0.{job}" for job in range(4)], 3 << 20, 1.5)
    assert ["--end_fsync=1" in it for it in started] == [True, False]
    assert all("--direct=1" in it for it in started)
