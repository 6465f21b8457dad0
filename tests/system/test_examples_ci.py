"""The examples for Jenkins and systemd: their commands are taken out of the files and run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
from paths import ROOT
from plugin_helpers import cases
from sandbox_helpers import environment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

EXAMPLES = ROOT / "examples"
JENKINS = (EXAMPLES / "Jenkinsfile").read_text()
SERVICE = EXAMPLES / "systemd" / "gpucluster-nightly.service"
TIMER = EXAMPLES / "systemd" / "gpucluster-nightly.timer"
DEADLINE = 1200  # seconds; a run takes a tenth of it at most


def jenkins_blocks() -> dict[str, str]:
    """Return the shell of each sh step by its label."""
    found = re.findall(r"sh\(?\s*label: '([\w-]+)',.*?script: '''(.*?)'''", JENKINS, re.DOTALL)
    return {label: textwrap.dedent(text) for label, text in found}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the commands that the examples expect in one place."""
    for name, module in (("pytest", "pytest"), ("gpucluster", "pytest_gpucluster")):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        path.chmod(0o755)
    return tmp_path


def surroundings(place: Path, sandbox: Sandbox, options: str, **more: str) -> dict[str, str]:
    """Return what the CI system puts into the environment, and options of ours for a run on the sandbox."""
    ours = f"-p no:cacheprovider -c {ROOT / 'pyproject.toml'} {options}"
    return environment(
        BIN=str(place / "bin"),
        CLUSTER=str(sandbox.cluster_file),
        REPORTS="reports",
        HISTORY=str(place / "history.db"),
        CI_JOB_ID="4711",
        XDG_STATE_HOME=str(place / "state"),  # the lock of drains is of this test alone
        PYTEST_ADDOPTS=ours,
        PYTHONPATH=os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        **more,
    )


def run_in(place: Path, env: Mapping[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=place, env=env, capture_output=True, text=True, timeout=DEADLINE, check=False)


def shell(place: Path, text: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a block as Jenkins does: a shell that stops at the first error."""
    return run_in(place, env, "sh", "-xe", "-c", text)


def test_a_burn_in_without_a_reservation_does_not_start(place: Path, sandbox: Sandbox) -> None:
    env = surroundings(place, sandbox, "--collect-only -q", RESERVATION="")
    done = shell(place, jenkins_blocks()["burn-in"], env)
    assert done.returncode not in (0, 1)
    assert "is to name the reservation" in done.stderr


def test_jenkins_nightly_runs_and_leaves_everything(place: Path, sandbox: Sandbox) -> None:
    env = surroundings(place, sandbox, "-k test_responds", NODES="gpu[01-02]")
    done = shell(place, jenkins_blocks()["nightly"], env)
    assert done.returncode == 0, done.stdout + done.stderr
    report = shell(place, jenkins_blocks()["report"], env)
    assert report.returncode == 0, report.stderr
    left = {path.name for path in (place / "reports" / "latest").iterdir()}
    assert {"events.jsonl", "junit.xml", "report.html", "metrics.prom"} <= left
    assert (place / "history.db").exists()
    assert JENKINS.count("${env.REPORTS}/latest/") == JENKINS.count("reports/${env.BUILD_NUMBER}") + 1 == 2
    assert "gpucluster.os.gpu02 test_responds" in cases(place / "reports" / "latest" / "junit.xml")


def test_the_systemd_units_are_valid(place: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not on this machine")
    units = place / "units"
    units.mkdir()
    shutil.copy(TIMER, units)
    text = SERVICE.read_text().replace("/opt/gpucluster/bin", str(place / "bin"))

    def verify(service: str) -> str:
        (units / SERVICE.name).write_text(service)
        done = run_in(place, os.environ, tool, "verify", *map(str, sorted(units.iterdir())))
        return "\n".join(line for line in done.stderr.splitlines() if "gpucluster-nightly" in line)

    assert verify(text) == ""
    assert "Unknown key" in verify(text.replace("KillMode", "KilMode"))


def test_the_command_of_the_unit_runs(place: Path, sandbox: Sandbox) -> None:
    (place / "gpucluster" / "metrics").mkdir(parents=True)
    env = surroundings(place, sandbox, "-k test_responds --nodes=gpu01")
    lines = dict(line.split("=", 1) for line in SERVICE.read_text().splitlines() if line.startswith("Exec"))
    for key in ("ExecStart", "ExecStopPost"):
        words = [
            word.replace("/opt/gpucluster/bin", str(place / "bin"))
            .replace("/var/lib/gpucluster", str(place / "gpucluster"))
            .replace("--cluster=prod", f"--cluster={sandbox.cluster_file}")
            for word in shlex.split(lines[key])
        ]
        done = run_in(place, env, *words)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (place / "gpucluster" / "metrics" / "gpucluster.prom").exists()
    assert "OnCalendar=" in TIMER.read_text()
