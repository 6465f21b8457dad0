"""Monitoring works: Prometheus and Grafana answer, every node is a target and up, no alert fires.

No node is allocated: Prometheus is asked once for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.suite import checks_as_tests, claimed
from pytest_gpucluster.suites.monitoring import checks
from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
from pytest_gpucluster.suites.monitoring.steps import query_monitoring

if TYPE_CHECKING:
    from pytest_gpucluster.plugin.session import ClusterSession, Node
    from pytest_gpucluster.suites.monitoring.facts import MonitoringFacts

pytestmark = [pytest.mark.monitoring, pytest.mark.inventory]
claim = claimed(MonitoringConfig, "monitoring")


@pytest.fixture(scope="session")
def seen(claim: MonitoringConfig, gpucluster_session: ClusterSession) -> MonitoringFacts:
    """What Prometheus and Grafana say."""
    return query_monitoring(claim, gpucluster_session.plan.selected, gpucluster_session.inventory)


@pytest.fixture
def node_exporters(node: Node, claim: MonitoringConfig) -> dict[str, int]:
    """The exporters that the node should have: {name: port}."""
    return {**claim.exporters, **(claim.gpu_exporters if node.profile.gpu is not None else {})}


globals().update(checks_as_tests(checks))
