"""Monitoring: Prometheus and Grafana answer, every node is a target and up, no alert fires.

No node is allocated: one query of Prometheus covers all nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.suite import Tests, fact, required_section
from pytest_gpucluster.suites.monitoring import checks, gpu_checks
from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
from pytest_gpucluster.suites.monitoring.steps import query_monitoring

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suites.monitoring.facts import MonitoringFacts

config = required_section(MonitoringConfig)


@fact(once=True)
def seen(config: MonitoringConfig, gpucluster_session: ClusterSession) -> MonitoringFacts:
    """The answers of Prometheus and Grafana."""
    return query_monitoring(config, gpucluster_session.plan.selected, gpucluster_session.inventory)


@fact
def node_exporters(node: Node, config: MonitoringConfig) -> dict[str, int]:
    """The exporters that the node must have: {name: port}."""
    return {**config.exporters, **(config.gpu_exporters if node.profile.gpu is not None else {})}


@fact(once=True)
def gpu_nodes(gpucluster_session: ClusterSession) -> int:
    """The number of nodes whose profile has GPUs."""
    return sum(node.profile.gpu is not None for node in gpucluster_session.nodes.values())


@fact
def node_profile(node: Node) -> Profile:
    """The profile of the item's node."""
    return node.profile


TESTS = Tests(
    checks,
    gpu_checks,
    marks=(
        "monitoring",
        "inventory",
    ),
)
