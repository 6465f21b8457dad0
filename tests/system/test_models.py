"""The suites on healthy nodes of each hardware model of the sandbox, and on nodes with another model's values."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import forked
import pytest
from paths import ROOT
from sandbox_helpers import sandbox_folder

from pytest_gpucluster.report.events import read_events
from pytest_gpucluster.sandbox import Sandbox
from slurm_sandbox.models import MODELS, healthy_fields

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OTHERS = ("t4", "v100", "a100", "h100", "gb200")  # test_fault_matrix runs the suites on the H200
MARKED = "os or gpu or fabric or nccl"  # Slurm is the same on every model
NA, NOT_CHECKED = "not applicable", "not checked"

# What is not judged on a healthy node of any model: two nodes of one machine, an environment that names no interface.
ANYWHERE = {
    "fabric.gid": NA,
    "fabric.nic_names": NA,
    "nccl.baseline": NA,
    "nccl.image_environment": NA,
    "nccl.outlier": NA,
    "os.drift": NA,
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
    "t4": not_applicable(
        *RETIRES_PAGES,
        *NO_NVSWITCH,
        *NO_FABRIC_STATE,
        *NO_ADAPTERS,
        *NO_NVLINKS,
        "os.governor",
    )
    | OLD_DRIVER,
    "v100": not_applicable(*RETIRES_PAGES, *NO_NVSWITCH, *NO_FABRIC_STATE, "gpu.topology") | OLD_DRIVER,
    "a100": not_applicable(*REMAPS_ROWS, *NO_FABRIC_STATE) | OLD_DRIVER,
    # no minimum version is shipped for the branches of their drivers
    "h100": not_applicable(*REMAPS_ROWS, "versions.minimum"),
    "gb200": not_applicable(
        "versions.minimum",
        *REMAPS_ROWS,
        *NO_NVSWITCH,
        "fabric.gpu_nic_affinity",
        "gpu.pcie_gen",
        "gpu.pcie_width",
    ),
}


class Run(NamedTuple):
    """One run of suites: {node, '' for the cluster: {check: outcome}}, its exit status, what it printed."""

    ends: dict[str, dict[str, str]]
    rc: int
    text: str

    def not_passed(self) -> dict[str, str]:
        """{check: outcome} of all nodes, without what passed everywhere."""
        return {
            check: end for of_node in self.ends.values() for check, end in of_node.items() if end != "passed"
        }


def suites(sandbox: Sandbox, reports: Path, *options: str) -> Run:
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "suites", *options]
    argv += [f"--cluster={sandbox.cluster_file}", f"--report-dir={reports}"]
    done = forked.run(argv, cwd=ROOT, timeout=1200)
    ends: dict[str, dict[str, str]] = {}
    for event in read_events(reports / "latest" / "events.jsonl"):
        if event["event"] == "result":
            ends.setdefault(event["node"], {})[event["check"]] = event["outcome"]
    return Run(ends, done.returncode, done.stdout + done.stderr)


@pytest.fixture(scope="module", params=OTHERS)
def running(request: pytest.FixtureRequest) -> Iterator[tuple[str, Sandbox, Path]]:
    """A sandbox of two nodes of a model: (model, sandbox, folder)."""
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=2, model=request.param, gpus="simulated")
        yield request.param, sandbox, folder


def test_healthy_nodes_of_the_model_pass(running: tuple[str, Sandbox, Path]) -> None:
    model, sandbox, folder = running
    run = suites(sandbox, folder / "healthy", "-m", MARKED)
    assert run.not_passed() == ANYWHERE | NOT_JUDGED[model], run.text[-3000:]
    assert run.rc == 0


def test_values_of_another_model_are_found(running: tuple[str, Sandbox, Path]) -> None:
    model, sandbox, folder = running
    other = healthy_fields(MODELS["a100" if model != "a100" else "h100"])
    sandbox.fault("gpu_name", "gpu02", name=other["name"])
    sandbox.fault("power_limit", "gpu02", watts=float(other["power.limit"]))
    run = suites(
        sandbox, folder / "other", "-m", "gpu", "-k", "test_names or test_power_limit or test_memory"
    )
    assert run.ends == {
        "gpu01": {"gpu.names": "passed", "gpu.power_limit": "passed", "gpu.memory": "passed"},
        "gpu02": {"gpu.names": "failed", "gpu.power_limit": "failed", "gpu.memory": "passed"},
    }, run.text[-3000:]
