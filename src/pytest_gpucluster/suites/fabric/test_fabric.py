"""The path from GPU to GPU between nodes: adapters, ports, peer memory, affinity, names of interfaces.

docs/suites/fabric.md has the limits of every check. The nccl suite measures bandwidth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.kit.fabric import facts as infiniband
from pytest_gpucluster.kit.fabric import rails
from pytest_gpucluster.kit.gpu import fabric_manager as fabric_manager_probe
from pytest_gpucluster.kit.gpu import nvidia_smi
from pytest_gpucluster.suite import Tests, fact, peer_probed, probed
from pytest_gpucluster.suites.fabric import checks as fabric

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.config.models import Cluster, EnvironmentConfig, Profile
    from pytest_gpucluster.core.probe import Probe
    from pytest_gpucluster.kit.fabric.facts import Adapters
    from pytest_gpucluster.run.session import ClusterSession


gpus = probed(nvidia_smi.GPUS)
topology = probed(nvidia_smi.TOPOLOGY)
adapters = probed(infiniband.ADAPTERS)
gids = probed(infiniband.GIDS)
gpu_direct = probed(infiniband.PEER_MEMORY)
interfaces = probed(infiniband.INTERFACES)
iommu_state = probed(infiniband.IOMMU)
acs_state = probed(infiniband.ACS)
fabric_service = probed(fabric_manager_probe.FABRIC_MANAGER)
active_majority = peer_probed(infiniband.ADAPTERS, fabric.active_majority)
rate_majority = peer_probed(infiniband.ADAPTERS, fabric.rate_majority)
pkeys_majority = peer_probed(infiniband.ADAPTERS, fabric.pkeys_majority)
firmware_majority = peer_probed(infiniband.ADAPTERS, fabric.firmware_majority)


@fact(once=True, probes=lambda _cluster, _nodes: (infiniband.ADAPTERS,))
def all_rails(
    fleet_facts: Callable[[object], dict[str, Adapters]], gpucluster_session: ClusterSession
) -> dict[str, tuple[rails.Rails, ...]]:
    """Return {node: its rails}, made once for all checks."""
    return rails.rails_of_all(fleet_facts(infiniband.ADAPTERS), gpucluster_session.nodes)


node_rails = fact(lambda node_name, all_rails: all_rails.get(node_name, ()))


@fact
def adapters_later(facts: Callable[[Probe[Adapters]], Adapters]) -> Adapters:
    """A second reading of the ports, not sent before the first test, so that the counters have time to rise."""
    return facts(infiniband.ADAPTERS_LATER)


@fact
def network(profile: Profile) -> Profile:
    """The profile of a node with InfiniBand, RoCE or EFA; no command is sent to other nodes."""
    if not profile.fabric.has_adapters:
        raise NotApplicable(f"profile {profile.name} has no InfiniBand or RoCE")
    return profile


@fact
def environments(cluster: Cluster) -> dict[str, EnvironmentConfig]:
    """The environments of the cluster file by name."""
    return cluster.environments


@fact
def gid_exports(environments: dict[str, EnvironmentConfig]) -> list[tuple[str, str]]:
    """(environment, value) of each NCCL_IB_GID_INDEX that the cluster file exports."""
    index = "NCCL_IB_GID_INDEX"
    return [
        (name, environment.exports[index])
        for name, environment in environments.items()
        if index in environment.exports
    ]


TESTS = Tests(fabric, marks=("fabric",))
