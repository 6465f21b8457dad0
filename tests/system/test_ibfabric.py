"""The suite ibfabric in a sandbox: a healthy subnet passes, and each fault is found by its own check, on its own part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plugin_helpers import on, run_pytest
from sandbox_helpers import sandbox_folder

from pytest_gpucluster.core.finding import Finding
from pytest_gpucluster.sandbox import Sandbox
from pytest_gpucluster.sandbox.found_by import FOUND_BY
from slurm_sandbox.api import FAULTS

if TYPE_CHECKING:
    from pathlib import Path

    from plugin_helpers import Run

NODES = 9
# fault -> the node into which it is put, and other options than its own; faults of one leaf have uplinks of their own
INJECTED: dict[str, tuple[str, dict[str, Any]]] = {
    "cables_swapped": ("gpu02", {}),
    "wrong_leaf": ("gpu03", {}),
    "cable_errors": ("gpu04", {}),
    "duplicate_guid": ("gpu05", {}),
    "ethernet_cable": ("gpu09", {}),
    "partition_dropped": ("gpu04", {}),
    "optics_weak": ("gpu02", {}),
    "second_manager": ("gpu06", {}),
    "uplink_missing": ("gpu06", {"uplink": 1}),
    "uplink_slow": ("gpu06", {"uplink": 3}),
    "uplink_errors": ("gpu06", {}),
    "uplink_mtu": ("gpu06", {}),
}
OF_FABRIC = {
    "ib_rate": ("gpu07", "ibfabric.cables"),
    "ib_down": ("gpu08", "ibfabric.ports"),
    "ib_partition": ("gpu01", "ibfabric.pkeys"),
}
OF_NODES = ("cables_swapped", "wrong_leaf", "cable_errors", "ethernet_cable", "partition_dropped", "optics_weak")
NOT_AS_PLANNED = ("gpu02", "gpu03", "gpu05", "gpu08")  # swapped, at other leaves, without a GUID of its own, down


SAID = {
    ("ibfabric.switch_links", ""): "leaf01-1 port 35 - spine02 port 1: measured 4x EDR (100 Gb/s)",
    ("ibfabric.switch_errors", ""): "leaf01-1 port 36 - spine02 port 2: measured symbol_error",
    ("ibfabric.mtu", ""): "leaf01-1 port 37 - spine03 port 1: measured 2048",
    ("ibfabric.balance", ""): "switch leaf01-1: measured 7 uplinks (1 to spine01",
    ("ibfabric.cabling", "gpu02"): "gpu02 mlx5_0 - leaf01-1 port 2, gpu02 mlx5_1 - leaf01-2 port 2: measured swapped",
    ("ibfabric.cabling", "gpu08"): "gpu08 mlx5_2 - leaf01-3 port 8: measured neither end has a link",
    ("ibfabric.neighbours", "gpu09"): "gpu09 eno1 - eth01 swp9: measured gpu09 eno1 is connected to eth01 swp47",
    ("ibfabric.pkeys", "gpu01"): "mlx5_2 port 1 (0000:4f:00.0): measured 0x7fff",
    ("ibfabric.pkeys", "gpu04"): "mlx5_2 port 1 (0000:4f:00.0): measured leaf01-3 port 4 drops 0x8001",
    ("ibfabric.optics", "gpu02"): "mlx5_3 port 1 (0000:5e:00.0) module (MT",
}


def failures(run: Run) -> dict[tuple[str, str], str]:
    """Return {(check, node or ''): part and measured value of its findings}."""
    return {
        (event["check"], event["node"]): "; ".join(
            Finding.from_dict(it).words.partition(", expected")[0]
            for verdict in event["verdicts"]
            for it in verdict["findings"]
        )
        for event in run.events
        if event["event"] == "result" and event["outcome"] == "failed"
    }


def test_each_fault_is_found_by_its_own_check_on_its_own_part(tmp_path: Path) -> None:
    ours = {kind for kind in FAULTS if FOUND_BY.get(kind, ("",))[0].startswith("ibfabric.")}
    assert ours == INJECTED.keys()
    with sandbox_folder() as folder:
        subnet = Sandbox(folder / "s")
        subnet.up(nodes=NODES)
        for kind, (node, options) in INJECTED.items():
            subnet.fault(kind, node, **options)
        for kind, (node, _) in OF_FABRIC.items():
            subnet.fault(kind, node)
        run = run_pytest(tmp_path, on(subnet), "-m", "ibfabric", where=())
    found = failures(run)
    expected = {(FOUND_BY[kind][0], INJECTED[kind][0] if kind in OF_NODES else "") for kind in INJECTED}
    expected |= {(check, node) for node, check in OF_FABRIC.values()} | {("ibfabric.ports", "gpu05")}
    expected |= {("ibfabric.cabling", node) for node in NOT_AS_PLANNED}
    assert found.keys() == expected, run.out + run.err
    for key, text in SAID.items():
        assert text in found[key], key
    managers = found["ibfabric.subnet_manager", ""]
    assert "gpu01 mlx5_0" in managers
    assert "gpu06 mlx5_0" in managers
    assert found["ibfabric.rail", "gpu02"].count("leaf01-") == 2
    # no finding takes a node out of service
    verdicts = [it for event in run.events if event["event"] == "result" for it in event["verdicts"]]
    assert {it["action"] for it in verdicts if it["findings"]} == {"configure", "monitor"}
