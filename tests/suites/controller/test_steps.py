"""The logs of slurmctld and slurmdbd on the machine of Slurm's commands."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import MONITOR, NOT_CHECKED, PASSED, WARNING
from judged import judged
from paths import ROOT

from pytest_gpucluster.cluster.transport.base import Completed
from pytest_gpucluster.core.errors import SlurmError, TransportError
from pytest_gpucluster.core.known_lines import KnownLine
from pytest_gpucluster.core.probe import with_root
from pytest_gpucluster.suites.controller import checks, facts, steps
from pytest_gpucluster.suites.controller.config import ControllerConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONFIG = ControllerConfig()
LOST = "error: mysql_real_connect failed: 2002 Can't connect to local server through socket '/run/mysqld.sock' (2)"
Answer = str | Exception | None


class FakeSlurm:
    """Slurm and its transport: it answers one after the other; None: the command runs here."""

    def __init__(self, *answers: Answer, **env: str) -> None:
        self.answers, self.env, self.calls = list(answers), env, list[tuple[str, ...]]()
        self.transport = self

    def run(self, *words: Any, timeout: float, env: object = None) -> Any:
        argv = words[0] if isinstance(words[0], tuple) else words
        assert (timeout, env or self.env) == (steps.TIMEOUT, self.env)
        self.calls.append(argv)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            return answer if argv is words else Completed(argv, 0, answer, "", 0.0)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert "secret" not in done.stdout + done.stderr
        return Completed(argv, done.returncode, done.stdout, done.stderr, 0.0)


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
    slurm: Any = FakeSlurm()
    settings = {"SlurmctldLogFile": f"{folder}/slurmctld.log", "SLURM_CONF": f"{folder}/slurm.conf"}
    words = {"config": CONFIG, "nodes": (), "started": time.time() - 5, "sudo": False, **words}
    return steps.query_controller_log(slurm, settings, **words)


def test_the_log_of_slurmdbd_beside_slurmctld_is_judged_by_the_same_rules(tmp_path: Path) -> None:
    conf = "# x\nLogFileFoo=/no\n logfile = {} # x\n#LogFile=/no\nStoragePass=secret\n"
    verdict = checks.errors(read(tmp_path, LOST, "error: Something of a later version", conf=conf), CONFIG)
    assert judged(verdict) == (MONITOR, ["database not reached"])
    assert "slurmdbd: mysql_real_connect failed: 2002 Can't connect" in verdict.findings[0].measured
    assert verdict.cause.startswith("the database of slurmdbd does not run")
    assert [one.text for one in verdict.remarks] == ["Something of a later version"]


def test_a_refused_record_is_a_warning_and_a_deadlock_means_nothing(tmp_path: Path) -> None:
    full = "error: mysql_query failed: 1114 The table 'a_job_table' is full"
    deadlock = "error: _mysql_query_internal: deadlock detected attempt 1/10: 1213 Deadlock found"
    assert judged(checks.errors(read(tmp_path, full, deadlock), CONFIG)) == (WARNING, ["record not stored"])


def test_a_slurmdbd_that_runs_elsewhere_changes_nothing(tmp_path: Path) -> None:
    found = read(tmp_path, LOST, conf="")
    assert (found.errors.get("", ()), found.problem) == ((), "")
    assert judged(checks.errors(read(tmp_path, LOST, conf="LogFile=/no/dbd.log\n"), CONFIG)) == (PASSED, [])


def test_slurmdbd_is_judged_where_the_log_of_slurmctld_is_not_here(tmp_path: Path) -> None:
    verdict = checks.errors(read(tmp_path, LOST, controller=False), CONFIG)
    assert judged(verdict) == (MONITOR, ["database not reached"])
    verdict = checks.errors(read(tmp_path, controller=False), CONFIG)
    assert judged(verdict) == (NOT_CHECKED, [])
    assert "slurmctld.log cannot be read" in verdict.reason


SDIAG = (ROOT / "tests" / "data" / "controller" / "sdiag-22.05.8.txt").read_text()
BUSY = SDIAG.replace("Server thread count:  3", "Server thread count:  200")
assert BUSY != SDIAG


class Clock:
    """Time that passes only where someone sleeps, and half a second with each look."""

    now = 100.0

    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        self.now += 0.5
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.mark.parametrize(
    ("answers", "threads", "slept"),
    [([SDIAG], (3, None), []), ([BUSY, SDIAG], (200, 3), [steps.LATER])],
)
def test_a_high_figure_is_read_twice(
    monkeypatch: pytest.MonkeyPatch, answers: list[str], threads: tuple[int, int | None], slept: list[float]
) -> None:
    clock = Clock()
    monkeypatch.setattr(steps, "time", clock)
    slurm: Any = FakeSlurm(*answers)
    found = steps.query_load(slurm, {"MaxDBDMsgs": "10"}, CONFIG)
    assert found.first is not None
    assert (found.first.threads, found.later and found.later.threads) == threads
    assert (found.settings, found.problem, found.seconds) == ({"MaxDBDMsgs": "10"}, "", 0.5)
    assert (slurm.calls, clock.slept) == ([("sdiag",)] * len(answers), slept)


@pytest.mark.parametrize("answer", [SlurmError("sdiag: no answer"), "what", f"{SDIAG[:900]}\n"])
def test_an_sdiag_without_figures_says_why(answer: Answer) -> None:
    slurm: Any = FakeSlurm(answer)
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
def test_ping_is_compared_with_slurm_conf(answer: Answer, up: tuple[bool, ...], problem: str) -> None:
    slurm: Any = FakeSlurm(answer, A="b")
    hosts = {"SlurmctldHost[0]": "ctl1(10.0.0.1)", "SlurmctldHost[1]": "ctl2", "SlurmctldHostX": "ctl3"}
    found = steps.query_controllers(slurm, hosts)
    assert slurm.calls == [("scontrol", "ping")]
    assert (tuple(one.up for one in found.states), found.configured) == (up, ("ctl1", "ctl2"))
    assert found.problem == problem


SILENT = "error: Nodes gpu[01-02] not responding"


def test_a_line_of_slurmctld_goes_to_its_nodes_unless_the_cluster_file_ignores_it(tmp_path: Path) -> None:
    found = read(tmp_path, logged=SILENT, nodes=("gpu01", "gpu02", "gpu03"))
    assert sorted(node for node, lines in found.errors.items() if lines) == ["gpu01", "gpu02"]
    assert 5 <= found.run_age < 600
    quiet = KnownLine(pattern="not responding", meaning="silent nodes", reason="ticket 8")
    assert not any(read(tmp_path, logged=SILENT, nodes=("gpu01",), known_lines=(quiet,)).errors.values())
    known = KnownLine(pattern="is odd", meaning="our patch", reason="ticket 7", action="warn")
    (one,) = read(tmp_path, logged="error: this is odd", known_lines=(known,)).errors[""]
    assert one.known == known
    assert read(tmp_path, started=time.time() + 600).run_age == 0  # the clock was set back


@pytest.mark.parametrize(("later", "problem"), [(-600, False), (600, True)])
def test_a_log_that_nobody_writes_is_not_read(tmp_path: Path, later: float, problem: bool) -> None:
    read(tmp_path, logged="error: Can't save state, x")
    path = tmp_path / "slurmctld.log"
    os.utime(path, (time.time() - CONFIG.log_window - later,) * 2)
    found = read(tmp_path, controller=False)
    assert found.problem == f"slurmctld's log: {path} was not written within the last 24 h" * problem
    assert bool(found.errors.get("")) is not problem


@pytest.mark.parametrize(("path", "sudo"), [("/var/log/slurmctld.log", True), ("", False)])
def test_the_commands_are_those_of_the_settings(path: str, sudo: bool) -> None:
    slurm: Any = FakeSlurm("", "LogFile=/dbd.log\n", "", SLURM_CONF="/x")
    settings = {"SLURM_CONF": "/etc/slurm/slurm.conf", **({"SlurmctldLogFile": path} if path else {})}
    steps.query_controller_log(slurm, settings, CONFIG, (), started=0, sudo=sudo)
    as_user: Callable[[str], str] = with_root if sudo else str
    calls = [argv[2] for argv in slurm.calls]
    assert {argv[:2] for argv in slurm.calls} == {("sh", "-c")}
    size, window = CONFIG.log_size, CONFIG.log_window
    assert calls[0] == as_user(facts.log_command(path, "slurmctld", size, window))
    assert calls[2] == as_user(facts.log_command("/dbd.log", "slurmdbd", size, window))
    assert ("journalctl -q -u slurmctld" in calls[0]) == (not path)
    assert "/etc/slurm/slurmdbd.conf" in calls[1]
    assert calls[1].startswith("awk") != sudo
