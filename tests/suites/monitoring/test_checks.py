"""The monitoring suite on Debian's real Prometheus and node-exporter, on loopback; Grafana's answer is a recorded one.

Every node has an address of its own, 127.0.0.N, so that exporters share a port as on real nodes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import spelled
from paths import ROOT
from plugin_helpers import Run, cluster_file, jobs_so_far, out_of_service, run_pytest
from prometheus_helpers import answers, process
from sandbox_helpers import DEADLINE, free_port, wait_for

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo, names_of
from pytest_gpucluster.cluster.transport.http import get
from pytest_gpucluster.core.check import Outcome, Verdict
from pytest_gpucluster.core.errors import ProbeError, TransportError
from pytest_gpucluster.suites.monitoring import checks, gpu_facts
from pytest_gpucluster.suites.monitoring import facts as probe
from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
from pytest_gpucluster.suites.monitoring.facts import Alert, MonitoringFacts, Service, Target
from pytest_gpucluster.suites.monitoring.steps import query_monitoring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

# The form of /api/health as Grafana's HTTP API reference documents it; Debian has no Grafana to run.
GRAFANA = {"database": "ok", "version": "11.2.0", "commit": "a1b2c3d4e5"}
RULES = """
groups:
- name: test
  rules:
  - {alert: Watchdog, expr: vector(1)}
  - alert: NodeHot
    expr: up{node="gpu02", job="node"} == 1
    labels: {severity: critical}
    annotations: {summary: '<hot> & "high"'}
  - {alert: QueueStuck, expr: count(up) > 0, labels: {severity: warning}}
"""


class Answers(http.server.ThreadingHTTPServer):
    """Serves fixed answers: path -> (status, body); a body of None hangs, a list is sent drop by drop."""

    daemon_threads = True

    def __init__(self, fixed: dict[str, tuple[int, Any]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.fixed, self.asked, self.over = fixed, [""], threading.Event()
        self.headers: list[Any] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Answers

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.headers.append(self.headers)
        status, body = self.server.fixed.get(self.path, (404, b"no such page"))
        if body is None:
            self.server.over.wait(30)
            return
        self.send_response(status)
        drops = body if isinstance(body, list) else [body]
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
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join()


@dataclasses.dataclass(frozen=True)
class World:
    """A Prometheus that scrapes exporters on 127.0.0.2 (gpu01), .3 (gpu02), nothing on .4 (gpu03); gpu04 is unknown."""

    prometheus: str
    port: int
    grafana: str
    slurm: int


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("prometheus")
    port, mine, slurm = free_port(), free_port(), free_port()
    jobs = [
        {
            "job_name": "node",
            "static_configs": [
                {"targets": [f"127.0.0.{n + 1}:{port}"], "labels": {"node": f"gpu0{n}"}} for n in (1, 2, 3)
            ],
        },
        {"job_name": "slurm", "static_configs": [{"targets": [f"127.0.0.1:{slurm}"]}]},
    ]
    settings = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": ["rules.yml"]}
    (folder / "prometheus.yml").write_text(json.dumps({**settings, "scrape_configs": jobs}))
    (folder / "rules.yml").write_text(RULES)
    grafana = {"/api/health": (200, json.dumps(GRAFANA).encode())}
    with contextlib.ExitStack() as stack:
        for address, at in (("127.0.0.2", port), ("127.0.0.3", port), ("127.0.0.1", slurm)):
            stack.enter_context(
                process(
                    "prometheus-node-exporter",
                    f"--web.listen-address={address}:{at}",
                    "--collector.disable-defaults",
                    "--collector.loadavg",
                    log=folder / f"exporter-{address}.log",
                )
            )
        stack.enter_context(
            process(
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{mine}",
                log=folder / "prometheus.log",
            )
        )
        made = World(f"http://127.0.0.1:{mine}", port, stack.enter_context(serving(grafana)).url, slurm)
        wait_for(lambda: answers(f"{made.prometheus}/-/ready"), "Prometheus is ready")
        wait_for(lambda: settled(made), "every target was scraped and the alerts fire")
        yield made


def settled(world: World) -> bool:
    claim = MonitoringConfig(prometheus=world.prometheus, grafana=None)
    seen = query_monitoring(claim, ("gpu01", "gpu02", "gpu03"), {})
    healths = [one.health for found in seen.targets.values() for one in found]
    firing = {one.name for found in seen.alerts.values() for one in found if one.state == "firing"}
    return "unknown" not in healths and len(healths) == 4 and firing == {"Watchdog", "NodeHot", "QueueStuck"}


def claims(world: World, **changes: Any) -> dict[str, Any]:
    return {
        "prometheus": world.prometheus,
        "grafana": world.grafana,
        "exporters": {"node_exporter": world.port},
        "cluster_exporters": {"slurm_exporter": world.slurm},
        "ignored_alerts": ["Watchdog", "Queue*"],
        **changes,
    }


def accept(folder: Path, monitoring: dict[str, Any] | None, *words: str) -> Run:
    """Run the suite on four nodes that no Slurm knows: it asks Prometheus alone."""
    plain = {"name": "prod", "nodes": "gpu[01-04]", "slurm": {"scheduler": "none"}, "monitoring": monitoring}
    (folder / "prod.yaml").write_text(json.dumps(plain))
    return run_suite(folder, folder / "prod.yaml", *words)


def run_suite(folder: Path, cluster: Path, *words: str) -> Run:
    return run_pytest(
        folder,
        f"--cluster={cluster}",
        *words,
        "-c",
        ROOT / "pyproject.toml",
        "-p",
        "no:cacheprovider",
        where=[str(ROOT / "suites" / "monitoring" / "test_monitoring.py")],
    )


def ends(run: Run) -> dict[str, str]:
    assert run.rc in (0, 1), run.out + run.err
    return {nodeid.rpartition("::test_")[2]: end for nodeid, end in run.outcomes.items()}


def message(run: Run, item: str) -> str:
    (found,) = (e for e in run.events if e["event"] == "result" and e["nodeid"].endswith(f"::test_{item}"))
    return str(found["message"])


@pytest.fixture(scope="module")
def accepted(world: World, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return accept(tmp_path_factory.mktemp("accepted"), claims(world))


def test_every_node_is_judged_by_what_prometheus_really_sees(accepted: Run) -> None:
    assert ends(accepted) == {
        "prometheus": "passed",
        "grafana": "passed",
        "exporters": "passed",
        "cluster_alerts": "passed",
        "target[gpu01]": "passed",
        "target[gpu02]": "passed",
        "target[gpu03]": "passed",
        "target[gpu04]": "failed",
        "up[gpu01]": "passed",
        "up[gpu02]": "passed",
        "up[gpu03]": "failed",
        "up[gpu04]": "not checked",
        "scrape_age[gpu01]": "passed",
        "scrape_age[gpu02]": "passed",
        "scrape_age[gpu03]": "passed",
        "scrape_age[gpu04]": "not checked",
        "alerts[gpu01]": "passed",
        "alerts[gpu02]": "failed",
        "alerts[gpu03]": "passed",
        "alerts[gpu04]": "passed",
        "gpu_rules": "not applicable",
        **{f"gpu_metrics[gpu0{n}]": "not applicable" for n in (1, 2, 3, 4)},
    }, accepted.out
    assert accepted.rc == 1


def test_a_failure_names_node_job_and_last_error(accepted: Run, world: World) -> None:
    assert message(accepted, "up[gpu03]").startswith(
        f"monitoring.up on gpu03: job node, http://127.0.0.4:{world.port}/metrics: measured down: Get "
    )
    assert "connection refused" in message(accepted, "up[gpu03]")
    assert message(accepted, "target[gpu04]") == (
        f"monitoring.target on gpu04: node_exporter on port {world.port}: measured not a target of Prometheus, "
        "expected a target"
    )
    assert message(accepted, "alerts[gpu02]") == (
        'monitoring.alerts on gpu02: alert NodeHot: measured critical firing: <hot> & "high", expected no firing alert'
    )
    assert message(accepted, "up[gpu04]") == f"not checked: {checks.NO_TARGET}"


def test_what_is_not_as_claimed_fails(world: World, tmp_path: Path) -> None:
    other = free_port()
    run = accept(
        tmp_path,
        claims(
            world,
            prometheus_version="1.",
            grafana_version="10.",
            exporters={"dcgm_exporter": other},
            cluster_exporters={"slurm_exporter": other, "node3": world.port},
            ignored_alerts=[],
        ),
    )
    found = ends(run)
    assert {found[name] for name in ("prometheus", "grafana", "exporters", "cluster_alerts")} == {"failed"}
    assert "version of Prometheus: measured 2." in message(run, "prometheus")
    assert message(run, "grafana").endswith("version of Grafana: measured 11.2.0, expected 10.")
    assert f"slurm_exporter on port {other}: measured not a target" in message(run, "exporters")
    assert "(the node has node on port" in message(run, "target[gpu01]")
    assert {"QueueStuck"} == {  # Watchdog has no condition
        finding["part"].removeprefix("alert ")
        for event in run.events
        if event.get("check") == "monitoring.cluster_alerts"
        for finding in event["verdicts"][0]["findings"]
    }


def test_a_prometheus_that_is_not_there_is_red_and_the_rest_is_not_checked(
    world: World, tmp_path: Path
) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    run = accept(tmp_path, claims(world, prometheus=away, grafana=away))
    assert run.rc == 1
    found = {name: end for name, end in ends(run).items() if not name.startswith(("gpu_", "proved"))}
    assert {name for name, end in found.items() if end == "failed"} == {"prometheus", "grafana"}
    assert set(found.values()) == {"failed", "not checked"}
    assert "Connection refused" in message(run, "prometheus")
    assert message(run, "target[gpu01]").startswith(f"not checked: {away}/api/v1/targets?state=active: ")


def test_a_site_without_grafana_says_so(tmp_path: Path) -> None:
    section = {"grafana": None, "prometheus": f"http://127.0.0.1:{free_port()}"}
    run = accept(tmp_path, section, "-k", "grafana or prometheus")
    assert ends(run) == {"grafana": "not applicable", "prometheus": "failed"}
    assert run.rc == 1
    assert "monitoring.grafana: null" in message(run, "grafana")


def test_wrong_claims_are_refused(tmp_path: Path) -> None:
    for monitoring in (
        {"prometheus": "localhost:9090"},
        {"exporters": {"node": 99999}},
        {"promtheus": "http://x"},
    ):
        run = accept(tmp_path, monitoring)
        assert run.rc == 4
        assert len(run.errors) == 1


def test_a_drained_node_is_judged_too_and_no_node_is_allocated(
    world: World, sandbox: Sandbox, tmp_path: Path
) -> None:
    path = cluster_file(
        sandbox, tmp_path, monitoring=claims(world, gpu_exporters={"dcgm_exporter": world.port})
    )
    before = jobs_so_far(sandbox)
    with out_of_service(sandbox, "gpu03", "DRAIN", "bad cable"):
        run = run_suite(tmp_path, path)
    found = ends(run)
    assert {found[f"up[gpu0{n}]"] for n in (1, 2)} == {"passed"}
    assert found["up[gpu03]"] == "failed"
    assert "not tested" not in found.values()
    assert jobs_so_far(sandbox) == before


# --- one request for all nodes


def targets(count: int) -> bytes:
    active = [
        {
            "discoveredLabels": {"__address__": f"gpu{n:04}:9100"},
            "labels": {"instance": f"gpu{n:04}:9100", "job": "node"},
            "scrapeUrl": f"http://gpu{n:04}:9100/metrics",
            "health": "up",
            "lastError": "",
            "lastScrape": "2026-11-21T08:00:00.123456789Z",
        }
        for n in range(count)
    ]
    return json.dumps({"status": "success", "data": {"activeTargets": active}}).encode()


def test_prometheus_is_asked_once_for_1000_nodes() -> None:
    fixed = {
        probe.TARGETS: (200, targets(1000)),
        probe.ALERTS: (200, b'{"status": "success", "data": {"alerts": []}}'),
        probe.BUILD: (200, b'{"status": "success", "data": {"version": "3.1.0"}}'),
        probe.HEALTHY: (200, b"Prometheus Server is Healthy.\n"),
        gpu_facts.RULES: (200, b'{"status": "success", "data": {"groups": []}}'),
        gpu_facts.samples_path(gpu_facts.TEMPERATURES, 300): (
            200,
            b'{"status": "success", "data": {"resultType": "matrix", "result": []}}',
        ),
    }
    with serving(fixed) as server:
        claim = MonitoringConfig(prometheus=server.url, grafana=None)
        seen = query_monitoring(claim, [f"gpu{n:04}" for n in range(1000)], {})
        assert sorted(server.asked[1:]) == sorted(fixed)
    assert len(seen.targets) == 1000
    assert (seen.rules_problem, seen.samples_problem) == ("", "")
    assert seen.prometheus == Service("Prometheus", server.url, "3.1.0")


# --- HTTP


@pytest.mark.parametrize(
    ("status", "body", "timeout", "complaint"),
    [
        (200, None, 0.5, "no whole answer within 0.5 s"),
        (200, [b"x"] * 30, 0.5, "no whole answer within 0.5 s"),
        (299, b"cut", 20, "is no whole HTTP answer"),
        (503, b"starting\n up", 20, r"HTTP status 503 \(starting up\)"),
        (200, b"x" * 2000, 20, "is larger than 1000 bytes"),
    ],
)
def test_every_http_trouble_is_one_line_and_has_an_end(
    status: int, body: Any, timeout: float, complaint: str
) -> None:
    with serving({"/": (status, body)}) as server:
        with pytest.raises(TransportError, match=complaint) as caught:
            get(server.url.replace("//", "//me:secret@") + "/", timeout=timeout, cap=1000)
        assert "\n" not in str(caught.value)
        assert "secret" not in str(caught.value)
        assert str(caught.value).startswith(server.url)


def test_what_is_no_http_at_all_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        url = f"http://127.0.0.1:{door.getsockname()[1]}/"

        def speak() -> None:
            line, _ = door.accept()
            with line:
                line.recv(1000)
                line.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(TransportError, match="is no whole HTTP answer"):
            get(url, timeout=10)
        thread.join()
    with pytest.raises(TransportError, match="Connection refused"):
        get(url, timeout=10)
    with pytest.raises(TransportError, match="no-such-host"):
        get("http://no-such-host.invalid/", timeout=10)


def test_a_password_is_sent_and_proxies_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    with serving({"/": (200, b"well")}) as server:
        reply = get(server.url.replace("//", "//me:a%40b@") + "/", timeout=10)
        assert reply.body == b"well"
        assert reply.date == pytest.approx(time.time(), abs=60)
        assert server.headers[0]["Authorization"] == "Basic bWU6YUBi"  # me:a@b


# --- readers and verdicts


@pytest.mark.parametrize(
    "body",
    [
        b"<html>login</html>",
        b"[]",
        b'{"status": "error", "error": "overloaded"}',
        b'{"status": "success", "data": {}}',
        b'{"status": "success", "data": {"activeTargets": [{}], "alerts": [{}]}}',
        b'{"status": "success", "data": {"activeTargets": [7], "alerts": [7]}}',
    ],
)
def test_an_answer_that_is_not_understood_is_no_fact(body: bytes) -> None:
    for read in (probe.read_targets, probe.read_alerts, probe.read_version, probe.read_grafana):
        with pytest.raises(ProbeError) as caught:
            read(body)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-21T08:00:00.123456789Z", 1795248000.123456),
        ("2026-11-21T09:00:00.5+01:00", 1795248000.5),
        ("2026-11-21T08:00:00Z", 1795248000.0),
        ("0001-01-01T00:00:00Z", None),
    ],
)
def test_times_of_go_are_read(text: str, time: float | None) -> None:
    assert probe.read_time(text) == time


@pytest.mark.parametrize(
    ("hosts", "node"),
    [
        (("gpu01",), "gpu01"),
        (("gpu01.example.org",), "gpu01"),
        (("10.0.0.2",), "gpu02"),
        (("10.0.0.9", "gpu01"), "gpu01"),
        (("gpu02", "gpu01"), "gpu02"),
        (("10.0.0.7",), ""),
        (("gpu011", ""), ""),
        (("shared",), ""),
    ],
)
def test_a_target_belongs_to_the_node_that_it_names(hosts: tuple[str, ...], node: str) -> None:
    inventory = {
        "gpu01": NodeInfo("gpu01", "IDLE", address="shared"),
        "gpu02": NodeInfo("gpu02", "IDLE", address="10.0.0.2"),
        "gpu03": NodeInfo("gpu03", "IDLE", address="shared"),
        "gpu10": NodeInfo("gpu10", "IDLE", address="10"),
    }
    assert probe.owner(hosts, names_of(inventory, inventory)) == node


def seen(**changes: Any) -> MonitoringFacts:
    good = Target("node", "http://gpu01:9100/metrics", 9100, "up", last_scrape=1000.0, hosts=("gpu01",))
    known: dict[str, Any] = {
        "prometheus": Service("Prometheus", "http://localhost:9090", "3.1.0"),
        "grafana": Service("Grafana", "http://localhost:3000", "11.2.0"),
        "targets": {"gpu01": (good,)},
        "now": 1010.0,
        **changes,
    }
    return MonitoringFacts(**known)


def parts(verdict: Verdict) -> list[tuple[str, str]]:
    assert (verdict.outcome is Outcome.FAILED) == bool(verdict.findings)
    return [(finding.part, finding.measured) for finding in verdict.findings]


def test_ages_are_those_of_the_clock_that_answered() -> None:
    claim = MonitoringConfig()
    assert checks.scrape_age(seen(), "gpu01", claim).metrics[0].value == 10.0
    assert checks.scrape_age(seen(now=999.5), "gpu01", claim).metrics[0].value == 0.0
    assert parts(checks.scrape_age(seen(now=1121.0), "gpu01", claim)) == [
        ("job node, http://gpu01:9100/metrics", "121 s ago")
    ]
    never = Target("node", "u", 9100, "unknown", last_scrape=None)
    assert parts(checks.scrape_age(seen(targets={"gpu01": (never,)}), "gpu01", claim)) == [
        ("job node, u", "never scraped")
    ]
    assert parts(checks.up(seen(targets={"gpu01": (never,)}), "gpu01")) == [("job node, u", "unknown")]


def test_a_prometheus_that_has_just_begun_accuses_no_target_that_it_has_not_come_to() -> None:
    claim = MonitoringConfig()
    new = Target("node", "u", 8080, "unknown", last_scrape=None, interval=30.0)
    young, old = ({"targets": {"gpu01": (new,)}, "began": began} for began in (951.0, 950.0))  # it is 1010
    for verdict in (
        checks.up(seen(**young), "gpu01"),
        checks.scrape_age(seen(**young), "gpu01", claim),
        checks.exporters(seen(**young), claim),
    ):
        assert verdict.outcome is Outcome.NOT_CHECKED
        assert verdict.reason == (
            "job node, u: not scraped yet, Prometheus started or reloaded just now; repeat in 1 s"
        )
    assert parts(checks.up(seen(**old), "gpu01")) == [("job node, u", "unknown")]
    assert parts(checks.scrape_age(seen(**old), "gpu01", claim)) == [("job node, u", "never scraped")]
    down = dataclasses.replace(new, health="down")
    assert parts(checks.up(seen(targets={"gpu01": (down,)}, began=1009.0), "gpu01")) == [
        ("job node, u", "down")
    ]


@pytest.mark.parametrize(
    ("told", "seconds"), [("15s", 15.0), ("1m30s", 90.0), ("500ms", 0.5), ("1h", 3600.0), (None, 60.0)]
)
def test_the_interval_of_a_target_is_read(told: str | None, seconds: float) -> None:
    one = json.loads(targets(1))
    if told is not None:
        one["data"]["activeTargets"][0]["scrapeInterval"] = told
    (target,) = probe.read_targets(json.dumps(one).encode())
    assert target.interval == seconds


def test_when_prometheus_began_is_the_later_of_start_and_configuration() -> None:
    times = {"startTime": "2026-11-21T08:00:00Z", "lastConfigTime": "2026-11-21T09:00:10+01:00"}
    body = json.dumps({"status": "success", "data": times}).encode()
    assert probe.read_began(body) == 1795248010.0
    with pytest.raises(ProbeError):
        probe.read_began(b'{"status": "success", "data": {}}')


def test_a_prometheus_that_has_really_just_started(tmp_path: Path) -> None:
    mine, there = free_port(), free_port()
    jobs = [
        {
            "job_name": "node",
            "static_configs": [{"targets": [f"127.0.0.1:{there}"], "labels": {"node": "gpu01"}}],
        }
    ]
    settings = {"global": {"scrape_interval": "10m"}, "scrape_configs": jobs}
    (tmp_path / "prometheus.yml").write_text(json.dumps(settings))
    argv = (
        "--config.file={0}/prometheus.yml",
        "--storage.tsdb.path={0}/data",
        "--web.listen-address=127.0.0.1:{1}",
    )
    claim = MonitoringConfig(prometheus=f"http://127.0.0.1:{mine}", grafana=None)
    with process("prometheus", *(word.format(tmp_path, mine) for word in argv), log=tmp_path / "log"):
        wait_for(lambda: answers(f"{claim.prometheus}/-/ready"), "Prometheus is ready")
        found = wait_for(
            lambda: (told := query_monitoring(claim, ("gpu01",), {})).targets and told, "it has its targets"
        )
    (target,) = found.targets["gpu01"]
    assert target.interval == 600.0
    if target.unscraped:  # the first scrape is at a random moment of the ten minutes
        assert checks.up(found, "gpu01").outcome is Outcome.NOT_CHECKED
        assert abs(found.now - found.began) < DEADLINE


def test_pending_alerts_do_not_fail() -> None:
    claim = MonitoringConfig()
    told = {
        "gpu01": (Alert("A", "pending"), Alert("B", "firing", "", "x")),
        "": (Alert("Watchdog", "firing"),),
    }
    assert parts(checks.alerts(seen(alerts=told), "gpu01", claim)) == [("alert B", "firing: x")]
    assert checks.cluster_alerts(seen(alerts=told), claim).outcome is Outcome.PASSED
    assert checks.cluster_alerts(seen(alerts_problem="no answer"), claim).outcome is Outcome.NOT_CHECKED


def test_nothing_is_green_by_absence() -> None:
    nothing, claim = seen(targets={}), MonitoringConfig()
    assert checks.up(nothing, "gpu01").outcome is Outcome.NOT_CHECKED
    assert checks.scrape_age(nothing, "gpu01", claim).outcome is Outcome.NOT_CHECKED
    assert checks.target(nothing, "gpu01", {"node_exporter": 9100}).outcome is Outcome.FAILED
    assert checks.exporters(nothing, claim).outcome is Outcome.FAILED
    assert parts(checks.prometheus(seen(targets_problem="no answer"), claim)) == [
        ("targets of Prometheus", "no answer")
    ]
    sick = Service("Grafana", "http://localhost:3000", "11", "its database is failing")
    assert parts(checks.grafana(seen(grafana=sick), claim)) == [("Grafana", "its database is failing")]


def test_one_of_several_cluster_exporters_is_enough() -> None:
    up, down = (Target("slurm", f"http://s{n}:8080", 8080, health) for n, health in enumerate(("up", "down")))
    claim = MonitoringConfig()
    assert checks.exporters(seen(targets={"": (down, up)}), claim).outcome is Outcome.PASSED
    assert parts(checks.exporters(seen(targets={"": (down,)}), claim)) == [
        ("job slurm, http://s1:8080", "down")
    ]


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("1m30s", 90.0),
        ("500ms", 0.5),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("1w", 604800.0),
        ("1y", 31536000.0),
        (None, 60.0),
    ],
)
def test_durations_of_prometheus_are_read(told: str | None, seconds: float) -> None:
    assert probe.read_targets(a_target(scrapeInterval=told))[0].interval == seconds


@pytest.mark.parametrize("told", ["", "1.5s", "s", "1x"])
def test_a_duration_that_is_none_is_an_error(told: str) -> None:
    with pytest.raises(ProbeError, match="targets: a target is not understood"):
        probe.read_targets(a_target(scrapeInterval=told))


def a_target(**change: Any) -> bytes:
    one = {
        "labels": {"job": "node", "instance": "gpu01:9100"}, "discoveredLabels": {"__address__": "10.0.0.1:9100"},
        "scrapeUrl": "http://gpu01:9200/metrics", "health": "up", "lastError": " a\n b ",
        "lastScrape": "2026-11-21T08:00:00Z", **change,
    }  # fmt: skip
    return json.dumps({"status": "success", "data": {"activeTargets": [one]}}).encode()


def test_a_target_is_read_whole() -> None:
    (found,) = probe.read_targets(
        a_target(labels={"job": "node", "node": "gpu01", "host": "h", "instance": "i:1"})
    )
    assert found == Target(
        "node",
        "http://gpu01:9200/metrics",
        9100,
        "up",
        "a b",
        1795248000.0,
        ("gpu01", "h", "i", "10.0.0.1"),
        60.0,
        ("node", "i:1"),
    )
    (bare,) = probe.read_targets(a_target(discoveredLabels={}, labels={}, lastError=""))
    assert (bare.job, bare.port, bare.hosts, bare.last_error) == ("", 9200, ("", "gpu01"), "")
    (named,) = probe.read_targets(a_target(discoveredLabels={"__address__": "10.0.0.1"}))
    assert (named.port, named.hosts) == (9200, ("gpu01", "10.0.0.1"))


def test_an_alert_is_read_whole() -> None:
    one = {
        "labels": {"alertname": "Hot", "severity": "critical", "instance": "gpu01:9100"},
        "state": "firing",
    }
    notes: tuple[dict[str, str], ...] = (
        {"summary": "a\nb"},
        {"description": "d"},
        {"summary": "", "description": "d"},
        {},
    )
    body = {"status": "success", "data": {"alerts": [{**one, "annotations": note} for note in notes]}}
    found = probe.read_alerts(json.dumps(body).encode())
    assert [alert.summary for alert in found] == ["a b", "d", "d", ""]
    assert found[0] == Alert("Hot", "firing", "critical", "a b", ("gpu01",))


def test_the_later_of_start_and_configuration_is_when_prometheus_began() -> None:
    def body(start: str, config: str) -> bytes:
        data = {"startTime": start, "lastConfigTime": config}
        return json.dumps({"status": "success", "data": data}).encode()

    assert probe.read_began(body("2026-11-21T08:00:00Z", "2026-11-21T08:00:09Z")) == 1795248009.0
    assert probe.read_began(body("2026-11-21T08:00:00Z", "0001-01-01T00:00:00Z")) == 1795248000.0
    assert probe.read_began(body("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z")) == 0.0
    with pytest.raises(ProbeError, match="runtimeinfo: a time is not understood"):
        probe.read_began(body("2026-11-21T08:00:00Z", "2026-11-21T08:00"))


def test_answers_say_why_they_are_no_facts() -> None:
    with pytest.raises(ProbeError, match="targets: Prometheus answers overloaded"):
        probe.read_targets(b'{"status": "error", "error": "overloaded"}')
    with pytest.raises(ProbeError, match="alerts: Prometheus answers in another than its documented form"):
        probe.read_alerts(b"[]")
    with pytest.raises(ProbeError, match="buildinfo: the answer is not JSON"):
        probe.read_version(b"<html>")
    with pytest.raises(ProbeError, match="buildinfo: the answer has no version"):
        probe.read_version(b'{"status": "success", "data": {"version": 3}}')
    assert probe.read_version(b'{"status": "success", "data": {"version": "3.1.0"}}') == "3.1.0"
    assert probe.read_grafana(b'{"database": "ok", "version": "11.2.0"}') == ("11.2.0", "ok")
    assert probe.read_grafana(b'{"database": "failing"}') == ("", "failing")


def test_a_target_is_awaited_for_two_intervals() -> None:
    new = Target("node", "u", 1, "unknown", interval=30.0)
    assert seen(began=951.0).awaits(new)
    assert not seen(began=950.0).awaits(new)
    assert not seen(began=None).awaits(new)
    assert not seen(began=951.0).awaits(dataclasses.replace(new, last_scrape=1.0))
    assert not seen(began=951.0).awaits(dataclasses.replace(new, health="down"))
    assert probe.split_port("[::1]") == ("::1", None)
    assert probe.split_port("gpu01:x") == ("gpu01:x", None)


EXACT: list[tuple[Callable[[], Verdict], str, str, list[str], list[str]]] = [
    (lambda: checks.prometheus(seen(), MonitoringConfig()), "passed", "", [], ["targets 1 targets"]),
    (
        lambda: checks.prometheus(seen(), MonitoringConfig(prometheus_version="3.1")),
        "passed",
        "",
        [],
        ["targets 1 targets"],
    ),
    (
        lambda: checks.prometheus(seen(), MonitoringConfig(prometheus_version="2.5")),
        "failed",
        "",
        ["version of Prometheus: 3.1.0 / 2.5"],
        ["targets 1 targets"],
    ),
    (
        lambda: checks.prometheus(
            seen(
                prometheus=Service("Prometheus", "http://p", problem="refused"),
                targets_problem="t",
                alerts_problem="a",
            ),
            MonitoringConfig(prometheus_version="2"),
        ),
        "failed",
        "",
        ["Prometheus: refused / http://p answers and is healthy"],
        [],
    ),
    (
        lambda: checks.prometheus(seen(targets_problem="t", alerts_problem="a"), MonitoringConfig()),
        "failed",
        "",
        ["targets of Prometheus: t / an answer", "alerts of Prometheus: a / an answer"],
        [],
    ),
    (
        lambda: checks.grafana(seen(grafana=None), MonitoringConfig()),
        "not applicable",
        "the cluster file sets monitoring.grafana: null",
        [],
        [],
    ),
    (lambda: checks.grafana(seen(), MonitoringConfig(grafana_version="11")), "passed", "", [], []),
    (
        lambda: checks.grafana(seen(), MonitoringConfig(grafana_version="10")),
        "failed",
        "",
        ["version of Grafana: 11.2.0 / 10"],
        [],
    ),
    (
        lambda: checks.grafana(
            seen(grafana=Service("Grafana", "http://g", problem="database: failing")), MonitoringConfig()
        ),
        "failed",
        "",
        ["Grafana: database: failing / http://g answers and is healthy"],
        [],
    ),
    (lambda: checks.target(seen(targets_problem="t"), "gpu01", {"node": 9100}), "not checked", "t", [], []),
    (lambda: checks.target(seen(), "gpu01", {"node": 9100}), "passed", "", [], ["node_targets 1 targets"]),
    (
        lambda: checks.target(seen(), "gpu01", {"node": 9100, "dcgm": 9400}),
        "failed",
        "",
        ["dcgm on port 9400: not a target of Prometheus (the node has node on port 9100) / a target"],
        ["node_targets 1 targets"],
    ),
    (
        lambda: checks.target(seen(), "gpu02", {"node": 9100}),
        "failed",
        "",
        ["node on port 9100: not a target of Prometheus / a target"],
        ["node_targets 0 targets"],
    ),
    (lambda: checks.up(seen(), "gpu01"), "passed", "", [], []),
    (lambda: checks.up(seen(), "gpu02"), "not checked", checks.NO_TARGET, [], []),
    (lambda: checks.up(seen(targets_problem="t", targets={}), "gpu01"), "not checked", "t", [], []),
    (
        lambda: checks.up(
            seen(targets={"gpu01": (Target("node", "u", 1, "down", "refused"), Target("x", "v", 2, "down"))}),
            "gpu01",
        ),
        "failed",
        "",
        ["job node, u: down: refused / up", "job x, v: down / up"],
        [],
    ),
    (
        lambda: checks.exporters(seen(), MonitoringConfig()),
        "failed",
        "",
        ["slurm_exporter on port 8080: not a target of Prometheus / a target"],
        [],
    ),
    (
        lambda: checks.exporters(
            seen(targets_problem="t"), MonitoringConfig(cluster_exporters={"slurm": 8080})
        ),
        "not checked",
        "t",
        [],
        [],
    ),
    (
        lambda: checks.exporters(seen(), MonitoringConfig(cluster_exporters={"slurm": 8080})),
        "failed",
        "",
        ["slurm on port 8080: not a target of Prometheus / a target"],
        [],
    ),
    (
        lambda: checks.exporters(seen(), MonitoringConfig(cluster_exporters={"node": 9100})),
        "passed",
        "",
        [],
        [],
    ),
    (
        lambda: checks.exporters(
            seen(targets={"": (Target("s", "u", 8080, "down", "refused"), Target("s", "v", 8080, "up"))}),
            MonitoringConfig(cluster_exporters={"slurm": 8080}),
        ),
        "passed",
        "",
        [],
        [],
    ),
    (
        lambda: checks.exporters(
            seen(targets={"": (Target("s", "u", 8080, "down", "refused"),)}),
            MonitoringConfig(cluster_exporters={"slurm": 8080}),
        ),
        "failed",
        "",
        ["job s, u: down: refused / up"],
        [],
    ),
    (
        lambda: checks.scrape_age(seen(), "gpu02", MonitoringConfig()),
        "not checked",
        checks.NO_TARGET,
        [],
        [],
    ),
    (
        lambda: checks.scrape_age(seen(targets={}, targets_problem="t"), "gpu01", MonitoringConfig()),
        "not checked",
        "t",
        [],
        [],
    ),
    (
        lambda: checks.scrape_age(seen(now=1120.0), "gpu01", MonitoringConfig()),
        "passed",
        "",
        [],
        ["scrape_age 120 s port 9100"],
    ),
    (
        lambda: checks.scrape_age(seen(now=1120.5), "gpu01", MonitoringConfig()),
        "failed",
        "",
        ["job node, http://gpu01:9100/metrics: 120 s ago / <= 120 s"],
        ["scrape_age 120.5 s port 9100"],
    ),
    (
        lambda: checks.alerts(seen(alerts_problem="a"), "gpu01", MonitoringConfig()),
        "not checked",
        "a",
        [],
        [],
    ),
    (
        lambda: checks.alerts(seen(), "gpu01", MonitoringConfig()),
        "passed",
        "",
        [],
        ["alerts_firing 0 alerts"],
    ),
    (
        lambda: checks.alerts(
            seen(
                alerts={
                    "gpu01": (
                        Alert("Hot", "firing", "critical", "too hot"),
                        Alert("Q", "firing"),
                        Alert("P", "pending"),
                        Alert("Watchdog", "firing"),
                    )
                }
            ),
            "gpu01",
            MonitoringConfig(ignored_alerts=("Watch*",)),
        ),
        "failed",
        "",
        ["alert Hot: critical firing: too hot / no firing alert", "alert Q: firing / no firing alert"],
        ["alerts_firing 3 alerts"],
    ),
    (
        lambda: checks.cluster_alerts(
            seen(alerts={"": (Alert("Hot", "firing", "", "too hot"),)}), MonitoringConfig()
        ),
        "failed",
        "",
        ["alert Hot: firing: too hot / no firing alert"],
        ["alerts_firing 1 alerts"],
    ),
]


@pytest.mark.parametrize(("judge", "outcome", "reason", "findings", "metrics"), EXACT)
def test_verdicts_to_the_letter(
    judge: Callable[[], Verdict], outcome: str, reason: str, findings: list[str], metrics: list[str]
) -> None:
    assert spelled(judge()) == (outcome, reason, findings, metrics)


def test_labels_that_name_a_node_and_the_units_of_durations() -> None:
    for label in probe.NODE_LABELS:
        assert probe.hosts_of({label: "a", "instance": "b:1"}) == ("a", "b")
    assert probe.NODE_LABELS == ("node", "nodename", "hostname", "host", "Hostname")
    units = {"y": 31536000.0, "w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
    assert units == probe._SECONDS
    assert probe.SCRAPE_INTERVAL == 60.0
