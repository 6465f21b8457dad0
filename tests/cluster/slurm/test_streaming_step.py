"""A step with interactive input and output, on a srun that does what the test says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.allocation import Allocation
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.step import StepRequest
from pytest_gpucluster.cluster.slurm.streaming_step import StreamingStep
from pytest_gpucluster.cluster.transport import LocalTransport

if TYPE_CHECKING:
    from pathlib import Path

SRUN = """#!/bin/sh
read -r line
echo "1: heard $line"
echo " 0: {\\"x\\": 1}"
echo "srun: error: gpu02: task 1: Exited with exit code 3" >&2
cat >/dev/null
"""


def test_lines_reach_all_tasks_theirs_come_back_and_the_end_of_one_ends_no_other(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    slurm = Slurm(LocalTransport({"PATH": f"{tmp_path}:{os.environ['PATH']}"}))
    held = Allocation.attach(slurm, 78, ("gpu01", "gpu02"))
    request = StepRequest(("agent",), ntasks_per_node=1, kill_on_bad_exit=False)
    step = StreamingStep(slurm, held, request)
    for word in ("--jobid=78", "--overlap", "--no-kill", "--wait=0", "--kill-on-bad-exit=0", "--ntasks=2"):
        assert word in step.argv
    assert "--nodelist=gpu[01-02]" in step.argv
    step.send("begin")
    lines = step.lines(600)
    assert [next(lines), next(lines)] == [(1, "heard begin"), (0, '{"x": 1}')]
    ended = [step.ended]
    step.stop(patience=600)
    assert [*ended, step.ended] == [False, True]
    assert step.endings() == [("gpu02", 1, 3, None)]
    assert list(step.lines(600)) == []
