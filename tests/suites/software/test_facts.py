"""The scripts of the software suite, run by bash on a module tree, and the reader on recorded output."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from constants import with_constants
from paths import TESTS
from software_helpers import init_file, module_tree, stand_in_conda

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe
from pytest_gpucluster.suites.software import facts
from pytest_gpucluster.suites.software.config import SoftwareConfig

if TYPE_CHECKING:
    from pathlib import Path

DATA = TESTS / "data" / "software"


def run(probe: Probe[facts.ScriptResult]) -> facts.ScriptResult:
    """Run a probe's command on this machine."""
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    done = subprocess.run(["sh", "-c", probe.command], capture_output=True, env=env, check=False, timeout=60)
    return probe.parse(Answer("gpu01", done.returncode, done.stdout, done.stderr))


def only(timeout: float = 60, **section: Any) -> Probe[facts.ScriptResult]:
    (probe,) = facts.probes_of(with_constants(SoftwareConfig, {"timeout": timeout}, **section))
    return probe


@pytest.mark.thorough  # it waits for the time limit
def test_an_item_that_hangs_is_named_the_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = module_tree(tmp_path / "tree", {"slow/1.0": "exec sleep 60\n"})
    monkeypatch.setattr(SoftwareConfig, "find_module", f". {init_file(tmp_path, str(tree))}")
    found = run(only(3, modules={"load": ["alpha", "slow", "beta"]}))
    assert found.hung == 2
    assert found.unknown(1) == ""
    assert found.unknown(3) == "the time limit was reached before"


def test_a_node_without_modules_has_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SoftwareConfig, "find_module", ":")
    probe = only(modules={"load": ["alpha"]})
    found = run(probe)
    (version,) = found.of(0, "version")
    assert version.rc == 127
    assert "module: command not found" in version.text


def test_an_environment_of_the_stand_in_is_activated(tmp_path: Path) -> None:
    conda = stand_in_conda(tmp_path)
    environments = {"torch": {"python": "3.11", "packages": {"numpy": "1.26"}}, "nosuch": {}}
    found = run(only(conda={"command": str(conda), "environments": environments}))
    prefix = f"{tmp_path}/envs/torch"
    assert found.text(1, "place").splitlines() == [prefix, f"{prefix}/bin/python"]
    assert found.text(1, "python") == "Python 3.11.2"
    assert facts.read_packages(found.text(1, "packages")) == {"numpy": "1.26.4"}
    assert [step.rc for step in found.of(2, "activate")] == [1]


def test_packages_of_conda() -> None:
    found = facts.read_steps(Answer("gpu01", 0, (DATA / "conda-26.7.txt").read_bytes()))
    assert facts.read_packages(found.text(1, "packages")) == {"numpy": "1.26.4"}
    assert "Could not find conda environment: nope" in found.text(2, "activate")
    with pytest.raises(ProbeError, match="Not a conda environment"):
        facts.read_packages(found.text(2, "packages"))
    for text in ("", "conda 4", "3", '[{"name": "x"}]', "[3]"):
        with pytest.raises(ProbeError):
            facts.read_packages(text)
    assert facts.read_packages('{"message": "No packages match \'^(x)$\'."}') == {}  # conda 26.7
    assert facts.read_packages("[]") == {}


def test_output_without_its_end_is_an_error() -> None:
    whole = (DATA / "tcl-5.2.0.txt").read_bytes()
    with pytest.raises(ProbeError, match="no end"):
        facts.read_steps(Answer("gpu01", 0, whole[: len(whole) // 2]))
    absent = b"sh: 1: timeout: not found\n\n@@software ended - 127 0\n"
    with pytest.raises(NotAvailable, match="timeout: command not found"):
        facts.read_steps(Answer("gpu01", 0, absent))
    died = facts.read_steps(Answer("gpu01", 0, b"@@software begin 0 0 0\noops\n@@software ended - 2 0\n"))
    assert died.unknown(0) == "the shell of the commands: exit 2: oops"
    assert died.hung is None
