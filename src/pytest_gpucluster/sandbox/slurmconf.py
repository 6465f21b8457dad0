"""The configuration of the sandbox's Slurm: text only, nothing here runs or writes anything.

Several slurmds share this host, as Debian's and Ubuntu's builds allow: each has its own name, port and spool folder.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_gpucluster.sandbox.layout import Layout

NODES_A_LEAF = 16
PARTITION, SMALL_PARTITION = "batch", "debug"
SMALL_MAX_NODES, SMALL_MAX_MINUTES = 2, 30
DEFAULT_MINUTES, MAX_MINUTES = 60, 7 * 24 * 60
CONTROLLER_PORT, NODE_PORT, DBD_PORT = 6817, 6818, 6819  # Slurm's own defaults


@dataclass(frozen=True)
class NodeResources:
    """What Slurm is told of the nodes. `memory` is in MiB."""

    nodes: tuple[str, ...]
    gpus_per_node: int
    gpu_type: str
    cpus: int
    sockets: int
    memory: int


_NO_ACCOUNTING = "JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n"


@dataclass(frozen=True)
class DaemonAddresses:
    """Where the daemons listen: addresses and ports; a /tmp for what tasks of one node share; accounting's lines."""

    controller: str
    controller_port: int
    nodes: str
    communication: str
    tmp: str
    accounting: str = _NO_ACCOUNTING


def shared_host(layout: Layout, nodes: Sequence[str], host: str, first_port: int) -> DaemonAddresses:
    """All on 127.0.0.1: slurmctld has `first_port`, the nodes those that follow."""
    ports = f"[{first_port + 1}-{first_port + len(nodes)}]" if len(nodes) > 1 else first_port + 1
    return DaemonAddresses(
        controller=f"{host}(127.0.0.1)",
        controller_port=first_port,
        nodes=f"NodeHostname={host} NodeAddr=127.0.0.1 Port={ports}",
        communication="CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n",
        tmp=str(layout.root / "tmp" / "%n"),  # PMIx makes a folder there without the node's name in its own
    )


def own_hosts(host: str, controller: str, addresses: Sequence[str]) -> DaemonAddresses:
    """Each node has an address of its own, in a network that is the sandbox's alone."""
    return DaemonAddresses(
        controller=f"{host}({controller})",
        controller_port=CONTROLLER_PORT,
        nodes=f"NodeAddr={','.join(addresses)} Port={NODE_PORT}",
        communication="",
        tmp="/tmp",  # each node has its own
    )


def slurm_conf(
    layout: Layout, shape: NodeResources, wiring: DaemonAddresses, *, user: str, task_prolog: bool
) -> str:
    """Return slurm.conf. `task_prolog`: no plugin prepares the tasks."""
    prepared = f"TaskProlog={layout.etc}/task_prolog\n" if task_prolog else ""
    names = hostlist.fold(shape.nodes)
    gres = f" Gres=gpu:{shape.gpu_type}:{shape.gpus_per_node}" if shape.gpus_per_node else ""
    return f"""\
ClusterName=sandbox
SlurmctldHost={wiring.controller}
SlurmctldPort={wiring.controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
{wiring.communication}StateSaveLocation={layout.root}/ctld
SlurmctldPidFile={layout.pid_file("slurmctld")}
SlurmctldLogFile={layout.log_file("slurmctld")}
SlurmdSpoolDir={layout.root}/spool/%n
SlurmdPidFile={layout.pid_file("slurmd-%n")}
SlurmdLogFile={layout.log_file("slurmd-%n")}
TmpFS={wiring.tmp}
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
{wiring.accounting}SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
TopologyPlugin=topology/tree
MpiDefault=none
JobRequeue=1
ReturnToService=2
EnforcePartLimits=ALL
MinJobAge=30
KillWait=2
SlurmdTimeout={max(10, len(shape.nodes) // 4)}
InactiveLimit=0
# a sandbox is small and its user waits: look for work at once
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=10000
Prolog={layout.etc}/prolog
Epilog={layout.etc}/epilog
{prepared}NodeName={names} {wiring.nodes} CPUs={shape.cpus} \
Sockets={shape.sockets} CoresPerSocket={shape.cpus // shape.sockets} ThreadsPerCore=1 \
RealMemory={shape.memory}{gres} State=UNKNOWN
PartitionName={PARTITION} Nodes=ALL Default=YES MaxTime={MAX_MINUTES} DefaultTime={DEFAULT_MINUTES} State=UP
PartitionName={SMALL_PARTITION} Nodes=ALL MaxTime={SMALL_MAX_MINUTES} DefaultTime=5 \
MaxNodes={SMALL_MAX_NODES} State=UP
"""


def gres_conf(shape: NodeResources, devices: Sequence[Path]) -> str:
    """Return gres.conf: node i has devices i*G .. i*G+G-1, or all share the first G where there are no more."""
    count = shape.gpus_per_node
    if not count:
        return ""
    shared = len(devices) < count * len(shape.nodes)
    lines = []
    for number, node in enumerate(shape.nodes):
        first = 0 if shared else number * count
        files = f"[{first}-{first + count - 1}]" if count > 1 else str(first)
        stem = str(devices[0]).removesuffix("0")
        lines.append(f"NodeName={node} Name=gpu Type={shape.gpu_type} File={stem}{files}\n")
    return "".join(lines)


def topology_conf(nodes: Sequence[str]) -> str:
    """Return topology.conf: leaf switches of 16 nodes under one spine."""
    leaves = {
        f"leaf{number + 1:02}": hostlist.fold(nodes[first : first + NODES_A_LEAF])
        for number, first in enumerate(range(0, len(nodes), NODES_A_LEAF))
    }
    lines = [f"SwitchName={leaf} Nodes={members}" for leaf, members in leaves.items()]
    return "\n".join([*lines, f"SwitchName=spine Switches={hostlist.fold(leaves)}", ""])


def cgroup_conf(version: tuple[int, int]) -> str:
    """Return cgroup.conf: no cgroup feature is used, and none must stop slurmd where systemd has no bus."""
    return "CgroupPlugin=disabled\n" if version >= (24, 5) else "CgroupPlugin=cgroup/v1\n"


def parse_version(text: str) -> tuple[int, int]:
    """Return (22, 5) for 'slurm-wlm 22.05.8'; (0, 0) where there is none."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def prolog(layout: Layout) -> str:
    """Return the Prolog: it leaves a mark, or fails where the fault `prolog_failing` is in."""
    return f"""\
#!/bin/sh
node={_q(layout.nodes)}/$SLURMD_NODENAME
: > "$node/prolog.$SLURM_JOB_ID"
[ ! -e "$node/fault.prolog" ] || {{ echo "prolog of the sandbox: told to fail" >&2; exit 1; }}
exit 0
"""


def epilog(layout: Layout) -> str:
    """Return the Epilog: it leaves a mark, takes the prolog's away, and the containers of scope `job`.

    It does not end while the fault `epilog_hanging` is in, and fails where `epilog_failing` is.
    """
    return f"""\
#!/bin/sh
node={_q(layout.nodes)}/$SLURMD_NODENAME
: > "$node/epilog"
rm -f "$node/prolog.$SLURM_JOB_ID"
while [ -e "$node/fault.epilog" ]; do sleep 0.5; done
for container in "$node/enroot/pyxis_${{SLURM_JOB_ID}}_"*; do
  [ ! -d "$container" ] || {_q(layout.enroot / "enroot")} remove -f "${{container##*/}}"
done
# another user's: rm follows no link that may lie there
others=$node/enroot/.of-$SLURM_JOB_UID
[ ! -d "$others" ] || rm -rf "$others/pyxis_${{SLURM_JOB_ID}}_"*
[ ! -e "$node/fault.epilog_failing" ] || {{ echo "epilog of the sandbox: told to fail" >&2; exit 1; }}
exit 0
"""


def task_prolog(layout: Layout, *, real_gpus: bool) -> str:
    """Return the TaskProlog: simulated tools first on PATH; real GPUs counted from the node's first one."""
    offset = (
        """
if [ -n "$CUDA_VISIBLE_DEVICES" ] && read -r first < "$node/gpu.offset"; then
  # Slurm counts each node's GPUs from 0; nodes that share one host need their own slice of its GPUs
  list=
  IFS=,
  for device in $CUDA_VISIBLE_DEVICES; do list=$list${list:+,}$((device + first)); done
  echo "export CUDA_VISIBLE_DEVICES=$list"
fi
"""
        if real_gpus
        else ""
    )
    return f"""\
#!/bin/sh
# Slurm runs it inside of a step's container, whose PATH is the image's own
[ -d {_q(layout.simbin)} ] || exit 0
node={_q(layout.nodes)}/$SLURMD_NODENAME
echo "export PATH={layout.simbin}:$PATH"
echo "export GPUCLUSTER_SANDBOX_NODE=$node"
store=$node/enroot
[ ! -d "$store" ] || [ -O "$store" ] || store=$store/.of-$(id -u)
echo "export ENROOT_DATA_PATH=$store"
{offset}[ ! -e "$node/fault.hang" ] || exec sleep 86400
exit 0
"""


def _q(path: Path) -> str:
    return shlex.quote(str(path))
