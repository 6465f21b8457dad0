"""Steps, the diagnostic step and its checks on a real Slurm, and what the checks say of bad facts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from pytest_gpucluster.cluster.channel.channel import Fleet
from pytest_gpucluster.cluster.environment import login_lines
from pytest_gpucluster.cluster.slurm import step
from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.cluster.slurm.step import (
    LEAST_CAP,
    STEP_CAP,
    StepRequest,
    ended_from_outside,
    fair_cap,
    run_step,
    srun_endings,
)
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.config.models import EnvironmentConfig
from pytest_gpucluster.core.errors import SlurmError, StepCancelled, StepError, StepTimeout
from pytest_gpucluster.core.probe import last_line
from pytest_gpucluster.kit.framework import framework_step
from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig
from pytest_gpucluster.kit.mpi import mpi_step as mpi
from pytest_gpucluster.kit.nccl import nccl_step as nccl
from pytest_gpucluster.suites.container import containers
from pytest_gpucluster.suites.container import steps as container_steps
from pytest_gpucluster.suites.slurm import diagnostic_step as diagnostic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

NODES = ("gpu01", "gpu02")


@pytest.fixture
def held(sandbox: Sandbox) -> Iterator[Allocation]:
    slurm = Slurm(LocalTransport(sandbox.env))
    with Allocation.request(slurm, AllocationRequest(nodes=NODES)) as allocation:
        yield allocation


def _run(held: Allocation, script: str, **options: Any) -> StepResult:
    return run_step(held.slurm, held, StepRequest(("sh", "-c", script), **options))


class NoSlurm(LocalTransport):
    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[Any, Any]] = []

    def spawn(self, argv: Any, *, env: Any = None) -> Any:
        self.begun.append((argv, env))
        raise StepError("no srun")


@pytest.mark.parametrize("image", [None, "/i.sqsh"])
def test_a_task_outside_of_a_container_begins_with_what_a_login_sets(image: str | None) -> None:
    slurm = Slurm(NoSlurm())
    place = EnvironmentConfig(container_image=image, exports={"A": "1"})
    with pytest.raises(StepError, match="no srun"):
        run_step(slurm, Allocation(slurm, 7, NODES), StepRequest(("true",), environment=place))
    transport: Any = slurm.transport
    ((argv, env),) = transport.begun
    assert any(login_lines() in word for word in argv) is (image is None)
    assert "--propagate=NONE" in argv  # a step has the limits of slurmd, not those of the shell
    assert (env["SLURM_EXPORT_ENV"], env["SLURM_TIME_FORMAT"], env["A"]) == ("ALL", "standard", "1")


@pytest.mark.thorough
def test_every_task_is_distinguished(held: Allocation) -> None:
    script = """
    echo out $SLURM_PROCID "$V"; printf open; echo err >&2; printf e >&2
    [ $SLURM_PROCID = 1 ] && exit 42; [ $SLURM_PROCID = 2 ] && kill -SEGV $$; exit 0"""
    result = _run(held, script, ntasks_per_node=2, env={"V": "a,b c'd\"$X"})
    ends = [(0, "gpu01", 0, None), (1, "gpu01", 42, None), (2, "gpu02", 139, 11), (3, "gpu02", 0, None)]
    assert [(t.rank, t.node, t.rc, t.signal) for t in result.tasks] == ends
    assert result.tasks[3].stdout == "out 3 a,b c'd\"$X\nopen\n"
    assert result.tasks[3].stderr == "err\ne"
    assert not result.ok
    assert "--nodelist=gpu[01-02]" in result.command
    assert "--jobid" not in result.command


@pytest.mark.thorough
def test_long_lines_stay_whole_and_output_is_capped(held: Allocation) -> None:
    sizes = (1023, 1024, 1025, 2048, 5000)
    script = "cat; " + "".join(f"head -c {size} /dev/zero | tr '\\0' x; echo; " for size in sizes)
    for task in _run(held, script, input=b"hello\n").tasks:
        assert tuple(map(len, task.stdout.splitlines())) == (5, *sizes)
    for task in _run(held, script, cap=2000).tasks:
        assert (task.truncated, len(task.stdout), task.rc) == (True, 2000, 0)


@pytest.mark.thorough
def test_a_deadline_names_who_had_not_ended(held: Allocation) -> None:
    script = 'trap "" TERM; echo partial; [ $SLURM_PROCID = 1 ] && sleep 300; exit 0'
    with pytest.raises(StepTimeout, match=r"1 of 2 tasks did not end, on gpu02: task 1") as caught:
        _run(held, script, timeout=12)
    assert isinstance(caught.value.result, StepResult)
    assert caught.value.result.tasks[1].stdout == "partial\n"
    assert _run(held, "true").ok  # the nodes are free again


@pytest.mark.thorough
def test_hanging_node_is_cut(held: Allocation, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "STRAGGLER", 5.0)
    sandbox.fault("node_hanging", "gpu02")
    with pytest.raises(StepTimeout, match=r"no task started on gpu02 \(") as caught:
        _run(held, "true", timeout=900)
    assert caught.value.unstarted == ("gpu02",)
    assert caught.value.unended == {}


@pytest.mark.thorough
def test_a_step_with_enough_output_is_ended(held: Allocation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "ENOUGH_GRACE", 5.0)
    script = "echo part$SLURM_PROCID; [ $SLURM_PROCID = 1 ] && sleep 900; exit 0"
    with pytest.raises(StepTimeout, match="on gpu02: task 1") as caught:
        _run(held, script, timeout=900, enough=lambda text: "part0" in text and "part1" in text)
    assert caught.value.unended == {1: "gpu02"}


@pytest.mark.thorough
def test_what_cannot_start_is_one_line(held: Allocation) -> None:
    with pytest.raises(StepError, match=r"no task started.*mpi/nosuch") as caught:
        _run(held, "true # a payload\n# and its source", mpi="nosuch")
    assert "\n" not in str(caught.value)
    assert "and its source" not in str(caught.value)
    assert str(caught.value).startswith(f"{caught.value.brief.removesuffix(')')}; repeat: ")
    result = _run(held, "echo ran", environment=EnvironmentConfig(modules=("nosuch/1.0",)))
    assert [task.rc for task in result.tasks] == [1, 1]
    assert "ran" not in result.tasks[0].stdout
    assert "module load nosuch/1.0: failed" in result.tasks[0].stderr
    result = run_step(held.slurm, held, StepRequest(("gpucluster-nowhere",)))
    assert {last_line(task.stderr) for task in result.tasks} == {"gpucluster-nowhere: command not found"}


def test_what_srun_says_of_endings() -> None:
    text = (
        "srun: error: gpu01: task 0: Exited with exit code 7\n"
        "srun: error: gpu[01-02]: tasks 1,3-4: Killed\nsrun: error: gpu02: task 5: Segmentation fault (core dumped)\n"
    )
    killed = [("", rank, 137, 9) for rank in (1, 3, 4)]
    assert srun_endings(text) == [("gpu01", 0, 7, None), *killed, ("gpu02", 5, 139, 11)]


def _timed_out(reported: dict[str, int]) -> Any:
    """Make a run_step of two tasks a node of which so many told something until the deadline."""

    def run_step(_slurm: object, _allocation: object, request: StepRequest) -> StepResult:
        nodes = [(node, i) for node, count in reported.items() for i in range(count)]
        said = [f"diagnostic|{n}|{node}|{i}|2|0|0||0-1|0-1|tok|end\n" for n, (node, i) in enumerate(nodes)]
        tasks = tuple(TaskResult(n, node, 0, None, said[n]) for n, (node, _) in enumerate(nodes))
        error = StepTimeout("srun: cancelled after 60 s", argv=["srun"], rc=None, stderr="")
        error.result = StepResult(-1, tasks, "", request.timeout, "srun sh")
        raise error

    return run_step


def test_a_diagnostic_step_out_of_time_accuses_a_few_nodes_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(NoSlurm())
    monkeypatch.setattr(slurm, "nodes", dict)
    held = Allocation(slurm, 7, ("gpu01", "gpu02", "gpu03"))
    monkeypatch.setattr(diagnostic, "run_step", _timed_out({"gpu01": 2, "gpu02": 1, "gpu03": 2}))
    found = diagnostic.run_diagnostic(slurm, held, {})
    assert [one.node for one in found.values() if one.problem] == ["gpu02"]
    assert found["gpu02"].problem.startswith("1 of 2 tasks of the step reported: srun: cancelled")
    monkeypatch.setattr(diagnostic, "run_step", _timed_out({"gpu01": 2, "gpu02": 1}))
    with pytest.raises(StepTimeout):  # the machine is slow: an error, and no verdict on two of three nodes
        diagnostic.run_diagnostic(slurm, held, {})


@pytest.mark.parametrize("module", [container_steps, containers, mpi, nccl, framework_step, diagnostic])
def test_a_step_that_was_ended_is_no_answer(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    def run_step(*_: object) -> StepResult:
        raise StepCancelled("srun was killed by signal 9", argv=["srun"], rc=-9, stderr="no such image")

    monkeypatch.setattr(module, "run_step", run_step)
    request, one = StepRequest(("true",), nodes=NODES), MagicMock(nodes=NODES)
    runner: Any = framework_step.FrameworkStepRunner(one, one, {}, FrameworkConfig(), NODES)
    ways: dict[Any, Callable[[], object]] = {
        container_steps: lambda: container_steps.ContainerSteps._run(one, request),
        containers: lambda: containers.NamedContainers._import(one, "image", "name", NODES),
        mpi: lambda: mpi.attempt(one, one, request),
        nccl: lambda: nccl.NcclStep._try(one, request, apart=False),
        framework_step: lambda: framework_step.FrameworkStepRunner.attempt(runner, request),
        diagnostic: lambda: diagnostic.run_diagnostic(one, one, {}),
    }
    with pytest.raises(StepCancelled):
        ways[module]()


class Late(LocalTransport):
    """An srun whose second task begins after more than STRAGGLER seconds, while the step still runs."""

    def spawn(self, argv: Any, *, env: Any = None) -> Any:
        nonce = argv[argv.index("-c") + 2]
        begin = f'begin() {{ echo "$1: {nonce} begin $1 $2 0" >&2; }}; end() {{ echo "$1: {nonce} end $1 $2 0" >&2; }}'
        script = f"{begin}; begin 0 gpu01; sleep 1.5; begin 1 gpu02; sleep 5; end 0 gpu01; end 1 gpu02"
        return super().spawn(("sh", "-c", script), env=env)


@pytest.mark.thorough
def test_a_node_that_begins_late_but_begins_costs_the_step_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "STRAGGLER", 5.0)
    monkeypatch.setattr(step, "STRAGGLER_FACTOR", 0.0)
    slurm = Slurm(Late())
    result = run_step(slurm, Allocation(slurm, 7, NODES), StepRequest(("true",), timeout=60))
    assert [task.rc for task in result.tasks] == [0, 0]


# --- who ended a step

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
        (1, "srun: error: Task launch for StepId=3.1 failed on node gpu01: Job credential revoked", "its job"),
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
def test_a_node_that_first_heard_the_end_is_no_cause(tmp_path: Path, why: str, to_blame: set[str]) -> None:
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
        assert why in fleet.lost["gpu01"].text
        assert fleet.disconnected == {"gpu01", "gpu02"} - to_blame
        assert {node: it.code for node, it in fleet.launch_failed.items()} == dict.fromkeys(to_blame, "starts_no_task")


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
