"""Memory and processors of a node, and their settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Action, Finding, Judgement, Metric, NotApplicable, check
from pytest_gpucluster.core.majority import differs
from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.suites.os.peers import alike, stated_or_alike

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.config.models import NodeProfile
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.suites.os.facts import Cpus, MemoryInfo

MEMORY_TOLERANCE = 0.05  # firmware and kernel reserve 1 to 3% of the installed memory
PAIR = 2  # nodes; of two that differ neither is known to be at fault
PEER_MEMORY_TOLERANCE = 0.02  # one of 32 DIMMs is 3%; equal nodes differ by less than 1%


@check(
    "os.memory",
    cause="a DIMM failed or was mapped out by the firmware, or the node is of another kind",
    hint="dmidecode -t memory; ipmitool sel list; reseat or replace the DIMM",
    action=Action.CONFIGURE,
    never_healthy="two thirds of the group, with the same processors, have more memory, and slurm.conf states no less memory for "
    "this node than for them: a node that is smaller on purpose is described as such in one of both",
)
def memory(
    memory: MemoryInfo, node_profile: NodeProfile, usual_memory: Norm[Any], smaller_in_slurm: bool = False
) -> Judgement:
    """MemTotal is within 5% of the profile, and within 2% of most nodes of the group.

    smaller_in_slurm: slurm.conf states less memory for the node than for others of its group, so it is so on purpose.
    """
    yield Metric("memory_total", memory.total / 2**30, "GiB")
    total, stated = memory.total, node_profile.memory
    usual = usual_memory.value if usual_memory.total > PAIR else None
    lost = usual is not None and total < (1 - PEER_MEMORY_TOLERANCE) * usual and not smaller_in_slurm
    action = Action.VENDOR if lost else None
    if stated is not None and abs(total - stated) > MEMORY_TOLERANCE * stated:
        yield Finding("memory", format_size(total), f"{format_size(stated)} within 5%", action)
    else:
        if stated is None and usual_memory.absent:
            yield NotApplicable("the profile states no memory, and there is no other node to compare with")
        for found in usual_memory.judge("memory", total, shown=format_size, worse=_other_memory):
            yield replace(found, action=found.action or action) if isinstance(found, Finding) else found


def _other_memory(mine: int, theirs: int) -> bool:
    return abs(mine - theirs) > PEER_MEMORY_TOLERANCE * theirs


@check(
    "os.cpus",
    cause="CPUs were taken offline, hyper-threading differs, or a socket is missing",
    hint="lscpu; cat /sys/devices/system/cpu/offline; chcpu -e with their numbers; check SMT in the firmware",
    action=Action.CONFIGURE,
)
def cpus(cpus: Cpus, stated_cpus: int | None, usual_cpus: Norm[Any]) -> Judgement:
    """As many CPUs are online as the profile states, or as on the other nodes; without other nodes, all are."""
    yield Metric("cpus_online", cpus.online, "CPUs")
    off = f" (offline: {cpus.offline})" if cpus.offline else ""
    measured = f"{cpus.online} online{off}"
    if stated_cpus is None and cpus.offline and not (usual_cpus.clear and not usual_cpus.absent):
        yield Finding("CPUs", measured, "no CPU offline")
    elif stated_cpus is None:
        yield from usual_cpus.judge("CPUs", cpus.online, worse=differs, measured=measured)
    elif cpus.online != stated_cpus:
        yield Finding("CPUs", measured, str(stated_cpus))


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
    """The number of NUMA nodes is as the profile states, or as on the other nodes."""
    yield from stated_or_alike("NUMA nodes", cpus.numa_nodes, stated_numa, usual_numa)


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
    """The frequency governor of every CPU is as stated, or as on the other nodes."""
    measured = ", ".join(f"{name} on {count} CPUs" for name, count in sorted(governors.items()))
    if stated_governor is not None:
        if set(governors) != {stated_governor}:
            yield Finding("governor", measured or "no frequency scaling", f"{stated_governor} on all CPUs")
    elif not governors and not any(value for value, _ in usual_governors.votes):
        yield NotApplicable("the kernel offers no CPU frequency scaling here")
    else:
        yield from alike("governor", dict(governors), usual_governors)


@check(
    "os.hugepages",
    cause="huge pages were reserved on some nodes only, or the memory was too fragmented to reserve them",
    hint="grep Huge /proc/meminfo; sysctl vm.nr_hugepages; reserve them at boot (hugepages= of the kernel)",
    action=Action.CONFIGURE,
    setting="os.hugepages",
)
def hugepages(memory: MemoryInfo, stated_hugepages: int | None, usual_hugepages: Norm[Any]) -> Judgement:
    """HugePages_Total is as stated, or as on the other nodes."""
    yield from stated_or_alike("HugePages_Total", memory.hugepages, stated_hugepages, usual_hugepages)


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
    """The size of the swap space is as on the other nodes."""
    yield Metric("swap_used", (memory.swap_total - memory.swap_free) / 2**20, "MiB")
    yield from alike("swap", memory.swap_total, usual_swap)
