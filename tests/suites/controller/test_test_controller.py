"""The facts of the controller suite's test file, made without a cluster."""

from __future__ import annotations

import time
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

CONFIG = ControllerConfig()
KNOWN = KnownLine(pattern="is odd", meaning="our patch", reason="ticket 7", action="warn")
IGNORED = KnownLine(pattern="is ignored", meaning="x", reason="y")
SLURMD_LOG = b"""now 1795000000 2026-11-18T12:26:40
[2026-11-18T12:26:30.000] error: this is odd
[2026-11-18T12:26:31.000] error: and this is ignored
[2026-11-17T11:26:31.000] error: too old
"""


class World:
    """A session, and its cluster, plan, item and Slurm at once."""

    selected, known, why_no_slurm = ("gpu01",), (IGNORED, KNOWN), "no Slurm here"
    need_slurm = ClusterSession.need_slurm

    def __init__(
        self, *, slurm: bool = True, sudo: bool = False, sandbox: bool = False, **settings: str
    ) -> None:
        self.slurm = self if slurm else None
        self.cluster = self.plan = self
        self.sudo, self.sandbox, self.settings, self.started = sudo, sandbox, settings, time.time() - 7
        self.asked: list[tuple[str, str, bool]] = []

    def config(self) -> dict[str, str]:
        return self.settings

    def section(self, model: Any) -> Any:
        return model(backup=True)

    def facts(self, probe: Any) -> Any:
        self.asked.append((probe.name, probe.command, probe.root))
        return probe.parse(Answer("gpu01", 0, SLURMD_LOG, b""))


def fact(name: str, *arguments: Any) -> Any:
    found: Fact = getattr(suite, name)
    return found.function(*arguments)


def test_requests_to_slurmctld_are_made_once_in_a_session() -> None:
    of_items = {name for name, it in vars(suite).items() if isinstance(it, Fact) and not it.once}
    assert of_items == {"info", "slurmd_errors", "run_age"}


def test_slurm_and_the_section_are_those_of_the_cluster_file() -> None:
    with pytest.raises(NotApplicable, match="no Slurm here"):
        fact("slurm", World(slurm=False))
    world = World()
    assert fact("slurm", world) is world
    assert fact("config", world) == ControllerConfig(backup=True)
    assert 7 <= fact("run_age", world) < 600


@pytest.mark.parametrize(
    ("name", "step", "extra"),
    [("controllers", "query_controllers", ()), ("diagnostics", "query_load", (CONFIG,))],
)
def test_requests_know_the_settings(
    monkeypatch: pytest.MonkeyPatch, name: str, step: str, extra: tuple[Any, ...]
) -> None:
    monkeypatch.setattr(steps, step, lambda *given: given)
    world = World(ClusterName="c")
    assert fact(name, world, *extra) == (world, {"ClusterName": "c"}, *extra)


@pytest.mark.parametrize(
    ("sudo", "sandbox", "used"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_the_log_is_read_as_root_where_the_cluster_file_allows_it(
    monkeypatch: pytest.MonkeyPatch, *, sudo: bool, sandbox: bool, used: bool
) -> None:
    monkeypatch.setattr(steps, "query_controller_log", lambda *given, **words: (given, words))
    world = World(sudo=sudo, sandbox=sandbox, ClusterName="c")
    given, words = fact("controller_log", world, CONFIG, world)
    assert given == (world, {"ClusterName": "c"}, CONFIG, ("gpu01",))
    assert words == {"known_lines": world.known, "started": world.started, "sudo": used}


@pytest.mark.parametrize("path", ["/var/log/slurmd.log", ""])  # without a path slurmd writes to syslog
def test_errors_of_slurmd_are_those_of_the_node_within_the_window(path: str) -> None:
    world = World()
    world.settings = {"SlurmdLogFile": path} if path else {}
    (found,) = fact("slurmd_errors", None, world, CONFIG, world, world)
    assert (found.known, found.line) == (KNOWN, facts.LogLine(10.0, "error: this is odd"))
    command = facts.log_command(path, "slurmd", CONFIG.log_size, CONFIG.log_window)
    assert world.asked == [("slurmd log", command, True)]
