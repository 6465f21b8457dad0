"""The ray suite with the real Ray on virtual nodes, healthy and with faults."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from framework_helpers import ends, run_suite

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.alone  # it loads all cores


def leftovers() -> list[str]:
    """Return the processes and folders that any run of ours has left."""
    ask = "grep -la GPUCLUSTER_RAY_TASK /proc/[0-9]*/environ 2>/dev/null; ls -d /tmp/r??????[ahw]gpu* 2>/dev/null"
    return subprocess.run(["sh", "-c", ask], capture_output=True, text=True, check=False).stdout.splitlines()


def test_ray_runs_over_two_nodes_and_leaves_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    # the driver has what two joins leave
    claim = {"environment": "frameworks", "cpus": 2, "gpus": 2, "deadline": "600s", "join": "120s"}
    run = run_suite(sandbox, tmp_path, "test_ray.py", nodes="gpu[01-02]", ray=claim)
    found = ends(run)
    apart = {"test_head_lost[gpu01]": "not applicable"}  # the head
    assert {item: end for item, end in found.items() if end != "passed"} == apart, run.out[-4000:]
    assert len(found) == 18
    metrics = {metric["name"]: metric["value"] for event in run.events for metric in event.get("metrics", ())}
    assert metrics["gpus"] == 4
    assert leftovers() == []
    reports = "".join(path.read_text() for path in (tmp_path / "reports").rglob("*") if path.is_file())
    assert not re.search(r"RAY_AUTH_TOKEN=\S", reports)


def test_a_node_works_alone(sandbox: Sandbox, tmp_path: Path) -> None:
    claim = {"environment": "frameworks", "cpus": 1, "gpus": 1, "join": "120s"}
    run = run_suite(sandbox, tmp_path, "test_ray.py", "-k", "framework or alone", nodes="gpu01", ray=claim)
    assert set(ends(run).values()) == {"passed"}, run.out[-4000:]
    assert leftovers() == []
