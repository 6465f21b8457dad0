"""The facts of every run: fixtures for tests of a site, facts for the checks of suites. `pytest --fixtures` prints these docstrings."""

from __future__ import annotations

import time
from contextlib import nullcontext
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pytest_gpucluster import suite_packages
from pytest_gpucluster.core.check import Metric
from pytest_gpucluster.core.errors import AllocationError, ConfigError, NotApplicable
from pytest_gpucluster.core.fact import Fact
from pytest_gpucluster.plugin.expect import Expect
from pytest_gpucluster.plugin.facts import ItemView
from pytest_gpucluster.plugin.items import clean, facts_of, make, ordered, record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.cluster.slurm.result import StepResult
    from pytest_gpucluster.config.models import Cluster, GpuProfile, Profile
    from pytest_gpucluster.kit.nccl.nccl_tests import NcclRun
    from pytest_gpucluster.plugin.session import ClusterSession, Node
    from pytest_gpucluster.suite import AnyProbe


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
            self.say(text)
            self._last = now

    def say(self, text: str) -> None:
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


SESSION: pytest.StashKey[ClusterSession] = pytest.StashKey()
FACTS: dict[str, Fact] = {}


def shared(*, once: bool = False, of_node: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Make a fact for the checks of suites and a fixture for the tests of sites. `once`: in a run, else for each item.

    `of_node`: it needs nothing of the item but its node, so that fixtures of any scope may use it.
    """

    def make(function: Callable[..., Any]) -> Any:
        FACTS[function.__name__] = Fact(function, once)
        return pytest.fixture(scope="session" if once or of_node else "function")(function)

    return make


def session_plugin(session: ClusterSession, properties: Iterable[tuple[str, str]]) -> ModuleType:
    """Return a plugin with the two fixtures that all others are made of. `properties`: those of pytest's JUnit file."""

    @pytest.fixture(scope="session")
    def gpucluster_session(request: pytest.FixtureRequest) -> ClusterSession:
        """The running session of the plugin; own suites have no need of it."""
        if request.config.getoption("xmlpath", None):
            record = request.getfixturevalue("record_testsuite_property")
            for name, value in properties:
                record(name, value)
        return session

    @pytest.fixture
    def gpucluster_item(request: pytest.FixtureRequest, gpucluster_session: ClusterSession) -> ItemView:
        """The session and the record of the item; own suites have no need of it."""
        return ItemView(gpucluster_session, record_of(request.node))

    plugin = ModuleType("gpucluster_session")  # pytest finds fixtures of any scope in modules only
    vars(plugin).update(gpucluster_session=gpucluster_session, gpucluster_item=gpucluster_item)
    return plugin


@shared(once=True)
def cluster(gpucluster_session: ClusterSession) -> Cluster:
    """The cluster file as a frozen model: `cluster.slurm.partition`, `cluster.section(OsConfig).mounts`, ..."""
    return gpucluster_session.cluster


@shared(once=True)
def inventory(gpucluster_session: ClusterSession) -> Mapping[str, NodeInfo]:
    """Slurm's entry of every node, by name: state, flags, gres, and the reason with user and time."""
    return gpucluster_session.inventory


@shared(once=True)
def nodes(gpucluster_session: ClusterSession) -> tuple[str, ...]:
    """The names of the nodes under test, in the order of the cluster file."""
    return gpucluster_session.under_test()


@shared()
def lane_nodes(gpucluster_item: ItemView) -> tuple[str, ...]:
    """The nodes that no other item uses meanwhile: with -n those of the node's lane, else all nodes under test."""
    session, node = gpucluster_item.session, gpucluster_item.record.node
    return session.without_problem(session.lane_of(node) if node else session.plan.testable)


@pytest.fixture(scope="session")  # that fixtures of any scope may use it
def node(request: pytest.FixtureRequest, gpucluster_session: ClusterSession) -> Node:
    """The node of this item: `.name`, `.profile`, `.group`, `.info`. A test that uses it runs once per node."""
    return gpucluster_session.nodes[request.param]


FACTS["node"] = Fact(lambda gpucluster_item: gpucluster_item.node)


@shared(of_node=True)
def node_name(node: Node) -> str:
    """The name of this item's node."""
    return node.name


@shared(of_node=True)
def peers(node: Node) -> frozenset[str]:
    """The nodes that may be compared with this item's node, itself too: those of its group, partition and architecture."""
    return frozenset(node.peers.names)


@shared(of_node=True)
def profile(node: Node) -> Profile:
    """The hardware profile of this item's node."""
    return node.profile


@shared(of_node=True)
def gpu_profile(node: Node) -> GpuProfile:
    """The GPUs of this item's node as its profile states them; without GPUs the item is not applicable."""
    if node.profile.gpu is None:
        raise NotApplicable(
            f"profile {node.profile.name} has no GPUs (`gpucluster profiles` lists those that have)"
        )
    return node.profile.gpu


@shared(once=True)
def allocation(gpucluster_session: ClusterSession) -> Allocation:
    """The allocation of all steps (the first one if partitions differ): `.job_id`, `.nodes`, `.slurm`."""
    gpucluster_session.need_slurm()
    if not gpucluster_session.allocations:
        raise AllocationError("no node is allocated: this test cannot run")
    return gpucluster_session.allocations[0]


@shared(once=True)
def fleet(gpucluster_session: ClusterSession) -> Channel:
    """The channel to every node: `fleet.ask("uname -r")` runs a command on all nodes at once and caches the answers."""
    return gpucluster_session.need_channel()


@shared(of_node=True)
def host(node: Node, gpucluster_session: ClusterSession) -> Any:
    """A testinfra Host of this item's node: `host.file("/etc/os-release")`, `host.package("slurmd")`, ..."""
    return gpucluster_session.host(node.name)


@shared()
def facts(
    node: Node,  # makes an item per node
    gpucluster_item: ItemView,
    pytestconfig: pytest.Config,
) -> Callable[[AnyProbe | str], Any]:
    """A function: a probe, or "gpu.gpus", a fact of a suite -> facts of this item's node; without them it is not checked."""

    def find(source: AnyProbe | str) -> Any:
        if not isinstance(source, str):
            return gpucluster_item.facts(source)
        suite, _, name = source.partition(".")
        if suite not in suite_packages():
            raise ConfigError(f"facts({source!r}): no suite is called {suite!r}")
        known = {**FACTS, **facts_of(import_module(f"{suite_packages()[suite]}.test_{suite}"))}
        return make(ordered([name], known, f"facts({source!r})"), gpucluster_item, pytestconfig, {})[name]

    return find


@shared(once=True)
def fleet_facts(gpucluster_session: ClusterSession) -> Callable[[AnyProbe], dict[str, Any]]:
    """A function: Probe -> {node: facts}, of all nodes that could provide them."""
    return gpucluster_session.facts.of_fleet


@shared()
def expect(gpucluster_item: ItemView) -> Expect:
    """Judge a verdict, `expect(verdict)`, or a number, `expect.at_least(name, value, bound, unit)`, `.at_most(...)`."""
    return Expect(gpucluster_item)


@shared()
def measure(gpucluster_item: ItemView) -> Callable[..., float]:
    """Record a metric: `measure("latency", 4.1, "us", device="mlx5_0")`; returns the value.

    `better` is "higher", "lower" or "neither"; by default the unit decides.
    """
    metrics = gpucluster_item.record.metrics

    def keep(name: str, value: float, unit: str, *, device: str = "", better: str = "") -> float:
        metrics.append(Metric(name, float(value), unit, device, better=better))
        return value

    return keep


@shared()
def curve(gpucluster_item: ItemView) -> Callable[[str, Iterable[NcclRun]], None]:
    """Add bandwidth curves to the report: `curve("all_reduce, 4 nodes", runs)`."""
    record = gpucluster_item.record

    def keep(title: str, runs: Iterable[NcclRun]) -> None:
        for run in runs:
            points = [
                [row.size, row.out_of_place.busbw] for row in run.rows if row.out_of_place.busbw is not None
            ]
            record.curves.append({"title": title, "points": points})

    return keep


@shared(once=True)
def event(pytestconfig: pytest.Config) -> Callable[..., None]:
    """Write an event to events.jsonl: `event("burnin", what="begin")`. No effect in an xdist worker."""
    hooks = pytestconfig.pluginmanager.get_plugin("gpucluster-hooks")
    log = hooks.log if hooks is not None else None

    def write(kind: str, **fields: Any) -> None:
        if log is not None:
            log.write(kind, **fields)

    return write


@shared(once=True)
def live_line(pytestconfig: pytest.Config) -> LiveLine:
    """A progress line, `live_line.show("3 of 7")`: rewritten on a terminal, printed once a minute elsewhere."""
    reporter = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    quiet = pytestconfig.option.verbose < -1
    capture = pytestconfig.pluginmanager.get_plugin("capturemanager")
    return LiveLine(
        None if quiet else reporter,
        terminal=bool(reporter and reporter.isatty),
        uncaptured=capture.global_and_fixture_disabled if capture is not None else nullcontext,
    )


@shared()
def table(gpucluster_item: ItemView) -> Callable[..., None]:
    """Add a cell to a table of the summary: `table("matrix", "srun", "MPI", "fails", note="no PMI support")`.

    `place` is (row, column) as numbers, since items may end in any order.
    """
    record = gpucluster_item.record

    def keep(
        title: str, row: str, column: str, text: str, *, note: str = "", place: tuple[int, int] = (0, 0)
    ) -> None:
        put = {"title": title, "row": row, "column": column, "text": text, "note": note, "place": list(place)}
        record.cells.append(put)

    return keep


@shared()
def srun(gpucluster_item: ItemView) -> Callable[..., StepResult]:
    """Run a step: `srun(["hostname"], nodes=("gpu01",), ntasks_per_node=2, environment="pytorch")`.

    Takes the fields of StepRequest; `environment` is a name of the cluster file; without it `environments.default` is
    used, and "none" is no environment. Without `nodes` the step runs on the item's node, or on all nodes if the item has
    no node. Returns a StepResult: `.rc`, `.tasks`, `.command`.
    """
    session, record = gpucluster_item.session, gpucluster_item.record

    def run(
        argv: Sequence[str], *, nodes: Sequence[str] = (), environment: str | None = None, **options: Any
    ) -> StepResult:
        on = tuple(nodes) or ((record.node,) if record.node else ())
        result = session.run_step(argv, nodes=on, environment=environment, **options)
        record.commands.append(result.command)
        return result

    return run
