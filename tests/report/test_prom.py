"""Metrics for Prometheus: what promtool makes of them, what they say, and that hostile text stays text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from paths import ROOT
from plugin_helpers import run_pytest
from report_helpers import part_of

from pytest_gpucluster.core import part as parts
from pytest_gpucluster.report.machine import prom
from pytest_gpucluster.report.machine.events import read_run

if TYPE_CHECKING:
    from pathlib import Path


def promtool(*words: str | Path, page: str = "") -> str:
    """Return what a real Prometheus parser and linter says; the test fails where it refuses what it gets."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.fail("promtool is missing: make packages (Debian's package prometheus)")
    argv = [tool, *map(str, words)]
    done = subprocess.run(argv, input=page, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def result(
    check: str, outcome: str = "passed", node: str = "gpu01", *, inside: str = "", **fields: Any
) -> dict[str, Any]:
    nodeid = f"suites/test_{check.replace('.', '.py::test_')}[{node}{inside}]"
    known = {"suite": check.partition(".")[0], "check": check, "node": node, "verdicts": [], "metrics": []}
    return {"event": "result", "time": 105.5, "nodeid": nodeid, "outcome": outcome, **known, **fields}


def metric(name: str, value: float | str, unit: str, device: str = "", *, detail: bool = False) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "part": part_of(device), "detail": detail}


def events(
    *results: dict[str, Any], exit_: int | None = 0, nodes: tuple[str, ...] = ("gpu01",)
) -> list[dict[str, Any]]:
    start = {"event": "start", "time": 100.0, "cluster": "prod", "simulated": False}
    finish = [] if exit_ is None else [{"event": "finish", "time": 110.0, "exit": exit_}]
    return [start, {"event": "nodes", "time": 100.0, "selected": list(nodes)}, *results, *finish]


def samples(page: str) -> dict[str, float]:
    """Return series -> value; a series that appears twice breaks it."""
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert len(found) == len(lines)
    return found


@pytest.mark.thorough
def test_promtool_takes_every_unit_and_name() -> None:
    units = [*prom.UNITS, "GPUs", "", "lanes", "errors"]
    metrics = [metric(f"it{n}", 1.5, unit) for n, unit in enumerate(units)]
    metrics += [metric("busbw all_reduce 4 nodes, 4 GiB", 361.5, "GB/s"), metric("import-Time", 1, "s")]
    page = prom.render(read_run(events(result("gpu.x", metrics=[*metrics, metric("x.y", 1, "W")]))))
    assert promtool("check", "metrics", page=page) == ""
    labels = 'check="gpu.x",cluster="prod",node="gpu01",of="all_reduce 4 nodes, 4 GiB"'
    assert samples(page)[f"gpucluster_measured_busbw_bytes_per_second{{{labels}}}"] == 361.5e9


def test_the_last_success_is_carried_over(tmp_path: Path) -> None:
    path, series = tmp_path / "metrics.prom", 'gpucluster_last_success_timestamp_seconds{cluster="prod"}'
    for exit_, exit_time in ((1, None), (0, 110), (1, 110), (None, 110)):
        prom.write(read_run(events(result("gpu.count"), exit_=exit_)), path, prom.read(path))
        found = samples(path.read_text())
        assert found.get(series) == exit_time
        assert found['gpucluster_run_success{cluster="prod"}'] == (exit_ == 0)
    assert [one.name for one in tmp_path.iterdir()] == ["metrics.prom"]
    for before in (b"\xff\x00 garbage", series.replace("prod", "other").encode() + b" 17.0\n"):
        path.write_bytes(before)
        prom.write(read_run(events(result("gpu.count"), exit_=1)), path, prom.read(path))
        assert series not in samples(path.read_text())


# --- line by line, without a parser


def lines(*results: dict[str, Any], **options: Any) -> list[str]:
    """Return the samples of a page that are neither of the run nor counts of outcomes."""
    page = prom.render(read_run(events(*results, **options)))
    own = re.compile("#|gpucluster_(run|checks|nodes|node_checks|last)")
    return [line for line in page.splitlines() if not own.match(line)]


def test_a_node_is_fit_where_something_passed_and_nothing_was_red() -> None:
    fit = 'gpucluster_node_fit{cluster="prod",node="gpu01"} '
    good = result("gpu.a")
    assert lines(good, result("gpu.b", "not checked")) == [f"{fit}1.0"]
    assert lines(result("gpu.b", "not checked")) == lines(nodes=("gpu01",)) == [f"{fit}0.0"]
    for outcome in ("error", "failed"):
        assert lines(good, result("gpu.b", outcome))[0] == f"{fit}0.0"
    assert lines(result("gpu.a", node="gpu09"), nodes=()) == []  # no node of the run
    assert lines(result("gpu.a", node=""), nodes=()) == []
    gone = {"event": "lost", "time": 106.0, "node": "gpu01"}
    assert f"{fit}0.0" in prom.render(read_run([*events(good), gone]))


def test_the_gpu_of_a_failure_is_its_index() -> None:
    for part, gpu in (
        (parts.gpu(4, uuid="x"), "4"),
        (parts.nvlink(3, parts.gpu(12)), "12"),
        (parts.named("file", "GPU 4"), ""),
    ):
        red = result("gpu.a", "failed", verdicts=[{"findings": [{"part": part.as_dict()}, {"part": part.as_dict()}]}])
        label = f',gpu="{gpu}"' if gpu else ""
        failed = f'gpucluster_check_failed{{check="gpu.a",cluster="prod"{label},node="gpu01"}} 1.0'
        assert lines(red)[1:] == [failed]
    broken = 'gpucluster_check_broken{check="gpu.a",cluster="prod",node="gpu01"} 1.0'
    assert lines(result("gpu.a", "error", verdicts=[]))[1:] == [broken]


HOSTILE = 'a"b\\c\nd\x00\x1b[31m}{ \ud800 \u202e # HELP x'


@pytest.mark.thorough
def test_hostile_text_stays_a_label() -> None:
    metrics = [metric(f"x {HOSTILE}", 1, HOSTILE, HOSTILE)]
    hostile = result("gpu.x", "failed", node=HOSTILE, metrics=metrics)
    start = {"event": "start", "time": 1.0, "cluster": HOSTILE, "simulated": True}
    page = prom.render(read_run([start, hostile]))
    page.encode("utf-8")
    assert promtool("check", "metrics", page=page) == ""
    assert all(re.match(r"# (HELP|TYPE) [a-z_]+ |[a-z_]+\{.*\} \S+$", line) for line in page.splitlines())
    assert r'cluster="a\"b\\c\nd??[31m}{ ? ' in page
    odd = metric("it", 1, 'say "x"\n', 'x"\\\n\x00\x1b\ud800y\t')
    assert 'device="x\\"\\\\\\n???y?"' in lines(result("gpu.a", metrics=[odd]))[1]
    assert '(say "x"\\n).\n' in prom.render(read_run(events(result("gpu.a", metrics=[odd]))))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["x.txt", "no-such-folder/x.prom"])
def test_a_file_that_cannot_be_is_refused_before_nodes_are_taken(tmp_path: Path, name: str) -> None:
    files = {"test_x.py": "def test_x(): pass\n"}
    run = run_pytest(tmp_path, "--cluster=local", f"--set=reports.metrics={name}", files=files)
    assert run.rc == 4
    (error,) = run.errors
    assert error.startswith(f"ERROR: reports.metrics: {name}: ")


# --- the dashboard and the alerts of examples/

EXAMPLES = ROOT / "src" / "pytest_gpucluster" / "examples"
RULES = EXAMPLES / "prometheus-alerts.yaml"
DASHBOARD: dict[str, Any] = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
ALERTS = [rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]]
START = 100.0  # seconds, Unix time, of the made up runs


def names(text: str) -> set[str]:
    return set(re.findall(r"\bgpucluster_\w+", text))


def bad(check: str, outcome: str, node: str, *parts: str) -> dict[str, Any]:
    found = {"check": check, "outcome": outcome, "findings": [{"part": {"name": part}} for part in parts]}
    return result(check, outcome, node, time=START + 5, verdicts=[found] if parts else [])


def written(*results: dict[str, Any], simulated: bool = False, exit_: int = 0) -> dict[str, str]:
    """Return {series: value} as prom.py writes them of a run on gpu01 and gpu02."""
    events = [
        {"event": "start", "time": START, "cluster": "prod", "simulated": simulated},
        {"event": "nodes", "time": START, "selected": ["gpu01", "gpu02"]},
        *(bad("gpu.count", "passed", node) for node in ("gpu01", "gpu02")),
        *results,
        {"event": "finish", "time": START + 10, "exit": exit_},
    ]
    page = prom.render(read_run(events))
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in lines}


def fires(folder: Path, series: dict[str, str], hours: int, expected: dict[str, list[dict[str, str]]]) -> None:
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


@pytest.mark.thorough
def test_each_fault_fires_its_alerts_with_node_and_check(tmp_path: Path) -> None:
    series = written(
        bad("gpu.ecc_volatile", "failed", "gpu02", "GPU 4 (GPU-1, 0:1)", "GPU 6"),
        bad("os.clock", "failed", "gpu02", "clock"),
        bad("nccl.links", "failed", "", "link gpu01 - gpu02"),
        bad("slurm.gres", "error", "gpu01"),
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
    fires(tmp_path, written(bad("gpu.xid", "failed", "gpu02", "GPU 0"), simulated=True, exit_=1), 2, {})


@pytest.mark.thorough
def test_runs_that_stopped_or_whose_metrics_vanished_fire_by_their_age(tmp_path: Path) -> None:
    labels = {"cluster": "prod", "severity": "warning"}
    for hours in (2, 36):
        fires(tmp_path, written(), hours, {})
    fires(tmp_path, written(), 37, {"GpuClusterRunIsOld": [labels]})
    old = {"GpuClusterRunIsOld": [labels], "GpuClusterNotAcceptedForAWeek": [labels]}
    fires(tmp_path, written(), 7 * 24 + 1, old)
    gone = {name: f"{value}x2 _" for name, value in written().items()}  # x2 _x26: after two hours
    fires(tmp_path, gone, 26, {"GpuClusterMetricsGone": [labels | {"simulated": "false"}]})


@pytest.mark.thorough
def test_promtool_parses_every_query_of_the_dashboard_and_each_metric_is_documented(tmp_path: Path) -> None:
    assert len(QUERIES) >= 12
    rules = [{"record": f"q{number}", "expr": query} for number, query in enumerate(QUERIES)]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "q", "rules": rules}]}))
    assert f"{len(QUERIES)} rules found" in promtool("check", "rules", tmp_path / "queries.yaml")
    used = names(" ".join(QUERIES)) | names(RULES.read_text())
    verdicts = {name for name in used if not name.startswith("gpucluster_measured_")}
    warned = result("gpu.pcie", verdicts=[{"findings": [], "advisories": [{"part": {"name": "GPU 3"}}]}])
    ends = (bad("gpu.xid", "failed", "gpu02", "GPU 0"), bad("slurm.gres", "error", "gpu01"), warned)
    assert verdicts <= names((ROOT / "docs" / "reports.md").read_text()) & names(" ".join(written(*ends)))
