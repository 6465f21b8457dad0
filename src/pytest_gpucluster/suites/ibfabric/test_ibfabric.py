"""The InfiniBand subnet as a whole: its manager, its switches and their links, and the cables of the nodes in it.

One command on one host shows the subnet; one command on all nodes shows which ports are theirs. docs/suites/ibfabric.md has
the limits of every check.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import GpuClusterError, NotApplicable, ProbeError, SlurmError
from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.core.topology import parse_slurm_topology
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node, required_section
from pytest_gpucluster.suites.ibfabric import SUITE, checks, checks_plan, judge, node_checks
from pytest_gpucluster.suites.ibfabric.config import IbFabricConfig
from pytest_gpucluster.suites.ibfabric.facts import NODE_PORTS
from pytest_gpucluster.suites.ibfabric.lldp import NEIGHBOURS, of_neighbours
from pytest_gpucluster.suites.ibfabric.optics import OPTICS
from pytest_gpucluster.suites.ibfabric.picture import picture_of
from pytest_gpucluster.suites.ibfabric.plan import plan_of
from pytest_gpucluster.suites.ibfabric.wiring import compare, is_ethernet, of_subnet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucluster.config.models import Cluster, Profile
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.core.probe import Probe
    from pytest_gpucluster.run.facts import ItemView
    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suites.ibfabric.facts import FabricFacts, NodePorts
    from pytest_gpucluster.suites.ibfabric.judge import NodeLink, Owned
    from pytest_gpucluster.suites.ibfabric.lldp import Neighbours
    from pytest_gpucluster.suites.ibfabric.plan import Cabling
    from pytest_gpucluster.suites.ibfabric.wiring import WiringDiff, WrongCable

config = required_section(IbFabricConfig)
node_ports = of_node(NODE_PORTS)
all_ports = of_fleet(NODE_PORTS)
optics = of_node(OPTICS)


@of_fleet(config, all_ports, given.session)
def fabric(config: IbFabricConfig, all_ports: Mapping[str, NodePorts], session: ClusterSession) -> FabricFacts:
    """What the tools show of the subnet; read from the begin of the run on, beside the tests of other suites."""
    found: FabricFacts = session.begin(SUITE).result()
    return found


subnet = of_fleet(fabric)(lambda fabric: fabric.subnet)


@of_fleet(given.session)
def accepted(session: ClusterSession) -> dict[str, float]:
    """{what: number} that ibfabric.size measured in the last accepted run of the history; {} without one."""
    path, cluster = session.history, session.cluster
    if path is None or not path.exists():
        return {}
    with contextlib.suppress(GpuClusterError), contextlib.closing(History(path)) as history:
        known = history.accepted(cluster.name, simulated=session.simulated)
        return {name: value for (check, name), value in known.items() if check == "ibfabric.size"}
    return {}  # the end of the run reports a file that cannot be read


@of_fleet(fabric, all_ports)
def links(fabric: FabricFacts, all_ports: Mapping[str, NodePorts]) -> Owned:
    """The links of the nodes under test."""
    return judge.owned(fabric, all_ports)


rails = of_fleet(links)(judge.rails_of_leaves)


@of_fleet(config, given.cluster, fabric, links)
def wrong_cables(config: IbFabricConfig, cluster: Cluster, fabric: FabricFacts, links: Owned) -> tuple[WrongCable, ...]:
    """What differs from the plan, for the picture; () without one that can be read."""
    try:
        return tuple(_compared(_read(config, cluster), fabric, links).wrong) if config.plan else ()
    except GpuClusterError:
        return ()  # the checks of the plan report it


@of_node(fabric, links, rails, wrong_cables, given.item)
def drawn(
    fabric: FabricFacts,
    links: Owned,
    rails: Mapping[str, tuple[str, str]],
    wrong_cables: tuple[WrongCable, ...],
    item: ItemView,
) -> FabricFacts:
    """The same; report.html has the picture that the item records."""
    item.record.fabric = picture_of(fabric, links, rails, wrong_cables)
    return fabric


@of_fleet(links, given.session)
def links_of_peers(links: Owned, session: ClusterSession) -> dict[str, Owned]:
    """{group of nodes that are compared with one another: its links}: another group may be of another generation, or tenant."""
    groups = {node.peers.nodes: node.peers.names for node in session.nodes.values()}
    return {group: links.among(names) for group, names in groups.items()}


@of_fleet(links_of_peers)
def rates_of_peers(links_of_peers: Mapping[str, Owned]) -> dict[str, dict[str, Norm[float]]]:
    """{group: norms of the rates of its links}."""
    return {group: judge.usual_rates(its) for group, its in links_of_peers.items()}


@of_fleet(fabric, links_of_peers)
def keys_of_peers(
    fabric: FabricFacts, links_of_peers: Mapping[str, Owned]
) -> dict[str, dict[str, Norm[tuple[int, ...]]]]:
    """{group: norms of the partition keys of its ports}."""
    return {group: judge.usual_keys(fabric, its) for group, its in links_of_peers.items()}


@of_node(given.node, rates_of_peers)
def usual_rates(node: Node, rates_of_peers: Mapping[str, dict[str, Norm[float]]]) -> dict[str, Norm[float]]:
    """{place of a port: norm of the rate of its link} of the node's group."""
    return rates_of_peers[node.peers.nodes]


@of_node(given.node, keys_of_peers)
def usual_keys(
    node: Node, keys_of_peers: Mapping[str, dict[str, Norm[tuple[int, ...]]]]
) -> dict[str, Norm[tuple[int, ...]]]:
    """{place of a port: norm of its partition keys} of the node's group."""
    return keys_of_peers[node.peers.nodes]


@of_fleet(given.session)
def slurm_leaves(session: ClusterSession) -> dict[str, str]:
    """{node: leaf switch} of Slurm's topology; {} without one."""
    try:
        return parse_slurm_topology(session.need_slurm().run("scontrol", "show", "topology", "-o"))
    except (SlurmError, ProbeError):
        return {}  # no topology file


@of_fleet(slurm_leaves, links)
def usual_leaves(slurm_leaves: dict[str, str], links: Owned) -> dict[str, Norm[tuple[str, ...]]]:
    """{leaf of Slurm: norm of the leaves in the subnet of its nodes}."""
    votes: defaultdict[str, list[tuple[str, tuple[str, ...]]]] = defaultdict(list)
    for node, leaf in slurm_leaves.items():
        if of_node := links.of.get(node):
            votes[leaf].append((node, node_checks.leaves_of(of_node)))
    return {leaf: norm(votes[leaf]) for leaf in set(slurm_leaves.values())}


@of_node(given.profile)
def network(profile: Profile) -> Profile:
    """The profile of a node with InfiniBand."""
    if profile.fabric.link_layer != "InfiniBand":
        raise NotApplicable(f"profile {profile.name} has no InfiniBand")
    return profile


@of_node(given.node, network, links)
def node_links(node: Node, network: Profile, links: Owned) -> tuple[NodeLink, ...]:
    """The links of the item's node."""
    return links.of.get(node.name, ())


# --- the cabling plan --------------------------------------------------------------------------------------------


@of_fleet(config, given.cluster)
def plan(config: IbFabricConfig, cluster: Cluster) -> Cabling:
    """The planned cables; the files stand beside the cluster file."""
    if not config.plan:
        raise NotApplicable("no cabling plan is stated (`ibfabric: {plan: [FILE]}`)")
    return _read(config, cluster)


@of_fleet(plan, fabric, links)
def planned_cables(plan: Cabling, fabric: FabricFacts, links: Owned) -> WiringDiff:
    """The planned cables of InfiniBand, compared with the subnet."""
    return _compared(plan, fabric, links)


def _read(config: IbFabricConfig, cluster: Cluster) -> Cabling:
    return plan_of(cluster)


def _compared(plan: Cabling, fabric: FabricFacts, links: Owned) -> WiringDiff:
    own = {it.found.node_guid: f"{node} {it.port.device}" for node in links.of for it in links.of[node]}
    found = of_subnet(fabric.subnet, own, plan.names, recorded=plan.recorded, adapters=plan.adapters)
    return compare((it for it in plan.cables if not is_ethernet(it, usual=False)), found)


@of_fleet(plan, given.fleet_facts, given.session)
def planned_neighbours(
    plan: Cabling, fleet_facts: Callable[[object], dict[str, Neighbours]], session: ClusterSession
) -> WiringDiff:
    """The planned cables of Ethernet, compared with what lldpd has found on the nodes; no command is sent without such a cable."""
    layers = {node.profile.fabric.link_layer for node in session.nodes.values()}
    cables = [it for it in plan.cables if is_ethernet(it, usual="InfiniBand" not in layers)]
    if not cables:
        raise NotApplicable("the plan has no Ethernet cable")
    return compare(cables, of_neighbours(fleet_facts(NEIGHBOURS)))


@of_node(network, planned_cables)
def node_cables(network: Profile, planned_cables: WiringDiff) -> WiringDiff:
    """The planned cables of InfiniBand, for a node that has it."""
    return planned_cables


@of_node(planned_neighbours, given.facts)
def node_neighbours(planned_neighbours: WiringDiff, facts: Callable[[Probe[Neighbours]], Neighbours]) -> WiringDiff:
    """The planned cables of Ethernet; not checked on a node without lldpd."""
    facts(NEIGHBOURS)
    return planned_neighbours


slurm_nodes = of_fleet(given.session)(lambda session: frozenset(session.inventory) | frozenset(session.nodes))


TESTS = Tests(checks, node_checks, checks_plan, marks=("ibfabric",))
