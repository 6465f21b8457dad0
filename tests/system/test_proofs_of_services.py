"""A suite that judged nothing of a node has not proved it: no section, tool or service that is missing is accepted."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from plugin_helpers import cluster_file, names, run_pytest

from pytest_gpucluster import suites_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from plugin_helpers import Run

    from pytest_gpucluster.sandbox import Sandbox

ROW = {"min": "1.0", "branch": "1.0", "reason": "r", "source": "s"}  # of a branch that no node has
NO_TARGETS: dict[str, dict[str, Any]] = {
    "/api/v1/status/buildinfo": {"status": "success", "data": {"version": "2.50.0"}},
    "/api/v1/status/runtimeinfo": {"status": "success", "data": {}},
    "/api/v1/targets?state=active": {"status": "success", "data": {"activeTargets": []}},
    "/api/v1/alerts": {"status": "success", "data": {"alerts": []}},
}
# suite: its section, a check that is no proof, and what the error names
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "isolation": ({}, "`required: [isolation.cpus]` requires"),
    "versions": ({"slurm": ROW}, "one without `branch`"),
    "kubernetes": ({"context": "none"}, "kubectl"),
    "software": ({"conda": {"environments": {"base": {}}}}, "conda"),
    "accounting": ({"accounts": {"physics": {}}}, "slurmdbd"),
    "submitit": ({}, "submitit"),
}


@contextlib.contextmanager
def prometheus() -> Iterator[str]:
    """A Prometheus that scrapes nothing."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = json.dumps(NO_TARGETS.get(self.path, {"status": "success", "data": {}})).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(found)))
            self.end_headers()
            self.wfile.write(found)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def alone(sandbox: Sandbox, folder: Path, suite: str, section: dict[str, Any]) -> Run:
    """Run a suite by its name."""
    keys = {suite: section} if section or suite == "submitit" else {}
    path = cluster_file(sandbox, folder, **keys)
    return run_pytest(folder, f"--cluster={path}", "-m", suite, where=(suites_path(),))


def refused(run: Run, words: str) -> None:
    assert run.rc == 1, run.out[-3000:]
    verdict = next(line for line in run.out.splitlines() if "NOT PROVED:" in line or "NOT ACCEPTED:" in line)
    assert verdict.startswith(("NOT PROVED: 0 of 4 nodes", "NOT ACCEPTED: ", "NOT PROVED: the cluster")), (
        verdict
    )
    assert words in " ".join(run.out.split()), run.out[-3000:]
    assert names(run.outcomes, "error") or names(run.outcomes, "failed")


@pytest.mark.parametrize("suite", CASES)
def test_a_suite_that_can_judge_nothing_is_not_accepted(sandbox: Sandbox, tmp_path: Path, suite: str) -> None:
    section, words = CASES[suite]
    refused(alone(sandbox, tmp_path, suite, section), words)


def test_a_prometheus_without_a_target_proves_no_node(sandbox: Sandbox, tmp_path: Path) -> None:
    with prometheus() as url:
        section: dict[str, Any] = {
            "prometheus": url,
            "grafana": None,
            "exporters": {},
            "cluster_exporters": {},
        }
        run = alone(sandbox, tmp_path, "monitoring", section)
    assert "test_prometheus" in names(run.outcomes, "passed")
    assert names(run.outcomes, "failed") == []
    refused(run, "add it to scrape_configs, and name its exporters in `monitoring.exporters`")
    assert "NOT PROVED: 0 of 4 nodes" in run.out


def test_isolation_is_left_out_by_one_line_where_slurm_isolates_nothing(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    run = run_pytest(
        tmp_path,
        f"--cluster={cluster_file(sandbox, tmp_path)}",
        "-m",
        "isolation or test_known",
        "--collect-only",
        "-q",
        where=(suites_path(),),
    )
    assert "test_isolation" in run.out  # named
    run = run_pytest(
        tmp_path, f"--cluster={cluster_file(sandbox, tmp_path)}", "--collect-only", where=(suites_path(),)
    )
    assert "nothing to test: isolation: Slurm isolates no job from another" in run.out
    assert "test_isolation.py" not in run.out
