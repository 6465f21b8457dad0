"""The facts of the controller suite's test file, made without a cluster."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.cluster.transport.base import Completed
from pytest_gpucluster.core.fact import Fact
from pytest_gpucluster.core.known_lines import KnownLine
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.report.history.run_snapshot import Recorded, RecordedItem
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.run.session import ClusterSession
from pytest_gpucluster.suites.controller import checks, facts, steps
from pytest_gpucluster.suites.controller import test_controller as suite
from pytest_gpucluster.suites.controller.config import ControllerConfig
from pytest_gpucluster.suites.controller.log_lines import ErrorKind

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = ControllerConfig()
IGNORED = KnownLine(pattern="is ignored", meaning="x", reason="y")
STARTED = time.time() - 7
ODD = [("", facts.LogLine(age, "error: gpu01 is odd")) for age in (5.0, 3600.0, 7200.0, 90_000.0)]
ODD.append(("", facts.LogLine(1.0, "error: this is ignored")))


class World:
    """A session, and its cluster, plan, channel and Slurm at once."""

    name, selected, nodes, simulated, started = "prod", ("gpu01",), ("gpu01", "gpu02"), False, STARTED
    known, why_no_slurm = (IGNORED,), "no Slurm here"
    lines: tuple[str, ...] = ("error: this is odd",)
    history: Path | None = None
    need_slurm = ClusterSession.need_slurm

    def __init__(self, *, slurm: bool = True, sudo: bool = False, sandbox: bool = False, **settings: str) -> None:
        self.slurm = self if slurm else None
        self.cluster = self.plan = self
        self.sudo, self.sandbox, self.settings = sudo, sandbox, settings
        self.asked: list[tuple[str, str, str, bool]] = []
        self.transport, self.env, self.queue = self, dict[str, str](), ""

    def run(self, argv: tuple[str, ...], **_: Any) -> Completed:
        return Completed(argv, 0, self.queue, "", 0.0)

    def config(self) -> dict[str, str]:
        return self.settings

    def section(self, model: Any) -> Any:
        return model(backup=True)

    def facts(self, node: str, probe: Any) -> Any:
        self.asked.append((node, probe.name, probe.command, probe.root))
        text = "\n".join(("now 1795000000 2026-11-18T12:26:40", *self.lines))
        return probe.parse(Answer(node, 0, text.encode()))


def fact(name: str, *arguments: Any) -> Any:
    found: Fact[Any] = getattr(suite, name)
    return found.function(*arguments)


def test_requests_are_made_once_in_a_session() -> None:
    assert [name for name, it in vars(suite).items() if isinstance(it, Fact) and not it.once] == []


@pytest.mark.parametrize(("sudo", "sandbox", "used"), [(True, False, True), (True, True, False), (False, False, False)])
def test_the_log_is_read_as_root_where_the_cluster_file_allows_it(
    monkeypatch: pytest.MonkeyPatch, *, sudo: bool, sandbox: bool, used: bool
) -> None:
    monkeypatch.setattr(steps, "query_controller_log", lambda *given, **words: (given, words))
    world = World(sudo=sudo, sandbox=sandbox, ClusterName="c")
    given, words = fact("controller_log", world, CONFIG, world)
    assert given[:3] == (world, {"ClusterName": "c"}, CONFIG)
    assert words == {"sudo": used}


def counted(world: World, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many of the lines ODD are shown."""
    monkeypatch.setattr(steps, "query_controller_log", lambda *given, **_: given[3](ODD))
    (kind,) = fact("controller_log", world, CONFIG, world)
    assert kind.nodes == ("gpu01",)
    return int(kind.count)


@pytest.mark.parametrize(
    ("accepted", "check", "count"),
    [
        (3700, "controller.errors", 2),
        (7300, "controller.errors", 3),
        (200_000, "controller.errors", 4),
        (3700, "controller.node_errors", 3),  # that run did not show them
    ],
)
def test_lines_count_since_the_last_accepted_run_that_showed_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepted: float, check: str, count: int
) -> None:
    world = World()
    world.history = tmp_path / "history"
    began = STARTED - accepted
    with contextlib.closing(History(world.history, create=True)) as history:
        history.add(Recorded("r1", "prod", False, began, began, 0, "", (RecordedItem("", check, "passed"),), ()))
    assert counted(world, monkeypatch) == count


@pytest.mark.parametrize("text", [None, "", "no database"])
def test_lines_of_a_day_count_where_no_history_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    world = World()
    if text is not None:
        world.history = tmp_path / "history"
    if text:
        (tmp_path / "history").write_text(text)
    assert counted(world, monkeypatch) == 3


@pytest.mark.parametrize("path", ["/var/log/slurmd.log", ""])  # without a path slurmd writes to syslog
def test_the_log_of_slurmd_is_read_on_each_node(path: str) -> None:
    world = World()
    world.settings = {"SlurmdLogFile": path} if path else {}
    found = fact("slurmd_logs", world, world, CONFIG, world)
    assert found == checks.DaemonLog((ErrorKind("error: this is odd", 2, None, ("gpu01", "gpu02")),))
    command = facts.log_command(path, "slurmd", CONFIG.log_size)
    assert world.asked == [(node, "slurmd log", command, True) for node in world.nodes]


REQUEUED = "[{}.batch] error: *** JOB {} ON gpu01 CANCELLED AT 2026-11-18T12:20:00 DUE TO JOB REQUEUE ***"


def test_lines_that_a_job_of_ours_caused_are_no_warning() -> None:
    world = World()
    world.queue = "4|gpucluster-diagnostic-0a1b2c3d-77-99\n5|gpuclusterish\n6|train\n"
    world.lines = (REQUEUED.format(4, 4), REQUEUED.format(5, 5))
    found = fact("slurmd_logs", world, world, CONFIG, world)
    assert {(kind.example[:3], kind.own) for kind in found.kinds} == {("[4.", True), ("[5.", False)}
    verdict = checks.node_errors(found)
    assert [it.text[:32] for it in verdict.remarks] == ["of a job of gpucluster: [4.batch]"[:32]]
    (warning,) = verdict.advisories
    assert "2 error lines of 1 kind" in str(warning.measured)  # of two nodes
    assert "JOB 5" in str(warning.measured)
    assert "JOB 4" not in str(warning.measured)
