"""Memory and processors of a node."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Action, Advisory, Finding, Judgement, Metric, check
from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.majority import Norm, less
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.units import cpu_list, format_size
from pytest_gpucluster.kit.node.peers import Peers
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
    yield Metric("swap_used", (memory.swap_total - memory.swap_free) / 2**20, "MiB")
    usual = usual_memory.value if usual_memory.total > PAIR else None
    expected = (usual_dimms.value if usual_dimms.total > PAIR else None) or {}
    gone = {name: size for name, size in expected.items() if memory_parts.dimms and name not in memory_parts.dimms}
    slack = max(PEER_MEMORY_TOLERANCE * (usual or 0), PEER_MEMORY_BYTES)
    slack = min(slack, sum(gone.values()) / 2) if gone else slack
    complete = bool(expected and memory_parts.dimms and not gone)
    limited = complete or smaller_in_slurm or re.search(r"(^| )mem(map)?=", cmdline)  # on purpose
    lost = usual is not None and usual - total > slack and not limited
    action = Action.VENDOR if lost else None
    without = f" without {', '.join(sorted(gone))}" if gone else ""
    measured = Quantity(total, "B", f"{format_size(total)}{without}")
    bound = Quantity(stated or 0, "B", f"{format_size(stated or 0)} within 5%")
    if stated is not None and total < (1 - MEMORY_TOLERANCE) * stated:
        yield Finding(Part("memory"), measured, bound, action, code="less_than_stated")
        return
    if stated is not None and total > (1 + MEMORY_TOLERANCE) * stated:
        yield Advisory(Part("memory"), measured, bound, code="more_than_stated")
    elif stated is None and usual_memory.absent:
        yield NotApplicable("the profile states no memory, and there is no other node to compare with")
    yield from usual_memory.judge(
        Part("memory"),
        total,
        measured=measured.text,
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
    text = f"{cpus.online} online{off}"
    part, measured = Part("cpu"), Quantity(cpus.online, "CPUs", text)
    usual = usual_cpus.value if not usual_cpus.absent else None
    whole = stated_cpus or usual or cpus.online + len(cpu_list(cpus.offline))
    if cpus.threads_per_core == "1" and 2 * cpus.online == whole:
        measured = replace(measured, text=f"{text}: one thread per core (SMT is off)")
        yield Advisory(part, measured, Quantity(whole, "CPUs"), code="smt_off")
    elif stated_cpus is None and cpus.offline and usual is None:
        yield Finding(part, measured, "no CPU offline", code="offline")
    elif stated_cpus is None:
        yield from usual_cpus.judge(part, cpus.online, worse=less, measured=text)
    elif cpus.online != stated_cpus:
        fewer = cpus.online < stated_cpus
        deviation, code = (Finding, "fewer_than_stated") if fewer else (Advisory, "more_than_stated")
        yield deviation(part, measured, Quantity(stated_cpus, "CPUs"), code=code)
