"""What a test sees of the run: the fixtures of sites, and the facts of every run for the checks of suites.

`pytest --fixtures` prints the docstrings of the fixtures.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pytest_gpucluster import suite_packages
from pytest_gpucluster.cluster.channel.channel import TIMEOUT
from pytest_gpucluster.core import given
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.fact import Fact, in_order
from pytest_gpucluster.plugin.items import record_of
from pytest_gpucluster.run.facts import ItemView, facts_of, make, named
from pytest_gpucluster.run.item_record import clean
from pytest_gpucluster.run.session import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.cluster.slurm.result import StepResult
    from pytest_gpucluster.config.models import Cluster, GpuProfile
    from pytest_gpucluster.core.fact import AnyProbe
    from pytest_gpucluster.core.finding import Explanation
    from pytest_gpucluster.core.probe import Answer
    from pytest_gpucluster.run.session import ClusterSession


A_MINUTE = 60.0


class Screen(Protocol):
    """What the live line needs of pytest's terminal reporter."""

    def rewrite(self, line: str, **markup: bool) -> None:
        """Write over the line that the cursor is on."""

    def write_line(self, line: str | bytes, **markup: bool) -> None:
        """Write a line of its own."""

    def ensure_newline(self) -> None:
        """Leave a line that was begun."""


class LiveLine:
    """A line that is rewritten on a terminal, and written once a minute elsewhere."""

    def __init__(
        self,
        screen: Screen | None,
        *,
        terminal: bool,
        uncaptured: Callable[[], AbstractContextManager[None]] = nullcontext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._screen, self._terminal, self._clock, self._uncaptured = screen, terminal, clock, uncaptured
        self._last: float | None = None
        self._text = ""

    @property
    def is_recent(self) -> bool:
        """Whether a line was written within the last minute."""
        return self._last is not None and self._clock() - self._last < A_MINUTE

    def show(self, text: str) -> None:
        """Show how far it is; called as often as one likes."""
        if self._screen is None:
            return
        text, now = clean(text), self._clock()
        if self._terminal:
            if text != self._text:
                with self._uncaptured():
                    if self._last is None:
                        self._screen.ensure_newline()
                    self._screen.rewrite(text, erase=True)
                self._last, self._text = now, text
        elif self._last is None or now - self._last >= A_MINUTE:
            self.write_line(text)
            self._last = now

    def write_line(self, text: str) -> None:
        """Write a line that stays."""
        if self._screen is not None:
            with self._uncaptured():
                self._screen.ensure_newline()
                self._screen.write_line(clean(text))
            self._text = ""

    def close(self) -> None:
        """Leave the last state standing."""
        if self._screen is not None and self._terminal and self._text:
            with self._uncaptured():
                self._screen.write_line("")
            self._text = ""


LIVE: pytest.StashKey[LiveLine] = pytest.StashKey()


class RunView:
    """The run: cluster file and inventory."""

    def __init__(self, session: ClusterSession, config: pytest.Config) -> None:
        self._session, self._config = session, config

    @property
    def cluster(self) -> Cluster:
        """The cluster file as a frozen model: `cluster.slurm.partition`, `cluster.section(OsConfig).mounts`, ..."""
        return self._session.cluster

    @property
    def inventory(self) -> Mapping[str, NodeInfo]:
        """Slurm's entry of every node, by name: state, flags, gres, and the reason with user and time."""
        return self._session.inventory

    @cached_property
    def live_line(self) -> LiveLine:
        """A progress line, `live_line.show("3 of 7")`: rewritten on a terminal, printed once a minute elsewhere."""
        return self._config.stash.setdefault(LIVE, self._new_line())

    def _new_line(self) -> LiveLine:
        plugins = self._config.pluginmanager
        reporter, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
        return LiveLine(
            None if self._config.option.verbose < -1 else reporter,
            terminal=bool(reporter and reporter.isatty),
            uncaptured=capture.global_and_fixture_disabled if capture is not None else nullcontext,
        )

    def event(self, event_name: str, **fields: Any) -> None:
        """Write an event to events.jsonl: `event("burnin", what="begin")`. No effect in an xdist worker."""
        hooks = self._config.pluginmanager.get_plugin("gpucluster-hooks")
        if hooks is not None and hooks.log is not None:
            hooks.log.write(event_name, **fields)


class FleetView:
    """All nodes under test at once."""

    def __init__(self, session: ClusterSession) -> None:
        self._session = session

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes under test, in the order of the cluster file."""
        return self._session.under_test()

    @property
    def lost(self) -> Mapping[str, Explanation]:
        """The nodes that went away during the run, and why."""
        return self._session.lost()

    def ask(self, command: str, *, timeout: float = TIMEOUT) -> dict[str, Answer]:
        """Run a command on all nodes at once, `ask("uname -r")`, and return {node: Answer}; the answers are cached."""
        return self._session.need_channel().ask(command, timeout=timeout)

    def facts(self, source: AnyProbe[Any]) -> dict[str, Any]:
        """Return {node: facts} of a probe, of all nodes that could provide them."""
        return self._session.facts.of_fleet(source)


@dataclass(frozen=True)
class NodeView(Node):
    """A node under test: `.name`, `.profile`, `.group`, `.info`, `.peers`, with what can be found out on it."""

    session: ClusterSession = field(repr=False, compare=False)

    @property
    def host(self) -> Any:
        """A testinfra Host of the node: `host.file("/etc/os-release")`, `host.package("slurmd")`, ..."""
        return self.session.host(self.name)

    def facts(self, source: AnyProbe[Any] | str) -> Any:
        """Return what a probe found on the node, or "gpu.gpus", a fact of a suite; without it the item is not checked."""
        item = self.session.item
        assert item is not None  # the fixture belongs to one
        view = ItemView(self.session, record_of(item))
        if not isinstance(source, str):
            return view.facts(source)
        suite, _, name = source.partition(".")
        if suite not in suite_packages():
            raise ConfigError(f"facts({source!r}): no suite is called {suite!r}")
        known = facts_of(import_module(f"{suite_packages()[suite]}.test_{suite}"))
        fact = named([name], known, f"facts({source!r})")[name]
        return make(in_order([fact]), view, of_plugin(self.session, item.config))[fact]


def of_plugin(session: ClusterSession, config: pytest.Config) -> dict[Fact[Any], Any]:
    """Return the facts that a run with pytest gives."""
    return {given.pytestconfig: config, given.run: RunView(session, config)}


SESSION: pytest.StashKey[ClusterSession] = pytest.StashKey()
PROPERTIES: pytest.StashKey[list[tuple[str, str]]] = pytest.StashKey()  # of the run, for pytest's JUnit file


@pytest.fixture(scope="session")
def gpucluster(request: pytest.FixtureRequest) -> RunView:
    """The run: `.cluster` (the cluster file), `.inventory` (Slurm's entry of every node), `.event(...)`, `.live_line`."""
    config = request.config
    if config.getoption("xmlpath", None):
        record = request.getfixturevalue("record_testsuite_property")
        # items that are repeated set it up again
        found, config.stash[PROPERTIES] = config.stash[PROPERTIES], []
        for name, value in found:
            record(name, value)
    return RunView(config.stash[SESSION], config)


@pytest.fixture(scope="session")
def gpucluster_fleet(request: pytest.FixtureRequest, gpucluster: RunView) -> FleetView:
    """All nodes at once: `.nodes`, their names, `.ask(command)` and `.facts(probe)`."""
    return FleetView(request.config.stash[SESSION])


@pytest.fixture(scope="session")  # that fixtures of any scope may use it
def gpucluster_node(request: pytest.FixtureRequest, gpucluster: RunView) -> NodeView:
    """The node of the item: `.name`, `.profile`, `.group`, `.info`, `.peers`, `.host`, `.facts(probe)`.

    A test that uses it, itself or through a fixture, runs once per node.
    """
    session = request.config.stash[SESSION]
    return NodeView(**vars(session.nodes[request.param]), session=session)


@pytest.fixture
def gpucluster_item(request: pytest.FixtureRequest) -> ItemView:
    """The item: `.expect(verdict)`, `.at_least(name, value, bound, unit)`, `.at_most(...)`, `.measure`, `.curve`, `.table`."""
    return ItemView(request.config.stash[SESSION], record_of(request.node))


@pytest.fixture(scope="session")
def gpucluster_gpu_profile(gpucluster_node: NodeView) -> GpuProfile:
    """The GPUs of the item's node as its profile states them; without GPUs the item is not applicable."""
    found: GpuProfile = given.gpu_profile(gpucluster_node)
    return found


@pytest.fixture(scope="session")
def gpucluster_allocation(request: pytest.FixtureRequest, gpucluster: RunView) -> Allocation:
    """The allocation of all steps (the first one if partitions differ): `.job_id`, `.nodes`, `.slurm`."""
    held: Allocation = given.allocation(request.config.stash[SESSION])
    return held


@pytest.fixture
def gpucluster_lane_nodes(gpucluster_item: ItemView) -> tuple[str, ...]:
    """The nodes that no other item uses meanwhile: with -n those of the node's lane, else all nodes under test."""
    return gpucluster_item.lane_nodes


@pytest.fixture
def gpucluster_srun(gpucluster_item: ItemView) -> Callable[..., StepResult]:
    """Run a step: `gpucluster_srun(["hostname"], nodes=("gpu01",), ntasks_per_node=2, environment="pytorch")`.

    Takes the fields of StepRequest; `environment` is a name of the cluster file; without it `environments.default` is
    used, and "none" is no environment. Without `nodes` the step runs on the item's node, or on all nodes if the item has
    no node. Returns a StepResult: `.rc`, `.tasks`, `.command`.
    """
    return gpucluster_item.srun


@pytest.fixture(scope="session")
def host(gpucluster_node: NodeView) -> Any:
    """Testinfra's fixture, on every node: stock tests run unchanged, once per node."""
    return gpucluster_node.host


OF_SITE = ("expect", "at_least", "at_most", "measure", "curve", "table")  # of the item; the rest are fixtures
