"""NCCL's variables on virtual nodes: each fault is found on its node alone, and healthy nodes pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
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


def test_healthy_nodes_pass_without_a_warning(sandbox: Sandbox, tmp_path: Path) -> None:
    run = accept(sandbox, tmp_path)
    found = results(run)
    assert {node: it["outcome"] for node, it in found.items()} == dict.fromkeys(sandbox.nodes, "passed"), (
        run.out
    )
    assert not any(spelled(it, "advisories") for it in found.values())
    assert run.rc == 0, run.out


def test_a_setting_of_nccl_conf_is_found_on_its_node_with_file_and_line(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.fault("nccl_conf", "gpu03")
    run = accept(sandbox, tmp_path)
    found = results(run)
    assert {node for node, it in found.items() if it["outcome"] == "failed"} == {"gpu03"}, run.out
    assert spelled(found["gpu03"]) == [
        "NCCL_P2P_DISABLE=1: GPUs of a node communicate through host memory instead of NVLink (/etc/nccl.conf:1)"
    ]
    assert found["gpu03"]["verdicts"][0]["action"] == "configure"
    assert found["gpu03"]["verdicts"][0]["findings"][0]["expected"] == (
        "not set; https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-p2p-disable"
    )


def test_a_variable_that_slurm_sets_in_the_tasks_of_one_node_differs_from_the_others(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.fault("task_variable", "gpu02")
    run = accept(sandbox, tmp_path)
    found = results(run)
    assert {node for node, it in found.items() if it["outcome"] == "failed"} == {"gpu02"}, run.out
    place = (
        "the environment of the task, from none of the searched files: TaskProlog or a SPANK plugin of Slurm"
    )
    assert spelled(found["gpu02"]) == [f"NCCL_PROTO: LL ({place})"]
    assert spelled(found["gpu02"], "advisories")[0].startswith(
        "NCCL_PROTO=LL: restricts the protocols for every job"
    )


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("NCCL_IB_HCA", "mlx5_0,mlx5_1", "selects 2 of 8 ports; without mlx5_2:1, mlx5_3:1"),
        ("NCCL_IB_DISABLE", "1", "NCCL uses TCP sockets instead of InfiniBand or RoCE"),
        ("NCCL_SOCKET_IFNAME", "=bond0", "selects none of the interfaces eno1"),
        ("NCCL_TOPO_FILE", "/opt/microsoft/ndv5-topo.xml", "cannot be read here"),
    ],
)
def test_variables_that_cap_a_node_are_found_on_it_alone(
    sandbox: Sandbox, tmp_path: Path, name: str, value: str, part: str
) -> None:
    sandbox.fault("task_variable", "gpu04", name=name, value=value)
    found = results(accept(sandbox, tmp_path))
    assert {node for node, it in found.items() if it["outcome"] == "failed"} == {"gpu04"}
    (only,) = spelled(found["gpu04"])
    assert part in only


def test_what_the_shell_sets_is_one_warning_of_the_run_and_reaches_no_task(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    exported = {"NCCL_DEBUG": "INFO", "NCCL_P2P_DISABLE": "1", "NCCL_ALGO": "Ring"}
    run = accept(sandbox, tmp_path, env=exported)
    found = results(run)
    assert {it["outcome"] for it in found.values()} == {"passed"}
    assert spelled(found["gpu01"], "advisories") == []
    assert set(exported) <= set(run.event("start")["shell"]["variables"])


def test_the_image_of_the_steps_is_read_by_one_step(sandbox: Sandbox, tmp_path: Path) -> None:
    image = yaml.safe_load(sandbox.cluster_file.read_text())["container"]["image"]
    sandbox.fault("task_variable", "gpu02", name="NCCL_TOPO_FILE", value="/opt/topo.xml")
    run = accept(sandbox, tmp_path, container=image, runner="nccl-tests")
    inside, outside = results(run, "nccl.image_environment"), results(run)
    assert {node: it["outcome"] for node, it in inside.items()} == {
        "gpu01": "passed", "gpu02": "failed", "gpu03": "passed", "gpu04": "passed",
    }, run.out  # fmt: skip
    assert (
        "/opt/topo.xml cannot be read here: NCCL continues without the topology"
        in spelled(inside["gpu02"])[0]
    )
    assert "it may exist in the image" in spelled(outside["gpu02"], "advisories")[0]
    logs = (run.folder / "reports" / "latest" / "steps").glob("*.log")
    assert len([*logs]) == 1, "one step serves all nodes"
