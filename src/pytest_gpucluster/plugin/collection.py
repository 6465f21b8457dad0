"""Which items a run has: one per node and test, without suites that the run does not ask for; what rules skip."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.plugin import fixtures
from pytest_gpucluster.plugin.item_result import NOT_APPLICABLE, matches
from pytest_gpucluster.plugin.node_items import Maker, check_of, kinds, marks_of, needs_nodes, node_of
from pytest_gpucluster.plugin.selection import Selection, ignores
from pytest_gpucluster.plugin.worker import Worker
from pytest_gpucluster.suite import probes_of

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpucluster.core.probe import Probe
    from pytest_gpucluster.plugin.session import ClusterSession


class Collection:
    """Registered in the controller and in every xdist worker."""

    def __init__(self, config: pytest.Config, session: ClusterSession) -> None:
        self._config, self._session = config, session
        self._maker = Maker(config, session, fixtures)
        self._selection = Selection(config, session)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out the suites without a section; one that is selected by name is reported as not proved."""
        return ignores(collection_path, self._config, self._session) or None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one item per node of every test that asks for `node`, `host` or facts."""
        if "node" in metafunc.fixturenames:
            self._maker.parametrize(metafunc)

    @pytest.hookimpl(wrapper=True)
    def pytest_pycollect_makeitem(
        self, collector: pytest.Collector, name: str, obj: object
    ) -> Generator[None, Any, Any]:
        """Give a test the items of all its nodes."""
        make = collector.ihook.pytest_pycollect_makeitem
        return self._maker.items((yield), lambda: make(collector=collector, name=name, obj=obj))

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Switch the garbage collector off: it would search all items again and again."""
        gc.disable()
        try:
            return (yield)
        finally:
            gc.collect()  # items that were made and not chosen, which freeze() would retain
            gc.freeze()
            gc.enable()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what runs on request only; skip what does not apply to the cluster or profile."""
        self._leave_out_unasked(items)
        chosen = self._selection.reduce(items)
        if len(chosen) < len(items):
            running = set(chosen)
            self._config.hook.pytest_deselected(items=[item for item in items if item not in running])
            items[:] = chosen
        for item in items:
            reason = self._why_not(check_of(item), node_of(item)) or self._why_unreached(item)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """State what the run must prove; an xdist worker sends it to the controller, which has no items."""
        run = self._session
        if self._config.pluginmanager.has_plugin("dsession"):
            return
        run.selection = self._selection.event(session.items)
        if isinstance(run, Worker) and run.relay is not None:
            run.relay.call("selection", run.selection)

    def _leave_out_unasked(self, items: list[pytest.Item]) -> None:
        """Leave suites out of a run that did not ask for them, be it by naming nothing else."""
        for suite in suites():
            if suite.on_request is None or suite.load(suite.on_request).requested(self._config.option):
                continue
            gone = [item for item in items if suite.name in marks_of(item)]
            if gone and len(gone) < len(items):
                self._config.hook.pytest_deselected(items=gone)
                items[:] = [item for item in items if suite.name not in marks_of(item)]

    def _why_not(self, check: str, node: str) -> str:
        """Return why a check does not apply to a node, '' where it does."""
        rules: Mapping[str, str] = self._session.cluster.not_applicable
        if node and (absent := self._session.nodes[node].profile.absent):
            rules = {**rules, **absent}
        pattern = matches(check, tuple(rules)) if rules else None
        return NOT_APPLICABLE + rules[pattern] if pattern is not None else ""

    def _why_unreached(self, item: pytest.Item) -> str:
        """Return why an item does not apply to a node that only the section of another suite names; '' where it does."""
        session, node = self._session, node_of(item)
        if not session.plan.unreached:
            return ""
        if node not in session.plan.unreached:
            # an item of all nodes needs one that can be reached
            needs_commands = needs_nodes(item) and not node and not session.plan.testable
            return NOT_APPLICABLE + session.cluster.why_no_slurm if needs_commands else ""
        own = session.cluster.group_of(node).section in marks_of(item)
        return "" if own else NOT_APPLICABLE + session.cluster.unreachable(node)

    def wanted_probes(self, items: Sequence[pytest.Item], nodes: Sequence[str]) -> list[Probe[Any]]:
        """Return the probes that the fixtures of items are known to ask for where these nodes are under test."""
        wanted: dict[str, Probe[Any]] = {}
        seen = set()
        for item in kinds(items):
            holder = getattr(item, "cls", None) or getattr(item, "module", None)
            for name in getattr(item, "fixturenames", ()):
                if (name, holder) not in seen:
                    seen.add((name, holder))
                    definition = self._maker.definitions.find(name, item.path, holder)
                    for probe in probes_of(definition, self._session.cluster, nodes):
                        wanted[probe.command] = probe
        return list(wanted.values())
