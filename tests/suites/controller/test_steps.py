"""The logs of slurmctld and slurmdbd on the machine of Slurm's commands."""

from __future__ import annotations

import subprocess
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.suites.controller import checks, facts, steps
from pytest_gpucluster.suites.controller.config import ControllerConfig

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = ControllerConfig()
LOST = "error: mysql_real_connect failed: 2002 Can't connect to local server through socket '/run/mysqld.sock' (2)"


def run(argv: tuple[str, ...], **_: Any) -> SimpleNamespace:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert "secret" not in done.stdout + done.stderr
    return SimpleNamespace(rc=done.returncode, stdout=done.stdout, stderr=done.stderr)


def read(
    folder: Path, *lines: str, conf: str = "LogFile={}\n", controller: bool = True
) -> checks.ControllerLog:
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    if controller:
        (folder / "slurmctld.log").write_text(f"[{now}.000] slurmctld version 25.11\n")
    (folder / "dbd.log").write_text("".join(f"[{now}.000] {line}\n" for line in lines))
    if conf:
        (folder / "slurmdbd.conf").write_text(conf.format(folder / "dbd.log"))
    slurm: Any = SimpleNamespace(transport=SimpleNamespace(run=run), env={})
    settings = {"SlurmctldLogFile": f"{folder}/slurmctld.log", "SLURM_CONF": f"{folder}/slurm.conf"}
    return steps.query_controller_log(slurm, settings, CONFIG, (), started=time.time() - 5, sudo=False)


def test_the_log_of_slurmdbd_beside_slurmctld_is_judged_by_the_same_rules(tmp_path: Path) -> None:
    found = read(
        tmp_path, LOST, "error: Something of a later version", conf="# x\n logfile = {}\nStoragePass=secret\n"
    )
    verdict = checks.errors(found, CONFIG)
    (finding,) = verdict.findings
    assert finding.part == "database not reached"
    assert "slurmdbd: mysql_real_connect failed: 2002 Can't connect" in finding.measured
    assert verdict.cause.startswith("the database of slurmdbd does not run")
    assert [one.text for one in verdict.remarks] == ["Something of a later version"]


def test_a_refused_record_is_a_warning_and_a_deadlock_means_nothing(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "error: mysql_query failed: 1114 The table 'a_job_table' is full",
        "error: _mysql_query_internal: deadlock detected attempt 1/10: 1213 Deadlock found",
    )
    verdict = checks.errors(found, CONFIG)
    assert (verdict.outcome, [one.part for one in verdict.advisories]) == (
        Outcome.PASSED,
        ["record not stored"],
    )


def test_a_slurmdbd_that_runs_elsewhere_changes_nothing(tmp_path: Path) -> None:
    found = read(tmp_path, LOST, conf="")
    assert (found.errors.get("", ()), found.problem) == ((), "")
    (tmp_path / "dbd.log").unlink()
    (tmp_path / "slurmdbd.conf").write_text("LogFile=/nowhere/dbd.log\n")
    assert checks.errors(found, CONFIG).outcome is Outcome.PASSED


def test_slurmdbd_is_judged_where_the_log_of_slurmctld_is_not_here(tmp_path: Path) -> None:
    verdict = checks.errors(read(tmp_path, LOST, controller=False), CONFIG)
    assert (verdict.outcome, verdict.findings[0].part) == (Outcome.FAILED, "database not reached")
    verdict = checks.errors(read(tmp_path, controller=False), CONFIG)
    assert (verdict.outcome, "slurmctld.log cannot be read" in verdict.reason) == (Outcome.NOT_CHECKED, True)


def test_the_log_file_of_slurmdbd_conf() -> None:
    assert facts.dbd_log("DbdHost=a\nLOGFILE = /var/log/dbd.log # x\n#LogFile=/no\n") == "/var/log/dbd.log"
    assert facts.dbd_log("#LogFile=/no\nLogFileFoo=/no\n") == ""
