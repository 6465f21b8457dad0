"""The texts of the sandbox's Slurm configuration. Pure.

Several slurmds run on this host, as Debian's and Ubuntu's builds allow, with separate names, ports and spool folders.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_sandbox import hostlist
from slurm_sandbox.hardware import NODES_PER_LEAF

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from slurm_sandbox.layout import Layout

CONTROLLER_PORT, NODE_PORT, DBD_PORT = 6817, 6818, 6819  # Slurm's own defaults
BACKUP_HOST, BACKUP_ADDRESS = "sandbox-backup", "127.0.0.2"


@dataclass(frozen=True)
class Partition:
    """A partition of all nodes, and the limits of its jobs."""

    name: str
    max_minutes: int
    default_minutes: int
    max_nodes: int | None = None


PARTITION = Partition("batch", max_minutes=7 * 24 * 60, default_minutes=60)
SMALL_PARTITION = Partition("debug", max_minutes=30, default_minutes=5, max_nodes=2)


@dataclass(frozen=True)
class NodeResources:
    """The nodes as configured in Slurm. `memory` in MiB. `simulated`: their tools show a model; a feature of the nodes says so."""

    nodes: tuple[str, ...]
    gpus_per_node: int
    gpu_type: str
    cpus: int
    sockets: int
    memory: int
    simulated: bool = False


SIMULATED = "simulated_hardware"  # software under test can see that no figure is real
_NOT_ISOLATED = {"ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none", "SelectTypeParameters": "CR_Core"}
_NO_ACCOUNTING = "JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n"


@dataclass(frozen=True)
class DaemonAddresses:
    """Addresses and ports of the daemons, the temporary folder of a node's tasks, the lines of accounting and backup."""

    controller: str
    controller_port: int
    nodes: str
    communication: str
    tmp: str
    accounting: str = _NO_ACCOUNTING
    backup: str = ""


def shared_host(layout: Layout, nodes: Sequence[str], host: str, first_port: int) -> DaemonAddresses:
    """Return the addresses of nodes on 127.0.0.1: slurmctld has `first_port`, the nodes have the next ones."""
    ports = f"[{first_port + 1}-{first_port + len(nodes)}]" if len(nodes) > 1 else first_port + 1
    return DaemonAddresses(
        controller=f"{host}(127.0.0.1)",
        controller_port=first_port,
        nodes=f"NodeHostname={host} NodeAddr=127.0.0.1 Port={ports}",
        communication="CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n",
        tmp=str(layout.root / "tmp" / "%n"),  # the folder that PMIx creates there has no node in its name
    )


def own_hosts(host: str, controller: str, addresses: Sequence[str]) -> DaemonAddresses:
    """Return the addresses of namespaced nodes, in the sandbox's own network."""
    return DaemonAddresses(
        controller=f"{host}({controller})",
        controller_port=CONTROLLER_PORT,
        nodes=f"NodeAddr={','.join(addresses)} Port={NODE_PORT}",
        communication="",
        tmp="/tmp",  # each node has its own
    )


def slurm_conf(
    layout: Layout,
    resources: NodeResources,
    addresses: DaemonAddresses,
    *,
    user: str,
    task_prolog: bool,
    isolation: Mapping[str, str] | None = None,
) -> str:
    """Return slurm.conf. `task_prolog`: run the TaskProlog, since no plugin prepares the tasks.

    `isolation`: keys that replace those of jobs that are not isolated.
    """
    settings = "".join(f"{key}={value}\n" for key, value in (isolation or _NOT_ISOLATED).items())
    prolog_line = f"TaskProlog={layout.etc}/task_prolog\n" if task_prolog else ""
    names = hostlist.fold(resources.nodes)
    feature = f" Feature={SIMULATED}" if resources.simulated else ""
    gres = f" Gres=gpu:{resources.gpu_type}:{resources.gpus_per_node}" if resources.gpus_per_node else ""
    return f"""\
ClusterName=sandbox
SlurmctldHost={addresses.controller}
{addresses.backup}SlurmctldPort={addresses.controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
{addresses.communication}StateSaveLocation={layout.root}/ctld
SlurmctldPidFile={layout.pid_file("slurmctld")}
SlurmctldLogFile={layout.log_file("slurmctld")}
SlurmdSpoolDir={layout.root}/spool/%n
SlurmdPidFile={layout.pid_file("slurmd-%n")}
SlurmdLogFile={layout.log_file("slurmd-%n")}
TmpFS={addresses.tmp}
SlurmdParameters=config_overrides
{settings}{addresses.accounting}SelectType=select/cons_tres
GresTypes=gpu
TopologyPlugin=topology/tree
MpiDefault=none
JobRequeue=1
ReturnToService=2
EnforcePartLimits=ALL
KillWait=2
SlurmdTimeout={max(10, len(resources.nodes) // 4)}
InactiveLimit=0
# short intervals: a sandbox is small and its user waits
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=10000
Prolog={layout.etc}/prolog
Epilog={layout.etc}/epilog
{prolog_line}NodeName={names} {addresses.nodes} CPUs={resources.cpus} \
Sockets={resources.sockets} CoresPerSocket={resources.cpus // resources.sockets} ThreadsPerCore=1 \
RealMemory={resources.memory}{gres}{feature} State=UNKNOWN
{_partition(PARTITION, " Default=YES")}\
{_partition(SMALL_PARTITION)}\
"""


def _partition(partition: Partition, default: str = "") -> str:
    most = f" MaxNodes={partition.max_nodes}" if partition.max_nodes else ""
    return (
        f"PartitionName={partition.name} Nodes=ALL{default} MaxTime={partition.max_minutes} "
        f"DefaultTime={partition.default_minutes}{most} State=UP\n"
    )


def gres_conf(resources: NodeResources, devices: Sequence[Path]) -> str:
    """Return gres.conf: node i has devices i*G .. i*G+G-1; all share the first G if there are no more."""
    count = resources.gpus_per_node
    if not count:
        return ""
    shared = len(devices) < count * len(resources.nodes)
    lines = []
    for number, node in enumerate(resources.nodes):
        first = 0 if shared else number * count
        files = f"[{first}-{first + count - 1}]" if count > 1 else str(first)
        stem = str(devices[0]).removesuffix("0")
        lines.append(f"NodeName={node} Name=gpu Type={resources.gpu_type} File={stem}{files}\n")
    return "".join(lines)


def topology_conf(nodes: Sequence[str]) -> str:
    """Return topology.conf: leaf switches of 16 nodes under one spine."""
    leaves = {
        f"leaf{number + 1:02}": hostlist.fold(nodes[first : first + NODES_PER_LEAF])
        for number, first in enumerate(range(0, len(nodes), NODES_PER_LEAF))
    }
    lines = [f"SwitchName={leaf} Nodes={members}" for leaf, members in leaves.items()]
    return "\n".join([*lines, f"SwitchName=spine Switches={hostlist.fold(leaves)}", ""])


def cgroup_conf(version: tuple[int, int]) -> str:
    """Return cgroup.conf: without cgroups, so that slurmd starts where systemd has no bus."""
    return "CgroupPlugin=disabled\n" if version >= (24, 5) else "CgroupPlugin=cgroup/v1\n"


def parse_version(text: str) -> tuple[int, int]:
    """Return (22, 5) for 'slurm-wlm 22.05.8'; (0, 0) for a text without a version."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)
