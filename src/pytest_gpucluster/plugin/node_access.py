"""When a run gets its nodes, what it sends to them first, and which nodes an item may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.core.errors import GpuClusterError, NotAvailable, NotTested, TransportError
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.plugin import runs_tests
from pytest_gpucluster.plugin.controller import Controller
from pytest_gpucluster.plugin.item_result import clean, one_line
from pytest_gpucluster.plugin.items import kinds, needs_nodes, node_of
from pytest_gpucluster.plugin.node_partition import PLACE, place_of
from pytest_gpucluster.plugin.plan import Kind
from pytest_gpucluster.plugin.profile_check import contradictions, judges_gpus, why_not_judged
from pytest_gpucluster.plugin.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from pytest_gpucluster.core.registry import Suite, Work
    from pytest_gpucluster.plugin.collection import Collection
    from pytest_gpucluster.plugin.session import ClusterSession
    from pytest_gpucluster.report.events import EventLog


class NodeAccess:
    """Registered in the controller and in every xdist worker."""

    def __init__(
        self,
        session: ClusterSession,
        collection: Collection,
        log: EventLog | None,
        say: Callable[[str], None],
    ) -> None:
        self._session, self._collection, self._log, self._say = session, collection, log, say

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """In an xdist worker: find the place of every item, and send it to the controller before the items."""
        worker = self._session
        if not isinstance(worker, Worker) or worker.relay is None:
            return
        places = [
            item.stash.setdefault(PLACE, place_of(item, worker.nodes, worker.lanes)) for item in session.items
        ]
        worker.orderly = any(place.load for place in places)
        worker.relay.call("places", [place.lane for place in places])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Give loads to the lanes that own the nodes."""
        from pytest_gpucluster.plugin.scheduling import LaneScheduling  # only runs with xdist

        controller = self._session
        return LaneScheduling(config, log, lambda: getattr(controller, "places", None))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Get the nodes before the first test, and send them the commands of all probes."""
        items = [*kinds(session.items)]  # none in the controller of xdist
        if not runs_tests(session.config.option) or not any(map(needs_nodes, items)):
            return
        used = {name for item in items for name in getattr(item, "fixturenames", ())}
        self._get_nodes([it for it, work in _submitting(session.config.option) if work.fixture in used])
        run = self._session
        if run.channel is not None:
            run.facts.prefetch(self._collection.wanted_probes(items, run.under_test()))
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
            node.workerinput["gpucluster_reports"] = str(
                self._log.path.parent.absolute() if self._log else "."
            )

    def _get_nodes(self, submitting: list[Suite], *, too_early: bool = False) -> None:
        """Allocate the nodes, or end the run. `too_early`: pytest shows no summary."""
        session = self._session
        if not isinstance(session, Controller) or session.channel is not None:
            return
        try:
            session.allocate(self._say, submitting)
        except GpuClusterError as error:
            if self._log is not None:
                self._log.write("error", message=str(error))
            session.close()
            if too_early:
                pytest.exit(f"no nodes: {clean(one_line(error))}", returncode=4)
            session.messages.append(f"no nodes: {clean(str(error))}")
            pytest.exit("no node is available; no test ran", returncode=4)
        if self._log is not None:
            for held in session.allocations:
                self._log.write("allocation", job=held.job_id, nodes=list(held.nodes))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Lease the item's nodes from its setup to its teardown."""
        with self._session.turn(item.stash.get(PLACE, None)):
            return (yield)

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
        if why := why_not_judged(item, session):
            raise NotAvailable(why)


def _submitting(option: Any) -> Iterator[tuple[Suite, Work]]:
    """Yield the suites with jobs that go before the allocation, in their order, where the options of pytest ask for them."""
    works = [(suite, suite.before_allocation) for suite in suites() if suite.before_allocation]
    for suite, work in sorted(works, key=lambda pair: not pair[1].first):
        if work.wanted(option):
            yield suite, work


def may_run(item: pytest.Item, problem: Kind) -> bool:
    """Return True for an item that judges just this: why the node cannot be tested."""
    if item.get_closest_marker("inventory"):
        return True
    return problem is Kind.LOST and item.get_closest_marker("judges_node") is not None
