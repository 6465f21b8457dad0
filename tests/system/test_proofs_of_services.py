"""A suite that judged nothing of a node has not proved it: no section, tool or service that is missing is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plugin_helpers import cluster_file, run_pytest

from pytest_gpucluster import suites_path

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

ROW = {"min": "1.0", "branch": "1.0", "reason": "r", "source": "s"}  # of a branch that no node has
# suite: its section, which its tool or service that is missing cannot prove, and what the error names
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "isolation": ({}, "`required: [isolation.cpus]` requires"),
    "versions": ({"slurm": ROW}, "one without `branch`"),
    "kubernetes": ({"context": "none"}, "kubectl"),
    "software": ({"conda": {"environments": {"base": {}}}}, "conda"),
    "accounting": ({"accounts": {"physics": {}}}, "slurmdbd"),
    "monitoring": ({"prometheus": "http://127.0.0.1:1", "grafana": None}, "prometheus"),
    "submitit": ({}, "add `submitit:`"),
}


def test_suites_that_can_judge_nothing_are_not_accepted(sandbox: Sandbox, tmp_path: Path) -> None:
    path = cluster_file(
        sandbox, tmp_path, **{suite: section for suite, (section, _) in CASES.items() if section}
    )
    run = run_pytest(tmp_path, f"--cluster={path}", "-m", " or ".join(CASES), where=(suites_path(),))
    assert run.rc == 1, run.out[-3000:]
    assert "NOT PROVED: 0 of 4 nodes" in run.out
    text = " ".join(run.out.split())
    for suite, (_, words) in CASES.items():
        ends = {it["outcome"] for it in run.events if it["event"] == "result" and it["suite"] == suite}
        assert ends & {"error", "failed"}, suite
        assert words in text, run.out[-3000:]


def test_isolation_is_left_out_by_one_line_where_slurm_isolates_nothing(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    path = cluster_file(sandbox, tmp_path)
    run = run_pytest(tmp_path, f"--cluster={path}", "--collect-only", where=(suites_path(),))
    assert "nothing to test: isolation: Slurm isolates no job from another" in run.out
    assert "test_isolation.py" not in run.out
