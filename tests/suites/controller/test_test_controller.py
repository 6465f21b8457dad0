"""The facts of the controller suite's test file, made without a cluster."""

from __future__ import annotations

import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.core.fact import Fact
from pytest_gpucluster.core.known_lines import KnownLine
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.run.session import ClusterSession
from pytest_gpucluster.suites.controller import facts, steps
from pytest_gpucluster.suites.controller import test_controller as suite
from pytest_gpucluster.suites.controller.config import ControllerConfig

SLURM: Any = SimpleNamespace(config=lambda: {"SlurmdLogFile": "/var/log/slurmd.log", "ClusterName": "c"})
CONFIG = ControllerConfig()
KNOWN = KnownLine(pattern="is odd", meaning="our patch", reason="ticket 7", action="warn")


def fact(name: str, *arguments: Any) -> Any:
    found: Fact = getattr(suite, name)
    return found.function(*arguments)


def test_requests_to_slurmctld_are_made_once_in_a_session() -> None:
    of_items = {name for name, it in vars(suite).items() if isinstance(it, Fact) and not it.once}
    assert of_items == {"info", "slurmd_errors", "run_age"}


def test_without_a_scheduler_the_suite_is_not_applicable() -> None:
    session: Any = SimpleNamespace(slurm=None, cluster=SimpleNamespace(why_no_slurm="no Slurm here"))
    session.need_slurm = partial(ClusterSession.need_slurm, session)
    with pytest.raises(NotApplicable, match="no Slurm here"):
        fact("slurm", session)
    session.slurm = SLURM
    assert fact("slurm", session) is SLURM


def test_the_section_is_that_of_the_cluster_file() -> None:
    cluster = SimpleNamespace(section=lambda model: model(backup=True))
    assert fact("config", cluster) == ControllerConfig(backup=True)


@pytest.mark.parametrize(
    ("name", "step", "extra"),
    [("controllers", "query_controllers", ()), ("diagnostics", "query_load", (CONFIG,))],
)
def test_requests_know_the_settings(
    monkeypatch: pytest.MonkeyPatch, name: str, step: str, extra: tuple[Any, ...]
) -> None:
    monkeypatch.setattr(steps, step, lambda *given: given)
    assert fact(name, SLURM, *extra) == (SLURM, SLURM.config(), *extra)


@pytest.mark.parametrize(
    ("sudo", "sandbox", "used"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, False)],
)
def test_the_log_is_read_as_root_where_the_cluster_file_allows_it(
    monkeypatch: pytest.MonkeyPatch, *, sudo: bool, sandbox: bool, used: bool
) -> None:
    monkeypatch.setattr(steps, "query_controller_log", lambda *given, **words: (given, words))
    session = SimpleNamespace(
        started=5.0,
        plan=SimpleNamespace(selected=("gpu01",)),
        cluster=SimpleNamespace(known=(KNOWN,), sudo=sudo, sandbox=sandbox),
    )
    assert fact("controller_log", SLURM, CONFIG, session) == (
        (SLURM, SLURM.config(), CONFIG, ("gpu01",)),
        {"known_lines": (KNOWN,), "started": 5.0, "sudo": used},
    )


def test_errors_of_slurmd_are_those_of_the_node_within_the_window() -> None:
    asked = []
    lines = [
        "now 1795000000 2026-11-18T12:26:40",
        "[2026-11-18T12:26:30.000] error: this is odd",
        "[2026-11-18T12:26:31.000] error: and this is ignored",
        "[2026-11-17T11:26:31.000] error: too old",
    ]

    def answer(probe: Any) -> Any:
        asked.append((probe.name, probe.command, probe.root))
        return probe.parse(Answer("gpu01", 0, "\n".join(lines).encode(), b""))

    config = ControllerConfig()
    ignored = KnownLine(pattern="is ignored", meaning="x", reason="y")
    item, session = (
        SimpleNamespace(facts=answer),
        SimpleNamespace(cluster=SimpleNamespace(known=(ignored, KNOWN))),
    )
    (found,) = fact("slurmd_errors", None, SLURM, config, item, session)
    assert (found.known, found.line) == (KNOWN, facts.LogLine(10.0, "error: this is odd"))
    command = facts.log_command("/var/log/slurmd.log", "slurmd", config.log_size, config.log_window)
    assert asked == [("slurmd log", command, True)]
    nowhere: Any = SimpleNamespace(config=dict)  # slurmd writes to syslog
    fact("slurmd_errors", None, nowhere, config, item, session)
    assert asked[1][1] == facts.log_command("", "slurmd", config.log_size, config.log_window)


def test_the_age_of_the_run_counts_from_its_start() -> None:
    assert 7 <= fact("run_age", SimpleNamespace(started=time.time() - 7)) < 600
