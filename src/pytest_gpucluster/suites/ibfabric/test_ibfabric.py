"""The InfiniBand subnet as a whole: its manager, its switches and their links, and the cables of the nodes in it.

One command on one host shows the subnet; one command on all nodes shows which ports are theirs. docs/suites/ibfabric.md has
the limits of every check.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotApplicable, ProbeError, SlurmError
from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.core.topology import parse_slurm_topology
from pytest_gpucluster.suite import Tests, fact, fleet_probed, probed, required_section
from pytest_gpucluster.suites.ibfabric import checks, judge, node_checks
from pytest_gpucluster.suites.ibfabric.config import IbFabricConfig
from pytest_gpucluster.suites.ibfabric.facts import NODE_PORTS
from pytest_gpucluster.suites.ibfabric.picture import picture_of
from pytest_gpucluster.suites.ibfabric.steps import query_fabric

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.run.facts import ItemView
    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suites.ibfabric.facts import FabricFacts, NodePorts
    from pytest_gpucluster.suites.ibfabric.judge import NodeLink, Owned
    from pytest_gpucluster.suites.ibfabric.subnet import Subnet

config = required_section(IbFabricConfig)
node_ports = probed(NODE_PORTS)
all_ports = fleet_probed(NODE_PORTS)


@fact(once=True)
def fabric(
    config: IbFabricConfig, all_ports: Mapping[str, NodePorts], gpucluster_session: ClusterSession
) -> FabricFacts:
    """What the tools show of the subnet; not applicable where no profile has InfiniBand."""
    nodes = gpucluster_session.nodes.values()
    if not any(node.profile.fabric.link_layer == "InfiniBand" for node in nodes):
        raise NotApplicable("no profile of the nodes has InfiniBand (`fabric: {link_layer: InfiniBand}`)")
    return query_fabric(config, gpucluster_session, all_ports)


@fact(once=True)
def subnet(fabric: FabricFacts) -> Subnet:
    """The switches, HCAs and links as found."""
    return fabric.subnet


@fact
def drawn(fabric: FabricFacts, links: Owned, gpucluster_item: ItemView) -> FabricFacts:
    """The same; report.html has the picture that the item records."""
    gpucluster_item.record.fabric = picture_of(fabric, links)
    return fabric


@fact(once=True)
def links(fabric: FabricFacts, all_ports: Mapping[str, NodePorts]) -> Owned:
    """The links of the nodes under test."""
    return judge.owned(fabric, all_ports)


usual_rates = fact(once=True)(judge.usual_rates)


@fact(once=True)
def slurm_leaves(gpucluster_session: ClusterSession) -> dict[str, str]:
    """{node: leaf switch} of Slurm's topology; {} without one."""
    try:
        return parse_slurm_topology(gpucluster_session.need_slurm().run("scontrol", "show", "topology", "-o"))
    except (SlurmError, ProbeError):
        return {}  # no topology file


@fact(once=True)
def usual_leaves(slurm_leaves: dict[str, str], links: Owned) -> dict[str, Norm[tuple[str, ...]]]:
    """{leaf of Slurm: norm of the leaves in the subnet of its nodes}."""
    votes: defaultdict[str, list[tuple[str, tuple[str, ...]]]] = defaultdict(list)
    for node, leaf in slurm_leaves.items():
        if of_node := links.of.get(node):
            votes[leaf].append((node, node_checks.leaves_of(of_node)))
    return {leaf: norm(votes[leaf]) for leaf in set(slurm_leaves.values())}


@fact
def network(profile: Profile) -> Profile:
    """The profile of a node with InfiniBand."""
    if profile.fabric.link_layer != "InfiniBand":
        raise NotApplicable(f"profile {profile.name} has no InfiniBand")
    return profile


@fact
def node_links(node: Node, network: Profile, links: Owned) -> tuple[NodeLink, ...]:
    """The links of the item's node."""
    return links.of.get(node.name, ())


TESTS = Tests(checks, node_checks, marks=("ibfabric",))
