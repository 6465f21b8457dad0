"""Minimum versions on virtual nodes: backports raise no false alarm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from paths import ROOT
from plugin_helpers import Run, run_pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

SUITE = str(ROOT / "suites" / "versions" / "test_versions.py")


def accept(sandbox: Sandbox, folder: Path, versions: dict[str, Any]) -> Run:
    keys: dict[str, Any] = yaml.safe_load(sandbox.cluster_file.read_text())
    file = folder / "site.yaml"
    file.write_text(yaml.safe_dump(keys | {"versions": versions}))
    return run_pytest(folder, f"--cluster={file}", where=[SUITE], env=sandbox.env)


def test_the_real_slurm_of_a_distribution_raises_no_false_alarm(sandbox: Sandbox, tmp_path: Path) -> None:
    run = accept(sandbox, tmp_path, {})
    ends = {it["outcome"] for it in run.events if it["event"] == "result"}
    assert ends <= {"passed", "not applicable"}, run.out
    newest = accept(sandbox, tmp_path, {"slurm": {"min": "99.11.1", "reason": "CVE-2024-0090"}})
    (verdict,) = next(it for it in newest.events if it["event"] == "result")["verdicts"]
    package = any(it["code"] == "may_be_too_old" for it in verdict["advisories"])
    assert verdict["outcome"] == ("passed" if package else "failed"), "a Slurm of its own build fails"
