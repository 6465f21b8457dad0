"""Which items a run has: one per node and test, without suites that the run does not ask for; what rules skip."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.plugin.item_result import matches
from pytest_gpucluster.plugin.items import CheckItem, check_of, kinds, marks_of, needs_nodes, node_of
from pytest_gpucluster.plugin.selection import Selection, ignores
from pytest_gpucluster.plugin.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpucluster.core.probe import Probe
    from pytest_gpucluster.plugin.session import ClusterSession

WHY_NOT: pytest.StashKey[NotApplicable] = pytest.StashKey()


class Collection:
    """Registered in the controller and in every xdist worker."""

    def __init__(self, config: pytest.Config, session: ClusterSession) -> None:
        self._config, self._session = config, session
        self._selection = Selection(config, session)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out the suites without a section; one that is selected by name is reported as not proved."""
        return ignores(collection_path, self._config, self._session) or None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one item per node of every test of a site that asks for `node`, `host` or facts."""
        if hasattr(metafunc.module, "testinfra_hosts"):
            raise pytest.UsageError(
                f"testinfra_hosts of {metafunc.module.__file__} has no effect with --cluster, whose file names the nodes: "
                "remove it, and select nodes with --nodes=HOSTLIST"
            )
        if "node" in metafunc.fixturenames:
            metafunc.parametrize("node", self._session.plan.selected, indirect=True)

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
                item.stash[WHY_NOT] = NotApplicable(reason)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """End an item that does not apply before anything is done for it."""
        if (why_not := item.stash.get(WHY_NOT, None)) is not None:
            raise why_not

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
        return rules[pattern] if pattern is not None else ""

    def _why_unreached(self, item: pytest.Item) -> str:
        """Return why an item does not apply to a node that only the section of another suite names; '' where it does."""
        session, node = self._session, node_of(item)
        if not session.plan.unreached:
            return ""
        if node not in session.plan.unreached:
            # an item of all nodes needs one that can be reached
            needs_commands = needs_nodes(item) and not node and not session.plan.testable
            return session.cluster.why_no_slurm if needs_commands else ""
        own = session.cluster.group_of(node).section in marks_of(item)
        return "" if own else session.cluster.unreachable(node)

    def wanted_probes(self, items: Sequence[pytest.Item], nodes: Sequence[str]) -> list[Probe[Any]]:
        """Return the probes of the facts of items where these nodes are under test."""
        own = (item for item in kinds(items) if isinstance(item, CheckItem))
        asking = {fact.probes: None for item in own for fact in item.test.steps.values() if fact.probes}
        probes = (probe for asked in asking for probe in asked(self._session.cluster, nodes))
        return list({probe.command: probe for probe in probes}.values())
