"""Commands that the sandbox runs: their environment, their end, their errors."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_sandbox import commands
from slurm_sandbox.errors import CommandError


def test_output_and_exit_status() -> None:
    done = commands.run(["sh", "-c", "echo out; echo err >&2; cat; exit 3"], timeout=30)
    assert done == (3, "out\n", "err\n")


def test_the_callers_settings_for_slurm_do_not_reach_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", "/etc/other.conf")
    monkeypatch.setenv("SBATCH_PARTITION", "other")
    names = commands.run(["env"], timeout=30, env={"OWN": "1"}).stdout
    assert "OWN=1\n" in names
    assert "SLURM_CONF" not in names
    assert "SBATCH" not in names


def test_a_command_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(CommandError, match=r"sh: not finished after 0.5 s"):
        commands.run(["sh", "-c", script], timeout=0.5)
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while _state(child) != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # reaped
        return "Z"


def test_a_missing_command_is_named() -> None:
    with pytest.raises(CommandError, match="no-such-tool: not found on this machine"):
        commands.run(["no-such-tool"], timeout=30)
