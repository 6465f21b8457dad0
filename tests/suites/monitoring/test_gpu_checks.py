"""Rules and metrics of GPUs in a real Prometheus. The exporters are SIMULATED: they serve text in the form of the real ones."""

from __future__ import annotations

import contextlib
import http.server
import json
import math
import threading
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from paths import ROOT
from plugin_helpers import Run, names, run_pytest
from prometheus_helpers import answers, process
from sandbox_helpers import free_port, wait_for

from pytest_gpucluster.config.models import Profile
from pytest_gpucluster.core.check import Outcome, Verdict
from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.suites.monitoring import gpu_checks, gpu_facts
from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
from pytest_gpucluster.suites.monitoring.facts import MonitoringFacts, Service, Target
from pytest_gpucluster.suites.monitoring.gpu_facts import Rule, Sample
from pytest_gpucluster.suites.monitoring.steps import query_monitoring

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
BLANK = 9223372036854775794  # DCGM's value for "not supported", as dcgm-exporter's README shows it
OLD = 200  # seconds


def dcgm_4(*values: float, name: str, stamp: str = "") -> str:
    """Return text of dcgm-exporter 4: in a container without --hostname its Hostname is the container's id."""
    series = (
        f'{TEMPERATURE}{{gpu="{n}",UUID="GPU-{name}-{n}",pci_bus_id="00000000:{n}1:00.0",device="nvidia{n}",'
        f'modelName="NVIDIA H100 80GB HBM3",Hostname="3f1c9ab2d4e5",DCGM_FI_DRIVER_VERSION="550.90.07"}} {value}{stamp}'
        for n, value in enumerate(values)
    )
    head = f"# HELP {TEMPERATURE} GPU temperature (in C).\n# TYPE {TEMPERATURE} gauge\n"
    return head + "\n".join(series) + "\n"


def dcgm_2(*values: float, host: str) -> str:
    """Return text of dcgm-exporter 2: no bus id."""
    series = (
        f'{TEMPERATURE}{{gpu="{n}",UUID="GPU-{host}-{n}",device="nvidia{n}",modelName="Tesla T4",Hostname="{host}"}} {value}'
        for n, value in enumerate(values)
    )
    return f"# TYPE {TEMPERATURE} gauge\n" + "\n".join(series) + "\n"


def nvidia_gpu_exporter(*values: float) -> str:
    """Return text of utkuozdemir/nvidia_gpu_exporter: one label."""
    series = (
        f'nvidia_smi_temperature_gpu{{uuid="df6e7a7c-7314-46f8-abc4-b88b36dcf3a{n}"}} {value}'
        for n, value in enumerate(values)
    )
    return "# TYPE nvidia_smi_temperature_gpu gauge\n" + "\n".join(series) + "\n"


def exported() -> dict[str, str]:
    """Return {node: what its exporter serves}."""
    old = f" {int((time.time() - OLD) * 1000)}"
    return {
        "gpu01": dcgm_4(31, 45, name="gpu01"),
        "gpu02": dcgm_2(40, host="gpu02.example.org"),  # one GPU of two
        "gpu03": dcgm_4(BLANK, 45, name="gpu03"),
        "gpu04": dcgm_4(31, 45, name="gpu04", stamp=old),
        "gpu05": "# no GPU\nup_to_date 1\n",
        "gpu06": nvidia_gpu_exporter(44, 45),
        "gpu07": dcgm_2(40, 41, host="gpu07"),
    }


RULES = """
groups:
- name: gpus
  rules:
  - {record: 'node:gpu_temperature:max', expr: max by (instance) (DCGM_FI_DEV_GPU_TEMP)}
  - {alert: GpuHot, expr: 'node:gpu_temperature:max > 1e20'}
  - {alert: InstanceDown, expr: up == 7}
"""
BROKEN = "  - {alert: GpuBroken, expr: DCGM_FI_DEV_GPU_TEMP * on() DCGM_FI_DEV_GPU_TEMP > 0}\n"


class Exporter(http.server.ThreadingHTTPServer):
    daemon_threads = True
    body = b""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Exporter

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def exporter(address: str, port: int, body: str) -> Iterator[None]:
    with Exporter((address, port), Handler) as server:
        server.body = body.encode()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


class World:
    """A Prometheus that scrapes seven exporters, each with an address of its own."""

    def __init__(self, url: str, port: int, rules: Path) -> None:
        self.url, self.port, self.rules = url, port, rules

    def config(self, **changes: Any) -> MonitoringConfig:
        return MonitoringConfig(**{**self.section(), **changes})

    def section(self) -> dict[str, Any]:
        return {
            "prometheus": self.url,
            "grafana": None,
            "exporters": {},
            "gpu_exporters": {"dcgm_exporter": self.port},
            "cluster_exporters": {},
        }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("prometheus")
    port, mine = free_port(), free_port()
    pages = exported()
    targets: list[dict[str, Any]] = [
        {"targets": [f"127.0.0.{at}:{port}"], "labels": {"node": node}}
        for at, node in enumerate(pages, 11)
        if node not in ("gpu02", "gpu07")  # these are named by the exporter's own label only
    ]
    targets += [{"targets": [f"127.0.0.12:{port}"]}, {"targets": [f"127.0.0.17:{port}"]}]
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [{"job_name": "dcgm", "static_configs": targets}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(settings))
    (folder / "rules.yml").write_text(RULES)
    with contextlib.ExitStack() as stack:
        for at, page in enumerate(pages.values(), 11):
            stack.enter_context(exporter(f"127.0.0.{at}", port, page))
        argv = ("prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
        more = (f"--web.listen-address=127.0.0.1:{mine}", "--web.enable-lifecycle")
        stack.enter_context(process(*argv, *more, log=folder / "prometheus.log"))
        made = World(f"http://127.0.0.1:{mine}", port, folder / "rules.yml")
        wait_for(lambda: answers(f"{made.url}/-/ready"), "Prometheus is ready")
        wait_for(lambda: settled(made), "every exporter was scraped and the rules were evaluated")
        yield made


def settled(world: World) -> bool:
    seen = query_monitoring(world.config(), tuple(exported()), {})
    healths = {one.health for found in seen.targets.values() for one in found}
    return healths == {"up"} and {rule.health for rule in seen.rules} == {"ok"} and len(seen.samples) == 6


@pytest.fixture(scope="module")
def run(world: World, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The suite on seven nodes with two GPUs each, which no Slurm knows."""
    folder = tmp_path_factory.mktemp("run")
    cluster = {
        "name": "prod",
        "nodes": "gpu[01-07]",
        "profile": {"extends": "generic", "gpu": {"count": 2, "name": "NVIDIA H100 80GB HBM3"}},
        "slurm": {"scheduler": "none"},
        "monitoring": world.section(),
    }
    (folder / "prod.yaml").write_text(json.dumps(cluster))
    options = (
        f"--cluster={folder}/prod.yaml",
        "-c",
        ROOT / "pyproject.toml",
        "-p",
        "no:cacheprovider",
        "-k",
        "gpu_",
    )
    return run_pytest(folder, *options, where=[str(ROOT / "suites" / "monitoring" / "test_monitoring.py")])


def message(run: Run, item: str) -> str:
    (found,) = (e for e in run.events if e["event"] == "result" and e["nodeid"].endswith(f"::test_{item}"))
    return str(found["message"])


def test_each_sick_node_is_named_and_no_healthy_one(run: Run) -> None:
    assert names(run.outcomes, "failed") == [f"test_gpu_metrics[gpu0{n}]" for n in (2, 3, 4, 5)], run.out
    assert "test_gpu_rules" in names(run.outcomes, "passed")


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("gpu02", "GPUs with metrics: measured 1 (GPU-gpu02.example.org-0), expected 2"),
        ("gpu03", f"{TEMPERATURE} of GPU GPU-gpu03-0: measured 9.22337e+18, expected 1 to 120 C"),
        ("gpu04", "GPU GPU-gpu04-0: measured last value 2"),
        ("gpu05", f"metrics of GPUs: measured none of {TEMPERATURE}"),
    ],
)
def test_the_message_names_what_is_wrong(run: Run, node: str, words: str) -> None:
    assert words in message(run, f"gpu_metrics[{node}]")


def test_a_rule_that_cannot_be_evaluated_is_found(world: World) -> None:
    world.rules.write_text(RULES + BROKEN)
    reload(world)
    try:
        seen = wait_for(lambda: rules_with(world, "err"), "Prometheus evaluates the broken rule")
        verdict = gpu_checks.gpu_rules(seen, world.config(), 7)
        assert parts(verdict) == ["rule GpuBroken"]
        assert "duplicate series" in verdict.findings[0].measured
    finally:
        world.rules.write_text(RULES)
        reload(world)


def reload(world: World) -> None:
    with urllib.request.urlopen(urllib.request.Request(f"{world.url}/-/reload", method="POST"), timeout=20):
        pass


def rules_with(world: World, health: str) -> MonitoringFacts | None:
    seen = query_monitoring(world.config(), ("gpu01",), {})
    return seen if any(rule.health == health for rule in seen.rules) else None


def test_a_required_rule_must_be_loaded(world: World) -> None:
    seen = query_monitoring(world.config(), ("gpu01",), {})
    config = world.config(required_alerts=("InstanceDown", "GpuXid"))
    assert parts(gpu_checks.gpu_rules(seen, config, 7)) == ["rule GpuXid"]


# --- verdicts on plain facts

CONFIG = MonitoringConfig()
ABOUT = {"name": "two", "description": "made up", "source": "this test"}
PROFILE = Profile.model_validate({**ABOUT, "gpu": {"count": 2, "name": "NVIDIA H100 80GB HBM3"}})
HOT = Rule("GpuHot", "DCGM_FI_DEV_GPU_TEMP > 90", alerting=True, health="ok")
DOWN = Rule("InstanceDown", "up == 0", alerting=True, health="ok")  # the only rule of DeepOps


def facts(**changes: Any) -> MonitoringFacts:
    target = Target("dcgm", "u", 9400, "up", last_scrape=1000.0, interval=15.0)
    known: dict[str, Any] = {
        "prometheus": Service("Prometheus", "http://localhost:9090", "3.1.0"),
        "grafana": None,
        "targets": {"gpu01": (target,)},
        "samples": {"gpu01": (sample("a"), sample("b"))},
        "samples_now": 1000.0,
        "rules": (HOT, DOWN),
        **changes,
    }
    return MonitoringFacts(**known)


def sample(gpu: str, value: float = 45.0, time: float = 990.0, **more: Any) -> Sample:
    return Sample(TEMPERATURE, value, time, gpu, **more)


def parts(verdict: Verdict) -> list[str]:
    assert not verdict.action.is_repair
    return [finding.part for finding in verdict.findings]


def metrics(*samples: Sample, **changes: Any) -> Verdict:
    return gpu_checks.gpu_metrics(facts(samples={"gpu01": samples}, **changes), "gpu01", PROFILE, CONFIG)


@pytest.mark.parametrize(
    ("samples", "found"),
    [
        ((sample("a"), sample("b")), []),
        ((sample("a"), sample("b", 1.0)), []),
        ((sample("a"), sample("b", 120.0)), []),
        ((sample("a"), sample("b", 0.0)), [f"{TEMPERATURE} of GPU b"]),
        ((sample("a"), sample("b", math.nan)), [f"{TEMPERATURE} of GPU b"]),
        ((sample("a"),), ["GPUs with metrics"]),
        ((sample("a"), sample("b"), sample("c")), ["GPUs with metrics"]),  # those of another node
        ((sample("a"), sample("b", time=941.0)), []),
        ((sample("a"), sample("b", time=939.0)), ["GPU b", "GPUs with metrics"]),
        # two Prometheus jobs, or two metrics, of one GPU
        ((sample("a"), sample("b", time=900.0), sample("b")), []),
        ((sample("a", mig=True), sample("a", mig=True)), []),
    ],
)
def test_number_age_and_bounds(samples: tuple[Sample, ...], found: list[str]) -> None:
    assert parts(metrics(*samples)) == found


def test_a_metric_without_known_bounds_needs_a_number_only() -> None:
    odd = [Sample("site_gpu_metric", value, 990.0, gpu) for gpu, value in (("a", 1e9), ("b", -5.0))]
    assert metrics(*odd).outcome is Outcome.PASSED
    assert parts(metrics(odd[0], Sample("site_gpu_metric", math.inf, 990.0, "b"))) == [
        "site_gpu_metric of GPU b"
    ]


def test_an_exporter_that_was_not_scraped_yet_is_not_checked() -> None:
    new = Target("dcgm", "u", 9400, "unknown", interval=15.0)
    verdict = metrics(targets={"gpu01": (new,)}, now=1010.0, began=1000.0)
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert parts(metrics(targets={"gpu01": (new,)}, now=1040.0, began=1000.0)) == ["metrics of GPUs"]


def test_what_does_not_apply_and_what_cannot_be_judged() -> None:
    none = Profile.model_validate(ABOUT)
    assert gpu_checks.gpu_metrics(facts(), "gpu01", none, CONFIG).outcome is Outcome.NOT_APPLICABLE
    without = MonitoringConfig(gpu_exporters={})
    assert gpu_checks.gpu_metrics(facts(), "gpu01", PROFILE, without).outcome is Outcome.NOT_APPLICABLE
    assert metrics(samples_problem="no answer").outcome is Outcome.NOT_CHECKED
    assert gpu_checks.gpu_rules(facts(), without, 1).outcome is Outcome.NOT_APPLICABLE
    assert gpu_checks.gpu_rules(facts(), CONFIG, 0).outcome is Outcome.NOT_APPLICABLE
    assert gpu_checks.gpu_rules(facts(rules_problem="no answer"), CONFIG, 1).outcome is Outcome.NOT_CHECKED


@pytest.mark.parametrize(
    ("rules", "outcome"),
    [
        ((HOT, DOWN), Outcome.PASSED),
        ((DOWN,), Outcome.FAILED),
        ((), Outcome.FAILED),
        ((Rule("GpuHot", HOT.query, alerting=False, health="ok"),), Outcome.FAILED),  # records only
        ((Rule("GpuHot", HOT.query, alerting=True),), Outcome.NOT_CHECKED),
        ((Rule("GpuHot", HOT.query, alerting=True, health="err", error="x"),), Outcome.FAILED),
        (
            (HOT, Rule("Other", "up == 0", alerting=True, health="err", error="x")),
            Outcome.PASSED,
        ),  # an advisory
        ((Rule("A", "nvidia_smi_gpu_recovery_action > 0", alerting=True, health="ok"),), Outcome.PASSED),
        (
            (Rule("A", 'rate(nvidia_gpu_duty_cycle{job="x"}[5m]) > 0', alerting=True, health="ok"),),
            Outcome.PASSED,
        ),
        ((Rule("A", "my_DCGM_FI_DEV_X > 0", alerting=True, health="ok"),), Outcome.FAILED),
    ],
)
def test_gpu_rules(rules: tuple[Rule, ...], outcome: Outcome) -> None:
    assert gpu_checks.gpu_rules(facts(rules=rules), CONFIG, 1).outcome is outcome


def test_a_rule_may_use_recorded_metrics_of_gpus() -> None:
    first = Rule("job:temp:max", "max(DCGM_FI_DEV_GPU_TEMP)", alerting=False)
    second = Rule("job:temp:max_1h", "max_over_time(job:temp:max[1h])", alerting=False)
    alert = Rule("Hot", "job:temp:max_1h > 90", alerting=True)
    other = Rule("Cold", "job:temp:max_1h_of_others < 1", alerting=True)
    assert gpu_facts.about_gpus((alert, other, second, first)) == {first, second, alert}


def test_answers_of_another_form_are_no_facts() -> None:
    for body in (
        b"<html>login</html>",
        b'{"status": "success", "data": {}}',
        b'{"status": "success", "data": {"groups": [{}]}}',
        b'{"status": "success", "data": {"groups": [{"rules": [{}]}], "resultType": "vector", "result": []}}',
        b'{"status": "success", "data": {"groups": [7], "resultType": "matrix", "result": [{"values": [[1]]}]}}',
    ):
        for read in (gpu_facts.read_rules, gpu_facts.read_samples):
            with pytest.raises(ProbeError):
                read(body)


@pytest.mark.parametrize(
    ("labels", "gpu", "hosts"),
    [
        (
            {"UUID": "GPU-1", "gpu": "0", "Hostname": "gpu01", "instance": "10.0.0.1:9400"},
            "GPU-1",
            ("gpu01", "10.0.0.1"),
        ),
        ({"uuid": "1", "instance": "gpu01:9835"}, "1", ("gpu01",)),
        ({"minor_number": "0", "instance": "gpu01:9445"}, "0", ("gpu01",)),
        # copied from another Prometheus
        ({"UUID": "1", "exported_instance": "gpu01:9400", "instance": "ctl:9090"}, "1", ("gpu01", "ctl")),
    ],
)
def test_labels_of_the_exporters(labels: dict[str, str], gpu: str, hosts: tuple[str, ...]) -> None:
    series = {"metric": {"__name__": TEMPERATURE, **labels}, "values": [[1.0, "44"], [2.5, "45"]]}
    body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [series]}}).encode()
    (found,) = gpu_facts.read_samples(body)
    assert (found.gpu, found.hosts, found.value, found.time) == (gpu, hosts, 45.0, 2.5)
