"""Who ended a step: its own tasks, or somebody outside, which is no node's fault; and how much of it is kept."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.cluster.channel.channel import Fleet
from pytest_gpucluster.cluster.slurm.allocation import Allocation
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.result import StepResult
from pytest_gpucluster.cluster.slurm.step import (
    LEAST_CAP,
    STEP_CAP,
    StepRequest,
    ended_from_outside,
    fair_cap,
    run_step,
)
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.core.errors import SlurmError

if TYPE_CHECKING:
    from pathlib import Path

CANCELLED = "slurmstepd: error: *** STEP 3.1 ON gpu01 CANCELLED AT 2026-11-21T10:00 DUE TO"
ABORTED = "srun: Job step aborted: Waiting up to 4 seconds\nsrun: error: gpu02: task 0: Terminated"


@pytest.mark.parametrize(
    ("rc", "stderr", "why"),
    [
        (143, ABORTED, "aborted"),
        (-9, "", "killed by signal 9"),
        (1, f"{CANCELLED} TIME LIMIT ***", "STEP 3"),
        (1, f"{CANCELLED} TASK FAILURE ***", ""),
        (1, f"{CANCELLED} NODE FAILURE ***", ""),
        (1, "srun: error: task 0 launch failed: x\nsrun: Job step aborted", ""),
        (
            1,
            "srun: error: Task launch for StepId=3.1 failed on node gpu01: Job credential revoked",
            "its job",
        ),
        (137, "srun: error: gpu02: task 0: Killed", ""),
        (7, "srun: error: gpu02: task 0: Exited with exit code 7", ""),
    ],
)
def test_what_has_ended_a_step(rc: int, stderr: str, why: str) -> None:
    found = ended_from_outside(StepResult(rc, (), stderr, 1.0, "srun", ""), StepRequest(("true",)))
    assert why in found
    assert bool(why) == bool(found)
    request = StepRequest(("true",), kill_on_bad_exit=True)  # a task may abort it
    assert ended_from_outside(StepResult(143, (), ABORTED, 1.0, "srun", ""), request) == ""


def with_srun(folder: Path, text: str) -> Slurm:
    (folder / "srun").write_text(f"#!/bin/sh\n{text}")
    (folder / "srun").chmod(0o755)
    return Slurm(LocalTransport({"PATH": f"{folder}:{os.environ['PATH']}"}))


def test_a_step_that_is_ended_before_its_task_has_begun_blames_no_node(tmp_path: Path) -> None:
    """The output of srun when the holder of the allocation was killed at that moment."""
    slurm = with_srun(tmp_path, f"echo '{ABORTED}' >&2\nexit 143\n")
    with pytest.raises(SlurmError, match="the step was ended from outside"):
        run_step(slurm, Allocation.attach(slurm, 78, ("gpu03",)), StepRequest(("true",)))


@pytest.mark.parametrize(
    ("why", "to_blame"), [("Job credential revoked", set()), ("Invalid job credential", {"gpu01"})]
)
def test_a_node_that_heard_of_the_end_of_the_job_first_is_not_to_blame(
    tmp_path: Path, why: str, to_blame: set[str]
) -> None:
    """What srun says when the holder of the allocation is killed while the agents start."""
    lines = (
        f"srun: error: Task launch for StepId=78.0 failed on node gpu01: {why}",
        f"srun: error: Application launch failed: {why}",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
    )
    text = "\n".join(lines)
    slurm = with_srun(tmp_path, f"echo '{text}' >&2\nexit 1\n")
    with Fleet.over_slurm(slurm, Allocation.attach(slurm, 78, ("gpu01", "gpu02"))) as fleet:
        fleet.wait_started()
        assert why in fleet.lost["gpu01"]
        assert fleet.disconnected == {"gpu01", "gpu02"} - to_blame
        assert set(fleet.launch_failed) == to_blame


def test_a_step_of_many_tasks_keeps_a_bounded_part_of_each() -> None:
    assert fair_cap(StepRequest(("true",), ntasks=8)) == StepRequest(("true",)).cap
    assert 2 * 1024 * fair_cap(StepRequest(("true",), ntasks=1024)) == STEP_CAP
    assert fair_cap(StepRequest(("true",), ntasks=1 << 20)) == LEAST_CAP


def test_commands_in_error_messages_have_no_secrets(tmp_path: Path) -> None:
    secret = "s3cr3t-h7Kq"
    slurm = with_srun(tmp_path, "exit 3\n")
    for argv in (("srun", f"--comment=MY_TOKEN={secret}"), ("sleep", "60", f"A_TOKEN={secret}")):
        with pytest.raises(SlurmError) as caught:
            slurm.run(*argv, timeout=0.5)
        assert secret not in str(caught.value)
