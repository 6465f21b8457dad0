"""Slurm's commands: one clear line, and outages ridden out. The commands here are small real programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.cluster.slurm import client
from pytest_gpucluster.cluster.slurm.client import Slurm, error_line, outage
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.core.errors import SlurmError

if TYPE_CHECKING:
    from pathlib import Path


def _program(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_an_outage_is_ridden_out(tmp_path: Path) -> None:
    text = f"""
    echo x >> {tmp_path}/calls
    [ $(wc -l < {tmp_path}/calls) -lt 3 ] && {{
      echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1; }}
    echo fine"""
    program = _program(tmp_path, "sinfo", text)
    slurm = Slurm(LocalTransport(), retry_for=60)
    assert slurm.run(program) == "fine\n"
    assert slurm.transport.started == {"sinfo": 3}


def test_what_passes_by_itself() -> None:
    for reported in (
        "Unable to contact slurm controller (connect failure)",
        "Rate limit exceeded, please retry later",
    ):
        assert outage(f"slurm_load_jobs error: {reported}")
    assert not outage("slurm_load_jobs error: Access/permission denied")


def test_a_long_outage_ends_in_one_line(tmp_path: Path) -> None:
    program = _program(tmp_path, "sinfo", "echo 'error: Socket timed out on send/recv' >&2; exit 1")
    with pytest.raises(SlurmError, match="controller did not answer") as caught:
        Slurm(LocalTransport(), retry_for=0.2).run(program)
    assert "\n" not in str(caught.value)
    assert "scontrol ping" in str(caught.value)


def test_another_failure_is_not_repeated(tmp_path: Path) -> None:
    program = _program(tmp_path, "sinfo", "echo 'sinfo: error: no such thing' >&2; exit 4")
    slurm = Slurm(LocalTransport())
    with pytest.raises(SlurmError, match="no such thing") as caught:
        slurm.run(program)
    assert caught.value.rc == 4
    assert slurm.transport.started == {"sinfo": 1}


def test_a_hanging_command_has_a_deadline(tmp_path: Path) -> None:
    program = _program(tmp_path, "sinfo", "sleep 300")
    with pytest.raises(SlurmError, match="not finished after"):
        Slurm(LocalTransport(), timeout=0.5).run(program)


def test_a_surrounding_job_does_not_leak_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SBATCH_PARTITION", "other")
    monkeypatch.setenv("SLURM_CONF", "/kept")
    out = Slurm(LocalTransport()).run("env")
    assert "SLURM_JOB_ID" not in out
    assert "SBATCH_PARTITION" not in out
    assert "SLURM_CONF=/kept" in out


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        ("salloc: error: Job submit/allocate failed: Bad\nsalloc: hm\n", "Job submit/allocate failed: Bad"),
        ("salloc: unrecognized option '--bogus'\nTry it\n", "unrecognized option '--bogus'"),
        (  # 25.11.7; 22.05: slurmstepd: error: pyxis: ...
            "[2026-11-21T22:13:05.254] error: pyxis: child 18927 failed with error code: 1\n",
            "pyxis: child 18927 failed with error code: 1",
        ),
        (
            (
                "scontrol: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
                "scontrol: error: fetch_config: DNS SRV lookup failed\n"
                "scontrol: error: _establish_config_source: failed to fetch config\n"
                "scontrol: fatal: Could not establish a configuration source\n"
            ),
            "Could not establish a configuration source: set SLURM_CONF",
        ),
        (
            (  # 22.05.8's salloc, 25.11.7's slurmctld
                "salloc: error: auth_g_unpack: authentication plugin unknown(1007) not found\n"
                "salloc: error: slurm_unpack_received_msg: [[localhost]:15515] Incompatible versions of client and "
                "server code\n"
                "salloc: error: Job submit/allocate failed: Unspecified error\n"
            ),
            "Incompatible versions of client and server code: set slurm.bin",
        ),
        ("", ""),
    ],
)
def test_the_most_specific_line_is_returned(stderr: str, line: str) -> None:
    assert error_line(stderr).startswith(line)
    assert ": set " in line or error_line(stderr) == line


@pytest.mark.parametrize(
    "script",
    [
        "echo 'Job step 1. not found'; exit 1",  # 22.05.8, a job without a step
        "echo 'scontrol: error: slurm_get_job_steps(9) failed: Invalid job id specified' >&2; exit 1",
    ],
)
def test_a_job_without_steps_or_one_that_is_over_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    _program(tmp_path, "scontrol", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert Slurm(LocalTransport()).steps(9) == ()


def test_that_steps_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, "scontrol", "echo 'scontrol: error: Access/permission denied' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SlurmError, match="denied"):
        Slurm(LocalTransport()).steps(9)


@pytest.mark.thorough
def test_a_controller_that_stays_away_is_waited_for_once_and_not_by_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "AGAIN", 0.0)
    text = f"[ -e {tmp_path}/away ] || exit 0; echo 'error: Unable to contact slurm controller' >&2; exit 1"
    program = _program(tmp_path, "squeue", text)
    slurm = Slurm(LocalTransport(), retry_for=2)

    def tries() -> int:
        before = slurm.transport.started.get("squeue", 0)
        with pytest.raises(SlurmError, match="did not answer"):
            slurm.run(program)
        return slurm.transport.started["squeue"] - before

    (tmp_path / "away").touch()
    assert tries() > 1
    assert [tries(), tries()] == [1, 1]
    (tmp_path / "away").unlink()
    slurm.run(program)
    (tmp_path / "away").touch()
    assert tries() > 1  # another outage has its own time
