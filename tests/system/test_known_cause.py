"""A node that lacks a GPU: every suite that fails there for it names the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plugin_helpers import on, run_pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox


def test_every_suite_names_the_missing_gpu(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.fault("gpu_missing", "gpu02", gpu=5)
    run = run_pytest(tmp_path, on(sandbox), "-m", "slurm or gpu or fabric or nccl", where=())
    failed = [event for event in run.events if event["event"] == "result" and event["outcome"] == "failed"]
    causes = {event["check"]: event["verdicts"][0]["cause"] for event in failed if event["node"] == "gpu02"}
    assert {"nccl.alone", "gpu.count"} <= set(causes), run.out + run.err
    assert set(causes.values()) == {"GPU 5 (0000:c3:00.0) missing: fell off the bus, or not found at boot"}
    (whole,) = (
        event
        for event in run.events
        if event["event"] == "result" and event["nodeid"].endswith("::test_whole_bandwidth[all_reduce]")
    )
    scopes = {
        metric["name"].rpartition(" GiB ")[2]
        for metric in whole["metrics"]
        if metric["name"].startswith("busbw")
    }
    assert scopes == {"3 nodes"}  # those that took part
    (advisory,) = whole["verdicts"][0]["advisories"]
    assert advisory["measured"] == "3 of 4, without gpu02: see nccl.alone"
