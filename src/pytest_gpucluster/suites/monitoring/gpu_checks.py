"""Monitoring of GPUs: alerting rules that use their metrics, and fresh values of each GPU. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Judgement, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.part import GPUS, named, register
from pytest_gpucluster.core.text import some
from pytest_gpucluster.suites.monitoring.facts import SCRAPE_INTERVAL
from pytest_gpucluster.suites.monitoring.gpu_facts import BOUNDS, about_gpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
    from pytest_gpucluster.suites.monitoring.facts import MonitoringFacts
    from pytest_gpucluster.suites.monitoring.gpu_facts import Sample

INTERVALS = 4  # scrapes may be missed, and one is always to come
SHORTEST = 30.0  # seconds
register("rule", "rule", named=True, labelled=True)


@check(
    "monitoring.gpu_rules",
    cause="Prometheus loads no rules about GPUs (DeepOps installs InstanceDown only), or a rule cannot be evaluated",
    hint="/rules of Prometheus; rule_files of prometheus.yml; promtool check rules; where Grafana, Thanos or Mimir has the "
    "rules: `not_applicable: {monitoring.gpu_rules: REASON}` in the cluster file",
    action=Action.CONFIGURE,
)
def gpu_rules(seen: MonitoringFacts, config: MonitoringConfig, gpu_nodes: int) -> Judgement:
    """An alerting rule uses a metric of GPUs, and such rules can be evaluated."""
    wanted = bool(config.gpu_exporters) and gpu_nodes > 0
    if not wanted:
        raise NotApplicable("no node has GPUs, or gpu_exporters is empty")
    if seen.rules_problem:
        raise NotAvailable(seen.rules_problem)
    alerting = [rule for rule in seen.rules if rule.alerting]
    gpu = about_gpus(seen.rules)
    of_gpus = [rule for rule in alerting if rule in gpu]
    yield Metric("gpu_rules", len(of_gpus), "rules")
    if not of_gpus:
        measured = f"{len(alerting)} are loaded, none uses a metric of GPUs"
        expected = "at least one, on DCGM_FI_DEV_XID_ERRORS or the like"
        yield Finding(named("setting", "alerting rules"), measured, expected, code="none_about_gpus")
    for rule in (one for one in seen.rules if one.alerting or one in gpu):
        counts = rule in gpu
        if rule.health == "err":
            deviation, part = Finding if counts else Advisory, named("rule", rule.name)
            yield deviation(part, Quote(rule.error or "an error"), "health ok", code="error")
        elif rule.health != "ok" and counts:
            yield NotAvailable(f"rule {rule.name} was not evaluated yet (health {rule.health})")


@check(
    "monitoring.gpu_metrics",
    cause="the GPU exporter does not see a GPU or does not run, its target has labels of another node, or DCGM hangs",
    hint="on the node: curl localhost:9400/metrics | grep GPU_TEMP; nvidia-smi -L; dcgmi discovery -l; /targets of "
    "Prometheus",
    action=Action.MONITOR,
)
def gpu_metrics(seen: MonitoringFacts, node_name: str, node_profile: Profile, config: MonitoringConfig) -> Judgement:
    """Prometheus has a fresh and plausible value of each GPU of the node."""
    if not config.gpu_exporters or node_profile.gpu is None:
        raise NotApplicable("the node has no GPUs, or the cluster file no monitoring.gpu_exporters")
    if seen.samples_problem:
        raise NotAvailable(seen.samples_problem)
    ports = set(config.gpu_exporters.values())
    targets = [one for one in seen.targets.get(node_name, ()) if one.port in ports]
    if any(map(seen.awaits, targets)):
        raise NotAvailable("the GPU exporter was not scraped yet: Prometheus started or reloaded just now")
    samples = seen.samples.get(node_name, ())
    if not samples:
        measured = f"none of {some(config.gpu_metrics)}"
        yield Finding(GPUS, measured, "a value of each GPU", code="no_metrics")
        return
    interval = max((one.interval for one in targets), default=SCRAPE_INTERVAL)
    yield from _values(samples, seen.samples_now, max(SHORTEST, INTERVALS * interval), node_profile.gpu.count)


def _values(samples: Sequence[Sample], now: float, most: float, count: int) -> Judgement:
    """Judge the last values of a node with `count` GPUs: number, age (at most `most` seconds), bounds."""
    newest = {one.gpu: one for one in sorted(samples, key=lambda one: one.time)}
    ages = {gpu: max(0.0, now - one.time) for gpu, one in newest.items()}
    fresh = sorted(gpu for gpu, age in ages.items() if age <= most)
    yield Metric("gpus_with_metrics", len(fresh), "GPUs")
    yield Metric("sample_age", max(ages.values()), "s", detail=True)
    for gpu, age in ages.items():
        if age > most:
            measured = Quantity(age, "s", f"last value {age:.0f} s ago")
            yield Finding(newest[gpu].part, measured, Quantity(most, "s", f"<= {most:.0f} s"), code="old_value")
    for one in samples:
        if one.gpu in fresh:
            yield from _plausible(one)
    if len(fresh) == count:
        return
    if any(one.mig for one in samples):
        expected = "of whole GPUs: their number is not judged"
        yield Advisory(GPUS, "metrics of MIG instances", expected, code="of_mig")
    else:
        having = Quantity(len(fresh), "GPUs", f"{len(fresh)} with metrics ({some(fresh)})")
        yield Finding(GPUS, having, Quantity(count, "GPUs", str(count)), code="count")


def _plausible(one: Sample) -> Judgement:
    low, high, unit = BOUNDS.get(one.metric, (-math.inf, math.inf, ""))
    if not (math.isfinite(one.value) and low <= one.value <= high):
        expected = f"{low:g} to {high:g} {unit}" if unit else "a number"
        yield Finding(one.part, f"{one.metric} {one.value:g}", expected, code="implausible")
