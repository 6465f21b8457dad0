"""Monitoring works: Prometheus and Grafana answer, every node is a target and up, no alert fires.

No node is allocated: Prometheus is asked once for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.suite import claimed
from pytest_gpucluster.suites.monitoring import checks
from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
from pytest_gpucluster.suites.monitoring.steps import look

if TYPE_CHECKING:
    from pytest_gpucluster.plugin.expect import Expect
    from pytest_gpucluster.plugin.session import ClusterSession, Node
    from pytest_gpucluster.suites.monitoring.facts import Monitored

pytestmark = [pytest.mark.monitoring, pytest.mark.inventory]
claim = claimed(MonitoringConfig, "monitoring")


@pytest.fixture(scope="session")
def seen(claim: MonitoringConfig, gpucluster_session: ClusterSession) -> Monitored:
    """What Prometheus and Grafana say."""
    return look(claim, gpucluster_session.plan.selected, gpucluster_session.inventory)


def test_prometheus(seen: Monitored, claim: MonitoringConfig, expect: Expect) -> None:
    """Prometheus answers, calls itself healthy, and is the claimed version."""
    expect(checks.prometheus(seen, claim))


def test_grafana(seen: Monitored, claim: MonitoringConfig, expect: Expect) -> None:
    """Grafana answers, its database is well, and it is the claimed version."""
    expect(checks.grafana(seen, claim))


def test_exporters(seen: Monitored, claim: MonitoringConfig, expect: Expect) -> None:
    """What is exported once for the whole cluster is a target and up."""
    expect(checks.exporters(seen, claim))


def test_cluster_alerts(seen: Monitored, claim: MonitoringConfig, expect: Expect) -> None:
    """No alert fires that is about none of the nodes."""
    expect(checks.alerts(seen, "", claim))


def test_target(node: Node, seen: Monitored, claim: MonitoringConfig, expect: Expect) -> None:
    """Every exporter of the node is a target of Prometheus."""
    gpus = claim.gpu_exporters if node.profile.gpu is not None else {}
    expect(checks.target(seen, node.name, {**claim.exporters, **gpus}))


def test_up(node: Node, seen: Monitored, expect: Expect) -> None:
    """Every target on the node is up."""
    expect(checks.up(seen, node.name))


def test_scrape_age(node: Node, seen: Monitored, claim: MonitoringConfig, expect: Expect) -> None:
    """Every target on the node was scraped lately."""
    expect(checks.scrape_age(seen, node.name, claim))


def test_alerts(node: Node, seen: Monitored, claim: MonitoringConfig, expect: Expect) -> None:
    """No alert fires about the node."""
    expect(checks.alerts(seen, node.name, claim))
