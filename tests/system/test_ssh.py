"""A cluster over SSH: the same verdicts as on its login node, and nothing left when the connection or we die."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from forked import DEFAULT_SIGNALS
from plugin_helpers import TINY, Run, command, names, on, run_pytest, write_suites
from sandbox_helpers import DEADLINE, environment, queue, slurm, wait_for
from ssh_helpers import WHY_NOT, Sshd, sshd

from pytest_gpucluster import suites_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
SUITES = (str(suites_path()),)
# of a machine without Slurm; what sshd gives to its sessions is another matter
NO_SLURM = {"PATH": "/no/such/folder", "SLURM_CONF": "/no/such/slurm.conf"}

STEPS = """
def test_named(gpucluster_node, gpucluster_srun):
    done = gpucluster_srun(["printenv", "SLURMD_NODENAME", "WORD"], nodes=(gpucluster_node.name,), env={"WORD": "it's \\"a\\" $word"})
    assert done.tasks[0].stdout == gpucluster_node.name + "\\n" + "it's \\"a\\" $word\\n"


def test_signal(gpucluster_node, gpucluster_srun):
    assert gpucluster_srun(["sh", "-c", "kill -9 $$"], nodes=(gpucluster_node.name,)).tasks[0].signal == 9


def test_release(host):
    assert host.file("/etc/os-release").exists
"""
LONG = """
import pathlib


def test_long(host):
    pathlib.Path("began").touch()
    assert host.run("sleep 100").rc == 0
"""


@pytest.fixture(scope="module")
def login() -> Iterator[Sshd]:
    with tempfile.TemporaryDirectory(prefix="ssh-") as folder, sshd(Path(folder) / "d") as server:
        yield server


def far_file(sandbox: Sandbox, server: Sshd, folder: Path, **keys: Any) -> Path:
    """Write the sandbox's cluster file with a login node in it."""
    data = yaml.safe_load(sandbox.cluster_file.read_text())
    path = folder / "far.yaml"
    path.write_text(json.dumps({**data, "transport": server.keys(), **keys}))  # JSON is YAML
    return path


def over(sandbox: Sandbox, server: Sshd, folder: Path, *args: object, **options: Any) -> Run:
    """Run pytest as on a machine without Slurm."""
    cluster = far_file(sandbox, server, folder)
    return run_pytest(folder, f"--cluster={cluster}", *args, env=NO_SLURM, **options)


def begun(sandbox: Sandbox, server: Sshd, folder: Path) -> subprocess.Popen[str]:
    """Start pytest on a test that takes long, and return when it runs."""
    write_suites(folder, {"test_long.py": LONG})
    process = subprocess.Popen(
        [*DEFAULT_SIGNALS, *command(f"--cluster={far_file(sandbox, server, folder)}", ".")],
        cwd=folder,
        env=environment(**NO_SLURM),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for((folder / "began").exists, "the long test runs", DEADLINE)
    assert queue(sandbox)
    return process


def released(sandbox: Sandbox) -> None:
    wait_for(lambda: not queue(sandbox), "the allocation is given back")
    idle = ("sinfo", "-h", "-p", "batch", "-o", "%T")
    wait_for(lambda: slurm(sandbox, *idle).split() == ["idle"], "all nodes are idle")


def test_the_verdicts_are_those_of_the_login_node(sandbox: Sandbox, login: Sshd, tmp_path: Path) -> None:
    """The suites slurm, os and gpu with faults in two nodes, here and over SSH."""
    sandbox.fault("gpu_missing", "gpu02")
    sandbox.fault("sysctl", "gpu03")
    folders = [tmp_path / name for name in ("here", "there")]
    for folder in folders:
        folder.mkdir()
    suites = ("-m", "slurm or os or gpu")
    here = run_pytest(folders[0], on(sandbox), *suites, env=sandbox.env, where=SUITES)
    there = over(sandbox, login, folders[1], *suites, where=SUITES)
    # epilogs are judged on the nodes that the short jobs of a run happened to get
    mine, theirs = ({k: v for k, v in it.outcomes.items() if "test_epilog" not in k} for it in (here, there))
    assert len(mine) > 300
    assert theirs == mine
    assert names(there.outcomes, "failed")
    assert not names(there.outcomes, "error")
    assert (there.rc, here.rc) == (1, 1)
    reasons, same = (
        {name: [result.message for result in case.result] for name, case in it.cases.items()} for it in (here, there)
    )
    failed = {name for name, results in reasons.items() if results and "epilog" not in name}
    assert {name: same[name] for name in failed} == {name: reasons[name] for name in failed}
    mine, theirs = (it.event("finish")["processes"] for it in (here, there))
    # scontrol is also asked again while a step is awaited
    assert abs(mine.pop("scontrol") - theirs.pop("scontrol")) <= 2
    assert theirs == mine, "as many processes of Slurm are started"


def test_steps_words_and_signals_come_through(sandbox: Sandbox, login: Sshd, tmp_path: Path) -> None:
    run = over(sandbox, login, tmp_path, files={"test_steps.py": STEPS})
    assert (run.rc, set(run.outcomes.values()), len(run.outcomes)) == (0, {"passed"}, 12), run.out
    released(sandbox)


def test_a_killed_connection_gives_the_nodes_back(sandbox: Sandbox, login: Sshd, tmp_path: Path) -> None:
    process = begun(sandbox, login, tmp_path)
    login.hang_up()
    released(sandbox)
    out, _ = process.communicate(timeout=DEADLINE)
    run = Run(process.returncode, out, "", tmp_path)
    assert run.rc == 1
    assert set(run.outcomes.values()) <= {"error", "not tested"}
    assert f"the SSH connection to 127.0.0.1:{login.port} was lost" in out
    assert run.event("finish")["passed"] == 0


def test_our_sudden_death_gives_the_nodes_back(sandbox: Sandbox, login: Sshd, tmp_path: Path) -> None:
    process = begun(sandbox, login, tmp_path)
    process.kill()
    process.communicate()
    released(sandbox)


def test_a_job_around_the_login_session_is_not_ours_and_no_secret_is_written(sandbox: Sandbox, tmp_path: Path) -> None:
    around = {"SLURM_JOB_ID": "999999", "SINFO_FORMAT": "%N", "SALLOC_PARTITION": "nowhere"}
    with sshd(tmp_path / "d", set_env=around) as server:
        loud = ("-vv", "--log-level=DEBUG", "-rA")
        run = over(sandbox, server, tmp_path, *loud, files={"test_tiny.py": TINY})
        private = (server.folder / "id_ed25519").read_text().splitlines()[1:-1]
    assert (run.rc, set(run.outcomes.values())) == (0, {"passed"}), run.out
    written = run.out + run.err + "".join(p.read_text() for p in (tmp_path / "reports" / "latest").iterdir())
    assert len(private) > 3
    assert not [line for line in private if line in written]
