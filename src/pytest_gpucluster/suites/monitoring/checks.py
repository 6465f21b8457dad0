"""Monitoring: services, targets of each node, scrapes, alerts. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Judgement, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.part import Part, named, register

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
    from pytest_gpucluster.suites.monitoring.facts import MonitoringFacts, Service, Target

NO_TARGET = (
    "Prometheus has no target on the node: add it to scrape_configs, and name its exporters in `monitoring.exporters`"
)
HINT = "systemctl status prometheus-node-exporter; the exporter's container; the firewall between Prometheus and node"
# severities of kube-prometheus: `none` is for the machinery of alerts (InfoInhibitor), `info` notifies no person
_MACHINERY, _INFORMATION = ("none",), ("info",)
register("alert", "alert", named=True, labelled=True)


@check(
    "monitoring.prometheus",
    cause="Prometheus does not run, or the cluster file has a wrong URL",
    hint="systemctl status prometheus (DeepOps: docker.prometheus); `monitoring.prometheus` of the cluster file",
    action=Action.CONFIGURE,
)
def prometheus(seen: MonitoringFacts) -> Judgement:
    """Prometheus answers and is healthy."""
    yield from _service(seen.prometheus)
    for what, problem in (("targets", seen.targets_problem), ("alerts", seen.alerts_problem)):
        if problem and not seen.prometheus.problem:
            part = named("service", f"{what} of Prometheus")
            yield Finding(part, Quote(problem), "an answer", code="no_answer")
    if not seen.targets_problem:
        yield Metric("targets", sum(len(targets) for targets in seen.targets.values()), "targets")


@check(
    "monitoring.grafana",
    cause="Grafana does not run, or the cluster file has a wrong URL",
    hint="systemctl status grafana-server (DeepOps: docker.grafana); `monitoring.grafana` of the cluster file",
    action=Action.CONFIGURE,
)
def grafana(seen: MonitoringFacts) -> Judgement:
    """Grafana answers, and its database works."""
    if seen.grafana is None:
        raise NotApplicable("the cluster file sets monitoring.grafana: null")
    yield from _service(seen.grafana)


@check(
    "monitoring.exporters",
    cause="the exporter does not run, or is not a target of Prometheus",
    hint="systemctl status of the exporter (DeepOps: docker.slurm-exporter); scrape_configs of Prometheus",
    action=Action.CONFIGURE,
)
def exporters(seen: MonitoringFacts, config: MonitoringConfig) -> Judgement:
    """The exporters of the whole cluster are targets and up."""
    if not config.cluster_exporters:
        raise NotApplicable("the cluster file sets no monitoring.cluster_exporters")
    everything = [one for targets in seen.known_targets.values() for one in targets]
    for name, port in config.cluster_exporters.items():
        found = [one for one in everything if one.port == port]
        if not found:
            yield _absent(name, port)
        elif not any(one.health == "up" for one in found):
            yield from _down(found, seen)


def _service(service: Service) -> Judgement:
    if service.problem:
        part, expected = named("service", service.name), f"{service.url} answers and is healthy"
        yield Finding(part, Quote(service.problem), expected, code="not_healthy")


def _absent(name: str, port: int, also: str = "") -> Finding:
    part = named("service", f"{name} on port {port}")
    return Finding(part, f"not a target of Prometheus{also}", "a target", code="not_a_target")


@check(
    "monitoring.cluster_alerts",
    cause="a condition of the alert rules of the site holds",
    hint="/alerts of Prometheus; `monitoring.ignored_alerts` of the cluster file",
    action=Action.MONITOR,
)
def cluster_alerts(seen: MonitoringFacts, config: MonitoringConfig) -> Judgement:
    """No alert fires that names none of the nodes."""
    return _firing(seen, "", config)


@check(
    "monitoring.target",
    cause="the node was added to Slurm and not to Prometheus, or its exporter is on another port",
    hint="add the node to scrape_configs or the endpoint files of Prometheus (DeepOps: group slurm-node)",
    action=Action.CONFIGURE,
)
def target(seen: MonitoringFacts, node_name: str, node_exporters: Mapping[str, int]) -> Judgement:
    """Every exporter of the node is a target of Prometheus."""
    found = seen.known_targets.get(node_name, ())
    ports = {one.port for one in found}
    yield Metric("node_targets", len(found), "targets")
    for name, port in node_exporters.items():
        if port not in ports:
            known = ", ".join(f"{one.job} on port {one.port}" for one in found)
            yield _absent(name, port, f" (the node has {known})" if known else "")


@check(
    "monitoring.up",
    cause="the exporter does not run, or Prometheus cannot reach the node",
    hint=HINT,
    action=Action.MONITOR,
)
def up(seen: MonitoringFacts, node_name: str) -> Judgement:
    """Every target on the node is up."""
    yield from _down(_targets(seen, node_name), seen)


def _targets(seen: MonitoringFacts, node: str) -> tuple[Target, ...]:
    if found := seen.known_targets.get(node):
        return found
    raise NotAvailable(NO_TARGET)


def _unscraped(one: Target, seen: MonitoringFacts) -> NotAvailable:
    wait = (seen.began or 0.0) + 2 * one.interval - seen.now
    return NotAvailable(f"{one.part}: not scraped yet, Prometheus started or reloaded just now; repeat in {wait:.0f} s")


def _down(targets: Iterable[Target], seen: MonitoringFacts) -> Judgement:
    for one in targets:
        if seen.awaits(one):
            yield _unscraped(one, seen)
        elif one.health != "up":
            health = f"{one.health}: {one.last_error}" if one.last_error else one.health
            yield Finding(one.part, Quote(health), "up", code="not_up")


@check(
    "monitoring.scrape_age",
    cause="Prometheus is overloaded or stopped scraping; its clock is wrong",
    hint="the log of Prometheus; its page /targets; scrape_interval",
    action=Action.MONITOR,
)
def scrape_age(seen: MonitoringFacts, node_name: str, config: MonitoringConfig) -> Judgement:
    """Every target on the node was scraped within the limit, by the clock of Prometheus."""
    for one in _targets(seen, node_name):
        most = max(config.max_scrape_age, 2 * one.interval)  # an exporter of a BMC is scraped every 5 minutes
        bound = Quantity(most, "s", f"<= {most:g} s")
        if seen.awaits(one):
            yield _unscraped(one, seen)
            continue
        if one.last_scrape is None:
            yield Finding(one.part, "never scraped", bound, code="never_scraped")
            continue
        age = max(0.0, seen.now - one.last_scrape)  # the answer states whole seconds
        yield Metric("scrape_age", age, "s", Part("port", one.port))
        if age > most:
            yield Finding(one.part, Quantity(age, "s", f"{age:.0f} s ago"), bound, code="old_scrape")


@check(
    "monitoring.alerts",
    cause="a condition of the alert rules of the site holds",
    hint="/alerts of Prometheus; `monitoring.ignored_alerts` of the cluster file",
    action=Action.MONITOR,
)
def alerts(seen: MonitoringFacts, node_name: str, config: MonitoringConfig) -> Judgement:
    """No alert fires that names the node."""
    return _firing(seen, node_name, config)


def _firing(seen: MonitoringFacts, node: str, config: MonitoringConfig) -> Judgement:
    """Judge the alerts that name a node; '': those that name no node."""
    if seen.alerts_problem:
        raise NotAvailable(seen.alerts_problem)
    firing = [one for one in seen.alerts.get(node, ()) if one.state == "firing"]
    yield Metric("alerts_firing", len(firing), "alerts")
    alerting = [one for one in seen.rules if one.alerting]
    heartbeats = {one.name for one in alerting} - {one.name for one in alerting if not one.heartbeat}
    for one in firing:
        ignored = any(fnmatchcase(one.name, pattern) for pattern in config.ignored_alerts)
        if ignored or one.name in heartbeats or one.severity in _MACHINERY:
            continue
        state = f"{one.severity} firing".strip()
        part, measured = named("alert", one.name), Quote(f"{state}: {one.summary}" if one.summary else state)
        if one.past:
            measured = Quote(f"{measured} (the condition has ended)")
            yield Advisory(part, measured, "no firing alert", code="has_ended")
        else:
            finding_class = Advisory if one.severity in _INFORMATION else Finding
            yield finding_class(part, measured, "no firing alert", code="fires")
