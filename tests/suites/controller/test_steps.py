"""The logs of slurmctld and slurmdbd on the machine of Slurm's commands."""

from __future__ import annotations

import os
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
from paths import ROOT

from pytest_gpucluster.cluster.transport.base import Completed
from pytest_gpucluster.core.errors import NotAvailable, ProbeError, SlurmError, TransportError
from pytest_gpucluster.suites.controller import checks, facts, steps
from pytest_gpucluster.suites.controller.config import ControllerConfig
from pytest_gpucluster.suites.controller.log_lines import ErrorKind, folded

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.cluster.slurm.client import Slurm

CONFIG = ControllerConfig()
FOLDING = partial(folded, window=3600.0, nodes=("gpu01", "gpu02"))
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
) -> checks.DaemonLog:
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    if controller:
        (folder / "slurmctld.log").write_text(f"[{now}.000] {logged}\n")
    (folder / "dbd.log").write_text("".join(f"[{now}.000] {line}\n" for line in lines))
    if conf:
        (folder / "slurmdbd.conf").write_text(conf.format(folder / "dbd.log"))
    slurm: Any = FakeSlurm()
    settings = {"SlurmctldLogFile": f"{folder}/slurmctld.log", "SLURM_CONF": f"{folder}/slurm.conf"}
    return steps.query_controller_log(slurm, settings, CONFIG, FOLDING, sudo=False)


def examples(log: checks.DaemonLog) -> list[str]:
    return [kind.example for kind in log.kinds]


def test_lines_of_slurmctld_and_of_slurmdbd_beside_it_are_read(tmp_path: Path) -> None:
    conf = "# x\nLogFileFoo=/no\n logfile = {} # x\n#LogFile=/no\nStoragePass=secret\n"
    found = read(tmp_path, LOST, conf=conf, logged="error: Nodes gpu[01-02] not responding")
    assert examples(found) == ["error: Nodes gpu[01-02] not responding", f"slurmdbd: {LOST}"]
    assert (found.kinds[0].nodes, found.problem) == (("gpu01", "gpu02"), "")


def test_a_slurmdbd_that_runs_elsewhere_changes_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, LOST, conf="") == checks.DaemonLog()
    assert read(tmp_path, LOST, conf="LogFile=/no/dbd.log\n") == checks.DaemonLog()


def test_slurmdbd_is_read_where_the_log_of_slurmctld_is_not_here(tmp_path: Path) -> None:
    found = read(tmp_path, LOST, controller=False)
    assert examples(found) == [f"slurmdbd: {LOST}"]
    assert "slurmctld.log cannot be read" in found.problem


def test_logs_of_all_nodes_are_folded_and_nodes_without_one_are_named() -> None:
    def tail(node: str) -> facts.LogTail:
        if node == "gpu03":
            raise ProbeError("the node did not answer")
        if node > "gpu03":
            raise NotAvailable("/var/log/slurmd.log cannot be read")
        return facts.LogTail((facts.LogLine(60.0, f"error: odd on {node}"),))

    found = steps.query_slurmd_logs([f"gpu0{number}" for number in range(1, 6)], tail, FOLDING)
    assert found.kinds == (ErrorKind("error: odd on gpu01", 2, 60.0, ("gpu01", "gpu02")),)
    away, unread = found.problem.split("; ")
    assert (away.endswith("gpu03: the node did not answer"), "on gpu[04-05]: " in unread) == (True, True)


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
    ("answers", "threads", "slept"), [([SDIAG], (3, None), []), ([BUSY, SDIAG], (200, 3), [steps.LATER])]
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


@pytest.mark.parametrize(("later", "problem"), [(-600, False), (600, True)])
def test_a_log_that_nobody_writes_is_not_read(tmp_path: Path, later: float, problem: bool) -> None:
    read(tmp_path, logged="error: Can't save state, x")
    path = tmp_path / "slurmctld.log"
    os.utime(path, (time.time() - CONFIG.log_window - later,) * 2)
    found = read(tmp_path, controller=False)
    assert found.problem == f"slurmctld's log: {path} was not written within the last 24 h" * problem
    assert bool(found.kinds) is not problem


def test_our_jobs_are_those_of_the_queue_and_of_slurmdbd() -> None:
    slurm = FakeSlurm("4|gpucluster-0a-1-2\n6|train\n", "3|gpucluster-diagnostic-0a-1-2\n7|gpuclusterish\n")
    settings = {"AccountingStorageType": "accounting_storage/slurmdbd"}
    assert steps.own_jobs(cast("Slurm", slurm), settings, 3600.2) == {3, 4}
    assert " -S now-3601seconds " in slurm.calls[1][2]
    alone = FakeSlurm(TransportError("no answer"))
    assert steps.own_jobs(cast("Slurm", alone), {}, 3600.0) == frozenset()
    assert len(alone.calls) == 1
