"""A run from the shell of a stranger: a venv first on PATH, low limits, and variables of frameworks and proxies.

Steps get none of it, so a healthy cluster is healthy from there too; what the shell sets is one warning of the run.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml
from paths import ROOT
from plugin_helpers import Run, command
from sandbox_helpers import DEADLINE, environment
from user_helpers import Checkout

from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from pathlib import Path

SHELL = {
    "RANK": "3",
    "WORLD_SIZE": "99",
    "LOCAL_RANK": "7",
    "MASTER_ADDR": "192.0.2.1",
    "MASTER_PORT": "1",
    "GLOO_SOCKET_IFNAME": "eth99",
    "NCCL_SOCKET_IFNAME": "eth99",
    "TF_CONFIG": '{"cluster": {"worker": ["192.0.2.1:1"]}, "task": {"type": "worker", "index": 0}}',
    "http_proxy": "http://192.0.2.1:3128",
    "CUDA_VISIBLE_DEVICES": "",
    "LD_LIBRARY_PATH": "/nowhere",
    "OMP_NUM_THREADS": "999",
    "SLURM_JOB_ID": "999999",
    "SBATCH_PARTITION": "nowhere",
    "SRUN_CPUS_PER_TASK": "999",
    "TMPDIR": "/nowhere",
}
# which of them tasks and agents have, with PATH, python3, the limit of open files, the umask and the locale
SHOWN = f"""
import json
from pathlib import Path

NAMES = {sorted([*SHELL, "VIRTUAL_ENV", "PYTHONPATH"])}
SHOW = (
    "env; echo PYTHON3=$(command -v python3); echo NOFILE=$(ulimit -n); echo UMASK=$(umask)"
)


def keep(name, text):
    found = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
    names = [*NAMES, "PATH", "PYTHON3", "NOFILE", "UMASK", "LANG"]
    Path(__file__).with_name(name).write_text(json.dumps({{key: found[key] for key in names if key in found}}))


def test_step(gpucluster_srun, gpucluster_node):
    keep(f"step-{{gpucluster_node.name}}", gpucluster_srun(["sh", "-c", SHOW], nodes=(gpucluster_node.name,)).tasks[0].stdout)


def test_passed(gpucluster_srun, gpucluster_node):
    out = gpucluster_srun(["sh", "-c", SHOW], nodes=(gpucluster_node.name,), environment="passed").tasks[0].stdout
    keep(f"passed-{{gpucluster_node.name}}", out)


def test_agent(host, gpucluster_node):
    keep(f"agent-{{gpucluster_node.name}}", host.run(SHOW).stdout)
"""
# what Slurm sets in every task of its own, to other values than the shell's
OF_SLURM = {"CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "TMPDIR"}


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """Return the folder of an interpreter without torch that is this one: the venv of the tutorial."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", folder], check=True)
    return folder


def run_from_a_strange_shell(sandbox: Sandbox, folder: Path, venv: Path, *words: str, where: list[str]) -> Run:
    known = yaml.safe_load(sandbox.cluster_file.read_text())
    passed = {"pass_env": ["http_proxy", "MASTER_*"], "exports": {"MASTER_PORT": "7"}}
    known["environments"] = {**known.get("environments", {}), "passed": passed}
    known["os"]["limits"] = {"nofile": "4096"}
    path = folder / "strange.yaml"
    path.write_text(yaml.safe_dump(known))
    env = environment(
        **SHELL,
        PATH=f"{venv}/bin:{sandbox.env['PATH']}",
        VIRTUAL_ENV=str(venv),
        PYTHONPATH=Checkout().modules,
        SLURM_CONF=sandbox.env["SLURM_CONF"],
    )
    options = (f"--cluster={path}", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider", "-rA")
    argv = command(*options, *words)
    line = shlex.join([f"{venv}/bin/python", *argv[1:], *where])
    done = subprocess.run(
        ["bash", "-c", f"ulimit -S -n 1024; umask 077; exec {line}"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=4 * DEADLINE,
        check=False,
    )
    return Run(done.returncode, done.stdout, done.stderr, folder)


def test_a_healthy_cluster_is_healthy_from_a_strange_shell(sandbox: Sandbox, tmp_path: Path, venv: Path) -> None:
    (tmp_path / "test_shown.py").write_text(SHOWN)
    suites = [str(ROOT / "suites" / name) for name in ("os", "slurm", "container")]
    words = ("--nodes=gpu[01-02]", "--drain=dry-run", "-n2")
    run = run_from_a_strange_shell(sandbox, tmp_path, venv, *words, where=[*suites, "test_shown.py"])
    assert run.rc == 0, run.out[-5000:] + run.err[-2000:]
    ends = set(run.outcomes.values())
    assert ends <= {"passed", "not applicable", "not checked"}, run.out[-5000:]
    judged = {event["check"] for event in run.events if event.get("outcome") == "passed" and "check" in event}
    assert {"os.drift", "slurm.step", "container.import"} <= judged
    assert "would be drained: gpu" not in run.out
    assert "nofile 1024 (os.limits: 4096)" in run.event("start")["shell"]["text"]
    assert "the shell that runs pytest" not in run.out, "it explains no finding"
    for kind in ("step", "agent"):
        for node in ("gpu01", "gpu02"):
            found = json.loads((tmp_path / f"{kind}-{node}").read_text())
            assert str(venv) not in found.pop("PATH")
            system = {name: found.pop(name) for name in ("PYTHON3", "NOFILE", "UMASK", "LANG")}
            assert not system["PYTHON3"].startswith(str(venv))
            assert int(system.pop("NOFILE")) > 4096
            assert (system["UMASK"], system["LANG"]) == ("0022", "C.UTF-8")
            assert set(found) <= OF_SLURM
            assert all(found[name] != SHELL[name] for name in found)
    passed = json.loads((tmp_path / "passed-gpu01").read_text())
    given = {name: passed[name] for name in ("http_proxy", "MASTER_ADDR", "MASTER_PORT")}
    assert given == {"http_proxy": SHELL["http_proxy"], "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "7"}
