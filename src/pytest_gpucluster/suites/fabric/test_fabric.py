"""The way from GPU to GPU between nodes: adapters, ports, peer memory, affinity, names of interfaces.

docs/suites/fabric.md has every check with its limits. Bandwidth is for the nccl suite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.config.models import EnvironmentConfig
from pytest_gpucluster.kit import fabric_manager as fabric_manager_probe
from pytest_gpucluster.kit import nvidia_smi
from pytest_gpucluster.kit.nccl_config import NcclConfig
from pytest_gpucluster.plugin.item_result import NOT_APPLICABLE
from pytest_gpucluster.suite import fact, fleet_probed, probed
from pytest_gpucluster.suites.fabric import checks as fabric
from pytest_gpucluster.suites.fabric import facts as infiniband
from pytest_gpucluster.suites.fabric.config import FabricConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.config.models import Cluster, Profile
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.core.probe import Probe
    from pytest_gpucluster.kit.fabric_manager import FabricManager
    from pytest_gpucluster.kit.nvidia_smi import Gpus, Topology
    from pytest_gpucluster.plugin.expect import Expect
    from pytest_gpucluster.suites.fabric.facts import Acs, Adapters, GidPort, Interfaces, Iommu, PeerMemory

pytestmark = pytest.mark.fabric

gpus = probed(nvidia_smi.GPUS)
topology = probed(nvidia_smi.TOPOLOGY)
adapters = probed(infiniband.ADAPTERS)
gids = probed(infiniband.GIDS)
gpu_direct = probed(infiniband.PEER_MEMORY)
interfaces = probed(infiniband.INTERFACES)
iommu_state = probed(infiniband.IOMMU)
acs_state = probed(infiniband.ACS)
fabric_service = probed(fabric_manager_probe.FABRIC_MANAGER)
active_majority = fleet_probed(infiniband.ADAPTERS, fabric.active_majority)
firmware_majority = fleet_probed(infiniband.ADAPTERS, fabric.firmware_majority)


@fact
def adapters_later(facts: Callable[[Probe[Adapters]], Adapters]) -> Adapters:
    """The ports once more: not among the questions that go before the first test, so the counters had time to rise."""
    return facts(infiniband.ADAPTERS_LATER)


@fact
def network(profile: Profile) -> Profile:
    """The profile of a node with InfiniBand or RoCE; elsewhere nothing is asked of the node."""
    if profile.fabric.link_layer == "none":
        pytest.skip(f"{NOT_APPLICABLE}profile {profile.name} has no InfiniBand or RoCE")
    return profile


def test_peer_memory(profile: Profile, gpu_direct: PeerMemory, expect: Expect) -> None:
    """Adapters can register GPU memory."""
    expect(fabric.peer_memory(gpu_direct, profile))


def test_hca_count(network: Profile, adapters: Adapters, expect: Expect) -> None:
    """All adapters are there."""
    expect(fabric.hca_count(adapters, network))


def test_link_layer(network: Profile, adapters: Adapters, expect: Expect) -> None:
    """Ports speak the profile's protocol."""
    expect(fabric.link_layer(adapters, network))


def test_port_state(
    network: Profile, adapters: Adapters, active_majority: dict[str, Norm[bool]], expect: Expect
) -> None:
    """Ports are ACTIVE and LinkUp."""
    expect(fabric.port_state(adapters, network, active_majority))


def test_rate(network: Profile, adapters: Adapters, expect: Expect) -> None:
    """Ports run at their rate."""
    expect(fabric.rate(adapters, network))


def test_firmware(
    network: Profile, adapters: Adapters, firmware_majority: dict[str, Norm[str]], expect: Expect
) -> None:
    """Adapters have the firmware of the fleet."""
    expect(fabric.firmware(adapters, network, firmware_majority))


def test_mtu(network: Profile, adapters: Adapters, expect: Expect) -> None:
    """The MTU is that of the profile."""
    expect(fabric.mtu(adapters, network))


def test_gid(network: Profile, cluster: Cluster, gids: tuple[GidPort, ...], expect: Expect) -> None:
    """Ports of RoCE have a GID of RoCE v2."""
    places = {
        **cluster.environments,
        "nccl.exports": EnvironmentConfig(exports=cluster.section(NcclConfig).exports),
    }
    index = "NCCL_IB_GID_INDEX"
    exports = [(name, place.exports[index]) for name, place in places.items() if index in place.exports]
    expect(fabric.gid(gids, network, exports))


def test_gpu_nic_affinity(network: Profile, topology: Topology, expect: Expect) -> None:
    """Every GPU has an adapter behind its own PCIe switch."""
    expect(fabric.gpu_nic_affinity(topology, network))


def test_iommu(network: Profile, iommu_state: Iommu, expect: Expect) -> None:
    """The IOMMU is off or passes through."""
    expect(fabric.iommu(iommu_state, network))


def test_acs(network: Profile, acs_state: Acs, expect: Expect) -> None:
    """PCIe bridges let adapters and GPUs talk directly."""
    expect(fabric.acs(acs_state, network))


def test_fabric_manager(profile: Profile, fabric_service: FabricManager, gpus: Gpus, expect: Expect) -> None:
    """Fabric manager is of the driver's version."""
    expect(fabric.fabric_manager(fabric_service, gpus, profile))


def test_nic_names(interfaces: Interfaces, cluster: Cluster, expect: Expect) -> None:
    """Interfaces that the environments export exist on the node."""
    nccl = EnvironmentConfig(exports=cluster.section(NcclConfig).exports)
    expect(fabric.nic_names(interfaces, {**cluster.environments, "nccl.exports": nccl}))


# the last of the suite: the longer the time since the first reading, the more it shows
def test_counters(
    network: Profile, adapters: Adapters, adapters_later: Adapters, cluster: Cluster, expect: Expect
) -> None:
    """Links carry data without errors and do not flap."""
    expect(fabric.counters(adapters, network, adapters_later, cluster.section(FabricConfig)))
