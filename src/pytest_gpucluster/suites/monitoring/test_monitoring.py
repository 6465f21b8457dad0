"""Monitoring: Prometheus and Grafana answer, every node is a target and up, no alert fires.

No node is allocated: one query of Prometheus covers all nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.suite import Tests, given, of_fleet, of_node, required_section
from pytest_gpucluster.suites.monitoring import checks, gpu_checks
from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
from pytest_gpucluster.suites.monitoring.steps import query_monitoring

if TYPE_CHECKING:
    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suites.monitoring.facts import MonitoringFacts

config = required_section(MonitoringConfig)


@of_fleet(config, given.session)
def seen(config: MonitoringConfig, session: ClusterSession) -> MonitoringFacts:
    """The answers of Prometheus and Grafana."""
    return query_monitoring(config, session.plan.selected, session.inventory)


@of_node(given.node, config)
def node_exporters(node: Node, config: MonitoringConfig) -> dict[str, int]:
    """The exporters that the node must have: {name: port}."""
    return {**config.exporters, **(config.gpu_exporters if node.profile.gpu is not None else {})}


@of_fleet(given.session)
def gpu_nodes(session: ClusterSession) -> int:
    """The number of nodes whose profile has GPUs."""
    return sum(node.profile.gpu is not None for node in session.nodes.values())


node_profile = of_node(given.node)(lambda node: node.profile)


TESTS = Tests(checks, gpu_checks, marks=("monitoring", "inventory"))
