"""`gpucluster gate` as the Prolog and the HealthCheckProgram of a real Slurm, and inside a job."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from process_helpers import counted
from sandbox_helpers import DEADLINE, wait_for

from pytest_gpucluster.cluster.slurm.inventory import parse_nodes
from pytest_gpucluster.drain.reason import read_reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.sandbox import Sandbox

GATE = Path(sys.executable).with_name("gpucluster")
BAD, BEFORE = "gpu02", "prolog.before"


def slurm(sandbox: Sandbox, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=sandbox.env, capture_output=True, text=True, timeout=DEADLINE, check=False)


def node(sandbox: Sandbox, name: str) -> tuple[frozenset[str], str]:
    """Return the flags and the reason of a node."""
    info = parse_nodes(slurm(sandbox, "scontrol", "show", "node", "-o", name).stdout)[name]
    return info.flags, info.reason


@pytest.fixture
def gated(sandbox: Sandbox, tmp_path: Path) -> Iterator[Path]:
    """Return a cluster file with a folder for the breaker; sandbox and scripts are as before afterwards."""
    sandbox.heal()
    cluster = tmp_path / "prod.yaml"
    plain = yaml.safe_load(sandbox.cluster_file.read_text())
    cluster.write_text(yaml.safe_dump({**plain, "gate": {"state": str(tmp_path / "state")}}))
    prolog = sandbox.cluster_file.parent / "etc" / "prolog"
    before = prolog.read_text()
    yield cluster
    prolog.write_text(before)
    sandbox.heal()
    for name in sandbox.nodes:
        if "DRAIN" in node(sandbox, name)[0]:
            slurm(sandbox, "scontrol", "update", f"NodeName={name}", "State=UNDRAIN")


def gate_line(sandbox: Sandbox, cluster: Path, *words: str) -> str:
    """Return sh lines that run a gate as a daemon of the node does: with the simulated tools of the node."""
    root = sandbox.cluster_file.parent
    return (
        f"PATH={root}/simbin:$PATH SLURM_SANDBOX_NODE={root}/nodes/$SLURMD_NODENAME "
        f"{GATE} gate --cluster {cluster} --folder {cluster.parent}/share.$SLURMD_NODENAME {' '.join(words)}"
    )


def test_a_prolog_with_the_gate_drains_the_bad_node_and_the_job_runs_elsewhere(sandbox: Sandbox, gated: Path) -> None:
    prolog = sandbox.cluster_file.parent / "etc" / "prolog"
    log = gated.parent / "gates"
    script = gate_line(sandbox, gated, "--context", "prolog", "--budget", "60s")
    prolog.write_text(prolog.read_text().replace("exit 0\n", f"{{ echo $SLURMD_NODENAME; {script}; }} >>{log} 2>&1\n"))
    sandbox.fault("remap_failure", BAD)
    out = gated.parent / "out"
    words = ("--requeue", f"--output={out}", "--nodes=1", f"--nodelist={BAD}", "--wrap", "echo ran")
    job = slurm(sandbox, "sbatch", "--parsable", *words).stdout.strip()
    wait_for(lambda: "DRAIN" in node(sandbox, BAD)[0], "the node is drained")
    assert "gpucluster:gpu.remapped_rows" in log.read_text()
    flags, reason = node(sandbox, BAD)
    assert "Prolog" in reason, (flags, reason)
    state = ("squeue", "-h", "-j", job, "-o", "%T")
    wait_for(lambda: slurm(sandbox, *state).stdout.strip() == "PENDING", "it is requeued")
    slurm(sandbox, "scontrol", "update", f"JobId={job}", "ReqNodeList=")
    slurm(sandbox, "scontrol", "release", job)  # Slurm holds it, and has a later StartTime
    slurm(sandbox, "scontrol", "update", f"JobId={job}", "StartTime=now")
    wait_for(lambda: out.exists() and "ran" in out.read_text(), "the job runs elsewhere")
    assert log.read_text().count("gpucluster: OK: ") >= 1


def test_a_health_check_drains_its_node_and_takes_back_what_it_set_itself(sandbox: Sandbox, gated: Path) -> None:
    words = ("--context", "health", "--drain", "--fresh", "0", "--budget", "60s")
    health = f"export SLURMD_NODENAME={BAD}; {gate_line(sandbox, gated, *words)}"

    def check() -> str:
        done = slurm(sandbox, "sh", "-c", health)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert check().startswith("gpucluster: OK: ")
    (shared,) = yaml.safe_load(gated.read_text())["os"]["shared_storage"]
    assert list(Path(shared).glob(".gpucluster-*")) == [], "the file of os.shared_storage is removed"
    sandbox.fault("remap_failure", BAD)
    assert "drained: gpucluster:gpu.remapped_rows " in check()
    flags, reason = node(sandbox, BAD)
    found = read_reason(BAD, reason)
    assert "DRAIN" in flags
    assert found is not None
    assert found.run.startswith("gate-")
    assert f"not drained: drained by gpucluster already, in run {found.run}" in check()
    sandbox.heal()
    assert check().splitlines()[-1] == "resumed: gpu.remapped_rows passed"
    assert "DRAIN" not in node(sandbox, BAD)[0]
    # a person who drains the node, or edits the reason, keeps it
    sandbox.fault("remap_failure", BAD)
    check()
    slurm(sandbox, "scontrol", "update", f"NodeName={BAD}", "State=DRAIN", "Reason=ticket 7")
    sandbox.heal()
    assert "resumed" not in check()
    assert node(sandbox, BAD)[1] == "ticket 7"
    # a state that a person set without a drain stays as well
    slurm(sandbox, "scontrol", "update", f"NodeName={BAD}", "State=UNDRAIN")
    slurm(sandbox, "scontrol", "update", f"NodeName={BAD}", "State=FAIL", "Reason=ticket 8")
    sandbox.fault("remap_failure", BAD)
    assert 'not drained: it has another reason: "ticket 8"' in check()
    assert node(sandbox, BAD)[1] == "ticket 8"
    slurm(sandbox, "scontrol", "update", f"NodeName={BAD}", "State=UNDRAIN")
    slurm(sandbox, "scontrol", "update", f"NodeName={BAD}", "State=RESUME")


def requests(sandbox: Sandbox) -> set[str]:
    """Return the types of requests that slurmctld has counted since its statistics were reset, without those of its daemons."""
    table = slurm(sandbox, "sdiag").stdout.partition("by message type")[2].partition("by user")[0]
    found = set(re.findall(r"^\s+(\w+)\s+\( *\d+\) +count:[1-9]", table, re.MULTILINE))
    return {name for name in found if name == name.upper()} - {"MESSAGE_NODE_REGISTRATION_STATUS"}


def test_gates_send_slurmctld_no_request(sandbox: Sandbox, gated: Path) -> None:
    slurm(sandbox, "sdiag", "--reset")
    for name in sandbox.nodes:
        argv = ["sh", "-c", f"SLURMD_NODENAME={name}; export SLURMD_NODENAME; {gate_line(sandbox, gated)}"]
        done = slurm(sandbox, *argv)
        assert done.returncode == 0, done.stdout + done.stderr
    assert requests(sandbox) <= {"REQUEST_STATS_INFO"}  # of sdiag
    slurm(sandbox, "sinfo")
    assert "REQUEST_PARTITION_INFO" in requests(sandbox)  # so requests are counted


# a gate without known answers: its processes and threads, those of the simulated tools too. benchmarks/processes.py counts ours.
MOST_PROCESSES = 300  # 260 when it was set; other programs of a machine change a few


@pytest.mark.essential
@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace needs root")
def test_a_gate_starts_few_processes(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.heal()
    count = tmp_path / "count"
    gate = [str(GATE), "gate", f"--cluster={sandbox.cluster_file}", "--budget=60s", f"--folder={tmp_path}/share"]
    srun = ["srun", "-N1", "-w", sandbox.nodes[0], "--gres=gpu:8", "--exclusive"]
    done = slurm(sandbox, *srun, *counted(count, *gate))
    assert "OK: " in done.stdout, done.stdout + done.stderr
    assert 0 < int(count.read_text()) <= MOST_PROCESSES


@pytest.mark.essential
def test_the_gates_of_a_job_name_the_nodes_to_leave_out(sandbox: Sandbox, gated: Path) -> None:
    sandbox.fault("remap_failure", BAD)
    words = ["--cluster", str(gated), "--context", "job", "--budget", "60s", f"--folder={gated.parent}/share"]
    script = f"""
export SLURM_JOB_NODELIST=gpu[01-03]
srun -N3 -w gpu[01-03] --ntasks-per-node=1 --gres=gpu:8 --exclusive {GATE} gate {" ".join(words)} | {GATE} gate --collect"""
    done = slurm(sandbox, "sh", "-c", script)
    assert done.stdout == f"--exclude={BAD}\n", done.stderr
    assert f"{BAD}: gpu.remapped_rows " in done.stderr
