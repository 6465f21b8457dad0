"""Slurm's commands: one clear line, and outages ridden out. The commands here are small real programs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.cluster.slurm import client
from pytest_gpucluster.cluster.slurm.client import Slurm, error_line, outage
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.core.errors import SlurmError

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    """Time that passes only where someone sleeps, and a little with each look."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 0.01
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def _program(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_an_outage_is_ridden_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "time", Clock())
    away = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    calls = f"echo x >> {tmp_path}/calls; [ $(wc -l < {tmp_path}/calls) -lt 3 ]"
    program = _program(tmp_path, "sinfo", f'{calls} && {{ echo "{away}" >&2; exit 1; }}; echo fine')
    slurm = Slurm(LocalTransport(), retry_for=60)
    assert slurm.run(program) == "fine\n"
    assert slurm.transport.started == {"sinfo": 3}
    assert outage(away)
    assert outage("slurm_load_jobs error: Rate limit exceeded, please retry later")
    assert not outage("slurm_load_jobs error: Access/permission denied")


def test_a_command_that_fails_is_one_line_and_is_not_repeated(tmp_path: Path) -> None:
    for script, timeout, why, rc in (
        ("echo 'sinfo: error: no such thing' >&2; exit 4", 60.0, "no such thing", 4),
        ("sleep 300", 0.5, "not finished after", None),
    ):
        slurm = Slurm(LocalTransport(), timeout=timeout)
        with pytest.raises(SlurmError, match=why) as caught:
            slurm.run(_program(tmp_path, "sinfo", script))
        assert ("\n" in str(caught.value), caught.value.rc) == (False, rc)
        assert slurm.transport.started == {"sinfo": 1}


def test_a_surrounding_job_does_not_leak_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SLURM_JOB_ID", "17"), ("SBATCH_PARTITION", "other"), ("SLURM_CONF", "/kept")):
        monkeypatch.setenv(name, value)
    out = Slurm(LocalTransport()).run("env")
    found = ["SLURM_JOB_ID" in out, "SBATCH_PARTITION" in out, "SLURM_CONF=/kept" in out]
    assert found == [False, False, True]


NO_CONF = (
    "scontrol: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
    "scontrol: error: fetch_config: DNS SRV lookup failed\n"
    "scontrol: fatal: Could not establish a configuration source\n"
)
VERSIONS = (  # 22.05.8's salloc, 25.11.7's slurmctld
    "salloc: error: auth_g_unpack: authentication plugin unknown(1007) not found\n"
    "salloc: error: slurm_unpack_received_msg: Incompatible versions of client and server code\n"
    "salloc: error: Job submit/allocate failed: Unspecified error\n"
)


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        ("salloc: error: Job submit/allocate failed: Bad\nsalloc: hm\n", "Job submit/allocate failed: Bad"),
        ("salloc: unrecognized option '--bogus'\nTry it\n", "unrecognized option '--bogus'"),
        ("[2026-11-21T22:13:05.254] error: pyxis: child failed\n", "pyxis: child failed"),  # 25.11.7
        (NO_CONF, "Could not establish a configuration source: set SLURM_CONF"),
        (VERSIONS, "Incompatible versions of client and server code: set slurm.bin"),
        ("", ""),
    ],
)
def test_the_most_specific_line_is_returned(stderr: str, line: str) -> None:
    assert error_line(stderr).startswith(line)
    assert ": set " in line or error_line(stderr) == line


@pytest.mark.parametrize(
    ("printed", "known"),
    [
        ("echo 'Job step 1. not found'", True),  # 22.05.8, a job without a step
        ("echo 'scontrol: error: slurm_get_job_steps(9) failed: Invalid job id specified' >&2", True),
        ("echo 'scontrol: error: Access/permission denied' >&2", False),
    ],
)
def test_a_job_without_steps_or_one_that_is_over_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, known: bool
) -> None:
    _program(tmp_path, "scontrol", f"{printed}; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with contextlib.nullcontext() if known else pytest.raises(SlurmError, match="denied"):
        assert Slurm(LocalTransport()).steps(9) == ()


def test_a_long_outage_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "AGAIN", 0.0)
    monkeypatch.setattr(client, "time", Clock())
    text = f"[ -e {tmp_path}/away ] || exit 0; echo 'error: Unable to contact slurm controller' >&2; exit 1"
    program = _program(tmp_path, "squeue", text)
    slurm = Slurm(LocalTransport(), retry_for=2)

    def tries() -> int:
        before = slurm.transport.started.get("squeue", 0)
        with pytest.raises(SlurmError, match="did not answer"):
            slurm.run(program)
        return slurm.transport.started["squeue"] - before

    (tmp_path / "away").touch()
    assert [tries(), tries(), tries()] == [3, 1, 1]  # after 0, 0.5 and 1.5 s
    (tmp_path / "away").unlink()
    slurm.run(program)
    (tmp_path / "away").touch()
    assert tries() == 3  # another outage has its own time
