"""The dashboard and the alerts of examples/ over what prom.py writes, judged by promtool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from paths import DATA, ROOT

from pytest_gpucluster.report import prom
from pytest_gpucluster.report.run_model import read_run

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.thorough
EXAMPLES = ROOT / "src" / "pytest_gpucluster" / "examples"
RULES = EXAMPLES / "prometheus-alerts.yaml"
DASHBOARD: dict[str, Any] = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
ALERTS = [rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]]
START = 100.0  # seconds, Unix time, of the made up runs


def names(text: str) -> set[str]:
    return set(re.findall(r"\bgpucluster_\w+", text))


def result(check: str, outcome: str, node: str, *parts: str) -> dict[str, Any]:
    verdict = {"check": check, "outcome": outcome, "findings": [{"part": part} for part in parts]}
    nodeid = f"suites/x/test_x.py::test_{check.partition('.')[2]}[{node}]"
    about = {"suite": check.partition(".")[0], "check": check, "node": node, "outcome": outcome}
    verdicts = [verdict] if parts else []
    return {
        "event": "result",
        "time": START + 5,
        "nodeid": nodeid,
        **about,
        "verdicts": verdicts,
        "metrics": [],
    }


def written(*results: dict[str, Any], simulated: bool = False, exit_: int = 0) -> dict[str, str]:
    """Return {series: value} as prom.py writes them of a run on gpu01 and gpu02."""
    events = [
        {"event": "start", "time": START, "cluster": "prod", "simulated": simulated},
        {"event": "nodes", "time": START, "selected": ["gpu01", "gpu02"]},
        *(result("gpu.count", "passed", node) for node in ("gpu01", "gpu02")),
        *results,
        {"event": "finish", "time": START + 10, "exit": exit_},
    ]
    page = prom.render(read_run(events))
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in lines}


def promtool(*words: str | Path) -> str:
    """Return what promtool prints; the test fails where it refuses the file."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.fail("promtool is missing: make packages (Debian's package prometheus)")
    done = subprocess.run([tool, *map(str, words)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fires(
    folder: Path, series: dict[str, str], hours: int, expected: dict[str, list[dict[str, str]]]
) -> None:
    """Let promtool judge the rules over constant series; `expected` has the labels of each alert, the others must not fire."""
    tests = [
        {
            "eval_time": f"{hours}h",
            "alertname": alert,
            "exp_alerts": [{"exp_labels": labels} for labels in expected.get(alert, [])],
        }
        for alert in ALERTS
    ]
    rules = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][0]["rules"]:
        del rule["annotations"]  # promtool compares the texts too
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    inputs = [{"series": name, "values": f"{value}x{hours}"} for name, value in series.items()]
    case = {"interval": "1h", "input_series": inputs, "alert_rule_test": tests}
    plan = {"rule_files": ["rules.yaml"], "evaluation_interval": "1h", "tests": [case]}
    (folder / "case.yaml").write_text(yaml.safe_dump(plan))
    assert "SUCCESS" in promtool("test", "rules", folder / "case.yaml")


def test_each_fault_fires_its_alerts_with_node_and_check(tmp_path: Path) -> None:
    series = written(
        result("gpu.ecc_volatile", "failed", "gpu02", "GPU 4 (GPU-1, 0:1)", "GPU 6"),
        result("os.clock", "failed", "gpu02", "clock"),
        result("nccl.links", "failed", "", "link gpu01 - gpu02"),
        result("slurm.gres", "error", "gpu01"),
        exit_=1,
    )
    warning, critical = ({"cluster": "prod", "severity": severity} for severity in ("warning", "critical"))
    expected = {
        "GpuClusterNodeNotFit": [{**warning, "node": node} for node in ("gpu01", "gpu02")],
        "GpuClusterHardwareCheckFailed": [{**critical, "node": "gpu02", "check": "gpu.ecc_volatile"}],
        "GpuClusterCheckOfClusterFailed": [{**critical, "check": "nccl.links"}],
        "GpuClusterChecksBroken": [{**warning, "outcome": "error"}],
    }
    fires(tmp_path, series, 2, expected)
    # a simulated cluster wakes nobody
    fires(tmp_path, written(result("gpu.xid", "failed", "gpu02", "GPU 0"), simulated=True, exit_=1), 2, {})


def test_runs_that_stopped_or_whose_metrics_vanished_fire_by_their_age(tmp_path: Path) -> None:
    labels = {"cluster": "prod", "severity": "warning"}
    for hours in (2, 36):
        fires(tmp_path, written(), hours, {})
    fires(tmp_path, written(), 37, {"GpuClusterRunIsOld": [labels]})
    old = {"GpuClusterRunIsOld": [labels], "GpuClusterNotAcceptedForAWeek": [labels]}
    fires(tmp_path, written(), 7 * 24 + 1, old)
    gone = {name: f"{value}x2 _" for name, value in written().items()}  # x2 _x26: after two hours
    fires(tmp_path, gone, 26, {"GpuClusterMetricsGone": [labels | {"simulated": "false"}]})


def test_promtool_parses_every_query_of_the_dashboard_and_each_metric_is_documented(tmp_path: Path) -> None:
    assert len(QUERIES) >= 12
    rules = [{"record": f"q{number}", "expr": query} for number, query in enumerate(QUERIES)]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "q", "rules": rules}]}))
    assert f"{len(QUERIES)} rules found" in promtool("check", "rules", tmp_path / "queries.yaml")
    used = names(" ".join(QUERIES)) | names(RULES.read_text())
    verdicts = {name for name in used if not name.startswith("gpucluster_measured_")}
    written_ones = names((DATA / "report" / "few.prom").read_text())
    assert verdicts <= names((ROOT / "docs" / "metrics.md").read_text()) & written_ones
