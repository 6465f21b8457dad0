"""Memory and processors of a node, and their settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Action, Advisory, Finding, Judgement, Metric, check
from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.core.majority import Norm, less
from pytest_gpucluster.core.units import cpu_list, format_size
from pytest_gpucluster.kit.node.peers import Peers, alike, stated_or_alike
from pytest_gpucluster.suites.os.facts import MemoryParts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.config.models import NodeProfile
    from pytest_gpucluster.suites.os.facts import Cpus, MemoryInfo

MEMORY_TOLERANCE = 0.05  # firmware and kernel reserve 1 to 3% of the installed memory
PAIR = 2  # nodes; of two that differ neither is known to be at fault
# one of 64 DIMMs is 1.6%; equal nodes differ by less than 1% (page_owner= takes 0.8%), small ones by less than 1 GiB
PEER_MEMORY_TOLERANCE = 0.01
PEER_MEMORY_BYTES = 1 << 30


@dataclass(frozen=True)
class Installed:
    """The memory of the processors in bytes, and {module that EDAC lists: its size}."""

    total: int
    dimms: Mapping[str, int]


def installed(memories: Peers[MemoryInfo], all_parts: Mapping[str, MemoryParts]) -> Peers[Installed]:
    """Return that of all nodes."""
    none = MemoryParts()
    parts = {node: all_parts.get(node, none) for node in memories.facts}
    return Peers(
        {
            node: Installed(parts[node].installed(memory.total), parts[node].dimms)
            for node, memory in memories.facts.items()
        }
    )


@check(
    "os.memory",
    cause="a DIMM failed or was mapped out by the firmware, or the node is of another kind",
    hint="dmidecode -t memory; ipmitool sel list; reseat or replace the DIMM",
    action=Action.CONFIGURE,
    never_healthy="two thirds of the group, with the same processors, have more memory on them, EDAC does not list as many modules "
    "as there, and neither slurm.conf nor a boot parameter limits the memory of this node on purpose",
)
def memory(
    memory: MemoryInfo,
    node_profile: NodeProfile,
    usual_memory: Norm[Any],
    smaller_in_slurm: bool = False,
    memory_parts: MemoryParts = MemoryParts(),  # noqa: B008 (it is frozen)
    usual_dimms: Norm[Any] = Norm(),  # noqa: B008
    cmdline: str = "",
) -> Judgement:
    """The memory of the processors is at least that of the profile less 5%, and of most nodes of the group less 1%.

    MemTotal without memory of GPUs (NUMA nodes without CPUs), with that of a crash kernel. usual_dimms: {module: size} that
    EDAC lists on most nodes; half of a missing one is a difference. smaller_in_slurm: slurm.conf states less memory for the
    node than for others of its group, so it is so on purpose.
    """
    total, stated = memory_parts.installed(memory.total), node_profile.memory
    yield Metric("memory_total", total / 2**30, "GiB")
    usual = usual_memory.value if usual_memory.total > PAIR else None
    expected = (usual_dimms.value if usual_dimms.total > PAIR else None) or {}
    gone = {
        name: size for name, size in expected.items() if memory_parts.dimms and name not in memory_parts.dimms
    }
    slack = max(PEER_MEMORY_TOLERANCE * (usual or 0), PEER_MEMORY_BYTES)
    slack = min(slack, sum(gone.values()) / 2) if gone else slack
    complete = bool(expected and memory_parts.dimms and not gone)
    limited = complete or smaller_in_slurm or re.search(r"(^| )mem(map)?=", cmdline)  # on purpose
    lost = usual is not None and usual - total > slack and not limited
    action = Action.VENDOR if lost else None
    without = f" without {', '.join(sorted(gone))}" if gone else ""
    measured = f"{format_size(total)}{without}"
    if stated is not None and total < (1 - MEMORY_TOLERANCE) * stated:
        yield Finding("memory", measured, f"{format_size(stated)} within 5%", action)
        return
    if stated is not None and total > (1 + MEMORY_TOLERANCE) * stated:
        yield Advisory("memory", measured, f"{format_size(stated)} within 5%")
    elif stated is None and usual_memory.absent:
        yield NotApplicable("the profile states no memory, and there is no other node to compare with")
    yield from usual_memory.judge(
        "memory",
        total,
        measured=measured,
        shown=format_size,
        worse=lambda mine, theirs: theirs - mine > slack,
        action=action,
    )


@check(
    "os.cpus",
    cause="CPUs were taken offline, or a socket is missing",
    hint="lscpu; cat /sys/devices/system/cpu/offline /sys/devices/system/cpu/smt/control; chcpu -e with their numbers",
    action=Action.CONFIGURE,
)
def cpus(cpus: Cpus, stated_cpus: int | None, usual_cpus: Norm[Any]) -> Judgement:
    """All cores are online, compared with the profile, or the other nodes, or those that lscpu lists; SMT may be off."""
    yield Metric("cpus_online", cpus.online, "CPUs")
    off = f" (offline: {cpus.offline})" if cpus.offline else ""
    measured = f"{cpus.online} online{off}"
    usual = usual_cpus.value if not usual_cpus.absent else None
    whole = stated_cpus or usual or cpus.online + len(cpu_list(cpus.offline))
    if cpus.threads_per_core == "1" and 2 * cpus.online == whole:
        yield Advisory("CPUs", f"{measured}: one thread per core (SMT is off)", str(whole))
    elif stated_cpus is None and cpus.offline and usual is None:
        yield Finding("CPUs", measured, "no CPU offline")
    elif stated_cpus is None:
        yield from usual_cpus.judge("CPUs", cpus.online, worse=less, measured=measured)
    elif cpus.online < stated_cpus:
        yield Finding("CPUs", measured, str(stated_cpus))
    elif cpus.online > stated_cpus:
        yield Advisory("CPUs", measured, str(stated_cpus))


@check(
    "os.cpu_model",
    cause="the node has other processors than the rest of its group",
    hint="lscpu; move the node to a group of its own in the cluster file",
    action=Action.CONFIGURE,
)
def cpu_model(cpus: Cpus, usual_cpu_model: Norm[Any]) -> Judgement:
    """The processor model is as on the other nodes."""
    yield from alike("CPU model", cpus.model, usual_cpu_model)


@check(
    "os.numa",
    cause="the firmware's NUMA setting (NPS, SNC, node interleaving) differs, or a socket is missing",
    hint="numactl --hardware; compare the firmware settings",
    action=Action.CONFIGURE,
)
def numa(cpus: Cpus, stated_numa: int | None, usual_numa: Norm[Any]) -> Judgement:
    """The number of NUMA nodes is as the profile states; that of those with CPUs as the profile states, or on the other nodes."""
    if stated_numa != cpus.numa_nodes:
        yield from stated_or_alike("NUMA nodes", cpus.cpu_nodes, stated_numa, usual_numa)


@check(
    "os.governor",
    cause="a CPU frequency governor that saves power slows down launches and collectives",
    hint="cpupower frequency-set -g performance; tuned-adm profile throughput-performance",
    action=Action.CONFIGURE,
    setting="os.governor",
)
def governor(
    governors: Mapping[str, int], stated_governor: str | None, usual_governors: Norm[Any]
) -> Judgement:
    """The frequency governor of every CPU is as stated; as many have `performance` as on the other nodes."""
    measured = ", ".join(f"{name} on {count} CPUs" for name, count in sorted(governors.items()))
    if stated_governor is not None:
        if set(governors) != {stated_governor}:
            yield Finding("governor", measured or "no frequency scaling", f"{stated_governor} on all CPUs")
    elif not governors and not any(value for value, _ in usual_governors.votes):
        raise NotApplicable("the kernel offers no CPU frequency scaling here")
    else:
        same = set(governors) == set(usual_governors.value or ())  # with fewer CPUs, as without SMT
        yield from alike(
            "governor",
            dict(governors),
            usual_governors,
            worse=lambda mine, theirs: _fast_share(mine) < _fast_share(theirs),
            harmless="" if same else "no CPU is slower",
        )


def _fast_share(governors: Mapping[str, int]) -> float:
    """Return the share of the CPUs whose governor saves no power."""
    return governors.get("performance", 0) / max(sum(governors.values()), 1)


@check(
    "os.hugepages",
    cause="huge pages were reserved on some nodes only, or the memory was too fragmented to reserve them",
    hint="grep Huge /proc/meminfo; sysctl vm.nr_hugepages; reserve them at boot (hugepages= of the kernel)",
    action=Action.CONFIGURE,
    setting="os.hugepages",
)
def hugepages(memory: MemoryInfo, stated_hugepages: int | None, usual_hugepages: Norm[Any]) -> Judgement:
    """HugePages_Total is as stated, or at least as on the other nodes."""
    yield from stated_or_alike(
        "HugePages_Total",
        memory.hugepages,
        stated_hugepages,
        usual_hugepages,
        worse=less,
        harmless="reserved from the memory of jobs",
    )


@check(
    "os.transparent_hugepages",
    cause="the setting was changed on this node only",
    hint="cat /sys/kernel/mm/transparent_hugepage/enabled; set it in the image or on the kernel command line",
    action=Action.CONFIGURE,
)
def transparent_hugepages(thp: str, usual_thp: Norm[Any]) -> Judgement:
    """The mode of transparent huge pages is as on the other nodes."""
    yield from alike("transparent huge pages", thp, usual_thp)


@check(
    "os.swap",
    cause="swap was switched on or off on this node only",
    hint="swapon --show; swapoff -a; check /etc/fstab and systemctl list-units '*.swap'",
    action=Action.CONFIGURE,
)
def swap(memory: MemoryInfo, usual_swap: Norm[Any]) -> Judgement:
    """The node has swap space if the other nodes have it."""
    yield Metric("swap_used", (memory.swap_total - memory.swap_free) / 2**20, "MiB")
    yield from alike(
        "swap", memory.swap_total, usual_swap, worse=lambda mine, theirs: bool(mine) != bool(theirs)
    )
