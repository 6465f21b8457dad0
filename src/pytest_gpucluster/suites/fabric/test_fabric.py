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
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node, of_peers
from pytest_gpucluster.suites.fabric import checks as fabric

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import EnvironmentConfig, Profile
    from pytest_gpucluster.kit.fabric.facts import Adapters
    from pytest_gpucluster.run.session import ClusterSession


gpus = of_node(nvidia_smi.GPUS)
topology = of_node(nvidia_smi.TOPOLOGY)
adapters = of_node(infiniband.ADAPTERS)
gids = of_node(infiniband.GIDS)
gpu_direct = of_node(infiniband.PEER_MEMORY)
interfaces = of_node(infiniband.INTERFACES)
iommu_state = of_node(infiniband.IOMMU)
acs_state = of_node(infiniband.ACS)
fabric_service = of_node(fabric_manager_probe.FABRIC_MANAGER)
active_majority = of_peers(infiniband.ADAPTERS)(fabric.active_majority)
rate_majority = of_peers(infiniband.ADAPTERS)(fabric.rate_majority)
pkeys_majority = of_peers(infiniband.ADAPTERS)(fabric.pkeys_majority)
firmware_majority = of_peers(infiniband.ADAPTERS)(fabric.firmware_majority)


@of_fleet(infiniband.ADAPTERS, given.session)
def all_rails(all_adapters: dict[str, Adapters], session: ClusterSession) -> dict[str, tuple[rails.Rails, ...]]:
    """Return {node: its rails}, made once for all checks."""
    return rails.rails_of_all(all_adapters, session.nodes)


node_rails = of_node(given.node_name, all_rails)(lambda node_name, all_rails: all_rails.get(node_name, ()))


# not sent before the first test, so that the counters have time to rise
adapters_later = of_node(given.facts)(lambda facts: facts(infiniband.ADAPTERS_LATER))


@of_node(given.profile)
def network(profile: Profile) -> Profile:
    """The profile of a node with InfiniBand, RoCE or EFA; no command is sent to other nodes."""
    if not profile.fabric.has_adapters:
        raise NotApplicable(f"profile {profile.name} has no InfiniBand or RoCE")
    return profile


environments = of_node(given.cluster)(lambda cluster: cluster.environments)


@of_node(environments)
def gid_exports(environments: dict[str, EnvironmentConfig]) -> list[tuple[str, str]]:
    """(environment, value) of each NCCL_IB_GID_INDEX that the cluster file exports."""
    index = "NCCL_IB_GID_INDEX"
    return [
        (name, environment.exports[index]) for name, environment in environments.items() if index in environment.exports
    ]


TESTS = Tests(fabric, marks=("fabric",))
