"""The GPUs of every node against its hardware profile; docs/suites/gpu.md has every check with its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.kit.gpu import fabric_manager as fabric_manager_probe
from pytest_gpucluster.kit.gpu import nvidia_smi, xid_check
from pytest_gpucluster.kit.node import kernel_log as kernel_log_probe
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node, of_peers
from pytest_gpucluster.suites.gpu import checks, missing_gpus
from pytest_gpucluster.suites.gpu import libraries as gpu_libraries

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pytest_gpucluster.config.models import GpuProfile
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.run.session import ClusterSession

# every test is not applicable to a node whose profile has no GPUs

gpus = of_node(nvidia_smi.GPUS)
rows = of_node(nvidia_smi.REMAPPED_ROWS)
apps = of_node(nvidia_smi.APPS)
nvlinks = of_node(nvidia_smi.NVLINK)
nvlink_counters = of_node(nvidia_smi.NVLINK_ERRORS)
connections = of_node(nvidia_smi.TOPOLOGY)
peer_access = of_node(nvidia_smi.P2P)
files = of_node(nvidia_smi.DEVICE_FILES)
libraries = of_node(gpu_libraries.LIBRARIES)
fabric_service = of_node(fabric_manager_probe.FABRIC_MANAGER)
kernel_log = of_node(lambda cluster: kernel_log_probe.kernel_log_of(cluster.known))
info = of_node(given.node)(lambda node: node.info)

uuid_owners = of_fleet(nvidia_smi.GPUS)(checks.inventory.uuid_owners)
serial_owners = of_fleet(nvidia_smi.GPUS)(checks.inventory.serial_owners)
driver_majority = of_peers(nvidia_smi.GPUS)(checks.inventory.driver_majority)
usual_buses = of_fleet(nvidia_smi.GPUS)(missing_gpus.usual_buses)
vbios_majority = of_peers(nvidia_smi.GPUS)(checks.inventory.vbios_majority)
clock_majority = of_peers(nvidia_smi.GPUS)(checks.health.clock_majority)
all_nvlinks = of_fleet(nvidia_smi.NVLINK)
all_connections = of_fleet(nvidia_smi.TOPOLOGY)
known_nvlinks = of_node(given.node_name, all_nvlinks)(lambda node, found: found.get(node))
known_connections = of_node(given.node_name, all_connections)(lambda node, found: found.get(node))
known_lines = of_node(given.cluster)(lambda cluster: cluster.known)


@of_fleet(given.session)
def hosts(session: ClusterSession) -> dict[str, str]:
    """Return {node: its host, by NodeHostName of Slurm}."""
    return {name: node.info.hostname or name for name, node in session.nodes.items() if node.info}


@of_node(given.facts, given.gpu_profile)
def nvlink_later(
    facts: Callable[[object], dict[str, nvidia_smi.LinkErrors]], gpu_profile: GpuProfile
) -> dict[str, nvidia_smi.LinkErrors]:
    """A second reading of the NVLink counters, not sent before the first test, so that they have time to rise."""
    return {} if gpu_profile.nvlinks == 0 else facts(nvidia_smi.NVLINK_ERRORS_LATER)


@of_node(given.facts, gpus)
def throttle_later(facts: Callable[[object], dict[str, int]], gpus: nvidia_smi.Gpus) -> dict[str, int]:
    """The clock event reasons that last, of a node whose first reading has a slowdown; no command where it has none."""
    return facts(nvidia_smi.CLOCKS_LATER) if any(map(checks.health.slowed, gpus)) else {}


@of_fleet(nvidia_smi.GPUS, nvidia_smi.TOPOLOGY, given.session)
def numa_majorities(
    gpus: dict[str, nvidia_smi.Gpus], found: dict[str, Any], session: ClusterSession
) -> dict[str, dict[tuple[str, int, int], Norm[str]]]:
    """Return {peers: the NUMA nodes of each GPU index on most of them}."""
    return {
        peers.nodes: checks.links.numa_majority({node: gpus[node] for node in peers.names if node in gpus}, found)
        for peers in {node.peers for node in session.nodes.values()}
    }


numa_majority = of_node(given.node, numa_majorities)(lambda node, found: found[node.peers.nodes])

TESTS = Tests(*checks.MODULES, xid_check, marks=("gpu",), needs=(given.gpu_profile,))
