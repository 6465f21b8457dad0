"""The GPUs of every node against its hardware profile; docs/suites/gpu.md has every check with its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.kit.gpu import fabric_manager as fabric_manager_probe
from pytest_gpucluster.kit.gpu import nvidia_smi, xid_check
from pytest_gpucluster.kit.node import kernel_log as kernel_log_probe
from pytest_gpucluster.suite import Tests, fact, fleet_probed, peer_probed, probed
from pytest_gpucluster.suites.gpu import checks, missing_gpus
from pytest_gpucluster.suites.gpu import libraries as gpu_libraries

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pytest_gpucluster.config.models import GpuProfile
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.run.session import ClusterSession

# every test is not applicable to a node whose profile has no GPUs

gpus = probed(nvidia_smi.GPUS)
rows = probed(nvidia_smi.REMAPPED_ROWS)
apps = probed(nvidia_smi.APPS)
nvlinks = probed(nvidia_smi.NVLINK)
nvlink_counters = probed(nvidia_smi.NVLINK_ERRORS)
connections = probed(nvidia_smi.TOPOLOGY)
peer_access = probed(nvidia_smi.P2P)
files = probed(nvidia_smi.DEVICE_FILES)
libraries = probed(gpu_libraries.LIBRARIES)
fabric_service = probed(fabric_manager_probe.FABRIC_MANAGER)
kernel_log = probed(lambda cluster: kernel_log_probe.kernel_log_of(cluster.known))
info = fact(lambda node: node.info)

uuid_owners = fleet_probed(nvidia_smi.GPUS, checks.inventory.uuid_owners)
serial_owners = fleet_probed(nvidia_smi.GPUS, checks.inventory.serial_owners)
driver_majority = peer_probed(nvidia_smi.GPUS, checks.inventory.driver_majority)
usual_buses = fleet_probed(nvidia_smi.GPUS, missing_gpus.usual_buses)
vbios_majority = peer_probed(nvidia_smi.GPUS, checks.inventory.vbios_majority)
clock_majority = peer_probed(nvidia_smi.GPUS, checks.health.clock_majority)
all_nvlinks = fleet_probed(nvidia_smi.NVLINK)
all_connections = fleet_probed(nvidia_smi.TOPOLOGY)
known_nvlinks = fact(lambda node_name, all_nvlinks: all_nvlinks.get(node_name))
known_connections = fact(lambda node_name, all_connections: all_connections.get(node_name))
known_lines = fact(lambda cluster: cluster.known)


@fact(once=True)
def hosts(gpucluster_session: ClusterSession) -> dict[str, str]:
    """Return {node: its host, by NodeHostName of Slurm}."""
    return {name: node.info.hostname or name for name, node in gpucluster_session.nodes.items() if node.info}


@fact
def nvlink_later(
    facts: Callable[[object], dict[str, nvidia_smi.LinkErrors]], gpu_profile: GpuProfile
) -> dict[str, nvidia_smi.LinkErrors]:
    """A second reading of the NVLink counters, not sent before the first test, so that they have time to rise."""
    return {} if gpu_profile.nvlinks == 0 else facts(nvidia_smi.NVLINK_ERRORS_LATER)


@fact
def throttle_later(facts: Callable[[object], dict[str, int]], gpus: nvidia_smi.Gpus) -> dict[str, int]:
    """The clock event reasons that last, of a node whose first reading has a slowdown; no command where it has none."""
    return facts(nvidia_smi.CLOCKS_LATER) if any(map(checks.health.slowed, gpus)) else {}


@fact(once=True, probes=lambda _cluster, _nodes: (nvidia_smi.GPUS, nvidia_smi.TOPOLOGY))
def numa_majorities(
    fleet_facts: Callable[[object], dict[str, Any]], gpucluster_session: ClusterSession
) -> dict[str, dict[tuple[str, int, int], Norm[str]]]:
    """Return {peers: the NUMA nodes of each GPU index on most of them}."""
    gpus, found = fleet_facts(nvidia_smi.GPUS), fleet_facts(nvidia_smi.TOPOLOGY)
    return {
        peers.nodes: checks.links.numa_majority(
            {node: gpus[node] for node in peers.names if node in gpus}, found
        )
        for peers in {node.peers for node in gpucluster_session.nodes.values()}
    }


numa_majority = fact(lambda node, numa_majorities: numa_majorities[node.peers.nodes])

TESTS = Tests(*checks.MODULES, xid_check, marks=("gpu",), needs=("gpu_profile",))
