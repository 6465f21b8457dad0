"""Query Prometheus and Grafana once for all nodes, and sort their answers by node."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from pytest_gpucluster.cluster.slurm.inventory import names_of
from pytest_gpucluster.cluster.transport.http import Reply, get
from pytest_gpucluster.core.errors import ProbeError, TransportError
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.suites.monitoring import facts as probe
from pytest_gpucluster.suites.monitoring import gpu_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
    from pytest_gpucluster.suites.monitoring.facts import Alert, MonitoringFacts, Service, Target
    from pytest_gpucluster.suites.monitoring.gpu_facts import Sample

T = TypeVar("T", "Target", "Alert")
S = TypeVar("S")
R = TypeVar("R")
LOOKBACK, LONGEST = 300.0, 3600.0  # seconds; Prometheus itself forgets a series after five minutes
LOOKBACK_SCRAPES = 5


def query_monitoring(
    config: MonitoringConfig, nodes: Iterable[str], inventory: Mapping[str, NodeInfo]
) -> MonitoringFacts:
    """Return the facts of these nodes. A service that does not answer is a problem in the facts, no error."""
    known = names_of(nodes, inventory)
    targets: tuple[Target, ...] = ()
    targets_problem = ""
    now, began = time.time(), None
    try:
        reply = _get(config.prometheus, probe.TARGETS, config)
        now = reply.date if reply.date is not None else time.time()
        targets = probe.read_targets(reply.body)
        if any(one.unscraped for one in targets):  # before 2.14 Prometheus does not report it
            began, _ = _read(probe.read_began, config.prometheus, probe.RUNTIME, config)
    except (TransportError, ProbeError) as error:
        targets_problem = str(error)
    alerts, alerts_problem = _read(probe.read_alerts, config.prometheus, probe.ALERTS, config)
    rules, rules_problem = _read(gpu_facts.read_rules, config.prometheus, gpu_facts.RULES, config)
    samples, samples_now, samples_problem = _samples(config, targets)
    owners = {one.scrape: probe.owner(one.hosts, known) for one in targets}
    return probe.MonitoringFacts(
        rules=rules or (),
        rules_problem=rules_problem,
        samples=by_owner(samples, lambda one: probe.owner(one.hosts, known) or owners.get(one.target, "")),
        samples_problem=samples_problem,
        samples_now=samples_now,
        prometheus=_prometheus(config),
        grafana=_grafana(config.grafana, config) if config.grafana is not None else None,
        targets=by_node(targets, known),
        targets_problem=targets_problem,
        alerts=by_node(alerts or (), known),
        alerts_problem=alerts_problem,
        now=now,
        began=began,
    )


def _read(read: Callable[[bytes], R], url: str, path: str, config: MonitoringConfig) -> tuple[R | None, str]:
    """Return what a service answers, and why there is no answer that can be read."""
    try:
        return read(_get(url, path, config).body), ""
    except (TransportError, ProbeError) as error:
        return None, str(error)


def _samples(config: MonitoringConfig, targets: Iterable[Target]) -> tuple[tuple[Sample, ...], float, str]:
    """Return the last samples of all GPUs, the clock of Prometheus, and why there are none."""
    if not config.gpu_exporters:
        return (), 0.0, ""
    ports = set(config.gpu_exporters.values())
    longest = max((one.interval for one in targets if one.port in ports), default=0.0)
    path = gpu_facts.samples_path(config.gpu_metrics, min(LONGEST, max(LOOKBACK, LOOKBACK_SCRAPES * longest)))
    try:
        reply = _get(config.prometheus, path, config)
        now = reply.date if reply.date is not None else time.time()
        return gpu_facts.read_samples(reply.body), now, ""
    except (TransportError, ProbeError) as error:
        return (), 0.0, str(error)


def by_node(found: Iterable[T], known: Mapping[str, str]) -> dict[str, tuple[T, ...]]:
    """Return targets or alerts by the node that they name, '' for no node of `known`."""
    return by_owner(found, lambda one: probe.owner(one.hosts, known))


def by_owner(found: Iterable[S], owner: Callable[[S], str]) -> dict[str, tuple[S, ...]]:
    """Return facts by what `owner` names."""
    return {node: tuple(ones) for node, ones in grouped((owner(one), one) for one in found).items()}


def _prometheus(config: MonitoringConfig) -> Service:
    url = config.prometheus
    version, (_, problem) = None, _read(bytes, url, probe.HEALTHY, config)
    if not problem:
        version, problem = _read(probe.read_version, url, probe.BUILD, config)
    return probe.Service("Prometheus", _shown(url), version or "", problem)


def _grafana(url: str, config: MonitoringConfig) -> Service:
    found, problem = _read(probe.read_grafana, url, probe.GRAFANA_HEALTH, config)
    version, database = found or ("", "")
    if found and database != "ok":
        problem = f"its database is {database}"
    return probe.Service("Grafana", _shown(url), version, problem)


def _get(url: str, path: str, config: MonitoringConfig) -> Reply:
    return get(url.rstrip("/") + path, timeout=config.timeout)


def _shown(url: str) -> str:
    """Return the URL without a password."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
