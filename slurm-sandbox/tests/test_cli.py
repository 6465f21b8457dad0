"""The command slurm-sandbox on a real sandbox."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from sandbox_helpers import environment, sandbox_folder

from slurm_sandbox import cli
from slurm_sandbox.api import FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with sandbox_folder() as path:
        monkeypatch.setenv("SLURM_SANDBOX", str(path / "s"))
        yield path


def test_a_sandbox_from_up_to_down(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["up", "--nodes", "2", "--gpus", "2", "--pyxis", "off"]) == 0
    out = capfd.readouterr().out
    assert out.startswith("The sandbox is up: 2 plain nodes. Now: SLURM_CONF=")
    shown = subprocess.run(
        ["sh", "-c", out.partition("Now: ")[2]], env=environment(), capture_output=True, text=True, check=True
    ).stdout
    assert "gpu[01-02]" in shown
    assert cli.main(["fault", "gpu_missing", "gpu01", "gpu02", "gpu=1"]) == 0
    assert capfd.readouterr().out == (
        "gpu[01-02]: gpu_missing is active. `slurm-sandbox heal 'gpu[01-02]'` removes it.\n"
    )
    assert cli.main(["heal", "gpu01"]) == 0
    capfd.readouterr()
    assert cli.main(["status"]) == 0
    status = json.loads(capfd.readouterr().out)
    assert status["state_dir"] == str(folder / "s")
    assert [(fault["kind"], fault["node"]) for fault in status["faults"]] == [("gpu_missing", "gpu02")]
    assert cli.main(["down"]) == 0
    assert not (folder / "s").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("heal", "no sandbox runs in {folder}/s: slurm-sandbox up"),
        ("fault gpu_missing", "missing fault or node: use `slurm-sandbox fault KIND NODES`"),
        ("fault gpu_missing gpu01 3x=3", "an option of a fault must be key=value, not '3x=3'"),
        ("up --model b300", "unknown hardware model 'b300'"),
    ],
)
def test_an_error_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str], words: str, message: str) -> None:
    assert cli.main(words.split()) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"slurm-sandbox: error: {message.format(folder=folder)}")
    assert error.count("\n") == 1


def test_list_of_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fault", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["fault", "what", "it", "does"]
    assert [line.split()[0] for line in lines[1:]] == list(FAULTS)
    assert cli.main(["fault", "--list", "--json"]) == 0
    described = {it["fault"]: it["description"] for it in json.loads(capsys.readouterr().out)["faults"]}
    assert described["gpu_missing"] == "a GPU fell off the bus"
