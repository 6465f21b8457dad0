"""The GPUs of every node: present, alike, in the right mode, sound, connected and idle.

What is normal is for the node's hardware profile to say; docs/suites/gpu.md has every check with its limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.kit import fabric_manager as fabric_manager_probe
from pytest_gpucluster.kit import kernel_log as kernel_log_probe
from pytest_gpucluster.kit import nvidia_smi
from pytest_gpucluster.kit import xid_check as xid
from pytest_gpucluster.kit.gpu_config import GpuConfig
from pytest_gpucluster.suite import asks, fact, fleet_probed, probed
from pytest_gpucluster.suites.gpu import checks as gpu

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pytest_gpucluster.config.models import Cluster, GpuProfile
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.kit.fabric_manager import FabricManager
    from pytest_gpucluster.kit.kernel_log import KernelLog
    from pytest_gpucluster.kit.nvidia_smi import GpuProcess, Gpus, LinkErrors, RowRemapping, Topology
    from pytest_gpucluster.plugin.expect import Expect
    from pytest_gpucluster.plugin.session import Node
    from pytest_gpucluster.suites.gpu.checks import ByModel

    Owners = dict[str, tuple[str, ...]]
    ByIndex = dict[tuple[str, int, int], Norm[str]]

# A node whose profile has no GPUs is not applicable in every test.
pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu_profile")]

gpus = probed(nvidia_smi.GPUS)
rows = probed(nvidia_smi.REMAPPED_ROWS)
apps = probed(nvidia_smi.APPS)
nvlinks = probed(nvidia_smi.NVLINK)
nvlink_counters = probed(nvidia_smi.NVLINK_ERRORS)
connections = probed(nvidia_smi.TOPOLOGY)
peer_access = probed(nvidia_smi.P2P)
files = probed(nvidia_smi.DEVICE_FILES)
fabric_service = probed(fabric_manager_probe.FABRIC_MANAGER)
kernel_log = probed(kernel_log_probe.KERNEL_LOG)

uuid_owners = fleet_probed(nvidia_smi.GPUS, gpu.uuid_owners)
serial_owners = fleet_probed(nvidia_smi.GPUS, gpu.serial_owners)
driver_majority = fleet_probed(nvidia_smi.GPUS, gpu.driver_majority)
vbios_majority = fleet_probed(nvidia_smi.GPUS, gpu.vbios_majority)
clock_majority = fleet_probed(nvidia_smi.GPUS, gpu.clock_majority)
told_nvlinks = fleet_probed(nvidia_smi.NVLINK)  # of the nodes that could tell


@fact(scope="session")
@asks(lambda _: (nvidia_smi.GPUS, nvidia_smi.TOPOLOGY))
def numa_majority(fleet_facts: Callable[[object], dict[str, Any]]) -> ByIndex:
    """Return what most nodes of each kind say of the GPU of each index."""
    return gpu.numa_majority(fleet_facts(nvidia_smi.GPUS), fleet_facts(nvidia_smi.TOPOLOGY))


def test_driver(gpus: Gpus, gpu_profile: GpuProfile, driver_majority: ByModel, expect: Expect) -> None:
    """The driver answers, and its version is the one stated, or that of the fleet."""
    expect(gpu.driver(gpus, gpu_profile, driver_majority))


def test_count(gpus: Gpus, gpu_profile: GpuProfile, expect: Expect) -> None:
    """Every GPU of the profile is there."""
    expect(gpu.count(gpus, gpu_profile))


def test_names(gpus: Gpus, gpu_profile: GpuProfile, expect: Expect) -> None:
    """Every GPU is of the profile's model."""
    expect(gpu.names(gpus, gpu_profile))


def test_memory(gpus: Gpus, gpu_profile: GpuProfile, expect: Expect) -> None:
    """Every GPU has the memory of its model."""
    expect(gpu.memory(gpus, gpu_profile))


def test_cuda(gpus: Gpus, gpu_profile: GpuProfile, expect: Expect) -> None:
    """The driver is new enough for the CUDA version that the profile asks for."""
    expect(gpu.cuda(gpus, gpu_profile))


def test_vbios(gpus: Gpus, gpu_profile: GpuProfile, vbios_majority: ByModel, expect: Expect) -> None:
    """Every GPU has the stated VBIOS, or that of the fleet."""
    expect(gpu.vbios(gpus, gpu_profile, vbios_majority))


def test_uuids(gpus: Gpus, uuid_owners: Owners, node: Node, expect: Expect) -> None:
    """No two GPUs of the fleet have the same UUID."""
    expect(gpu.uuids(gpus, uuid_owners, node.name))


def test_serials(gpus: Gpus, serial_owners: Owners, node: Node, expect: Expect) -> None:
    """Serial numbers are readable, and no two nodes show the same."""
    expect(gpu.serials(gpus, serial_owners, node.name))


def test_inforom(gpus: Gpus, expect: Expect) -> None:
    """No GPU has a corrupted InfoROM."""
    expect(gpu.inforom(gpus))


def test_persistence(gpus: Gpus, gpu_profile: GpuProfile, expect: Expect) -> None:
    """Persistence mode is as the profile says."""
    expect(gpu.persistence(gpus, gpu_profile))


def test_compute_mode(gpus: Gpus, gpu_profile: GpuProfile, expect: Expect) -> None:
    """The compute mode is as the profile says."""
    expect(gpu.compute_mode(gpus, gpu_profile))


def test_mig(gpus: Gpus, gpu_profile: GpuProfile, expect: Expect) -> None:
    """MIG mode is as the profile says."""
    expect(gpu.mig(gpus, gpu_profile))


def test_ecc_mode(gpus: Gpus, gpu_profile: GpuProfile, expect: Expect) -> None:
    """ECC is as the profile says."""
    expect(gpu.ecc_mode(gpus, gpu_profile))


def test_ecc_volatile(gpus: Gpus, gpu_profile: GpuProfile, expect: Expect) -> None:
    """No uncorrectable memory error since the driver was loaded."""
    expect(gpu.ecc_volatile(gpus, gpu_profile))


def test_ecc_aggregate(gpus: Gpus, gpu_profile: GpuProfile, expect: Expect) -> None:
    """Uncorrectable errors of on-chip memory over the GPU's life are within limits."""
    expect(gpu.ecc_aggregate(gpus, gpu_profile))


def test_remapped_rows(
    gpus: Gpus, rows: dict[str, RowRemapping], gpu_profile: GpuProfile, expect: Expect
) -> None:
    """Row remapping has never failed and has spare rows left."""
    expect(gpu.remapped_rows(gpus, rows, gpu_profile))


def test_remapped_pending(
    gpus: Gpus, rows: dict[str, RowRemapping], gpu_profile: GpuProfile, expect: Expect
) -> None:
    """No row remapping waits for a reset."""
    expect(gpu.remapped_pending(gpus, rows, gpu_profile))


def test_retired_pages(gpus: Gpus, expect: Expect) -> None:
    """No page retirement waits for a reset."""
    expect(gpu.retired_pages(gpus))


def test_nvlink_state(
    gpus: Gpus, nvlinks: dict[str, dict[int, float | None]], gpu_profile: GpuProfile, expect: Expect
) -> None:
    """All NVLinks of the profile are active, at their speed."""
    expect(gpu.nvlink_state(gpus, nvlinks, gpu_profile))


def test_nvlink_errors(
    gpus: Gpus, nvlink_counters: dict[str, LinkErrors], gpu_profile: GpuProfile, expect: Expect
) -> None:
    """NVLinks carry data without errors."""
    expect(gpu.nvlink_errors(gpus, nvlink_counters, gpu_profile))


def test_pcie_width(gpus: Gpus, gpu_profile: GpuProfile, expect: Expect) -> None:
    """No PCIe lane is lost."""
    expect(gpu.pcie_width(gpus, gpu_profile))


def test_pcie_gen(gpus: Gpus, gpu_profile: GpuProfile, expect: Expect) -> None:
    """The PCIe link has its generation."""
    expect(gpu.pcie_gen(gpus, gpu_profile))


def test_topology(
    gpus: Gpus,
    connections: Topology,
    told_nvlinks: dict[str, dict[str, dict[int, float | None]]],
    gpu_profile: GpuProfile,
    expect: Expect,
    *,
    node: Node,
) -> None:
    """Any two GPUs are connected as the profile says."""
    expect(gpu.topology(gpus, connections, told_nvlinks.get(node.name), gpu_profile))


def test_p2p(
    gpus: Gpus,
    peer_access: dict[int, dict[int, str]],
    connections: Topology,
    gpu_profile: GpuProfile,
    expect: Expect,
) -> None:
    """Any two GPUs with NVLink between them can reach each other's memory over it."""
    expect(gpu.p2p(gpus, peer_access, connections, gpu_profile))


def test_numa_affinity(gpus: Gpus, connections: Topology, numa_majority: ByIndex, expect: Expect) -> None:
    """Every GPU is near the same NUMA nodes as on the other nodes."""
    expect(gpu.numa_affinity(gpus, connections, numa_majority))


def test_fabric_state(gpus: Gpus, gpu_profile: GpuProfile, expect: Expect) -> None:
    """Every GPU has joined the NVLink fabric."""
    expect(gpu.fabric_state(gpus, gpu_profile))


def test_throttle(gpus: Gpus, expect: Expect) -> None:
    """Nothing holds the clocks down."""
    expect(gpu.throttle(gpus))


def test_temperature(gpus: Gpus, gpu_profile: GpuProfile, expect: Expect) -> None:
    """No GPU is too hot."""
    expect(gpu.temperature(gpus, gpu_profile))


def test_power_limit(gpus: Gpus, gpu_profile: GpuProfile, expect: Expect) -> None:
    """The power limit is that of the profile."""
    expect(gpu.power_limit(gpus, gpu_profile))


def test_clocks(gpus: Gpus, clock_majority: ByModel, expect: Expect) -> None:
    """Clocks are those of the fleet, and not held low by a setting."""
    expect(gpu.clocks(gpus, clock_majority))


def test_idle_memory(
    gpus: Gpus, apps: tuple[GpuProcess, ...], gpu_profile: GpuProfile, expect: Expect
) -> None:
    """No memory is held on a GPU that nobody uses."""
    expect(gpu.idle_memory(gpus, apps, gpu_profile))


def test_stray_processes(gpus: Gpus, apps: tuple[GpuProcess, ...], expect: Expect) -> None:
    """Nobody computes on the GPUs of an idle node."""
    expect(gpu.stray_processes(gpus, apps))


def test_recovery_action(gpus: Gpus, expect: Expect) -> None:
    """The driver asks for no reset, reboot or drain."""
    expect(gpu.recovery_action(gpus))


def test_device_files(files: frozenset[str], gpus: Gpus, gpu_profile: GpuProfile, expect: Expect) -> None:
    """The device files of all GPUs exist."""
    expect(gpu.device_files(files, gpus, gpu_profile))


def test_fabric_manager(fabric_service: FabricManager, gpu_profile: GpuProfile, expect: Expect) -> None:
    """Fabric manager runs where the node has NVSwitch."""
    expect(gpu.fabric_manager(fabric_service, gpu_profile))


def test_xid(kernel_log: KernelLog, gpus: Gpus, cluster: Cluster, expect: Expect) -> None:
    """No Xid since boot asks for a reset, a reboot or support."""
    expect(xid.xid(kernel_log, gpus, cluster.section(GpuConfig)))
