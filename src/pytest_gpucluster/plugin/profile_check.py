"""A profile of other hardware is reported once, before anything is judged against it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.kit.nvidia_smi import GPUS
from pytest_gpucluster.kit.profile_fit import contradiction
from pytest_gpucluster.plugin import reporting
from pytest_gpucluster.plugin.item_result import matches
from pytest_gpucluster.plugin.items import CheckItem, check_of, node_of

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from pytest_gpucluster.kit.profile_fit import Contradiction
    from pytest_gpucluster.plugin.session import ClusterSession

GPU_PROFILE, PROFILE = "gpu_profile", "profile"  # facts


def contradictions(session: ClusterSession) -> dict[str, Contradiction]:
    """Return {nodes of a group: how all its GPUs contradict its profile}; the GPUs are read from all nodes at once."""
    found = {}
    if session.channel is None:
        return {}
    for group in session.cluster.groups:
        nodes = [node for node in group.names if node in session.channel.nodes] if group.profile.gpu else []
        fleet = {}
        for node in nodes:
            try:
                fleet[node] = session.facts(node, GPUS)
            except GpuClusterError:
                continue  # its own items report it
        counted = {
            node: info.gpus
            for node in fleet
            if (info := session.inventory.get(node)) is not None and not info.allocates_mig
        }
        if (one := contradiction(group, fleet, counted)) is not None:
            found[group.nodes] = one
    return found


def judges_gpus(item: pytest.Item) -> bool:
    """Return whether an item judges GPUs against the profile: the GPUs are read before the first test then."""
    return GPU_PROFILE in _facts(item) or _by_profile(item)


def why_not_judged(item: pytest.Item, session: ClusterSession) -> str:
    """Return why an item is not judged: the profile of its node, or of a node of the cluster, is of other hardware."""
    found: Mapping[str, Contradiction] = session.contradictions
    if not found:
        return ""
    node = node_of(item)
    one = found.get(session.cluster.group_of(node).nodes) if node else next(iter(found.values()))
    if one is None or not (_facts(item) & {GPU_PROFILE, PROFILE} or _by_profile(item)):
        return ""
    return one.reason


class ProfileCheck:
    """Registered in the controller: reports a contradiction when the first item is not judged for it."""

    def __init__(self, session: ClusterSession, config: pytest.Config) -> None:
        self._session, self._config, self._reported = session, config, set[str]()

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # before the event of the item is written
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Report the profile before the item."""
        message = reporting.message_of(report) if report.skipped and self._session.contradictions else ""
        for nodes, one in self._session.contradictions.items() if message else ():
            if nodes not in self._reported and one.reason in message:
                self._reported.add(nodes)
                reports = reporting.of_run(one.verdict(), nodes, self._session, self._config)
                reporting.log_apart(reports, self._config)
        return (yield)


def _facts(item: pytest.Item) -> set[str]:
    return item.test.needs if type(item) is CheckItem else set(getattr(item, "fixturenames", ()))


def _by_profile(item: pytest.Item) -> bool:
    patterns = tuple(pattern for suite in suites() for pattern in suite.by_profile)
    return bool(patterns) and matches(check_of(item), patterns) is not None
