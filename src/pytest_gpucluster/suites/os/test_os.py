"""The operating system of every node: what the cluster file states under `os`, and what most nodes agree on."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Protocol, TypeVar

import pytest

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import RESPONDS
from pytest_gpucluster.kit.kernel_log import KERNEL_LOG
from pytest_gpucluster.kit.os_config import OsConfig
from pytest_gpucluster.suite import asks, asks_of_nodes, fact, fleet_probed, probed
from pytest_gpucluster.suites.os import checks as os
from pytest_gpucluster.suites.os import facts as basics
from pytest_gpucluster.suites.os import kernel_log as kernel_log_check
from pytest_gpucluster.suites.os import network as os_network
from pytest_gpucluster.suites.os import network_facts as os_names
from pytest_gpucluster.suites.os import software_facts as os_software
from pytest_gpucluster.suites.os import storage_facts as os_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.config.models import Cluster, Profile
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.core.probe import Answer, Probe
    from pytest_gpucluster.kit.kernel_log import KernelLog
    from pytest_gpucluster.plugin.expect import Expect
    from pytest_gpucluster.plugin.session import ClusterSession, Node
    from pytest_gpucluster.suites.os.facts import Clock, Cpus, Load, Memory, Mount
    from pytest_gpucluster.suites.os.kernel_log import Stalls
    from pytest_gpucluster.suites.os.network_facts import Link, Naming, Network, ReachabilityResult
    from pytest_gpucluster.suites.os.software_facts import CommandOutput, Processes, SystemState, TimeSync
    from pytest_gpucluster.suites.os.storage_facts import Disk, SharedFolder

    T = TypeVar("T")

    class Facts(Protocol):
        """The fixture `facts`."""

        def __call__(self, probe: Probe[T]) -> T:
            """Return the facts of the item's node."""

    class FleetFacts(Protocol):
        """The fixture `fleet_facts`."""

        def __call__(self, probe: Probe[T]) -> dict[str, T]:
            """Return the facts of all nodes that could tell."""


pytestmark = pytest.mark.os

hostname = probed(basics.HOSTNAME)
release = probed(basics.RELEASE)
releases = fleet_probed(basics.RELEASE, os.Peers)
kernel = probed(basics.KERNEL)
kernels = fleet_probed(basics.KERNEL, os.Peers)
cmdline = probed(basics.CMDLINE)
cmdlines = fleet_probed(basics.CMDLINE, os.Peers)
uptime = probed(basics.UPTIME)
clock = probed(basics.CLOCK)
clocks = fleet_probed(basics.CLOCK)
memory = probed(basics.MEMORY)
memories = fleet_probed(basics.MEMORY, os.Peers)
cpus = probed(basics.CPUS)
all_cpus = fleet_probed(basics.CPUS, os.Peers)
governors = probed(basics.GOVERNORS)
all_governors = fleet_probed(basics.GOVERNORS, os.Peers)
thp = probed(basics.THP)
thps = fleet_probed(basics.THP, os.Peers)
lsm = probed(basics.LSM)
lsms = fleet_probed(basics.LSM, os.Peers)
settings = probed(basics.KERNEL_SETTINGS)
all_settings = fleet_probed(basics.KERNEL_SETTINGS, os.Peers)
user = probed(basics.USER)
users = fleet_probed(basics.USER, os.Peers)
load = probed(basics.LOAD)
soft_limits = probed(basics.LIMITS)
all_limits = fleet_probed(basics.LIMITS, os.limits_of_group)
mounts = probed(basics.MOUNTS)
all_writable = fleet_probed(basics.MOUNTS, os.writable_of_all)
scratches = fleet_probed(basics.MOUNTS, os.Scratch.of_all)
disks = probed(lambda cluster: os_storage.disks(os.disk_paths(cluster.section(OsConfig))))
answering = fleet_probed(
    lambda cluster: os_storage.disks(os.disk_paths(cluster.section(OsConfig))), os.answering
)
processes = probed(os_software.PROCESSES)
failed_units = probed(os_software.FAILED_UNITS)
kernel_log = probed(KERNEL_LOG)
stalls = fleet_probed(KERNEL_LOG, kernel_log_check.Stalls.of_all)
taint = probed(basics.TAINT)
sysctls = probed(lambda cluster: os_software.sysctls(cluster.section(OsConfig).sysctls))
packages = probed(lambda cluster: os_software.packages(cluster.section(OsConfig).packages))
services = probed(lambda cluster: os_software.services(cluster.section(OsConfig).services))
system_state = probed(os_software.SYSTEM_STATE)
system_states = fleet_probed(os_software.SYSTEM_STATE, os.Peers)
network = probed(os_names.NETWORK)
networks = fleet_probed(os_names.NETWORK)
all_links = fleet_probed(os_names.NETWORK, os_network.links_of_all)
naming = probed(lambda cluster: os_names.naming(os.some_names(cluster)))
all_naming = fleet_probed(lambda cluster: os_names.naming(os.some_names(cluster)))
addresses = probed(lambda cluster: os_software.resolution(os.some_names(cluster)))
all_addresses = fleet_probed(lambda cluster: os_software.resolution(os.some_names(cluster)), os.resolved)


@fact(scope="session")
def owners(networks: dict[str, Network], all_naming: dict[str, Naming]) -> os_network.Owners:
    """Who has which address."""
    return os_network.owners(networks, all_naming)


def ring_of(cluster: Cluster, nodes: Sequence[str]) -> str:
    """Return the list from which each node takes its neighbours; '' where none has any."""
    there = set(nodes)
    return os_names.rings([name for name in group.names if name in there] for group in cluster.groups)


@fact(scope="session")
@asks_of_nodes(lambda cluster, nodes: [os_names.reach(ring)] if (ring := ring_of(cluster, nodes)) else [])
def neighbours(cluster: Cluster, nodes: tuple[str, ...]) -> Probe[tuple[ReachabilityResult, ...]]:
    """The probe of the ways between nodes: it is made once it is known who is there."""
    return os_names.reach(ring_of(cluster, nodes))


@fact
def way(
    node: Node,
    nodes: tuple[str, ...],
    neighbours: Probe[tuple[ReachabilityResult, ...]],
    facts: Facts,
    expect: Expect,
) -> tuple[ReachabilityResult, ...]:
    """The ways from this node to its neighbours."""
    if set(nodes).intersection(node.group.names) <= {node.name}:
        expect.not_applicable("no other node of its group is under test")
    return facts(neighbours)


@fact(scope="session")
def all_ways(
    neighbours: Probe[tuple[ReachabilityResult, ...]], fleet_facts: FleetFacts, networks: dict[str, Network]
) -> os_network.Ways:
    """Who reached whom."""
    told: dict[str, tuple[ReachabilityResult, ...]] = fleet_facts(neighbours)
    return os_network.ways(told, networks)


@fact(scope="session")
def usual_name_time(all_naming: dict[str, Naming]) -> float:
    """How long names take on half of the nodes."""
    return os_network.usual_seconds(all_naming)


@fact(scope="session")
def common_time(clocks: dict[str, Clock], cluster: Cluster) -> os.CommonTime:
    """The time that most nodes share."""
    return os.CommonTime.of(clocks, cluster.section(OsConfig).max_clock_skew)


def drift_probes(cluster: Cluster) -> list[Probe[CommandOutput]]:
    """The further commands of the cluster file."""
    return [os_software.command_output(command) for command in cluster.section(OsConfig).drift]


@fact
@asks(lambda cluster: [] if cluster.section(OsConfig).time_sync == "none" else [os_software.TIME_SYNC])
def time_sync(cluster: Cluster, facts: Facts, expect: Expect) -> TimeSync:
    """What the node's time service says, unless the site keeps none."""
    if cluster.section(OsConfig).time_sync == "none":
        expect.not_applicable("the cluster file says os.time_sync: none")
    return facts(os_software.TIME_SYNC)


@fact
def wanted_limits(cluster: Cluster) -> dict[str, float]:
    """The limits of the cluster file, in the kernel's units."""
    return os.wanted_limits(cluster.section(OsConfig).limits)


@fact
@asks(drift_probes)
def said(cluster: Cluster, facts: Facts) -> dict[str, CommandOutput]:
    """What this node says to the further commands of the cluster file."""
    return {
        command: facts(os_software.command_output(command)) for command in cluster.section(OsConfig).drift
    }


@fact(scope="session")
def all_said(cluster: Cluster, fleet_facts: FleetFacts) -> dict[str, os.Peers[CommandOutput]]:
    """What the fleet says to them."""
    return {
        command: os.Peers(fleet_facts(os_software.command_output(command)))
        for command in cluster.section(OsConfig).drift
    }


@pytest.fixture(scope="session")
def shared_files(cluster: Cluster, fleet: Channel) -> Iterator[os_storage.SharedResult]:
    """One file in every shared folder: written by one node, read by all, removed by its writer."""
    files = os_storage.SharedFiles(cluster.section(OsConfig).shared_storage, secrets.token_hex(8))
    writer, written = os_storage.write(fleet, files)
    yield os_storage.read(fleet, files, writer, written)
    os_storage.remove(fleet, files, writer, written)


@fact
def shared_folders(
    node: Node, shared_files: os_storage.SharedResult, expect: Expect
) -> dict[str, SharedFolder]:
    """What became of the shared files on this node."""
    try:
        return shared_files.on(node.name)
    except NotAvailable as error:
        expect.not_checked(str(error))


@fact
@asks(lambda _: [os_storage.WRITES])
def writes(node: Node, gpucluster_session: ClusterSession) -> dict[str, str]:
    """Why no file could be written to /tmp and /dev/shm: a try that does not end says so too."""
    return os_storage.read_writes(gpucluster_session.answer(node.name, os_storage.WRITES))


@fact
@asks(lambda _: [RESPONDS])
def answer(node: Node, gpucluster_session: ClusterSession) -> Answer:
    """The node's answer to the least of all commands; an error where the channel to all nodes was cut."""
    answer = gpucluster_session.answer(node.name, RESPONDS)
    if answer.rc is None and gpucluster_session.cut(node.name):
        raise ProbeError(f"{RESPONDS.name} on {node}: {answer.problem}")
    return answer


def test_hostname(node: Node, hostname: str, expect: Expect) -> None:
    """The short host name is Slurm's node name."""
    expect(os.hostname(hostname, node.name))


def test_release(node: Node, release: str, releases: os.Peers[str], cluster: Cluster, expect: Expect) -> None:
    """Distribution and version are as stated, or as on most nodes."""
    expect(os.release(release, cluster.section(OsConfig).release, releases.of(node.group)))


def test_kernel(node: Node, kernel: str, kernels: os.Peers[str], cluster: Cluster, expect: Expect) -> None:
    """The running kernel is as stated, or as on most nodes."""
    expect(os.kernel(kernel, cluster.section(OsConfig).kernel, kernels.of(node.group)))


def test_cmdline(node: Node, cmdline: str, cmdlines: os.Peers[str], expect: Expect) -> None:
    """The kernel's boot parameters are as on most nodes."""
    expect(os.cmdline(cmdline, cmdlines.of(node.group)))


def test_architecture(node: Node, cpus: Cpus, all_cpus: os.Peers[Cpus], expect: Expect) -> None:
    """The machine architecture is as on most nodes."""
    expect(os.architecture(cpus, all_cpus.of(node.group, "architecture")))


def test_uptime(uptime: float, cluster: Cluster, expect: Expect) -> None:
    """The node has been up as long as stated, and no longer."""
    expect(os.uptime(uptime, cluster.section(OsConfig).min_uptime, cluster.section(OsConfig).max_uptime))


def test_clock(clock: Clock, common_time: os.CommonTime, cluster: Cluster, expect: Expect) -> None:
    """The clock agrees with most of the fleet."""
    expect(os.clock(clock, common_time, cluster.section(OsConfig).max_clock_skew))


def test_memory(
    node: Node, memory: Memory, memories: os.Peers[Memory], profile: Profile, expect: Expect
) -> None:
    """The memory of the profile is there, and as much as on most nodes."""
    expect(os.memory(memory, profile.node, memories.of(node.group, "total", os.PEER_MEMORY_TOLERANCE)))


def test_cpus(node: Node, cpus: Cpus, all_cpus: os.Peers[Cpus], profile: Profile, expect: Expect) -> None:
    """The CPUs of the profile are online, or as many as on most nodes."""
    expect(os.cpus(cpus, profile.node.cpus, all_cpus.of(node.group, "online")))


def test_cpu_model(node: Node, cpus: Cpus, all_cpus: os.Peers[Cpus], expect: Expect) -> None:
    """The processor model is that of most nodes."""
    expect(os.cpu_model(cpus, all_cpus.of(node.group, "model")))


def test_numa(node: Node, cpus: Cpus, all_cpus: os.Peers[Cpus], profile: Profile, expect: Expect) -> None:
    """There are as many NUMA nodes as the profile states, or as on most nodes."""
    expect(os.numa(cpus, profile.node.numa_nodes, all_cpus.of(node.group, "numa_nodes")))


def test_governor(
    node: Node,
    governors: dict[str, int],
    all_governors: os.Peers[dict[str, int]],
    cluster: Cluster,
    expect: Expect,
) -> None:
    """Every CPU has the frequency governor that is stated, or that of most nodes."""
    expect(os.governor(governors, cluster.section(OsConfig).governor, all_governors.of(node.group)))


def test_hugepages(
    node: Node, memory: Memory, memories: os.Peers[Memory], cluster: Cluster, expect: Expect
) -> None:
    """As many huge pages are reserved as stated, or as on most nodes."""
    expect(os.hugepages(memory, cluster.section(OsConfig).hugepages, memories.of(node.group, "hugepages")))


def test_transparent_hugepages(node: Node, thp: str, thps: os.Peers[str], expect: Expect) -> None:
    """Transparent huge pages are set as on most nodes."""
    expect(os.transparent_hugepages(thp, thps.of(node.group)))


def test_swap(node: Node, memory: Memory, memories: os.Peers[Memory], expect: Expect) -> None:
    """There is as much swap as on most nodes."""
    expect(os.swap(memory, memories.of(node.group, "swap_total")))


def test_security_modules(node: Node, lsm: str, lsms: os.Peers[str], expect: Expect) -> None:
    """SELinux, AppArmor and others are on or off as on most nodes."""
    expect(os.security_modules(lsm, lsms.of(node.group)))


def test_kernel_settings(node: Node, settings: str, all_settings: os.Peers[str], expect: Expect) -> None:
    """Common sysctls are as on most nodes."""
    expect(os.kernel_settings(settings, all_settings.of(node.group)))


def test_limits(
    node: Node,
    soft_limits: dict[str, float],
    wanted_limits: dict[str, float],
    all_limits: dict[str, os.Peers[float | None]],
    expect: Expect,
) -> None:
    """The limits in a step are at least those of the cluster file, or of most nodes."""
    peers = {name: values.of(node.group) for name, values in all_limits.items()}
    expect(os.limits(soft_limits, wanted_limits, peers))


def test_mounts(mounts: dict[str, Mount], cluster: Cluster, expect: Expect) -> None:
    """Every file system of the cluster file is mounted as stated."""
    expect(os.mounts(mounts, cluster.section(OsConfig).mounts))


def test_root_writable(
    node: Node,
    mounts: dict[str, Mount],
    all_writable: dict[str, os.Peers[bool]],
    writes: dict[str, str],
    expect: Expect,
) -> None:
    """The root file system, /tmp and /dev/shm are not read-only, nor is what most nodes may write to."""
    most = {path: peers.of(node.group) for path, peers in all_writable.items()}
    expect(os.root_writable(mounts, most, writes))


def test_scratch(
    node: Node, mounts: dict[str, Mount], scratches: os.Peers[os.Scratch], memory: Memory, expect: Expect
) -> None:
    """Programs may run from /tmp and /dev/shm, which are as large as on most nodes."""
    tmp, shm = scratches.of(node.group, "tmp"), scratches.of(node.group, "shm")
    expect(os.scratch(os.Scratch.of(mounts), tmp, shm, memory.total))


def test_load(load: Load, cpus: Cpus, cluster: Cluster, expect: Expect) -> None:
    """An idle node has little load."""
    expect(os.load(load, cpus.online, cluster.section(OsConfig).max_load_per_cpu))


def test_taint(taint: int, expect: Expect) -> None:
    """The kernel has not marked itself as damaged since boot."""
    expect(os.taint(taint))


def test_user(node: Node, user: str, users: os.Peers[str], expect: Expect) -> None:
    """The user of the run has the same name, uid and groups as on most nodes."""
    expect(os.user(user, users.of(node.group)))


# here, since its question is not sent ahead: the nodes are at work on those that are
def test_shared_storage(node: Node, shared_folders: dict[str, SharedFolder], expect: Expect) -> None:
    """A file that one node wrote to shared storage is seen here."""
    expect(os.shared_storage(shared_folders, node.name))


@pytest.mark.judges_node
def test_responds(node: Node, fleet: Channel, answer: Answer, expect: Expect) -> None:
    """The node carries out a command; a node lost during the run fails here, with why."""
    expect(os.responds(answer, None if node.name in fleet.cut else fleet.lost.get(node.name)))


def test_time_sync(time_sync: TimeSync, expect: Expect) -> None:
    """The clock is synchronised by a time service."""
    expect(os.time_sync(time_sync))


def test_sysctls(sysctls: dict[str, str], cluster: Cluster, expect: Expect) -> None:
    """Every sysctl of the cluster file has its value."""
    expect(os.sysctls(sysctls, cluster.section(OsConfig).sysctls))


def test_mount_response(
    disks: dict[str, Disk],
    mounts: dict[str, Mount],
    answering: frozenset[str],
    cluster: Cluster,
    expect: Expect,
) -> None:
    """No file system hangs."""
    expect(os.mount_response(disks, mounts, os.disk_paths(cluster.section(OsConfig)), answering))


def test_free_space(
    disks: dict[str, Disk],
    mounts: dict[str, Mount],
    cluster: Cluster,
    writes: dict[str, str],
    expect: Expect,
) -> None:
    """There is free space on /, /tmp, /dev/shm and the stated mounts."""
    expect(os.free_space(disks, mounts, cluster.section(OsConfig), writes))


def test_inodes(disks: dict[str, Disk], expect: Expect) -> None:
    """There are free inodes on / and /tmp."""
    expect(os.inodes(disks))


def test_zombies(processes: Processes, cluster: Cluster, expect: Expect) -> None:
    """No zombie processes stay."""
    expect(os.zombies(processes, cluster.section(OsConfig).max_zombies))


def test_dstate(processes: Processes, expect: Expect) -> None:
    """No process is stuck in uninterruptible sleep."""
    expect(os.dstate(processes))


def test_kernel_log(kernel_log: KernelLog, stalls: Stalls, expect: Expect) -> None:
    """The kernel log holds no error of hardware, drivers or file systems."""
    expect(kernel_log_check.kernel_log(kernel_log, stalls))


def test_packages(packages: dict[str, str], cluster: Cluster, expect: Expect) -> None:
    """Every package of the cluster file is installed in its version."""
    expect(os.packages(packages, cluster.section(OsConfig).packages))


def test_services(services: dict[str, str], cluster: Cluster, expect: Expect) -> None:
    """Every service of the cluster file is active."""
    expect(os.services(services, cluster.section(OsConfig).services))


def test_failed_units(failed_units: tuple[str, ...], cluster: Cluster, expect: Expect) -> None:
    """No systemd unit has failed."""
    expect(os.failed_units(failed_units, cluster.section(OsConfig).services))


def test_systemd(
    node: Node, system_state: SystemState, system_states: os.Peers[SystemState], expect: Expect
) -> None:
    """Systemd answers."""
    expect(os.systemd(system_state, system_states.of(node.group, "answers")))


def test_drift(
    node: Node, said: dict[str, CommandOutput], all_said: dict[str, os.Peers[CommandOutput]], expect: Expect
) -> None:
    """Further commands of the cluster file say the same as on most nodes."""
    expect(os.drift(said, {command: peers.of(node.group) for command, peers in all_said.items()}))


def test_name_resolution(
    node: Node, addresses: dict[str, str], all_addresses: dict[str, Norm[str]], expect: Expect
) -> None:
    """The names of other nodes resolve as on most nodes."""
    expect(os.name_resolution(addresses, node.name, all_addresses))


def test_name_time(naming: Naming, usual_name_time: float, expect: Expect) -> None:
    """The node's own name and another one resolve without delay."""
    expect(os_network.name_time(naming, usual_name_time))


def test_reachable(
    node: Node,
    way: tuple[ReachabilityResult, ...],  # a node that cannot tell is not checked
    all_ways: os_network.Ways,
    expect: Expect,
) -> None:
    """The neighbours in the group are reached by name, and reach the node."""
    expect(os_network.reachable(node.name, all_ways))


def test_mtu(
    node: Node, network: Network, all_links: dict[str, os.Peers[Link | None]], expect: Expect
) -> None:
    """The MTU of each interface is that of most nodes."""
    peers = {name: links.of(node.group) for name, links in all_links.items()}
    expect(os_network.mtu(network, peers))


def test_addresses(
    node: Node, network: Network, owners: os_network.Owners, expect: Expect
) -> None:  # not checked without
    """No other node has an address of this one."""
    expect(os_network.addresses(node.name, owners))
