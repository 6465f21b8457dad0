"""The container suite imports images of a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml
from paths import ROOT
from plugin_helpers import run_pytest
from registry_server import Served, served

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

__all__ = ["served"]  # a fixture


def test_the_container_suite_imports_it_on_every_node(
    sandbox: Sandbox, served: Served, tmp_path: Path
) -> None:
    plain = yaml.safe_load(sandbox.cluster_file.read_text())
    plain["container"]["images"] = [f"{served.name}#site/tools:1", f"{served.name}#site/nosuch:1"]
    plain.setdefault("environments", {}).setdefault("default", {})["exports"] = {"ENROOT_ALLOW_HTTP": "yes"}
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(plain))
    suite = ROOT / "suites" / "container" / "test_container.py"
    run = run_pytest(tmp_path, f"--cluster={path}", "--nodes=gpu[01-02]", "-k", "import", where=[str(suite)])
    for node in ("gpu01", "gpu02"):
        event = next(it for it in run.events if it.get("check") == "container.import" and it["node"] == node)
        assert [found["part"] for found in event["verdicts"][0]["findings"]] == [
            f"{served.name}#site/nosuch:1"
        ], event["message"]
        assert "404" in event["message"]
        measured = {metric["device"] for metric in event["metrics"] if metric["name"] == "import_time"}
        assert f"{served.name}#site/tools:1" in measured
