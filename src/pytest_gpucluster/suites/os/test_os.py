"""The operating system of every node against section `os` of the cluster file, and against most nodes."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import NotApplicable, NotAvailable, ProbeError
from pytest_gpucluster.core.probe import RESPONDS
from pytest_gpucluster.kit.node.kernel_log import kernel_log_of
from pytest_gpucluster.kit.node.os_config import OsConfig
from pytest_gpucluster.kit.node.peers import Peers
from pytest_gpucluster.suite import Tests, fact, fleet_probed, peer_probed, probed
from pytest_gpucluster.suites.os import (
    bmc_facts,
    checks,
    crash_facts,
    device_facts,
    drive_facts,
    memory_facts,
)
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
    from pytest_gpucluster.core.probe import Answer, Probe
    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suite import AnyProbe
    from pytest_gpucluster.suites.os.bmc_facts import Bmc
    from pytest_gpucluster.suites.os.facts import Mount
    from pytest_gpucluster.suites.os.network_facts import Network, ReachabilityResult
    from pytest_gpucluster.suites.os.storage_facts import Disk, SharedFolder

    Results = tuple[ReachabilityResult, ...]


hostname = probed(basics.HOSTNAME)
slurm_hostname = fact(lambda node: node.info.hostname if node.info else "")
cmdline = probed(basics.CMDLINE)
time_sync = probed(os_software.TIME_SYNC)
uptime = probed(basics.UPTIME)
clock = probed(basics.CLOCK)
clocks = fleet_probed(basics.CLOCK)
memory = probed(basics.MEMORY)
memories = fleet_probed(basics.MEMORY, Peers)
cpus = probed(basics.CPUS)
all_cpus = fleet_probed(basics.CPUS, Peers)
user = probed(basics.USER)
users = fleet_probed(basics.USER, Peers)
load = probed(basics.LOAD)
mounts = probed(basics.MOUNTS)
all_writable = fleet_probed(basics.MOUNTS, checks.mounts.writable_of_all)
scratches = fleet_probed(basics.MOUNTS, checks.mounts.ScratchMounts.of_all)
crashes = probed(crash_facts.CRASHES)
memory_use = probed(memory_facts.MEMORY_USE)
all_used = peer_probed(memory_facts.MEMORY_USE, lambda found: {node: one.used for node, one in found.items()})
devices = probed(device_facts.DEVICES)
usual_devices = peer_probed(device_facts.DEVICES, device_facts.usual_devices)
drives = probed(drive_facts.DRIVES)
is_virtual = fact(lambda cpus: bool(cpus.hypervisor))
usual_bmc = peer_probed(bmc_facts.BMC, bmc_facts.usual_bmc)
disks = probed(lambda cluster: os_storage.disks(checks.disks.disk_paths(cluster.section(OsConfig))))
all_disks = fleet_probed(lambda cluster: os_storage.disks(checks.disks.disk_paths(cluster.section(OsConfig))))
responses = fact(once=True)(
    lambda all_disks, all_later_disks: checks.disks.Responses.of_all({**all_disks, **all_later_disks})
)
later_disks = fact(lambda node_name, all_later_disks: all_later_disks.get(node_name, {}))
processes = probed(os_software.PROCESSES)
failed_units = probed(os_software.FAILED_UNITS)
kernel_log = probed(lambda cluster: kernel_log_of(cluster.known))
known_lines = fact(lambda cluster: cluster.known)
services = probed(lambda cluster: os_software.services(cluster.section(OsConfig).services))
system_state = probed(os_software.SYSTEM_STATE)
system_states = fleet_probed(os_software.SYSTEM_STATE, Peers)
network = probed(os_names.NETWORK)
networks = fleet_probed(os_names.NETWORK)
naming = probed(lambda cluster: os_names.naming(os_network.some_names(cluster)))
all_naming = fleet_probed(lambda cluster: os_names.naming(os_network.some_names(cluster)))
addresses = probed(lambda cluster: os_software.resolution(os_network.some_names(cluster)))
all_addresses = fleet_probed(
    lambda cluster: os_software.resolution(os_network.some_names(cluster)), os_network.resolved
)

# What the cluster file states.
os_config = fact(lambda cluster: cluster.os)
stated_mounts = fact(lambda os_config: os_config.mounts)
stated_services = fact(lambda os_config: os_config.services)
stated_paths = fact(lambda cluster: checks.disks.disk_paths(cluster.os))
max_clock_skew = fact(lambda os_config: os_config.max_clock_skew)
max_load = fact(lambda os_config: os_config.max_load_per_cpu)
max_zombies = fact(lambda os_config: os_config.max_zombies)
node_profile = fact(lambda profile: profile.node)
stated_cpus = fact(lambda node_profile: node_profile.cpus)

# What most nodes of the node's group have.
usual_cpus = fact(lambda node, all_cpus: all_cpus.of(node.twins, "online"))
smaller_in_slurm = fact(
    lambda node, inventory: any(
        inventory[node.name].memory < inventory[other].memory
        for other in node.group.names
        if node.name in inventory and other in inventory
    )
)
memory_parts = probed(basics.MEMORY_PARTS)
all_parts = fleet_probed(basics.MEMORY_PARTS)
installed = fact(once=True)(checks.hardware.installed)
usual_memory = fact(
    lambda node, installed: installed.of(node.twins, "total", checks.hardware.PEER_MEMORY_TOLERANCE)
)
usual_dimms = fact(lambda node, installed: installed.of(node.twins, "dimms"))
usual_user = fact(lambda node, users: users.of(node.twins))
usual_writable = fact(
    lambda node, all_writable: {name: peers.of(node.twins) for name, peers in all_writable.items()}
)
usual_tmp = fact(lambda node, scratches: scratches.of(node.twins, "tmp"))
usual_shm = fact(lambda node, scratches: scratches.of(node.twins, "shm"))
usual_answers = fact(lambda node, system_states: system_states.of(node.twins, "answers"))

total_memory = fact(lambda memory: memory.total)
online_cpus = fact(lambda cpus: cpus.online)
lost = fact(lambda node_name, fleet: None if node_name in fleet.disconnected else fleet.lost.get(node_name))
loss = fact(
    lambda node_name, gpucluster_session: it.code if (it := gpucluster_session.problem(node_name)) else ""
)
usual_name_time = fact(once=True)(os_network.usual_seconds)
owners = fact(once=True)(os_network.owners)
common_time = fact(once=True)(
    lambda clocks, cluster: checks.system.CommonTime.of(clocks, cluster.section(OsConfig).max_clock_skew)
)


@fact(probes=lambda _cluster, _nodes: [bmc_facts.BMC])
def bmc(is_virtual: bool, facts: Callable[[Probe[Bmc]], Bmc]) -> Bmc:
    """What the BMC of the node knows."""
    if is_virtual:
        raise NotApplicable("a virtual machine has no BMC of its own")
    return facts(bmc_facts.BMC)


@fact
def scratch(mounts: dict[str, Mount]) -> checks.mounts.ScratchMounts:
    """The scratch mounts of the node."""
    return checks.mounts.ScratchMounts.of(mounts)


@fact
def address_owners(network: Network, owners: os_network.Owners) -> os_network.Owners:
    """The owners of each address; a node that could not report its addresses is not checked."""
    return owners


def ring_of(cluster: Cluster, nodes: Sequence[str]) -> str:
    """Return the list from which each node takes its neighbours; '' if no node has any."""
    tested = set(nodes)
    return os_names.rings([name for name in group.names if name in tested] for group in cluster.groups)


@fact(
    once=True,
    probes=lambda cluster, nodes: [os_names.reach(ring)] if (ring := ring_of(cluster, nodes)) else [],
)
def neighbours(cluster: Cluster, nodes: tuple[str, ...]) -> Probe[Results]:
    """The probe of the connections between the nodes under test."""
    return os_names.reach(ring_of(cluster, nodes))


@fact
def reach_results(
    node: Node,
    nodes: tuple[str, ...],
    neighbours: Probe[Results],
    facts: Callable[[Probe[Results]], Results],
) -> Results:
    """The attempts of this node to reach its neighbours."""
    if set(nodes).intersection(node.group.names) <= {node.name}:
        raise NotApplicable("no other node of its group is under test")
    return facts(neighbours)


@fact(once=True)
def all_reachability(
    neighbours: Probe[Results],
    fleet_facts: Callable[[Probe[Results]], dict[str, Results]],
    networks: dict[str, Network],
) -> os_network.Reachability:
    """The attempts of all nodes."""
    return os_network.reachability(fleet_facts(neighbours), networks)


@fact
def known_reachability(
    reach_results: Results, all_reachability: os_network.Reachability
) -> os_network.Reachability:
    """The attempts of all nodes; a node that could not report its own is not checked."""
    return all_reachability


drift_settings = fact(once=True)(checks.drift.settings_of)


@fact(once=True, probes=lambda cluster, _: checks.drift.probes(cluster, compared=True))
def usual_settings(fleet_facts: Callable[[AnyProbe], dict[str, Any]]) -> checks.drift.UsualValues:
    """What is usual among the peers of a node."""
    return checks.drift.UsualValues(fleet_facts)


@fact(probes=lambda cluster, _: checks.drift.probes(cluster))
def readings(
    node: Node,
    cluster: Cluster,
    facts: Callable[[AnyProbe], Any],
    drift_settings: tuple[checks.drift.SettingRow, ...],
    usual_settings: checks.drift.UsualValues,
) -> tuple[checks.drift.SettingReading | checks.drift.Unread, ...]:
    """The settings of the node, each with what the site states, or what is usual among its peers."""
    return tuple(checks.drift.read(drift_settings, node, cluster, facts, usual_settings))


@fact(once=True)
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


@fact
def shared_folders(
    node: Node, shared_files: os_storage.SharedResult | NotAvailable
) -> dict[str, SharedFolder]:
    """The results of the shared files on this node."""
    if isinstance(shared_files, NotAvailable):
        raise shared_files
    return shared_files.on(node.name)


@fact(probes=lambda _cluster, _nodes: [basics.UPTIME])
def uptime_if_known(facts: Callable[[Probe[float]], float]) -> float | None:
    """Seconds since boot; None where the node cannot report them, which excuses nothing."""
    try:
        return facts(basics.UPTIME)
    except ProbeError:
        return None


@fact(probes=lambda _cluster, _nodes: [basics.MOUNTS, device_facts.DEVICES])
def parts_now(facts: Callable[[AnyProbe], Any]) -> PartsNow:
    """What the checks of mounts, drives and arrays read; a part is None where the node could not report it."""
    found: list[Any] = []
    for probe in (basics.MOUNTS, device_facts.DEVICES):
        try:
            found.append(facts(probe))
        except (ProbeError, NotAvailable):
            found.append(None)
    return PartsNow(*found)


@fact(once=True)
def all_later_disks(
    cluster: Cluster,
    all_disks: dict[str, dict[str, Disk]],
    fleet_facts: Callable[[Probe[dict[str, Disk]]], dict[str, dict[str, Disk]]],
) -> dict[str, dict[str, Disk]]:
    """A second, longer reading on all nodes if df hung on any of them, else {}."""
    if not any(disk.hung for disks in all_disks.values() for disk in disks.values()):
        return {}
    return fleet_facts(
        os_storage.disks(checks.disks.disk_paths(cluster.section(OsConfig)), os_storage.LATER_SECONDS)
    )


@fact(probes=lambda _cluster, _nodes: [os_storage.WRITES])
def writes(node: Node, gpucluster_session: ClusterSession) -> dict[str, str]:
    """Why no file could be written to /tmp and /dev/shm; an attempt that does not end has a result too."""
    return os_storage.read_writes(gpucluster_session.answer(node.name, os_storage.WRITES))


@fact(probes=lambda _cluster, _nodes: [RESPONDS])
def answer(node: Node, gpucluster_session: ClusterSession) -> Answer:
    """The node's answer to `true`; an error if the channel to all nodes was lost."""
    answer = gpucluster_session.answer(node.name, RESPONDS)
    if answer.rc is None and gpucluster_session.is_disconnected(node.name):
        raise ProbeError(f"{RESPONDS.name} on {node}: {answer.problem}")
    return answer


TESTS = Tests(*checks.MODULES, marks=("os",))
