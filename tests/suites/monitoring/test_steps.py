"""One request of each kind for all nodes, on a server of fixed answers."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from prometheus_helpers import serving

from pytest_gpucluster.cluster.transport.http import get
from pytest_gpucluster.core.errors import TransportError
from pytest_gpucluster.suites.monitoring import facts, gpu_facts
from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
from pytest_gpucluster.suites.monitoring.facts import Service
from pytest_gpucluster.suites.monitoring.steps import query_monitoring


def body(**data: Any) -> tuple[int, bytes]:
    return 200, json.dumps({"status": "success", "data": data}).encode()


def target(node: str, **changes: Any) -> dict[str, Any]:
    at = f"{node}:9400"
    scraped = {"health": "up", "lastError": "", "lastScrape": "2026-11-21T08:00:00.123456789Z"}
    address = {"discoveredLabels": {"__address__": at}, "scrapeUrl": f"http://{at}/metrics"}
    return {"labels": {"instance": at, "job": "dcgm"}, **address, **scraped, **changes}


def pages(*targets: dict[str, Any], window: float = 300) -> dict[str, tuple[int, Any]]:
    metric = {"__name__": "DCGM_FI_DEV_GPU_TEMP", "UUID": "a", "instance": "gpu0000:9400", "job": "dcgm"}
    series = {"metric": metric, "values": [[1.0, "45"]]}
    return {
        facts.TARGETS: body(activeTargets=targets),
        facts.ALERTS: body(alerts=[]),
        facts.BUILD: body(version="3.1.0"),
        facts.HEALTHY: (200, b"Prometheus Server is Healthy.\n"),
        gpu_facts.RULES: body(groups=[]),
        gpu_facts.samples_path(gpu_facts.TEMPERATURES, window): body(resultType="matrix", result=[series]),
    }


def test_prometheus_is_asked_once_for_1000_nodes() -> None:
    nodes = [f"gpu{n:04}" for n in range(1000)]
    grafana = {facts.GRAFANA_HEALTH: (200, b'{"database": "ok", "version": "11.2.0"}')}
    with serving(pages(*map(target, nodes)) | grafana) as server:
        claim = MonitoringConfig(prometheus=f"{server.url}/", grafana=server.url)
        seen = query_monitoring(claim, nodes, {})
        assert sorted(path for path, _ in server.asked) == sorted(server.fixed)
    assert len(seen.targets) == 1000
    assert [one.value for one in seen.samples["gpu0000"]] == [45.0]
    assert (seen.rules_problem, seen.samples_problem, seen.targets_problem, seen.began) == ("", "", "", None)
    assert seen.prometheus == Service("Prometheus", f"{server.url}/", "3.1.0")
    assert seen.grafana == Service("Grafana", f"{server.url}", "11.2.0")
    assert seen.now == pytest.approx(time.time(), abs=600)
    assert seen.samples_now == pytest.approx(time.time(), abs=600)


@pytest.mark.parametrize(("interval", "window"), [("60s", 300), ("5m", 1500), ("1h", 3600)])
def test_the_samples_of_five_scrapes_are_read(interval: str, window: float) -> None:
    with serving(pages(target("gpu0000", scrapeInterval=interval), window=window)) as server:
        seen = query_monitoring(MonitoringConfig(prometheus=server.url, grafana=None), ["gpu0000"], {})
    assert (seen.samples_problem, len(seen.samples["gpu0000"])) == ("", 1)


def test_when_prometheus_began_is_asked_for_targets_that_were_not_scraped() -> None:
    new = target("gpu0000", health="unknown", lastScrape="0001-01-01T00:00:00Z")
    times = {"startTime": "2026-11-21T08:00:00Z", "lastConfigTime": "2026-11-21T08:00:09Z"}
    for runtime, began in ((body(**times), 1795248009.0), ((404, b""), None)):
        with serving(pages(new) | {facts.RUNTIME: runtime}) as server:
            seen = query_monitoring(MonitoringConfig(prometheus=server.url, grafana=None), ["gpu0000"], {})
        assert (seen.began, seen.targets_problem, seen.grafana) == (began, "", None)


def test_services_that_do_not_answer_are_problems_and_a_sick_database_too() -> None:
    with serving({facts.GRAFANA_HEALTH: (200, b'{"database": "failing"}')}) as server:
        secret = server.url.replace("//", "//me:secret@")
        seen = query_monitoring(MonitoringConfig(prometheus=secret, grafana=secret), ["gpu01"], {})
    problems = (seen.targets_problem, seen.alerts_problem, seen.rules_problem, seen.samples_problem)
    assert all("404" in problem for problem in (*problems, seen.prometheus.problem))
    assert seen.grafana is not None
    assert seen.grafana.problem == "its database is failing"
    assert "secret" not in repr(seen)
    away = MonitoringConfig(prometheus=server.url, grafana=server.url, gpu_exporters={})
    seen = query_monitoring(away, ["a"], {})
    assert (seen.samples_problem, seen.samples_now) == ("", 0.0)
    assert seen.grafana is not None
    assert "Connection refused" in seen.grafana.problem


def test_a_service_that_is_away_is_named_and_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({}) as away:
        monkeypatch.setenv("http_proxy", away.url)
    for url, why in ((away.url, "Connection refused"), ("http://no-such-host.invalid/", "no-such-host")):
        with pytest.raises(TransportError, match=why):
            get(url, timeout=60)
