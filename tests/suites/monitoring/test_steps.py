"""One request of each kind for all nodes, and HTTP itself, on a server of fixed answers."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.cluster.transport.http import get
from pytest_gpucluster.core.errors import TransportError
from pytest_gpucluster.suites.monitoring import facts, gpu_facts
from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
from pytest_gpucluster.suites.monitoring.facts import Service
from pytest_gpucluster.suites.monitoring.steps import query_monitoring

if TYPE_CHECKING:
    from collections.abc import Iterator


class Answers(http.server.ThreadingHTTPServer):
    """Serves fixed answers: path -> (status, body); a body of None hangs, a list is sent drop by drop."""

    daemon_threads = True

    def __init__(self, fixed: dict[str, tuple[int, Any]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.fixed, self.asked, self.over = fixed, list[tuple[str, str]](), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Answers

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization", "")))
        status, body = self.server.fixed.get(self.path, (404, b"no such page"))
        if body is None:
            self.server.over.wait(30)
            return
        if status == 0:
            self.wfile.write(body)  # no HTTP
            return
        drops = body if isinstance(body, list) else [body]
        self.send_response(status)
        self.send_header("Content-Length", str(sum(map(len, drops)) + (9 if status == 299 else 0)))
        self.end_headers()
        with contextlib.suppress(OSError):
            for drop in drops:
                self.wfile.write(drop)
                if len(drops) > 1:
                    self.server.over.wait(0.2)

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def serving(fixed: dict[str, tuple[int, Any]]) -> Iterator[Answers]:
    with Answers(fixed) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join()


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


@pytest.mark.parametrize(
    ("status", "answer", "timeout", "complaint"),
    [
        (200, None, 0.3, "no whole answer within 0.3 s"),
        (200, [b"x"] * 30, 0.3, "no whole answer within 0.3 s"),
        (299, b"cut", 60, "is no whole HTTP answer"),
        (0, b"SSH-2.0-OpenSSH_9.2p1\r\n", 60, "is no whole HTTP answer"),
        (503, b"starting\n up", 60, r"HTTP status 503 \(starting up\)"),
        (200, b"x" * 1001, 60, "is larger than 1000 bytes"),
    ],
)
def test_http_trouble_is_one_clean_line(status: int, answer: Any, timeout: float, complaint: str) -> None:
    with serving({"/": (status, answer)}) as server:
        with pytest.raises(TransportError, match=complaint) as caught:
            get(server.url.replace("//", "//me:secret@") + "/", timeout=timeout, cap=1000)
        assert "\n" not in str(caught.value)
        assert "secret" not in str(caught.value)
        assert str(caught.value).startswith(server.url)


def test_a_password_is_sent_and_proxies_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({}) as away:
        monkeypatch.setenv("http_proxy", away.url)
    for url, why in ((away.url, "Connection refused"), ("http://no-such-host.invalid/", "no-such-host")):
        with pytest.raises(TransportError, match=why):
            get(url, timeout=60)
    with serving({"/": (200, b"x" * 1000)}) as server:
        reply = get(server.url.replace("//", "//me:a%40b@") + "/", timeout=60, cap=1000)
    assert len(reply.body) == 1000
    assert reply.date == pytest.approx(time.time(), abs=600)
    assert server.asked == [("/", "Basic bWU6YUBi")]  # me:a@b
