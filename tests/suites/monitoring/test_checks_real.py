"""The suite on Debian's real Prometheus, on loopback. Exporters and Grafana serve text in the form of the real ones.

Every node has addresses of its own, 127.0.0.N, so that exporters share a port as on real nodes.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from paths import ROOT
from plugin_helpers import run_pytest
from prometheus_helpers import answers, process, serving
from sandbox_helpers import free_port, wait_for

from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
from pytest_gpucluster.suites.monitoring.facts import GRAFANA_HEALTH
from pytest_gpucluster.suites.monitoring.steps import query_monitoring

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucluster.suites.monitoring.facts import MonitoringFacts

pytestmark = pytest.mark.thorough
NODES = ("gpu01", "gpu02", "gpu03", "gpu04")
TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
BLANK = 9223372036854775794  # DCGM's value for "not supported", as dcgm-exporter's README shows it
# The form of /api/health as Grafana's HTTP API reference documents it; Debian has no Grafana to run.
GRAFANA = json.dumps({"database": "ok", "version": "11.2.0", "commit": "a1b2c3d4e5"})
RULES = """
groups:
- name: test
  rules:
  - {alert: Watchdog, expr: vector(1)}
  - {alert: NodeHot, expr: 'up{node="gpu02", job="node"} == 1', labels: {severity: critical}}
  - {alert: QueueStuck, expr: count(up) > 0, labels: {severity: warning}}
  - {record: 'node:gpu_temperature:max', expr: max by (instance) (DCGM_FI_DEV_GPU_TEMP)}
  - {alert: GpuHot, expr: 'node:gpu_temperature:max > 1e20'}
"""


def dcgm(name: str, *values: float) -> str:
    """Return text of dcgm-exporter 4: in a container without --hostname its Hostname is the container's id."""
    series = (
        f'{TEMPERATURE}{{gpu="{n}",UUID="GPU-{name}-{n}",device="nvidia{n}",Hostname="3f1c9ab2d4e5"}} {value}\n'
        for n, value in enumerate(values)
    )
    return f"# TYPE {TEMPERATURE} gauge\n{''.join(series)}"


GPU_PAGES = (dcgm("gpu01", 31, 45), dcgm("gpu02", 40), dcgm("gpu03", BLANK, 45))  # one GPU of two; no value


@dataclass(frozen=True)
class World:
    """A Prometheus that scrapes exporters of gpu01 and gpu02, nothing on gpu03; gpu04 is unknown to it."""

    section: dict[str, Any]

    def seen(self) -> MonitoringFacts:
        return query_monitoring(MonitoringConfig.model_validate(self.section), NODES, {})


def settled(seen: MonitoringFacts) -> bool:
    healths = [one.health for found in seen.targets.values() for one in found]
    firing = {one.name for found in seen.alerts.values() for one in found if one.state == "firing"}
    scraped = "unknown" not in healths and len(healths) == 7 and len(seen.samples) == 3
    return scraped and firing == {"Watchdog", "NodeHot", "QueueStuck"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("prometheus")
    port, gpu_port, slurm, mine, grafana = (free_port() for _ in range(5))

    def job(name: str, first: int, at: int) -> dict[str, Any]:
        named = enumerate(NODES[:3], first)
        nodes = [{"targets": [f"127.0.0.{n}:{at}"], "labels": {"node": node}} for n, node in named]
        return {"job_name": name, "static_configs": nodes}

    of_slurm = {"job_name": "slurm", "static_configs": [{"targets": [f"127.0.0.1:{slurm}"]}]}
    jobs = [job("node", 2, port), job("dcgm", 11, gpu_port), of_slurm]
    settings = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": ["rules.yml"]}
    (folder / "prometheus.yml").write_text(json.dumps({**settings, "scrape_configs": jobs}))
    (folder / "rules.yml").write_text(RULES)
    url = f"http://127.0.0.1:{mine}"
    section = {
        "prometheus": url,
        "grafana": f"http://127.0.0.1:{grafana}",
        "exporters": {"node_exporter": port},
        "gpu_exporters": {"dcgm_exporter": gpu_port},
        "cluster_exporters": {"slurm_exporter": slurm},
        "ignored_alerts": ["Watchdog", "Queue*"],
    }
    pages = [(2, port, "up_to_date 1\n"), (3, port, "a 1\n"), (1, slurm, "a 1\n"), (1, grafana, GRAFANA)]
    pages += [(at, gpu_port, page) for at, page in enumerate(GPU_PAGES, 11)]
    with contextlib.ExitStack() as stack:
        for last, at, page in pages:
            fixed = dict.fromkeys(("/metrics", GRAFANA_HEALTH), (200, page.encode()))
            stack.enter_context(serving(fixed, (f"127.0.0.{last}", at)))
        argv = ("prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
        listen = f"--web.listen-address=127.0.0.1:{mine}"
        stack.enter_context(process(*argv, listen, log=folder / "prometheus.log"))
        made = World(section)
        wait_for(lambda: answers(f"{url}/-/ready"), "Prometheus is ready")
        wait_for(lambda: settled(made.seen()), "every target was scraped and the alerts fire")
        yield made


def test_every_node_is_judged_by_what_prometheus_really_sees(world: World, tmp_path: Path) -> None:
    """Four nodes that no Slurm knows: the suite asks Prometheus alone."""
    cluster = {
        "name": "prod",
        "nodes": "gpu[01-04]",
        "profile": {"extends": "generic", "gpu": {"count": 2, "name": "NVIDIA H100 80GB HBM3"}},
        "slurm": {"scheduler": "none"},
        "monitoring": world.section,
    }
    (tmp_path / "prod.yaml").write_text(json.dumps(cluster))
    options = (f"--cluster={tmp_path}/prod.yaml", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider")
    run = run_pytest(tmp_path, *options, where=[str(ROOT / "suites" / "monitoring" / "test_monitoring.py")])
    assert run.rc == 1, run.out + run.err
    nodes = {
        "target": ("passed", "passed", "passed", "failed"),
        "up": ("passed", "passed", "failed", "not checked"),
        "scrape_age": ("passed", "passed", "passed", "not checked"),
        "alerts": ("passed", "failed", "passed", "passed"),
        "gpu_metrics": ("passed", "failed", "failed", "failed"),
    }
    others = dict.fromkeys(("prometheus", "grafana", "exporters", "cluster_alerts", "gpu_rules"), "passed")
    each = {f"{what}[{node}]": end for what, it in nodes.items() for node, end in zip(NODES, it, strict=True)}
    found = {nodeid.rpartition("::test_")[2]: end for nodeid, end in run.outcomes.items()}
    assert found == {**others, **each}, run.out
