"""The operating system of every node against section `os` of the cluster file, and against most nodes."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import NotApplicable, NotAvailable, ProbeError
from pytest_gpucluster.core.probe import RESPONDS
from pytest_gpucluster.kit.node.kernel_log import kernel_log_of
from pytest_gpucluster.kit.node.os_config import OsConfig
from pytest_gpucluster.kit.node.peers import Peers
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node, of_peers
from pytest_gpucluster.suites.os import bmc_facts, checks, crash_facts, device_facts, drive_facts, memory_facts
from pytest_gpucluster.suites.os import facts as basics
from pytest_gpucluster.suites.os import network_facts as os_names
from pytest_gpucluster.suites.os import software_facts as os_software
from pytest_gpucluster.suites.os import storage_facts as os_storage
from pytest_gpucluster.suites.os.checks import network as os_network
from pytest_gpucluster.suites.os.checks.kernel_log import PartsNow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.fact import AnyProbe
    from pytest_gpucluster.core.probe import Answer, Probe
    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suites.os.bmc_facts import Bmc
    from pytest_gpucluster.suites.os.network_facts import Network, ReachabilityResult
    from pytest_gpucluster.suites.os.storage_facts import Disk, SharedFolder

    Results = tuple[ReachabilityResult, ...]


hostname = of_node(basics.HOSTNAME)
slurm_hostname = of_node(given.node)(lambda node: node.info.hostname if node.info else "")
cmdline = of_node(basics.CMDLINE)
time_sync = of_node(os_software.TIME_SYNC)
uptime = of_node(basics.UPTIME)
clock = of_node(basics.CLOCK)
clocks = of_fleet(basics.CLOCK)
memory = of_node(basics.MEMORY)
memories = of_fleet(basics.MEMORY)(Peers)
cpus = of_node(basics.CPUS)
all_cpus = of_fleet(basics.CPUS)(Peers)
user = of_node(basics.USER)
users = of_fleet(basics.USER)(Peers)
load = of_node(basics.LOAD)
mounts = of_node(basics.MOUNTS)
all_writable = of_fleet(basics.MOUNTS)(checks.mounts.writable_of_all)
scratches = of_fleet(basics.MOUNTS)(checks.mounts.ScratchMounts.of_all)
crashes = of_node(crash_facts.CRASHES)
memory_use = of_node(memory_facts.MEMORY_USE)
all_used = of_peers(memory_facts.MEMORY_USE)(lambda found: {node: one.used for node, one in found.items()})
devices = of_node(device_facts.DEVICES)
usual_devices = of_peers(device_facts.DEVICES)(device_facts.usual_devices)
drives = of_node(drive_facts.DRIVES)
is_virtual = of_node(cpus)(lambda cpus: bool(cpus.hypervisor))
usual_bmc = of_peers(bmc_facts.BMC)(bmc_facts.usual_bmc)
disks = of_node(lambda cluster: os_storage.disks(checks.disks.disk_paths(cluster.section(OsConfig))))
all_disks = of_fleet(lambda cluster: os_storage.disks(checks.disks.disk_paths(cluster.section(OsConfig))))


@of_fleet(given.cluster, all_disks, given.fleet_facts)
def all_later_disks(
    cluster: Cluster,
    all_disks: dict[str, dict[str, Disk]],
    fleet_facts: Callable[[Probe[dict[str, Disk]]], dict[str, dict[str, Disk]]],
) -> dict[str, dict[str, Disk]]:
    """A second, longer reading on all nodes if df hung on any of them, else {}."""
    if not any(disk.hung for disks in all_disks.values() for disk in disks.values()):
        return {}
    return fleet_facts(os_storage.disks(checks.disks.disk_paths(cluster.section(OsConfig)), os_storage.LATER_SECONDS))


responses = of_fleet(all_disks, all_later_disks)(lambda first, later: checks.disks.Responses.of_all({**first, **later}))
later_disks = of_node(given.node_name, all_later_disks)(lambda node, found: found.get(node, {}))
processes = of_node(os_software.PROCESSES)
failed_units = of_node(os_software.FAILED_UNITS)
kernel_log = of_node(lambda cluster: kernel_log_of(cluster.known))
known_lines = of_node(given.cluster)(lambda cluster: cluster.known)
services = of_node(lambda cluster: os_software.services(cluster.section(OsConfig).services))
system_state = of_node(os_software.SYSTEM_STATE)
system_states = of_fleet(os_software.SYSTEM_STATE)(Peers)
network = of_node(os_names.NETWORK)
networks = of_fleet(os_names.NETWORK)
naming = of_node(lambda cluster: os_names.naming(os_network.some_names(cluster)))
all_naming = of_fleet(lambda cluster: os_names.naming(os_network.some_names(cluster)))
addresses = of_node(lambda cluster: os_software.resolution(os_network.some_names(cluster)))
all_addresses = of_fleet(lambda cluster: os_software.resolution(os_network.some_names(cluster)))(os_network.resolved)

# What the cluster file states.
os_config = of_node(given.cluster)(lambda cluster: cluster.os)
stated_mounts = of_node(os_config)(lambda os_config: os_config.mounts)
stated_services = of_node(os_config)(lambda os_config: os_config.services)
stated_paths = of_node(given.cluster)(lambda cluster: checks.disks.disk_paths(cluster.os))
max_clock_skew = of_node(os_config)(lambda os_config: os_config.max_clock_skew)
max_load = of_node(os_config)(lambda os_config: os_config.max_load_per_cpu)
max_zombies = of_node(os_config)(lambda os_config: os_config.max_zombies)
node_profile = of_node(given.profile)(lambda profile: profile.node)
stated_cpus = of_node(node_profile)(lambda node_profile: node_profile.cpus)

# What most nodes of the node's group have.
usual_cpus = of_node(given.node, all_cpus)(lambda node, all_cpus: all_cpus.of(node.twins, "online"))
smaller_in_slurm = of_node(given.node, given.inventory)(
    lambda node, inventory: any(
        inventory[node.name].memory < inventory[other].memory
        for other in node.group.names
        if node.name in inventory and other in inventory
    )
)
memory_parts = of_node(basics.MEMORY_PARTS)
all_parts = of_fleet(basics.MEMORY_PARTS)
installed = of_fleet(memories, all_parts)(checks.hardware.installed)
usual_memory = of_node(given.node, installed)(
    lambda node, installed: installed.of(node.twins, "total", checks.hardware.PEER_MEMORY_TOLERANCE)
)
usual_dimms = of_node(given.node, installed)(lambda node, installed: installed.of(node.twins, "dimms"))
usual_user = of_node(given.node, users)(lambda node, users: users.of(node.twins))
usual_writable = of_node(given.node, all_writable)(
    lambda node, all_writable: {name: peers.of(node.twins) for name, peers in all_writable.items()}
)
usual_tmp = of_node(given.node, scratches)(lambda node, scratches: scratches.of(node.twins, "tmp"))
usual_shm = of_node(given.node, scratches)(lambda node, scratches: scratches.of(node.twins, "shm"))
usual_answers = of_node(given.node, system_states)(lambda node, found: found.of(node.twins, "answers"))

total_memory = of_node(memory)(lambda memory: memory.total)
online_cpus = of_node(cpus)(lambda cpus: cpus.online)
lost = of_node(given.node_name, given.fleet)(
    lambda node_name, fleet: None if node_name in fleet.disconnected else fleet.lost.get(node_name)
)
loss = of_node(given.node_name, given.session)(
    lambda node_name, session: it.code if (it := session.problem(node_name)) else ""
)
usual_name_time = of_fleet(all_naming)(os_network.usual_seconds)
owners = of_fleet(networks, all_naming)(os_network.owners)
common_time = of_fleet(clocks, given.cluster)(
    lambda clocks, cluster: checks.system.CommonTime.of(clocks, cluster.section(OsConfig).max_clock_skew)
)


@of_node(is_virtual, given.facts, probes=lambda _cluster, _nodes: [bmc_facts.BMC])
def bmc(is_virtual: bool, facts: Callable[[Probe[Bmc]], Bmc]) -> Bmc:
    """What the BMC of the node knows."""
    if is_virtual:
        raise NotApplicable("a virtual machine has no BMC of its own")
    return facts(bmc_facts.BMC)


scratch = of_node(mounts)(checks.mounts.ScratchMounts.of)


@of_node(network, owners)
def address_owners(network: Network, owners: os_network.Owners) -> os_network.Owners:
    """The owners of each address; a node that could not report its addresses is not checked."""
    return owners


def ring_of(cluster: Cluster, nodes: Sequence[str]) -> str:
    """Return the list from which each node takes its neighbours; '' if no node has any."""
    tested = set(nodes)
    return os_names.rings([name for name in group.names if name in tested] for group in cluster.groups)


@of_fleet(
    given.cluster,
    given.nodes,
    probes=lambda cluster, nodes: [os_names.reach(ring)] if (ring := ring_of(cluster, nodes)) else [],
)
def neighbours(cluster: Cluster, nodes: tuple[str, ...]) -> Probe[Results]:
    """The probe of the connections between the nodes under test."""
    return os_names.reach(ring_of(cluster, nodes))


@of_node(given.node, given.nodes, neighbours, given.facts)
def reach_results(
    node: Node, nodes: tuple[str, ...], neighbours: Probe[Results], facts: Callable[[Probe[Results]], Results]
) -> Results:
    """The attempts of this node to reach its neighbours."""
    if set(nodes).intersection(node.group.names) <= {node.name}:
        raise NotApplicable("no other node of its group is under test")
    return facts(neighbours)


@of_fleet(neighbours, given.fleet_facts, networks)
def all_reachability(
    neighbours: Probe[Results],
    fleet_facts: Callable[[Probe[Results]], dict[str, Results]],
    networks: dict[str, Network],
) -> os_network.Reachability:
    """The attempts of all nodes."""
    return os_network.reachability(fleet_facts(neighbours), networks)


@of_node(reach_results, all_reachability)
def known_reachability(reach_results: Results, all_reachability: os_network.Reachability) -> os_network.Reachability:
    """The attempts of all nodes; a node that could not report its own is not checked."""
    return all_reachability


drift_settings = of_fleet(given.cluster)(checks.drift.settings_of)


@of_fleet(given.fleet_facts, probes=lambda cluster, _: checks.drift.probes(cluster, compared=True))
def usual_settings(fleet_facts: Callable[[AnyProbe[Any]], dict[str, Any]]) -> checks.drift.UsualValues:
    """What is usual among the peers of a node."""
    return checks.drift.UsualValues(fleet_facts)


@of_node(
    given.node,
    given.cluster,
    given.facts,
    drift_settings,
    usual_settings,
    probes=lambda cluster, _: checks.drift.probes(cluster),
)
def readings(
    node: Node,
    cluster: Cluster,
    facts: Callable[[AnyProbe[Any]], Any],
    drift_settings: tuple[checks.drift.SettingRow, ...],
    usual_settings: checks.drift.UsualValues,
) -> tuple[checks.drift.SettingReading | checks.drift.Unread, ...]:
    """The settings of the node, each with what the site states, or what is usual among its peers."""
    return tuple(checks.drift.read(drift_settings, node, cluster, facts, usual_settings))


@of_fleet(given.cluster, given.fleet)
def shared_files(cluster: Cluster, fleet: Channel) -> Iterator[os_storage.SharedResult | NotAvailable]:
    """One file per shared folder: written by one node, read by all, removed by its writer; or why it was not read."""
    files = os_storage.SharedFiles(cluster.section(OsConfig).shared_storage, secrets.token_hex(8))
    writer, written = os_storage.write(fleet, files)
    found: os_storage.SharedResult | NotAvailable
    try:
        found = os_storage.read(fleet, files, writer, written)
    except NotAvailable as error:  # the file is removed all the same
        found = error
    yield found
    os_storage.remove(fleet, files, writer, written)


@of_node(given.node, shared_files)
def shared_folders(node: Node, shared_files: os_storage.SharedResult | NotAvailable) -> dict[str, SharedFolder]:
    """The results of the shared files on this node."""
    if isinstance(shared_files, NotAvailable):
        raise shared_files
    return shared_files.on(node.name)


@of_node(given.facts, probes=lambda _cluster, _nodes: [basics.UPTIME])
def uptime_if_known(facts: Callable[[Probe[float]], float]) -> float | None:
    """Seconds since boot; None where the node cannot report them, which excuses nothing."""
    try:
        return facts(basics.UPTIME)
    except ProbeError:
        return None


@of_node(given.facts, probes=lambda _cluster, _nodes: [basics.MOUNTS, device_facts.DEVICES])
def parts_now(facts: Callable[[AnyProbe[Any]], Any]) -> PartsNow:
    """What the checks of mounts, drives and arrays read; a part is None where the node could not report it."""
    found: list[Any] = []
    for probe in (basics.MOUNTS, device_facts.DEVICES):
        try:
            found.append(facts(probe))
        except (ProbeError, NotAvailable):
            found.append(None)
    return PartsNow(*found)


@of_node(given.node, given.session, probes=lambda _cluster, _nodes: [os_storage.WRITES])
def writes(node: Node, session: ClusterSession) -> dict[str, str]:
    """Why no file could be written to /tmp and /dev/shm; an attempt that does not end has a result too."""
    return os_storage.read_writes(session.answer(node.name, os_storage.WRITES))


@of_node(given.node, given.session, probes=lambda _cluster, _nodes: [RESPONDS])
def answer(node: Node, session: ClusterSession) -> Answer:
    """The node's answer to `true`; an error if the channel to all nodes was lost."""
    answer = session.answer(node.name, RESPONDS)
    if answer.rc is None and session.is_disconnected(node.name):
        raise ProbeError(f"{RESPONDS.name} on {node}: {answer.problem}")
    return answer


TESTS = Tests(*checks.MODULES, marks=("os",))
