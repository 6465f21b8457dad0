"""Verdicts on what Prometheus and Grafana answer; healthy machines that look sick, and sick ones (docs/how-it-decides.md)."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import CONFIGURE, MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED, WARNING, CounterExample
from judged import judged
from suite_helpers import considered

from pytest_gpucluster import config as configs
from pytest_gpucluster.suites.monitoring import checks, gpu_checks, gpu_facts
from pytest_gpucluster.suites.monitoring import facts as probe
from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
from pytest_gpucluster.suites.monitoring.facts import Alert, MonitoringFacts, Service, Target
from pytest_gpucluster.suites.monitoring.steps import by_node, by_owner

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict

CONFIG = MonitoringConfig()
GOOD = Target("node", "http://gpu01:9100/metrics", 9100, "up", last_scrape=1000.0, hosts=("gpu01",))
NEW = Target("node", "u", 8080, "unknown", interval=30.0)
DOWN, UP = Target("s", "u", 8080, "down", "refused"), Target("s", "v", 8080, "up")
JOB, NODE_JOB = "job node (u)", "job node (http://gpu01:9100/metrics)"


def seen(*targets: Target, **changes: Any) -> MonitoringFacts:
    """Return what is known of a healthy monitoring at the time 1010, with these targets on gpu01."""
    known: dict[str, Any] = {
        "prometheus": Service("Prometheus", "http://localhost:9090", "3.1.0"),
        "grafana": Service("Grafana", "http://localhost:3000", "11.2.0"),
        "targets": {"gpu01": targets or (GOOD,)},
        "now": 1010.0,
        **changes,
    }
    return MonitoringFacts(**known)


def exporters(found: MonitoringFacts, **ports: int) -> Verdict:
    return checks.exporters(found, MonitoringConfig(cluster_exporters=ports))


def prometheus(**changes: Any) -> Verdict:
    return checks.prometheus(seen(**changes))


def grafana(**changes: Any) -> Verdict:
    return checks.grafana(seen(**changes))


def target(node: str = "gpu01", ports: tuple[tuple[str, int], ...] = (("node", 9100),), **more: Any) -> Verdict:
    return checks.target(seen(**more), node, dict(ports))


def up(*targets: Target, node: str = "gpu01", **changes: Any) -> Verdict:
    return checks.up(seen(*targets, **changes), node)


def age(*targets: Target, node: str = "gpu01", **changes: Any) -> Verdict:
    return checks.scrape_age(seen(*targets, **changes), node, CONFIG)


def alerts(*fired: Alert, ignored: str = "Watch*", **changes: Any) -> Verdict:
    known = seen(alerts={"gpu01": fired, "gpu02": (Alert("X", "firing"),)}, **changes)
    return checks.alerts(known, "gpu01", MonitoringConfig(ignored_alerts=(ignored,)))


HOT, PENDING = Alert("Hot", "firing", "critical", "too hot"), Alert("P", "pending")
NO_ANSWER = {"targets_problem": "t", "alerts_problem": "a"}
FULL_GRAFANA = Service("Grafana", "http://g", problem="its database is failing")
NO_SERVICE = Service("Prometheus", "http://p", problem="refused")
UP_LATE = replace(DOWN, url="w", last_error="")
OF_CLUSTER, OF_NODE = seen(alerts={"": (HOT,)}), seen(alerts={"gpu01": (HOT,)})
VERDICTS: list[tuple[Callable[[], Verdict], tuple[str, list[str]], dict[str, float]]] = [
    (partial(prometheus), (PASSED, []), {"targets": 1}),
    (partial(prometheus, prometheus=NO_SERVICE, **NO_ANSWER), (CONFIGURE, ["Prometheus"]), {}),
    (partial(prometheus, **NO_ANSWER), (CONFIGURE, ["targets of Prometheus", "alerts of Prometheus"]), {}),
    (partial(grafana, grafana=None), (NOT_APPLICABLE, []), {}),
    (partial(grafana), (PASSED, []), {}),
    (partial(grafana, grafana=FULL_GRAFANA), (CONFIGURE, ["Grafana"]), {}),
    (partial(target, targets_problem="t"), (NOT_CHECKED, []), {}),
    (partial(target), (PASSED, []), {"node_targets": 1}),
    (partial(target, ports=(("dcgm", 9400),)), (CONFIGURE, ["dcgm on port 9400"]), {"node_targets": 1}),
    (partial(target, "gpu02"), (CONFIGURE, ["node on port 9100"]), {"node_targets": 0}),
    (partial(up, node="gpu02"), (NOT_CHECKED, []), {}),
    (partial(up, DOWN, UP_LATE), (MONITOR, ["job s (u)", "job s (w)"]), {}),
    # Prometheus has just begun: two intervals are not over
    (partial(up, NEW, began=951.0), (NOT_CHECKED, []), {}),
    (partial(up, NEW, began=950.0), (MONITOR, [JOB]), {}),
    (partial(up, replace(NEW, health="down"), began=1009.0), (MONITOR, [JOB]), {}),
    (partial(up, replace(NEW, last_scrape=1.0), began=1009.0), (MONITOR, [JOB]), {}),
    (partial(exporters, seen()), (NOT_APPLICABLE, []), {}),
    (partial(exporters, seen(), slurm=8080), (CONFIGURE, ["slurm on port 8080"]), {}),
    (partial(exporters, seen(targets_problem="t"), slurm=8080), (NOT_CHECKED, []), {}),
    (partial(exporters, seen(targets={"": (DOWN, UP)}), slurm=8080), (PASSED, []), {}),
    (partial(exporters, seen(targets={"": (DOWN,)}), slurm=8080), (CONFIGURE, ["job s (u)"]), {}),
    (partial(age, targets_problem="t"), (NOT_CHECKED, []), {}),
    (partial(age, now=999.5), (PASSED, []), {"scrape_age": 0}),  # the answer states whole seconds
    (partial(age, now=1120.0), (PASSED, []), {"scrape_age": 120}),
    (partial(age, now=1120.5), (MONITOR, [NODE_JOB]), {"scrape_age": 120.5}),
    (partial(age, NEW, began=950.0), (MONITOR, [JOB]), {}),
    (partial(alerts, alerts_problem="a"), (NOT_CHECKED, []), {}),
    (partial(alerts, PENDING, Alert("Watchdog", "firing")), (PASSED, []), {"alerts_firing": 1}),
    (partial(alerts, HOT, PENDING, ignored="No*"), (MONITOR, ["alert Hot"]), {"alerts_firing": 1}),
    (partial(checks.cluster_alerts, OF_CLUSTER, CONFIG), (MONITOR, ["alert Hot"]), {"alerts_firing": 1}),
    (partial(checks.cluster_alerts, OF_NODE, CONFIG), (PASSED, []), {"alerts_firing": 0}),
]  # nothing is green by absence


@pytest.mark.parametrize(("judge", "expected", "values"), VERDICTS)
def test_verdicts(judge: Callable[[], Verdict], expected: object, values: dict[str, float]) -> None:
    verdict = judge()
    assert judged(verdict) == expected
    assert {one.name: one.value for one in verdict.metrics} == values


# -- counter-examples

NOW = 1_789_000_000.0  # 2026-09-10T00:26:40Z
NODES = {"gpu01": "gpu01", "10.0.0.1": "gpu01", "gpu02": "gpu02"}
KPS = "https://runbooks.prometheus-operator.dev/runbooks/general/"
API = "https://prometheus.io/docs/prometheus/latest/querying/api/"
RULES = "https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/"
AWESOME = "https://samber.github.io/awesome-prometheus-alerts/rules"
EXPORTER = "https://github.com/NVIDIA/dcgm-exporter"


def answer(**data: Any) -> bytes:
    return json.dumps({"status": "success", "data": data}).encode()


def facts(**known: Any) -> MonitoringFacts:
    return MonitoringFacts(Service("Prometheus", "http://mgmt:9090"), None, now=NOW, samples_now=NOW, **known)


def fired(query: str, node: str, labels: dict[str, str], **more: Any) -> Verdict:
    """Judge one alert of Prometheus' list; `query`: the expression of its rule."""
    one = {"labels": labels, "annotations": {}, "state": "firing", "value": "1e+00", **more}
    rule = {"name": labels["alertname"], "query": query, "type": "alerting", "health": "ok", "labels": {}}
    rules = gpu_facts.read_rules(answer(groups=[{"name": "g", "rules": [rule]}]))
    found = facts(alerts=by_node(probe.read_alerts(answer(alerts=[one])), NODES), rules=rules)
    return checks.alerts(found, node, CONFIG) if node else checks.cluster_alerts(found, CONFIG)


def alert(title: str = "ReadOnly", severity: str = "critical", query: str = "up == 0", **more: Any) -> Any:
    labels = {"alertname": title, "severity": severity, **more.pop("labels", {"instance": "gpu01:9100"})}
    return partial(fired, query, more.pop("node", "gpu01"), labels, **more)


def of_all(alertname: str, severity: str, query: str) -> Any:
    return alert(alertname, severity, query, node="", labels={})


def scraped(**changes: Any) -> MonitoringFacts:
    """Return what is known of one target on gpu01."""
    instance = changes.pop("instance", "gpu01:9100")
    one = {
        "labels": {"job": "node", "instance": instance},
        "discoveredLabels": {"__address__": instance},
        "scrapeUrl": f"http://{instance}/metrics",
        "lastScrape": "2026-09-10T00:26:33.1Z",
        "health": "up",
        "lastError": "",
        "scrapeInterval": "15s",
        "scrapeTimeout": "10s",
        **changes,
    }
    found = probe.read_targets(answer(activeTargets=[one]))
    return facts(targets=by_node(found, NODES), began=NOW - 10)


def is_up(**changes: Any) -> Any:
    return lambda: checks.up(scraped(**changes), "gpu01")


def is_young(**changes: Any) -> Any:
    return lambda: checks.scrape_age(scraped(**changes), "gpu01", CONFIG)


def gpu(n: int, value: float = 45, seconds: float = 5, **labels: str) -> dict[str, Any]:
    """Return one series of dcgm-exporter."""
    own = {"gpu": f"{n}", "UUID": f"GPU-{n}", "instance": "gpu01:9400", "job": "dcgm", "Hostname": "gpu01"}
    metric = {"__name__": "DCGM_FI_DEV_GPU_TEMP", **own, **labels}
    return {"metric": metric, "values": [[NOW - seconds, str(value)]]}


def gpus(*series: dict[str, Any], interval: str = "15s") -> Any:
    samples = gpu_facts.read_samples(answer(resultType="matrix", result=list(series)))
    by_host = by_owner(samples, lambda one: probe.owner(one.hosts, NODES))
    found = replace(scraped(instance="gpu01:9400", scrapeInterval=interval), samples=by_host)
    return lambda: gpu_checks.gpu_metrics(found, "gpu01", configs.load_profile("dgx-h100"), CONFIG)


ZERO_TIME = "0001-01-01T00:00:00Z"
UNSCRAPED = {"health": "unknown", "lastScrape": ZERO_TIME}
IPMI = "https://github.com/prometheus-community/ipmi_exporter"
EIGHT = [gpu(n) for n in range(8)]
SLOW = [gpu(n, seconds=100) for n in range(8)]
ENDED = alert(keepFiringSince="2026-09-10T00:20:00Z")
FIVE_MINUTES = is_young(scrapeInterval="5m", lastScrape="2026-09-10T00:23:20Z")
FULL = of_all("No", "x", "(sum(up) or vector(0)) == 0")
PODS = [gpu(n, instance=at, seconds=s) for n in range(8) for at, s in (("a:94", 180), ("b:94", 5))]
INSTANCES = [gpu(n, GPU_I_ID=i, GPU_I_PROFILE="3g.40gb") for n in range(8) for i in "12"]
NONE = 9223372036854775794  # DCGM's value
MACHINES: tuple[tuple[str, str, str, str, Any], ...] = (
    ("alerts", "a container is throttled", KPS, WARNING, alert("CPUThrottlingHigh", "info")),
    ("alerts", "it has ended: keep_firing_for", RULES, WARNING, ENDED),
    ("alerts", "an alert of gpu011", API, PASSED, alert(labels={"instance": "gpu011:9100"})),
    ("alerts", "in Go's zero time: the condition holds", API, MONITOR, alert(keepFiringSince=ZERO_TIME)),
    ("alerts", "by the address of the node", AWESOME, MONITOR, alert(labels={"instance": "10.0.0.1:9100"})),
    ("alerts", "a GPU with an Xid", AWESOME, MONITOR, alert("GpuXid", "", labels={"Hostname": "gpu01"})),
    ("cluster_alerts", "Watchdog", f"{KPS}watchdog/", PASSED, of_all("Watchdog", "none", "vector(1)")),
    ("cluster_alerts", "InfoInhibitor", KPS, PASSED, of_all("InfoInhibitor", "none", 'ALERTS{a="b"} == 1')),
    ("cluster_alerts", "a dead man's switch", AWESOME, PASSED, of_all("DeadMan", "critical", "vector(1)")),
    ("cluster_alerts", "slurmctld is down", AWESOME, MONITOR, of_all("Down", "critical", "slurm_up == 0")),
    ("cluster_alerts", "vector() fills up", AWESOME, MONITOR, FULL),
    ("up", "Prometheus has just read its configuration", API, NOT_CHECKED, is_up(**UNSCRAPED)),
    ("up", "up, with the error of no scrape", API, PASSED, is_up()),
    ("up", "the exporter does not answer", API, MONITOR, is_up(health="down", lastError="Get: late")),
    ("scrape_age", "a BMC, every 5 minutes, 200 s ago", IPMI, PASSED, FIVE_MINUTES),
    ("scrape_age", "not scraped yet", API, NOT_CHECKED, is_young(**UNSCRAPED)),
    ("scrape_age", "scraped 20 minutes ago", API, MONITOR, is_young(lastScrape="2026-09-10T00:06:40Z")),
    ("gpu_metrics", "the pod of the exporter was replaced 3 minutes ago", EXPORTER, PASSED, gpus(*PODS)),
    ("gpu_metrics", "and a series per pod", EXPORTER, PASSED, gpus(*EIGHT, gpu(0, pod="x", seconds=120))),
    ("gpu_metrics", "MIG: two instances of each GPU", EXPORTER, PASSED, gpus(*INSTANCES)),
    ("gpu_metrics", "scraped each minute, 100 s ago", EXPORTER, PASSED, gpus(*SLOW, interval="1m")),
    ("gpu_metrics", "DCGM's value for none", EXPORTER, MONITOR, gpus(*EIGHT[:7], gpu(7, NONE))),
    ("gpu_metrics", "seven of eight GPUs", EXPORTER, MONITOR, gpus(*EIGHT[:7])),
    ("gpu_metrics", "one fell silent", EXPORTER, MONITOR, gpus(*EIGHT[:7], gpu(7, seconds=180))),
)
COUNTER_EXAMPLES = tuple(
    CounterExample(f"monitoring.{check}", machine, source, expected, judge, sick=expected == MONITOR)
    for check, machine, source, expected, judge in MACHINES
)
test_machines_are_judged_as_a_person_would = considered(COUNTER_EXAMPLES)
