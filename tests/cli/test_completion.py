"""Completion of command lines by argcomplete, and its absence."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from plugin_helpers import completion_request
from sandbox_helpers import environment

from pytest_gpucluster.cli import main as cli

if TYPE_CHECKING:
    from pathlib import Path


def completed(line: str, folder: Path) -> list[str]:
    """Return the words for the end of a command line, as a shell requests them."""
    words = folder / "words"
    argv, env = [sys.executable, "-m", "pytest_gpucluster"], environment(**completion_request(line, words))
    done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return [word.rstrip() for word in words.read_text().splitlines()]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gpucluster sandbox fault gpu_mis", ["gpu_missing"]),
        ("gpucluster profiles show dgx-1", ["dgx-1-v100"]),
        ("gpucluster check l", ["lab", "local"]),
        ("gpucluster compare --j", ["--json"]),
    ],
)
def test_shell_gets_the_words(tmp_path: Path, line: str, words: list[str]) -> None:
    pytest.importorskip("argcomplete")
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "lab.yaml").write_text("nodes: a\n")
    assert sorted(completed(line, tmp_path)) == words


def test_request_of_a_shell_without_argcomplete_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    with pytest.raises(SystemExit) as caught:
        cli.main(["profiles"])
    assert caught.value.code == 1
    assert capsys.readouterr() == ("", "")
