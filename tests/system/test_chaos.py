"""Runs that meet trouble leave nothing behind and blame nobody wrongly: the campaign of `make chaos` in small."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from paths import ROOT
from plugin_helpers import run_pytest
from sandbox_helpers import DEADLINE, queue, wait_for

sys.path.insert(0, str(ROOT / "tools"))
import chaos

if TYPE_CHECKING:
    from pytest_gpucluster.sandbox import Sandbox


# --- the campaign


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("signal", 12),  # pytest -n2
        ("full", 6),
        ("jobs", 11),  # SIGKILL while jobs are submitted
    ],
)
def test_a_run_that_meets_trouble(sandbox: Sandbox, tmp_path: Path, kind: str, number: int) -> None:
    sandbox.fault("gpu_missing", chaos.FAULTY, gpu=1)
    campaign = chaos.Campaign(sandbox, tmp_path, 20261, (kind,), gpus=8)
    reported = campaign.once(number, print)
    assert reported.faults == []


# --- what it has found


def test_a_run_that_is_stopped_before_its_first_test_leaves_no_reports(tmp_path: Path) -> None:
    conftest = "import os, signal\ndef pytest_sessionstart(session):\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    run = run_pytest(
        tmp_path, "--cluster=local", files={"conftest.py": conftest, "test_x.py": "def test_x(gpucluster_node): pass\n"}
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
    done = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    folder, there = done.stdout.split()
    assert there == "True"
    assert Path(folder).parent == tmp_path
    wait_for(lambda: not list(tmp_path.iterdir()), "the folder is gone")


# the shell that holds an allocation has a session of its own
SALLOC = """
import os, subprocess
def salloc():
    ours = subprocess.run(["pgrep", "-d,", "-P", str(os.getpid())], stdout=subprocess.PIPE, text=True, check=True)
    found = subprocess.run(["pgrep", "-x", "-s", ours.stdout.strip(), "salloc"], stdout=subprocess.PIPE, check=True)
    return int(found.stdout)
"""
HELD = f"""{SALLOC}
import signal
from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.transport import LocalTransport
held = Allocation.request(Slurm(LocalTransport()), AllocationRequest(count=1))
"""
# which of the two ends first is chance
BOTH_KILLED = f"{HELD}os.kill(salloc(), signal.SIGKILL)\nos.kill(os.getpid(), signal.SIGKILL)\n"
SALLOC_STOPPED = f"{HELD}os.kill(salloc(), signal.SIGSTOP)\nheld.release()\n"


@pytest.mark.parametrize(("code", "rc"), [(BOTH_KILLED, -signal.SIGKILL), (SALLOC_STOPPED, 0)])
def test_nodes_are_given_back_when_salloc_does_not_answer(sandbox: Sandbox, code: str, rc: int) -> None:
    env = {**os.environ, **sandbox.env}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=False, timeout=DEADLINE)
    assert done.returncode == rc
    wait_for(lambda: not queue(sandbox), "the nodes are back")


# a scancel whose second call begins when the job is submitted
LATE_SCANCEL = """#!/bin/sh
cd {folder}
echo x >>calls
[ $(wc -l <calls) != 2 ] || until [ -e submitted ]; do sleep 0.05; done
exec {scancel} "$@"
"""


def test_a_submission_that_outlives_us_is_cancelled_too(sandbox: Sandbox, tmp_path: Path) -> None:
    code = """
import os, signal, subprocess
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.job_cleanup import JobGuard
from pytest_gpucluster.cluster.transport import LocalTransport
guard = JobGuard(Slurm(LocalTransport({"PATH": os.environ["PATH"]})))
late = f"until [ -e calls ]; do sleep 0.05; done; sbatch --job-name={guard.name} --begin=now+600 -o /dev/null --wrap true; >submitted"
subprocess.Popen(["sh", "-c", late], start_new_session=True, stdout=subprocess.DEVNULL)
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = sandbox.env.get("PATH", os.environ["PATH"])
    tool = tmp_path / "scancel"
    tool.write_text(LATE_SCANCEL.format(folder=tmp_path, scancel=shutil.which("scancel", path=path)))
    tool.chmod(0o755)
    env = {**os.environ, **sandbox.env, "PATH": f"{tmp_path}:{path}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    wait_for((tmp_path / "submitted").exists, "the job is submitted")
    wait_for(lambda: not queue(sandbox), "the job is cancelled")
