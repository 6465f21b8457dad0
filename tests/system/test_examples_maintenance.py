"""examples/burnin-maintenance.sh on a real Slurm: the reservation is made, used, and gone however the script ends."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml
from constants import in_environment
from forked import DEFAULT_SIGNALS
from paths import ROOT
from plugin_helpers import cases
from sandbox_helpers import environment, queue, slurm, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

SCRIPT = ROOT / "examples" / "burnin-maintenance.sh"
DEADLINE = 1200  # seconds; a run takes a tenth of it at most


def surroundings(folder: Path, sandbox: Sandbox) -> dict[str, str]:
    """Return an environment with pytest on PATH, and a cluster file in the folder whose burn-in is quick."""
    tool = folder / "bin" / "pytest"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pytest "$@"\n')
    tool.chmod(0o755)
    plain = yaml.safe_load(sandbox.cluster_file.read_text())
    plain["burnin"] = {**plain.get("burnin", {}), "loads": ["cpu"]}
    (folder / "quick.yaml").write_text(yaml.safe_dump(plain))
    env = environment(
        **{
            **sandbox.env,
            "PATH": os.pathsep.join([str(tool.parent), sandbox.env.get("PATH", os.environ["PATH"])]),
            "XDG_STATE_HOME": str(folder / "state"),  # the lock of drains is of this test alone
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
            "PYTEST_ADDOPTS": f"-p no:cacheprovider -c {ROOT / 'pyproject.toml'}",
        }
    )
    return in_environment(env, burnin={"load": 0.3, "beat": 0.5, "sample": 0.2})


def reservations(sandbox: Sandbox) -> str:
    text = slurm(sandbox, "scontrol", "show", "reservation", "-o")
    return "" if "No reservations" in text else text


def test_a_burn_in_in_a_reservation_of_its_own(sandbox: Sandbox, tmp_path: Path) -> None:
    env = surroundings(tmp_path, sandbox)
    # the last --burnin-time holds: nobody waits a minute here
    argv = [str(SCRIPT), "./quick.yaml", "gpu[01-02]", "1m", "--burnin-time=4s"]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "Reservation created: burnin-" in done.stderr
    assert reservations(sandbox) == ""
    report = tmp_path / "reports" / "latest" / "junit.xml"
    assert cases(report)["gpucluster.burnin.gpu02 test_survived"].is_passed
    name = done.stderr.partition("Reservation created: ")[2].split()[0]
    assert f"slurm.reservation={name}" in (report.parent / "events.jsonl").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_and_the_reservation(sandbox: Sandbox, tmp_path: Path, number: signal.Signals) -> None:
    env = surroundings(tmp_path, sandbox)
    argv = [*DEFAULT_SIGNALS, str(SCRIPT), "./quick.yaml", "gpu01", "1h"]
    with (tmp_path / "out").open("wb") as out:
        script = subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=out, stderr=out)
        try:
            wait_for(lambda: queue(sandbox), "the nodes are held")
            assert "Nodes=gpu01" in reservations(sandbox)
        finally:
            script.send_signal(number)
            assert script.wait(DEADLINE) == 143
    assert reservations(sandbox) == ""
    wait_for(lambda: not queue(sandbox), "the nodes are back")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("prod", "gpu01"), "usage:"),
        *((("prod", "gpu01", time), "must be like 30m or 4h") for time in ("4", "h", "1.5h", "4hm")),
    ],
)
def test_wrong_input_makes_no_reservation(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    made = tmp_path / "made"
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\ntouch {made}\n")
    (tmp_path / "scontrol").chmod(0o755)
    env = environment(PATH=os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    done = subprocess.run([SCRIPT, *words], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert says in done.stderr
    assert not made.exists()
