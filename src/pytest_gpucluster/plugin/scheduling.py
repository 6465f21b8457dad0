"""When a run gets its nodes, what it sends to them first, which nodes an item may use, and which xdist worker runs it.

Facts go first, then the lanes beside each other, then what needs all nodes. A worker whose queue holds one item waits
for the next before it runs it, so that nothing here may hold an item back: the turns on nodes do that.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

import pytest
from xdist.report import report_collection_diff
from xdist.scheduler import LoadScheduling

from pytest_gpucluster.cluster.plan import ALL, ANY, Lanes, NodeLease, ProblemKind
from pytest_gpucluster.core.errors import GpuClusterError, NotAvailable, NotTested, TransportError, has_waited
from pytest_gpucluster.core.registry import parts_of_suites, suites
from pytest_gpucluster.plugin import reporting
from pytest_gpucluster.plugin.controller import Controller
from pytest_gpucluster.plugin.items import (
    CheckItem,
    check_of,
    matches,
    needs_nodes,
    node_of,
    one_per_test,
    record_of,
    used_by,
)
from pytest_gpucluster.plugin.option_table import runs_tests
from pytest_gpucluster.plugin.worker import Worker
from pytest_gpucluster.report.run_model import NO_NODES, WAITED
from pytest_gpucluster.run.item_record import clean, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

    from pytest_gpucluster.core.probe import Probe
    from pytest_gpucluster.core.registry import Suite, Work
    from pytest_gpucluster.kit.suite_work import Contradiction
    from pytest_gpucluster.plugin.collection import Collection
    from pytest_gpucluster.plugin.items import CheckTest
    from pytest_gpucluster.report.machine.events import EventLog
    from pytest_gpucluster.run.session import ClusterSession


LEASE: pytest.StashKey[NodeLease] = pytest.StashKey()


def lease_of(item: pytest.Item, nodes: Iterable[str], lanes: Lanes) -> NodeLease:
    """Say where an item runs. Its markers go first; without any, its facts tell: who runs steps loads nodes."""
    node, names = node_of(item), used_by(item)
    everything = frozenset(nodes)
    alone = item.get_closest_marker("lane") is not None or "lane_nodes" in names
    inventory = item.get_closest_marker("inventory") is not None  # reads Slurm's word, and no node
    if item.get_closest_marker("exclusive") or (not inventory and not alone and "allocation" in names):
        return NodeLease(ALL, everything, load=True)
    if inventory:
        return NodeLease(ANY, frozenset(), load=False)
    if alone or "srun" in names:
        number = next((at for at, lane in enumerate(lanes) if node in lane), None)
        if number is None:
            return NodeLease(ALL, everything, load=True)
        lane = frozenset(lanes[number])
        return NodeLease(str(number), lane if "lane_nodes" in names else frozenset({node}), load=True)
    return NodeLease(ANY, frozenset({node}) if node else everything, load=False)


GPU_PROFILE, PROFILE = "gpu_profile", "profile"  # facts


def contradictions(session: ClusterSession) -> dict[str, Contradiction]:
    """Return {nodes of a group: how all of them contradict their profile}."""
    if session.channel is None:
        return {}
    return {
        nodes: one
        for found in parts_of_suites(lambda suite: suite.contradictions)
        for nodes, one in found(session).items()
    }


def judges_gpus(item: pytest.Item) -> bool:
    """Return whether an item judges GPUs against the profile: the GPUs are read before the first test then."""
    return GPU_PROFILE in _facts(item) or _by_profile(item)


def contradicted(item: pytest.Item, session: ClusterSession) -> str:
    """Return the nodes of the group for whose profile an item is not judged: it is of other hardware; '' if it fits."""
    found: Mapping[str, Contradiction] = session.contradictions
    if not found:
        return ""
    node = node_of(item)
    nodes = session.cluster.group_of(node).nodes if node else next(iter(found))
    judged = bool(_facts(item) & {GPU_PROFILE, PROFILE}) or _by_profile(item)
    return nodes if nodes in found and judged else ""


class ProfileCheck:
    """Registered in the controller: reports a contradiction when the first item is not judged for it."""

    def __init__(self, session: ClusterSession, config: pytest.Config) -> None:
        self._session, self._config, self._reported = session, config, set[str]()

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # before the event of the item is written
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Report the profile before the item."""
        nodes = getattr(report, "gpucluster", {}).get("contradicted", "")
        if nodes and nodes not in self._reported:
            self._reported.add(nodes)
            verdict = self._session.contradictions[nodes].verdict()
            reports = reporting.of_run(verdict, nodes, self._session, self._config)
            reporting.log_apart(reports, self._config)
        return (yield)


def _facts(item: pytest.Item) -> set[str]:
    return item.test.needs if type(item) is CheckItem else used_by(item)


def _by_profile(item: pytest.Item) -> bool:
    patterns = tuple(pattern for suite in suites() for pattern in suite.by_profile)
    return bool(patterns) and matches(check_of(item), patterns) is not None


ENOUGH = 2  # items that a worker must have, to run the first of them


def unit_of(nodeid: str, dist: str) -> str:
    """Return what items have in common that --dist keeps together in one worker; '' where it is nothing."""
    if dist == "loadfile":
        return nodeid.partition("::")[0]
    if dist == "loadscope":
        return nodeid.rpartition("::")[0]
    if dist == "loadgroup" and nodeid.rfind("@") > nodeid.rfind("]"):
        return nodeid.rpartition("@")[2]
    return ""


class LaneScheduling(LoadScheduling):
    """A scheduler of xdist. `lanes` returns the lane of every item, in their order; None: all are for any worker."""

    def __init__(self, config: pytest.Config, log: Producer, lanes: Callable[[], Sequence[str] | None]) -> None:
        super().__init__(config, log)
        self._lanes_of = lanes
        self.collection: list[str] | None = None
        self._lane_of: Sequence[str] = ()
        self._units: deque[list[int]] = deque()  # items for any worker; a unit is not divided
        self._queues: dict[str, deque[int]] = {}  # lane -> its items that wait
        self._owners: dict[str, WorkerController] = {}

    @property
    def _waiting(self) -> bool:
        return bool(self._units) or any(self._queues.values())

    @property
    def tests_finished(self) -> bool:
        """All is sent, and no worker has more than its last item."""
        return not self._waiting and bool(super().tests_finished)

    @property
    def has_pending(self) -> bool:
        """There is something to run."""
        return self._waiting or bool(super().has_pending)

    def schedule(self) -> None:
        """Begin, or bring in a worker that has come later."""
        if self.collection is None:
            (first, collection), *others = self.node2collection.items()
            for node, other in others:
                if text := report_collection_diff(collection, other, first.gateway.id, node.gateway.id):
                    report = pytest.CollectReport(node.gateway.id, "failed", text, [])
                    self.config.hook.pytest_collectreport(report=report)
                    return
            self.collection = collection
            self._sort()
            for _ in range(ENOUGH):  # in turns, so that the first takes not all of a few
                for node in self.nodes:
                    if len(self.node2pending[node]) < ENOUGH:
                        self._send(node)
        for node in self.nodes if self.collection else ():
            self.check_schedule(node)

    def _sort(self) -> None:
        assert self.collection is not None  # schedule() has set it
        lanes, dist = self._lanes_of(), self.config.getvalue("dist")
        self._lane_of = lanes if lanes is not None else [ANY] * len(self.collection)
        units: dict[str, list[int]] = {}
        for index, nodeid in enumerate(self.collection):
            lane = self._lane_of[index]
            if lane != ANY:
                self._queues.setdefault(lane, deque()).append(index)
            else:
                units.setdefault(unit_of(nodeid, dist) or str(index), []).append(index)
        self._units.extend(units.values())
        workers = self.nodes
        self._owners = {lane: workers[0 if lane == ALL else int(lane) % len(workers)] for lane in sorted(self._queues)}

    def check_schedule(self, node: WorkerController, duration: float = 0) -> None:  # xdist's
        """Give a worker its next items; end it where there is none for it."""
        if node.shutting_down:
            return
        while len(self.node2pending[node]) < ENOUGH:
            if not self._send(node):
                node.shutdown()
                return

    def _send(self, node: WorkerController) -> bool:
        batch = self._next(node)
        if batch:
            self.node2pending[node].extend(batch)
            node.send_runtest_some(batch)
        return bool(batch)

    def _next(self, node: WorkerController) -> list[int]:
        if self._units:
            share = max(1, len(self._units) // (4 * len(self.nodes)))  # large at first, small at the end
            share = min(share, self.maxschedchunk or share)
            return [index for _ in range(share) for index in self._units.popleft()]
        for lane in sorted(self._queues, key=lambda lane: (lane == ALL, lane)):
            if self._queues[lane] and self._owners.setdefault(lane, node) is node:
                return [self._queues[lane].popleft()]
        return []

    def remove_node(self, node: WorkerController) -> str | None:
        """Remove a worker; items that it has not started go to others. Return the item that it died in, or None."""
        pending = self.node2pending.pop(node)
        self._owners = {lane: owner for lane, owner in self._owners.items() if owner is not node}
        crashed = self.collection[pending.pop(0)] if pending and self.collection else None
        for index in reversed(pending):
            self._put_back(index)
        for other in self.nodes:
            self.check_schedule(other)
        return crashed

    def mark_test_pending(self, item: str) -> None:
        """Run an item once more: another plugin asks for it."""
        assert self.collection is not None  # an item has run
        self._put_back(self.collection.index(item))
        for node in self.nodes:
            self.check_schedule(node)

    def _put_back(self, index: int) -> None:
        lane = self._lane_of[index]
        if lane == ANY:
            self._units.appendleft([index])
        else:
            self._queues[lane].appendleft(index)


class NodeAccess:
    """Registered in the controller and in every xdist worker."""

    def __init__(
        self, session: ClusterSession, collection: Collection, log: EventLog | None, progress: Callable[[str], None]
    ) -> None:
        self._session, self._collection, self._log, self._progress = session, collection, log, progress
        # test -> the probes whose facts no later test reads
        self._last: defaultdict[CheckTest, list[Probe[Any]]] = defaultdict(list)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """In an xdist worker: find the lease of every item, and send it to the controller before the items."""
        worker = self._session
        if not isinstance(worker, Worker) or worker.relay is None:
            return
        leases = [item.stash.setdefault(LEASE, lease_of(item, worker.nodes, worker.lanes)) for item in session.items]
        worker.orderly = any(lease.load for lease in leases)
        worker.relay.call("item_lanes", [lease.lane for lease in leases])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Give loads to the lanes that own the nodes."""
        controller = self._session
        return LaneScheduling(config, log, lambda: getattr(controller, "item_lanes", None))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Get the nodes before the first test, and send them the commands of all probes."""
        items = [*one_per_test(session.items)]  # none in the controller of xdist
        if not runs_tests(session.config.option) or not any(map(needs_nodes, items)):
            return
        used = {name for item in items for name in used_by(item)}
        self._get_nodes([it for it, work in _submitting(session.config.option) if work.fixture in used])
        run = self._session
        if run.channel is not None:
            readers = self._collection.readers(items, run.under_test()).values()
            run.facts.prefetch([*{probe.command: probe for probe, _ in readers}.values()])
            for probe, test in readers if not run.in_worker else ():  # whose items may come in any order
                self._last[test].append(probe)
            if any(map(judges_gpus, items)):
                run.contradictions = contradictions(run)
        for suite in suites():
            work = suite.before_first_test
            if work and work.fixture in used and run.allocations and isinstance(run, Controller):
                run.begin(suite)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Hand the session over to an xdist worker."""
        option = node.config.option
        if runs_tests(option):
            marks = option.markexpr  # the controller of xdist collects nothing itself
            submitting = [it for it, _ in _submitting(option) if not marks or it.name in marks]
            self._get_nodes(submitting, too_early=True)
        if isinstance(self._session, Controller):
            if not self._session.contradictions:
                self._session.contradictions = contradictions(self._session)
            node.workerinput["gpucluster"] = self._session.hand_over(node.workerinput["workercount"])
            node.workerinput["gpucluster_reports"] = str(self._log.path.parent.absolute() if self._log else ".")

    def _get_nodes(self, submitting: list[Suite], *, too_early: bool = False) -> None:
        """Allocate the nodes, or end the run. `too_early`: pytest shows no summary."""
        session = self._session
        if not isinstance(session, Controller) or session.channel is not None:
            return
        try:
            session.allocate(self._progress, submitting)
        except GpuClusterError as error:
            if self._log is not None:
                self._log.write("error", message=str(error), end=WAITED if has_waited(error) else NO_NODES)
            session.close()
            if too_early:
                pytest.exit(f"no nodes: {clean(one_line(error))}", returncode=4)
            session.messages.append(f"no nodes: {clean(str(error))}")
            pytest.exit("no node is available; no test ran", returncode=4)
        if self._log is not None:
            for held in session.allocations:
                self._log.write("allocation", job=held.job_id, nodes=list(held.nodes))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Lease the item's nodes from its setup to its teardown; release facts after the last test that reads them."""
        with self._session.turn(item.stash.get(LEASE, None)):
            result = yield
        if type(item) is CheckItem and getattr(nextitem, "test", None) is not item.test:
            self._session.facts.release(self._last.pop(item.test, ()))
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Do not run an item on a node that cannot be tested: the node has an entry of its own at the end."""
        session = self._session
        if session.stopped and not item.get_closest_marker(session.stopped_by):
            raise KeyboardInterrupt(session.stopped)
        if session.turn_problem:
            raise TransportError(session.turn_problem)
        node = node_of(item)
        problem = session.problem(node) if node else None
        if problem is not None and not may_run(item, problem.kind):
            raise NotTested(f"{node}: {problem.text}")
        if nodes := contradicted(item, session):
            record_of(item).contradicted = nodes
            raise NotAvailable(session.contradictions[nodes].reason)


def _submitting(option: Any) -> Iterator[tuple[Suite, Work[Any]]]:
    """Yield the suites with jobs that go before the allocation, in their order, where the options of pytest ask for them."""
    works = [(suite, suite.before_allocation) for suite in suites() if suite.before_allocation]
    for suite, work in sorted(works, key=lambda pair: not pair[1].first):
        if work.wanted(option):
            yield suite, work


def may_run(item: pytest.Item, problem: ProblemKind) -> bool:
    """Return True for an item that judges just this: why the node cannot be tested."""
    if item.get_closest_marker("inventory"):
        return True
    return problem is ProblemKind.LOST and item.get_closest_marker("judges_node") is not None
