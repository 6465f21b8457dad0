"""NCCL's variables on virtual nodes: each fault is found on its node alone, and healthy nodes pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from paths import ROOT
from plugin_helpers import Run, run_pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

SUITE = str(ROOT / "suites" / "nccl" / "test_nccl.py")


def accept(
    sandbox: Sandbox, folder: Path, *options: str, env: dict[str, str] | None = None, **nccl: Any
) -> Run:
    keys: dict[str, Any] = yaml.safe_load(sandbox.cluster_file.read_text())
    keys["nccl"] |= nccl
    file = folder / "site.yaml"
    file.write_text(yaml.safe_dump(keys))
    chosen = options or ("-k", "environment")
    return run_pytest(folder, f"--cluster={file}", *chosen, where=[SUITE], env={**sandbox.env, **(env or {})})


def results(run: Run, check: str = "nccl.environment") -> dict[str, dict[str, Any]]:
    """Return {node: result}."""
    return {it["node"]: it for it in run.events if it["event"] == "result" and it["check"] == check}


def spelled(result: dict[str, Any], kind: str = "findings") -> list[str]:
    return [f"{it['part']}: {it['measured']}" for verdict in result["verdicts"] for it in verdict[kind]]


def test_each_setting_is_found_on_its_node_alone_with_its_place(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.fault("task_variable", "gpu02")
    sandbox.fault("nccl_conf", "gpu03")
    sandbox.fault("task_variable", "gpu04", name="NCCL_IB_HCA", value="mlx5_0,mlx5_1")
    run = accept(sandbox, tmp_path)
    found = results(run)
    outcomes = {node: it["outcome"] for node, it in found.items()}
    assert outcomes == {**dict.fromkeys(sandbox.nodes, "failed"), "gpu01": "passed"}, run.out
    of_task, of_file, of_adapters = (spelled(found[node]) for node in ("gpu02", "gpu03", "gpu04"))
    assert of_task[0].startswith("NCCL_PROTO: LL (the environment of the task")
    assert spelled(found["gpu02"], "advisories")[0].startswith("NCCL_PROTO=LL: restricts")
    assert of_file[0].startswith("NCCL_P2P_DISABLE=1: ")
    assert "(/etc/nccl.conf:1)" in of_file[0]
    assert found["gpu03"]["verdicts"][0]["action"] == "configure"
    assert "selects 2 of 8 ports; without mlx5_2:1, mlx5_3:1" in of_adapters[0]


def test_what_the_shell_sets_is_one_warning_of_the_run_and_reaches_no_task(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    exported = {"NCCL_DEBUG": "INFO", "NCCL_P2P_DISABLE": "1", "NCCL_ALGO": "Ring"}
    run = accept(sandbox, tmp_path, env=exported)
    found = results(run)
    assert {node: it["outcome"] for node, it in found.items()} == dict.fromkeys(sandbox.nodes, "passed")
    assert not any(spelled(it, "advisories") for it in found.values())
    assert run.rc == 0, run.out
    assert set(exported) <= set(run.event("start")["shell"]["variables"])


def test_the_image_of_the_steps_is_read_by_one_step(sandbox: Sandbox, tmp_path: Path) -> None:
    image = yaml.safe_load(sandbox.cluster_file.read_text())["container"]["image"]
    sandbox.fault("task_variable", "gpu02", name="NCCL_TOPO_FILE", value="/opt/topo.xml")
    run = accept(sandbox, tmp_path, container=image, runner="nccl-tests")
    inside, outside = results(run, "nccl.image_environment"), results(run)
    outcomes = {node: it["outcome"] for node, it in inside.items()}
    assert outcomes == {**dict.fromkeys(sandbox.nodes, "passed"), "gpu02": "failed"}, run.out
    assert "/opt/topo.xml cannot be read here" in spelled(inside["gpu02"])[0]
    assert "it may exist in the image" in spelled(outside["gpu02"], "advisories")[0]
    logs = (run.folder / "reports" / "latest" / "steps").glob("*.log")
    assert len([*logs]) == 1, "one step serves all nodes"
