"""The logs of slurmctld and slurmdbd on the machine of Slurm's commands."""

from __future__ import annotations

import os
import subprocess
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from paths import ROOT

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.errors import SlurmError, TransportError
from pytest_gpucluster.core.known_lines import KnownLine
from pytest_gpucluster.core.probe import with_root
from pytest_gpucluster.suites.controller import checks, facts, steps
from pytest_gpucluster.suites.controller.config import ControllerConfig

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = ControllerConfig()


class Clock:
    """The time of the module: it passes only where the module sleeps or the test lets it pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(steps, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.now += seconds


LOST = "error: mysql_real_connect failed: 2002 Can't connect to local server through socket '/run/mysqld.sock' (2)"


def run(argv: tuple[str, ...], **_: Any) -> SimpleNamespace:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert "secret" not in done.stdout + done.stderr
    return SimpleNamespace(rc=done.returncode, stdout=done.stdout, stderr=done.stderr)


def read(
    folder: Path,
    *lines: str,
    conf: str = "LogFile={}\n",
    controller: bool = True,
    logged: str = "slurmctld version 25.11",
    **words: Any,
) -> checks.ControllerLog:
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    if controller:
        (folder / "slurmctld.log").write_text(f"[{now}.000] {logged}\n")
    (folder / "dbd.log").write_text("".join(f"[{now}.000] {line}\n" for line in lines))
    if conf:
        (folder / "slurmdbd.conf").write_text(conf.format(folder / "dbd.log"))
    slurm: Any = SimpleNamespace(transport=SimpleNamespace(run=run), env={})
    settings = {"SlurmctldLogFile": f"{folder}/slurmctld.log", "SLURM_CONF": f"{folder}/slurm.conf"}
    words = {"config": CONFIG, "nodes": (), "started": time.time() - 5, "sudo": False, **words}
    return steps.query_controller_log(slurm, settings, **words)


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


SDIAG = (ROOT / "tests" / "data" / "controller" / "sdiag-22.05.8.txt").read_text()
BUSY = SDIAG.replace("Server thread count:  3", "Server thread count:  200")
assert BUSY != SDIAG


@pytest.mark.parametrize(
    ("answers", "threads", "waited"),
    [
        ([SDIAG], (3, None), 0.0),
        ([BUSY, SDIAG], (200, 3), steps.LATER),
        ([BUSY, BUSY], (200, 200), steps.LATER),
    ],
)
def test_a_high_figure_is_read_twice(
    monkeypatch: pytest.MonkeyPatch, answers: list[str], threads: tuple[int, int | None], waited: float
) -> None:
    clock = Clock(monkeypatch)

    def sdiag(*argv: str, timeout: float) -> str:
        assert (argv, timeout) == (("sdiag",), steps.TIMEOUT)
        clock.now += 0.5
        return answers.pop(0)

    slurm: Any = SimpleNamespace(run=sdiag)
    found = steps.query_load(slurm, {"MaxDBDMsgs": "10"}, CONFIG)
    assert found.first is not None
    assert (found.first.threads, found.later and found.later.threads) == threads
    assert (found.seconds, found.settings, found.problem) == (0.5, {"MaxDBDMsgs": "10"}, "")
    assert (answers, clock.now) == ([], 0.5 * (1 + bool(waited)) + waited)


@pytest.mark.parametrize("answer", [SlurmError("sdiag: no answer"), "what", f"{SDIAG[:900]}\n"])
def test_an_sdiag_without_figures_says_why(answer: Any) -> None:
    def sdiag(*_: str, **__: float) -> str:
        if isinstance(answer, str):
            return answer
        raise answer

    slurm: Any = SimpleNamespace(run=sdiag)
    found = steps.query_load(slurm, {"a": "b"}, CONFIG)
    assert (found.first, found.settings) == (None, {"a": "b"})
    assert found.problem.startswith("sdiag: ")


@pytest.mark.parametrize(
    ("answer", "up", "problem"),
    [
        ("Slurmctld(primary) at ctl1 is UP\nSlurmctld(backup) at ctl2 is DOWN\n", (True, False), ""),
        ("odd", (), "scontrol ping names no controller: 'odd'"),
        (TransportError("timed out"), (), "timed out"),
    ],
)
def test_scontrol_ping_is_compared_with_the_hosts_of_slurm_conf(
    answer: Any, up: tuple[bool, ...], problem: str
) -> None:
    def ping(argv: tuple[str, ...], *, timeout: float, env: object) -> SimpleNamespace:
        assert (argv, timeout, env) == (("scontrol", "ping"), steps.TIMEOUT, {"A": "b"})
        if isinstance(answer, str):
            return SimpleNamespace(stdout=answer)
        raise answer

    slurm: Any = SimpleNamespace(transport=SimpleNamespace(run=ping), env={"A": "b"})
    hosts = {"SlurmctldHost[0]": "ctl1(10.0.0.1)", "SlurmctldHost[1]": "ctl2", "SlurmctldHostX": "ctl3"}
    found = steps.query_controllers(slurm, hosts)
    assert (tuple(one.up for one in found.states), found.configured) == (up, ("ctl1", "ctl2"))
    assert found.problem == problem


SILENT = "error: Nodes gpu[01-02] not responding"


def test_a_line_of_slurmctld_goes_to_its_nodes_unless_the_cluster_file_ignores_it(tmp_path: Path) -> None:
    found = read(tmp_path, logged=SILENT, nodes=("gpu01", "gpu02", "gpu03"))
    assert sorted(node for node, lines in found.errors.items() if lines) == ["gpu01", "gpu02"]
    assert 5 <= found.run_age < 60
    quiet = KnownLine(pattern="not responding", meaning="silent nodes", reason="ticket 8")
    assert not any(read(tmp_path, logged=SILENT, nodes=("gpu01",), known_lines=(quiet,)).errors.values())
    known = KnownLine(pattern="is odd", meaning="our patch", reason="ticket 7", action="warn")
    (one,) = read(tmp_path, logged="error: this is odd", known_lines=(known,)).errors[""]
    assert one.known == known
    assert read(tmp_path, started=time.time() + 60).run_age == 0  # the clock was set back


def test_a_log_that_slurmctld_no_longer_writes_is_not_read(tmp_path: Path) -> None:
    read(tmp_path, logged="error: Can't save state, x")
    path = tmp_path / "slurmctld.log"
    for age, problem in ((CONFIG.log_window - 60, False), (CONFIG.log_window + 60, True)):
        os.utime(path, (time.time() - age,) * 2)
        found = read(tmp_path, controller=False)
        assert (bool(found.problem), bool(found.errors.get(""))) == (problem, not problem)
    assert found.problem == f"slurmctld's log: {path} was not written within the last 24 h"


@pytest.mark.parametrize(("path", "sudo"), [("/var/log/slurmctld.log", True), ("", False)])
def test_the_commands_are_those_of_the_settings(path: str, sudo: bool) -> None:
    calls: list[str] = []

    def run(argv: tuple[str, ...], *, timeout: float, env: object) -> SimpleNamespace:
        assert (argv[:2], timeout, env) == (("sh", "-c"), steps.TIMEOUT, {"SLURM_CONF": "/x"})
        calls.append(argv[2])
        return SimpleNamespace(rc=0, stdout="LogFile=/dbd.log\n", stderr="")

    slurm: Any = SimpleNamespace(transport=SimpleNamespace(run=run), env={"SLURM_CONF": "/x"})
    settings = {"SLURM_CONF": "/etc/slurm/slurm.conf", **({"SlurmctldLogFile": path} if path else {})}
    steps.query_controller_log(slurm, settings, CONFIG, (), started=0, sudo=sudo)
    log = [
        facts.log_command(one, name, 4 << 20, 86_400)
        for one, name in ((path, "slurmctld"), ("/dbd.log", "slurmdbd"))
    ]
    assert calls[::2] == [with_root(one) if sudo else one for one in log]
    assert ("journalctl -q -u slurmctld" in calls[0]) == (not path)
    assert "/etc/slurm/slurmdbd.conf" in calls[1]
    assert calls[1].startswith("awk") != sudo
