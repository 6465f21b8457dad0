"""Query Prometheus and Grafana once for all nodes, and sort their answers by node."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, TypeVar

from pytest_gpucluster.cluster.slurm.inventory import names_of
from pytest_gpucluster.cluster.transport.http import Reply, get
from pytest_gpucluster.core.errors import ProbeError, TransportError
from pytest_gpucluster.suites.monitoring import facts as probe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
    from pytest_gpucluster.suites.monitoring.facts import Alert, MonitoringFacts, Service, Target

T = TypeVar("T", "Target", "Alert")


def query_monitoring(
    config: MonitoringConfig, nodes: Iterable[str], inventory: Mapping[str, NodeInfo]
) -> MonitoringFacts:
    """Return the facts of these nodes. A service that does not answer is a problem in the facts, no error."""
    known = names_of(nodes, inventory)
    targets: tuple[Target, ...] = ()
    alerts: tuple[Alert, ...] = ()
    targets_problem = alerts_problem = ""
    now, began = time.time(), None
    try:
        reply = _get(config.prometheus, probe.TARGETS, config)
        now = reply.date if reply.date is not None else time.time()
        targets = probe.read_targets(reply.body)
        began = _began(config) if any(one.unscraped for one in targets) else None
    except (TransportError, ProbeError) as error:
        targets_problem = str(error)
    try:
        if config.alerts:
            alerts = probe.read_alerts(_get(config.prometheus, probe.ALERTS, config).body)
    except (TransportError, ProbeError) as error:
        alerts_problem = str(error)
    return probe.MonitoringFacts(
        prometheus=_prometheus(config),
        grafana=_grafana(config.grafana, config) if config.grafana is not None else None,
        targets=_by_node(targets, known),
        targets_problem=targets_problem,
        alerts=_by_node(alerts, known),
        alerts_problem=alerts_problem,
        now=now,
        began=began,
    )


def _began(config: MonitoringConfig) -> float | None:
    """Return when Prometheus started or read its configuration; None if it does not report it, as before 2.14."""
    try:
        return probe.read_began(_get(config.prometheus, probe.RUNTIME, config).body)
    except (TransportError, ProbeError):
        return None


def _by_node(found: Iterable[T], known: Mapping[str, str]) -> dict[str, tuple[T, ...]]:
    sorted_: dict[str, list[T]] = defaultdict(list)
    for one in found:
        sorted_[probe.owner(one.hosts, known)].append(one)
    return {node: tuple(ones) for node, ones in sorted_.items()}


def _prometheus(config: MonitoringConfig) -> Service:
    version = problem = ""
    try:
        _get(config.prometheus, probe.HEALTHY, config)
        version = probe.read_version(_get(config.prometheus, probe.BUILD, config).body)
    except (TransportError, ProbeError) as error:
        problem = str(error)
    return probe.Service("Prometheus", _shown(config.prometheus), version, problem)


def _grafana(url: str, config: MonitoringConfig) -> Service:
    version = problem = ""
    try:
        version, database = probe.read_grafana(_get(url, probe.GRAFANA_HEALTH, config).body)
        problem = "" if database == "ok" else f"its database is {database}"
    except (TransportError, ProbeError) as error:
        problem = str(error)
    return probe.Service("Grafana", _shown(url), version, problem)


def _get(url: str, path: str, config: MonitoringConfig) -> Reply:
    return get(url.rstrip("/") + path, timeout=config.timeout)


def _shown(url: str) -> str:
    """Return the URL without a password."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
