"""Runs that meet trouble leave nothing behind and blame nobody wrongly: the campaign of `make chaos` in small."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from paths import ROOT
from plugin_helpers import run_pytest
from sandbox_helpers import queue, wait_for

import pytest_gpucluster
import slurm_sandbox
from pytest_gpucluster.cluster.channel.channel import Fleet
from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest, _Holder
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.result import StepResult
from pytest_gpucluster.cluster.slurm.step import StepRequest, ended_from_outside, run_step
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.core.errors import AllocationError, SlurmError
from pytest_gpucluster.report.events import EventLog, read_events

sys.path.insert(0, str(ROOT / "tools"))
import chaos

if TYPE_CHECKING:
    from pytest_gpucluster.sandbox import Sandbox


# --- the campaign


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("signal", 12),  # pytest -n2
        ("signal", 77),  # salloc killed
        ("end", 1),
        ("full", 6),
        ("intrusive", 11),  # SIGKILL while jobs are submitted
    ],
)
def test_a_run_that_meets_trouble(sandbox: Sandbox, tmp_path: Path, kind: str, number: int) -> None:
    sandbox.fault("gpu_missing", chaos.FAULTY, gpu=1)
    campaign = chaos.Campaign(sandbox, tmp_path, 20261, (kind,), gpus=8)
    reported = campaign.once(number, print)
    assert reported.faults == []


def test_the_figure_of_a_campaign() -> None:
    figure = chaos.figure(
        [chaos.RunOutcome(1, "signal", "KILL"), chaos.RunOutcome(2, "full", "x", [("lost", "y")])], 3
    )
    assert figure == "chaos: 2 runs, seed 3 (1 signal, 1 full): leaked 0, lost 1, wrong 0"


def result(item: str, outcome: str, message: str = "") -> dict[str, Any]:
    return {"event": "result", "nodeid": f"test_x.py::{item}", "outcome": outcome, "message": message}


@pytest.mark.parametrize(
    ("event", "fine"),
    [
        (result("test_quick[gpu01]", "passed"), True),
        (result("test_quick[gpu01]", "failed", "GPUs"), False),
        (result("test_quick[gpu01]", "error", "srun ended"), True),
        (result("test_quick[gpu01]", "error"), False),
        (result("test_count[gpu03]", "failed", "GPUs"), True),
        (result("test_count[gpu03]", "passed"), False),
        (result("test_count[gpu03]", "not tested", "lost"), True),
    ],
)
def test_what_the_campaign_calls_wrong(event: dict[str, Any], fine: bool) -> None:  # a table
    assert (chaos.wrong_verdict(event) == "") == fine


def test_what_the_campaign_calls_lost(sandbox: Sandbox, tmp_path: Path) -> None:
    campaign = chaos.Campaign(sandbox, tmp_path, 1, ("signal",))
    (tmp_path / "reports" / "latest").mkdir(parents=True)
    start = {"event": "start"}
    passed = result("test_quick[gpu01]", "passed")
    text = "\n".join((json.dumps(start), '{"event": "resu', json.dumps(passed), '{"cut'))
    (tmp_path / "reports" / "latest" / "events.jsonl").write_text(text)
    (tmp_path / "witness").write_text('"test_x.py::test_quick[gpu01]"\n"test_x.py::test_quick[gpu02]"\n')
    (tmp_path / "out").write_text("INTERNALERROR> x")
    reported = chaos.RunOutcome(1, "signal", "x", rc=0)
    with subprocess.Popen(["true"], text=True) as process:
        process.wait()
        campaign._judge_events(chaos.Running(process, campaign.plan, "X=1", tmp_path, False, 0.0), reported)
    assert [kind for kind, _ in reported.faults] == ["lost", "lost", "wrong", "wrong", "lost"]
    assert "line 2 cannot be read" in reported.faults[0][1]
    assert "test_quick[gpu02] has ended" in reported.faults[1][1]


# --- what it has found


def test_an_event_log_goes_on_after_a_full_disk(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", "run")
    log.write("start", text="x" * 500)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, hard))
        log.write("cut", text="y" * 500)
        log.write("dropped")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.strerror(errno.EFBIG) in log.failed
    log.write("finish")
    log.close()
    assert [event["event"] for event in read_events(log.path)] == ["start", "finish"]


def test_a_run_that_is_stopped_before_its_first_test_leaves_no_reports(tmp_path: Path) -> None:
    conftest = (
        "import os, signal\ndef pytest_sessionstart(session):\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    run = run_pytest(
        tmp_path,
        "--cluster=local",
        files={"conftest.py": conftest, "test_x.py": "def test_x(gpucluster_node): pass\n"},
    )
    assert run.rc == 2, run.out
    assert not (tmp_path / "reports").exists()


def test_the_relay_of_a_killed_controller_leaves_no_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    tmp_path = tmp_path_factory.mktemp("r")  # short enough for the path of a socket
    code = """
import os, signal
from pytest_gpucluster.cluster.channel.channel_server import FleetServer
server = FleetServer(None)
print(os.path.dirname(server.address[0]), os.path.exists(server.address[0]))
os.kill(os.getpid(), signal.SIGKILL)
"""
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    folder, there = done.stdout.split()
    assert there == "True"
    assert Path(folder).parent == tmp_path
    wait_for(lambda: not list(tmp_path.iterdir()), "the folder is gone")


def test_nodes_are_given_back_when_salloc_is_killed_and_then_we_are(sandbox: Sandbox) -> None:
    code = """
import os, signal, subprocess
from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.transport import LocalTransport
held = Allocation.request(Slurm(LocalTransport()), AllocationRequest(count=1))
guard = held._holder.process.pid
subprocess.run(["pkill", "-KILL", "-x", "-s", str(guard), "salloc"], check=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    env = {**os.environ, **sandbox.env}
    for _ in range(5):  # which of the two ends first is chance
        done = subprocess.run([sys.executable, "-c", code], env=env, check=False, timeout=1200)
        assert done.returncode == -signal.SIGKILL
        wait_for(lambda: not queue(sandbox), "the nodes are back")


def test_a_submission_that_outlives_us_is_cancelled_too(sandbox: Sandbox) -> None:
    code = """
import os, signal, subprocess
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.job_cleanup import JobGuard
from pytest_gpucluster.cluster.transport import LocalTransport
guard = JobGuard(Slurm(LocalTransport()))
late = f"sleep 1.5; sbatch --job-name={guard.name} --begin=now+600 -o /dev/null --wrap true"
subprocess.Popen(["sh", "-c", late], start_new_session=True, stdout=subprocess.DEVNULL)
print(guard.name, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    env = {**os.environ, **sandbox.env}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert "gpucluster-diagnostic-" in done.stdout
    time.sleep(2)  # it has been submitted by then, or is about to be
    wait_for(lambda: not queue(sandbox), "the job is cancelled")
    time.sleep(2)
    assert not queue(sandbox)


def test_a_step_that_is_cancelled_blames_no_node(sandbox: Sandbox) -> None:
    slurm = Slurm(LocalTransport(sandbox.env))
    with Allocation.request(slurm, AllocationRequest(count=1)) as held:
        script = f"scancel {held.job_id}.$SLURM_STEP_ID; sleep 600"
        with pytest.raises(SlurmError, match="the step was ended from outside"):
            run_step(slurm, held, StepRequest(("sh", "-c", script), timeout=600))


SRUN_OF_AN_ENDED_JOB = """#!/bin/sh
echo "srun: Job step aborted: Waiting up to 4 seconds for job step to finish." >&2
echo "0: slurmstepd-gpu03: error: *** STEP 78.3 ON gpu03 FAILED (non-zero exit code or other failure mode) ***" >&2
echo "srun: error: gpu03: task 0: Terminated" >&2
exit 143
"""


def test_a_step_that_is_ended_before_its_task_has_begun_blames_no_node(tmp_path: Path) -> None:
    """The output of srun when the holder of the allocation was killed at that moment."""
    (tmp_path / "srun").write_text(SRUN_OF_AN_ENDED_JOB)
    (tmp_path / "srun").chmod(0o755)
    slurm = Slurm(LocalTransport({"PATH": f"{tmp_path}:{os.environ['PATH']}"}))
    with pytest.raises(SlurmError, match="the step was ended from outside"):
        run_step(slurm, Allocation.attach(slurm, 78, ("gpu03",)), StepRequest(("true",)))


@pytest.mark.parametrize(
    ("rc", "stderr", "why"),
    [
        (143, "srun: Job step aborted: Waiting up to 4 seconds\nsrun: error: gpu02: task 0: Terminated", "aborted"),
        (-9, "", "killed by signal 9"),
        (1, "slurmstepd: error: *** STEP 3.1 ON gpu01 CANCELLED AT 2026-11-21T10:00 DUE TO TIME LIMIT ***", "STEP 3"),
        (1, "slurmstepd: error: *** STEP 3.1 ON gpu01 CANCELLED AT 2026-11-21T10:00 DUE TO TASK FAILURE ***", ""),
        (1, "srun: error: task 0 launch failed: x\nsrun: Job step aborted", ""),
        (
            1,
            "srun: error: Task launch for StepId=3.1 failed on node gpu01: Job credential revoked",
            "its job ended",
        ),
        (137, "srun: error: gpu02: task 0: Killed", ""),
        (7, "srun: error: gpu02: task 0: Exited with exit code 7", ""),
    ],
)  # fmt: skip
def test_what_has_ended_a_step(rc: int, stderr: str, why: str) -> None:
    found = ended_from_outside(StepResult(rc, (), stderr, 1.0, "srun", ""), StepRequest(("true",)))
    assert why in found
    assert bool(why) == bool(found)


FAKE_SALLOC = """#!/bin/sh
echo "salloc: Granted job allocation 7" >&2
eval "n=\\${$#}"
echo gpu01
echo "$n 7 batch"
cat >/dev/null
kill -9 $$
"""


@pytest.fixture
def fake_slurm(tmp_path: Path) -> Slurm:
    """A salloc that grants, and is killed when the pipe closes; a scancel that is refused."""
    for name, text in {"salloc": FAKE_SALLOC, "scancel": "#!/bin/sh\necho no >&2\nexit 1\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return Slurm(LocalTransport({"PATH": f"{tmp_path}:{os.environ['PATH']}"}), retry_for=1)


REFUSING_SRUN = """#!/bin/sh
echo "srun: error: Task launch for StepId=78.0 failed on node gpu01: $WHY" >&2
echo "srun: error: Application launch failed: $WHY" >&2
echo "srun: Job step aborted: Waiting up to 32 seconds for job step to finish." >&2
exit 1
"""


@pytest.mark.parametrize(
    ("why", "to_blame"), [("Job credential revoked", False), ("Invalid job credential", True)]
)
def test_a_node_that_heard_of_the_end_of_the_job_first_is_not_to_blame(
    tmp_path: Path, why: str, *, to_blame: bool
) -> None:
    """What srun says when the holder of the allocation is killed while the agents start."""
    (tmp_path / "srun").write_text(REFUSING_SRUN)
    (tmp_path / "srun").chmod(0o755)
    slurm = Slurm(LocalTransport({"PATH": f"{tmp_path}:{os.environ['PATH']}", "WHY": why}))
    with Fleet.over_slurm(slurm, Allocation.attach(slurm, 78, ("gpu01", "gpu02"))) as fleet:
        fleet.wait_started()
        assert why in fleet.lost["gpu01"]
        assert fleet.disconnected == ({"gpu02"} if to_blame else {"gpu01", "gpu02"})
        assert set(fleet.launch_failed) == ({"gpu01"} if to_blame else set())


@pytest.mark.parametrize("listed", ["", "echo gpu02"])
def test_an_allocation_of_which_other_nodes_are_listed_is_refused(
    fake_slurm: Slurm, tmp_path: Path, listed: str
) -> None:
    """A `scontrol show hostnames` that was killed listed none: every node was accused of not answering."""
    (tmp_path / "salloc").write_text(FAKE_SALLOC.replace("echo gpu01", listed).replace("kill -9 $$", ""))
    with pytest.raises(AllocationError, match=f"listed {listed[5:] or 'no node'} in the job; run again"):
        Allocation.request(fake_slurm, AllocationRequest(nodes=("gpu01",)))


def test_an_allocation_that_cannot_be_given_back_is_reported(fake_slurm: Slurm) -> None:
    held = Allocation.request(fake_slurm, AllocationRequest(count=1))
    with pytest.raises(
        AllocationError, match=r"job 7 may still hold them: scancel: no .*: run scancel 7 once"
    ) as reported:
        held.release()
    assert "\n" not in str(reported.value)
    held.release()


def test_a_request_that_slurm_has_forgotten_is_not_waited_for(fake_slurm: Slurm) -> None:
    holder = _Holder(fake_slurm, AllocationRequest(count=1))
    try:
        holder._give_up_if_hopeless("unknown, squeue failed: squeue: Invalid job id specified")
        holder._give_up_if_hopeless("Resources")
        holder._give_up_if_hopeless("unknown, squeue failed: squeue: Invalid job id specified")
        with pytest.raises(AllocationError, match="no longer has the request"):
            holder._give_up_if_hopeless("unknown, squeue failed: squeue: Invalid job id specified")
    finally:
        with pytest.raises(AllocationError):
            holder.end(7)


def test_a_stopped_salloc_ends_all_the_same(sandbox: Sandbox) -> None:
    slurm = Slurm(LocalTransport(sandbox.env))
    held = Allocation.request(slurm, AllocationRequest(count=1))
    assert held._holder is not None
    guard = held._holder.process.pid
    found = subprocess.run(["pgrep", "-x", "-s", str(guard), "salloc"], stdout=subprocess.PIPE, check=True)
    os.kill(int(found.stdout), signal.SIGSTOP)  # one number, or it fails
    held.release()
    wait_for(lambda: not queue(sandbox), "the nodes are back")


def test_nothing_waits_by_the_wall_clock() -> None:
    """A deadline by time.time() moves when the clock is set; the places that tell the time of day are known."""
    known = {
        "slurm_sandbox/node_files.py": 4,  # files of a simulated node have times of day
        "slurm_sandbox/sandbox.py": 1,
        # a campaign lasts for days, over several processes and machines
        "campaign/campaign.py": 7,
        "campaign/store.py": 4,
        "cli/campaign.py": 1,
        "plugin/campaign.py": 4,
        # the age of answers that other processes have stored, and of runs
        "gate/baseline.py": 1,
        "gate/local.py": 1,
        "gate/shared.py": 1,
        "cli/history.py": 1,
        "report/fleet_runs.py": 1,
        "report/html_fleet.py": 1,
        "report/progress.py": 1,
        "report/events.py": 1,
        "cli/watch.py": 1,  # how long ago the run began, of whose events it has the time of day
        "cluster/channel/channel.py": 3,
        "run/session.py": 1,  # the run's start, for the age of lines in logs
        "suites/burnin/payload_gpu.py": 2,  # bursts begin at the same time of day on all nodes
        "suites/controller/steps.py": 1,
        "suites/controller/test_controller.py": 1,
        "suites/isolation/payload.py": 1,
        "suites/kubernetes/leftovers.py": 1,
        "suites/monitoring/steps.py": 3,
    }
    src, sandbox = Path(pytest_gpucluster.__file__).parent, Path(slurm_sandbox.__file__).parent
    found = {
        str(path.relative_to(src if src in path.parents else sandbox.parent)): count
        for path in (*src.rglob("*.py"), *sandbox.rglob("*.py"))
        if (
            count := sum("time.time()" in line and "``" not in line for line in path.read_text().splitlines())
        )
    }
    found.pop("core/probe.py", None)  # a docstring
    assert found == known
