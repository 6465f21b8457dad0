"""The suites on healthy nodes of each hardware model of the sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from paths import ROOT
from plugin_helpers import on, run_pytest
from sandbox_helpers import sandbox_folder

from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from pathlib import Path

OTHERS = ("t4", "v100", "a100", "h100", "gb200")  # test_fault_matrix runs the suites on the H200
MARKED = "os or gpu or fabric or nccl"  # Slurm is the same on every model
NA, NOT_CHECKED = "not applicable", "not checked"

# What is not judged on a healthy node of any model: two nodes of one machine, an environment that names no interface.
ANYWHERE = {
    "fabric.gid": NA,
    "fabric.nic_names": NA,
    "nccl.at_times": NA,
    "nccl.baseline": NA,
    "nccl.image_environment": NA,
    "nccl.outlier": NA,
    "nccl.whole_network": NA,
    "os.name_resolution": NA,
    "os.reachable": NA,
}
RETIRES_PAGES = ("gpu.remapped_pending", "gpu.remapped_rows")
REMAPS_ROWS = ("gpu.retired_pages",)
NO_NVSWITCH = ("fabric.fabric_manager", "gpu.fabric_manager")
NO_FABRIC_STATE = ("gpu.fabric_state",)  # GPUs before Hopper do not report it
OLD_DRIVER = {"gpu.recovery_action": NOT_CHECKED}  # before 565
NO_ADAPTERS = tuple(
    f"fabric.{name}"
    for name in (
        *("acs", "counters", "firmware", "gpu_nic_affinity", "hca_count", "iommu", "link_layer", "mtu"),
        *("peer_memory", "pkeys", "port_state", "rate"),
    )
)
NO_NVLINKS = ("gpu.nvlink_errors", "gpu.nvlink_state", "gpu.p2p", "gpu.topology")


def not_applicable(*checks: str) -> dict[str, str]:
    return dict.fromkeys(checks, NA)


# ... and what is not judged on this model, beside that.
NOT_JUDGED = {
    "t4": not_applicable(*RETIRES_PAGES, *NO_NVSWITCH, *NO_FABRIC_STATE, *NO_ADAPTERS, *NO_NVLINKS) | OLD_DRIVER,
    "v100": not_applicable(*RETIRES_PAGES, *NO_NVSWITCH, *NO_FABRIC_STATE, "gpu.topology") | OLD_DRIVER,
    "a100": not_applicable(*REMAPS_ROWS, *NO_FABRIC_STATE) | OLD_DRIVER,
    # no minimum version is shipped for the branches of their drivers
    "h100": not_applicable(*REMAPS_ROWS, "versions.minimum"),
    "gb200": not_applicable(
        "versions.minimum", *REMAPS_ROWS, *NO_NVSWITCH, "fabric.gpu_nic_affinity", "gpu.pcie_gen", "gpu.pcie_width"
    ),
}


@pytest.mark.parametrize("model", OTHERS)
def test_healthy_nodes_of_the_model_pass(tmp_path: Path, model: str) -> None:
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=2, model=model, gpus="simulated")
        run = run_pytest(tmp_path, on(sandbox), "-m", MARKED, where=(str(ROOT / "suites"),))
    results = [event for event in run.events if event["event"] == "result"]
    ends = {event["check"]: event["outcome"] for event in results if event["outcome"] != "passed"}
    expected = ANYWHERE | NOT_JUDGED[model]
    if model == "gb200":  # NVLink joins its nodes, so their network is measured beside it
        del expected["nccl.whole_network"]
    assert ends == expected, run.out[-3000:]
    assert run.rc == 0


def test_nvlink_of_trays_is_told_from_their_network(tmp_path: Path) -> None:
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=2, model="gb200", gpus="simulated")
        sandbox.fault("no_peermem", "gpu02")
        run = run_pytest(tmp_path, on(sandbox), "-m", "nccl", where=(str(ROOT / "suites"),))
    results = {event["check"]: event for event in run.events if event["event"] == "result"}
    assert {name for name, it in results.items() if it["outcome"] == "failed"} == {"nccl.whole_network"}
    (verdict,) = results["nccl.whole_network"]["verdicts"]
    assert verdict["findings"][0]["code"] == "slower_between"
    (nvlink,) = (it for it in results["nccl.whole_bandwidth"]["metrics"] if it["name"].startswith("busbw all"))
    assert nvlink["value"] > 600
