"""Healthy machines whose monitoring shows something, and sick ones whose monitoring shows little (docs/five-rules.md)."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import MONITOR, NOT_CHECKED, PASSED, WARNING, CounterExample, assert_as_expected, name

from pytest_gpucluster import config as configs
from pytest_gpucluster.suites.monitoring import checks, gpu_checks, gpu_facts
from pytest_gpucluster.suites.monitoring import facts as probe
from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
from pytest_gpucluster.suites.monitoring.facts import MonitoringFacts, Service
from pytest_gpucluster.suites.monitoring.steps import by_node, by_owner

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict

NOW = 1_789_000_000.0  # 2026-09-10T00:26:40Z
NODES = {"gpu01": "gpu01", "10.0.0.1": "gpu01", "gpu02": "gpu02"}
CONFIG = MonitoringConfig()
KPS = "https://runbooks.prometheus-operator.dev/runbooks/general/"
API = "https://prometheus.io/docs/prometheus/latest/querying/api/"
RULES = "https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/"
AWESOME = "https://samber.github.io/awesome-prometheus-alerts/rules"
EXPORTER = "https://github.com/NVIDIA/dcgm-exporter"


def answer(**data: Any) -> bytes:
    return json.dumps({"status": "success", "data": data}).encode()


def facts(**known: Any) -> MonitoringFacts:
    return MonitoringFacts(Service("Prometheus", "http://mgmt:9090"), None, now=NOW, samples_now=NOW, **known)


def fired(alert: dict[str, Any], query: str = "", node: str = "gpu01") -> Verdict:
    """Judge one alert of Prometheus' list; `query`: the expression of its rule."""
    labels = {"alertname": "X", **alert.pop("labels")}
    whole = {
        "labels": labels,
        "annotations": {},
        "state": "firing",
        "activeAt": "2026-09-09T00:00:00Z",
        "value": "1e+00",
    }
    rule = {
        "name": labels["alertname"],
        "query": query or "up == 0",
        "type": "alerting",
        "health": "ok",
        "labels": {},
    }
    rules = gpu_facts.read_rules(answer(groups=[{"name": "g", "rules": [rule]}]))
    alerts = by_node(probe.read_alerts(answer(alerts=[{**whole, **alert}])), NODES)
    seen = facts(alerts=alerts, rules=rules)
    return checks.alerts(seen, node, CONFIG) if node else checks.cluster_alerts(seen, CONFIG)


def target(**changes: Any) -> MonitoringFacts:
    """Return what is known of one target on gpu01."""
    whole = {
        "labels": {"job": "node", "instance": "gpu01:9100"}, "discoveredLabels": {"__address__": "gpu01:9100"},
        "scrapeUrl": "http://gpu01:9100/metrics", "lastError": "", "lastScrape": "2026-09-10T00:26:33.1Z",
        "health": "up", "scrapeInterval": "15s", "scrapeTimeout": "10s",
    }  # fmt: skip
    found = probe.read_targets(answer(activeTargets=[{**whole, **changes}]))
    return facts(targets=by_node(found, NODES), began=NOW - 10)


def up(**changes: Any) -> Verdict:
    return checks.up(target(**changes), "gpu01")


def age(**changes: Any) -> Verdict:
    return checks.scrape_age(target(**changes), "gpu01", CONFIG)


def gpu(n: int, value: float = 45, seconds: float = 5, **labels: str) -> dict[str, Any]:
    """Return one series of dcgm-exporter."""
    own = {"gpu": f"{n}", "UUID": f"GPU-{n}", "instance": "gpu01:9400", "job": "dcgm", "Hostname": "gpu01"}
    metric = {"__name__": "DCGM_FI_DEV_GPU_TEMP", **own, **labels}
    return {"metric": metric, "values": [[NOW - seconds, str(value)]]}


def gpus(*series: dict[str, Any], interval: str = "15s") -> Verdict:
    samples = gpu_facts.read_samples(answer(resultType="matrix", result=list(series)))
    seen = target(
        labels={"job": "dcgm", "instance": "gpu01:9400"}, discoveredLabels={"__address__": "gpu01:9400"},
        scrapeUrl="http://gpu01:9400/metrics", scrapeInterval=interval,
    )  # fmt: skip
    seen = replace(seen, samples=by_owner(samples, lambda one: probe.owner(one.hosts, NODES)))
    return gpu_checks.gpu_metrics(seen, "gpu01", configs.load_profile("dgx-h100"), CONFIG)


def machine(
    check: str, name: str, source: str, expected: str, judged: Any, *, sick: bool = False
) -> CounterExample:
    return CounterExample(f"monitoring.{check}", name, source, expected, judged, sick=sick)


def alert(labels: dict[str, str], query: str = "", node: str = "gpu01", **more: Any) -> Any:
    return functools.partial(lambda: fired({"labels": dict(labels), **more}, query, node))


DISK = {"alertname": "NodeFilesystemReadOnly", "severity": "critical", "instance": "gpu01:9100"}
COUNTER_EXAMPLES = (
    machine("alerts", "an alert of severity info: the CPU of a container is throttled", KPS, WARNING,
        alert({"alertname": "CPUThrottlingHigh", "severity": "info", "node": "gpu01"})),
    machine("alerts", "the condition has ended, keep_firing_for holds the alert", RULES, WARNING,
        alert(DISK, keepFiringSince="2026-09-10T00:20:00Z")),
    machine("alerts", "an alert of gpu011", API, PASSED, alert({**DISK, "instance": "gpu011:9100"})),
    machine("alerts", "pending: the time of `for` has not passed", RULES, PASSED, alert(DISK, state="pending")),
    machine("alerts", "keepFiringSince in Go's zero time: the condition holds", API, MONITOR,
        alert(DISK, keepFiringSince="0001-01-01T00:00:00Z"), sick=True),
    machine("alerts", "a read-only file system by the address of the node", AWESOME, MONITOR,
        alert({**DISK, "instance": "10.0.0.1:9100"}), sick=True),
    machine("alerts", "a GPU with an Xid, without a severity", AWESOME, MONITOR,
        alert({"alertname": "GpuXid", "Hostname": "gpu01"}), sick=True),
    machine("cluster_alerts", "kube-prometheus' Watchdog", f"{KPS}watchdog/", PASSED,
        alert({"alertname": "Watchdog", "severity": "none"}, "vector(1)", "")),
    machine("cluster_alerts", "kube-prometheus' InfoInhibitor", f"{KPS}infoinhibitor/", PASSED,
        alert({"alertname": "InfoInhibitor", "severity": "none"}, 'ALERTS{severity="info"} == 1', "")),
    machine("cluster_alerts", "a dead man's switch of severity critical", AWESOME, PASSED,
        alert({"alertname": "PrometheusAlertmanagerE2eDeadManSwitch", "severity": "critical"}, "vector(1)", "")),
    machine("cluster_alerts", "slurmctld is down", AWESOME, MONITOR,
        alert({"alertname": "SlurmctldDown", "severity": "critical"}, "slurm_up == 0", ""), sick=True),
    machine("cluster_alerts", "vector() only fills up a metric that is absent", AWESOME, MONITOR,
        alert({"alertname": "NoData", "severity": "critical"}, "(sum(up) or vector(0)) == 0", ""), sick=True),
    machine("up", "Prometheus has just read its configuration", API, NOT_CHECKED,
        functools.partial(up, health="unknown", lastScrape="0001-01-01T00:00:00Z")),
    machine("up", "up, with the error of no scrape", API, PASSED, up),
    machine("up", "the exporter does not answer in time", API, MONITOR,
        functools.partial(up, health="down", lastError='Get "http://gpu01:9100/metrics": context deadline exceeded'), sick=True),
    machine("scrape_age", "an exporter of the BMC every 5 minutes, 200 s ago",
        "https://github.com/prometheus-community/ipmi_exporter", PASSED,
        functools.partial(age, scrapeInterval="5m", lastScrape="2026-09-10T00:23:20Z")),
    machine("scrape_age", "not scraped yet", API, NOT_CHECKED,
        functools.partial(age, health="unknown", lastScrape="0001-01-01T00:00:00Z")),
    machine("scrape_age", "scraped 20 minutes ago at an interval of 15 s", API, MONITOR,
        functools.partial(age, lastScrape="2026-09-10T00:06:40Z"), sick=True),
    machine("gpu_metrics", "the pod of the exporter was replaced 3 minutes ago", EXPORTER, PASSED,
        functools.partial(gpus, *(gpu(n, instance=i, seconds=s) for n in range(8) for i, s in (("10.1.0.4:9400", 180), ("10.1.0.9:9400", 5))))),
    machine("gpu_metrics", "a series per GPU, and one per pod that had it", EXPORTER, PASSED,
        functools.partial(gpus, *(gpu(n) for n in range(8)), gpu(0, pod="train-0", seconds=120), gpu(1, pod="train-0"))),
    machine("gpu_metrics", "MIG: two instances of each GPU", EXPORTER, PASSED,
        functools.partial(gpus, *(gpu(n, GPU_I_ID=i, GPU_I_PROFILE="3g.40gb") for n in range(8) for i in "12"))),
    machine("gpu_metrics", "scraped each minute, 100 s ago", EXPORTER, PASSED,
        functools.partial(gpus, *(gpu(n, seconds=100) for n in range(8)), interval="1m")),
    machine("gpu_metrics", "DCGM's value for none", EXPORTER, MONITOR,
        functools.partial(gpus, *(gpu(n, 9223372036854775794 if n == 3 else 45) for n in range(8))), sick=True),
    machine("gpu_metrics", "seven of eight GPUs", EXPORTER, MONITOR,
        functools.partial(gpus, *(gpu(n) for n in range(7))), sick=True),
    machine("gpu_metrics", "one GPU fell silent 3 minutes ago", EXPORTER, MONITOR,
        functools.partial(gpus, *(gpu(n, seconds=180 if n == 5 else 5) for n in range(8))), sick=True),
)  # fmt: skip


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_machines_are_judged_as_a_person_would(example: CounterExample) -> None:
    assert_as_expected(example)
