"""Whether the GPUs of a group are those of its profile, and which shipped profiles fit them.

GPUs of a group whose profile states none contradict it too: else they would be accepted without a look at them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pytest_gpucluster.config.profile_files import MEMORY_TOLERANCE, fitting_profiles
from pytest_gpucluster.core.check import Action, Finding, Verdict, conclude
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.probe import Probe
from pytest_gpucluster.core.text import count, listed
from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.kit.gpu.nvidia_smi import GPUS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.config.models import Group
    from pytest_gpucluster.kit.gpu.nvidia_smi import Gpu, Gpus
    from pytest_gpucluster.run.session import ClusterSession

CHECK = "run.profile"
T = TypeVar("T")


# class 0302 of a PCI function is a 3D controller, vendor 10de NVIDIA (pci.ids)
PCI: Probe[int] = Probe(
    "GPUs on the PCI bus",
    "for f in /sys/bus/pci/devices/*; do [ -r $f/class ] && read -r c <$f/class && read -r v <$f/vendor || continue; "
    "case $c$v in 0x0302*0x10de) echo ${f##*/} ;; esac; done; :",
    lambda answer: len(answer.out.split()),
    by_hand="lspci -d 10de::0302",
)


@dataclass(frozen=True)
class ProfileMismatch:
    """A profile that the GPUs of its group do not fit. `found` and `stated` are texts like '8 NVIDIA H200 of 143771 MiB'."""

    nodes: str
    profile: str
    found: str
    stated: str
    fitting: tuple[str, ...]

    @property
    def reason(self) -> str:
        """Why nothing of the group is judged against the profile."""
        return f"the nodes {self.nodes} have {self.found}, profile {self.profile} states {self.stated}: see {CHECK}"

    def verdict(self) -> Verdict:
        """Return the failure of the cluster."""
        stated = f"{self.stated} (profile {self.profile})"
        choice = " or ".join((*self.fitting, "one that extends generic and states these GPUs"))
        return conclude(
            CHECK,
            [Finding(Part("node", name=self.nodes), self.found, stated, code="wrong_profile")],
            cause=f"the cluster file gives {self.nodes} the profile of other hardware: no node is at fault",
            hint=f"nvidia-smi -L on a node; in the cluster file, `profile:` of the group {self.nodes}: {choice}",
            action=Action.CONFIGURE,
        )


def contradictions(session: ClusterSession) -> dict[str, ProfileMismatch]:
    """Return {nodes of a group: how all its GPUs contradict its profile}; the GPUs are read from all nodes at once."""
    found = {}
    answering = session.need_channel().nodes
    for group in session.cluster.groups:
        nodes = [node for node in group.names if node in answering]
        fleet = {node: gpus for node in nodes if (gpus := _read(session, node, GPUS)) is not None}
        counted = {
            node: info.gpus
            for node in nodes
            if (info := session.inventory.get(node)) is not None and not (group.profile.gpu and info.allocates_mig)
        }
        if group.profile.gpu is not None:
            one = contradiction(group, fleet, counted)
        else:
            known = any(counted.values())  # then the bus says no more
            slots = {} if known else {node: _read(session, node, PCI) or 0 for node in nodes}
            one = unstated(group, fleet, counted, slots)
        if one is not None:
            found[group.nodes] = one
    return found


def _read(session: ClusterSession, node: str, probe: Probe[T]) -> T | None:
    try:
        return session.facts(node, probe)
    except GpuClusterError:
        return None  # its own items report it


def unstated(
    group: Group, fleet: Mapping[str, Gpus], counted: Mapping[str, int], slots: Mapping[str, int]
) -> ProfileMismatch | None:
    """Return the GPUs of a group whose profile states none: what nvidia-smi shows, else Slurm's or PCI's number of them."""
    shown = _present(fleet)
    if any(shown.values()):
        return _contradiction(group, shown, "no GPUs")
    for numbers, source in ((counted, "in Slurm's Gres"), (slots, "on the PCI bus, which nvidia-smi does not show")):
        if most := max(numbers.values(), default=0):
            found = f"{count(most, 'GPU')} {source}"
            return ProfileMismatch(group.nodes, group.profile.name, found, "no GPUs", ())
    return None


def contradiction(group: Group, fleet: Mapping[str, Gpus], counted: Mapping[str, int]) -> ProfileMismatch | None:
    """Return how all GPUs of a group contradict its profile; None where one GPU fits, or none can be read.

    `fleet`: {node of the group: its GPUs}. `counted`: {node: GPUs in Slurm's gres}. Each GPU has another name; or there are
    several, all with other memory; or each node has another number of GPUs, the one that Slurm has too. A single GPU
    with less memory, or fewer GPUs than Slurm has, may be a fault.
    """
    profile = group.profile.gpu
    present = _present(fleet)
    gpus = [gpu for of_node in present.values() for gpu in of_node]
    if profile is None or not gpus:
        return None
    names = all(gpu.name != profile.name for gpu in gpus)
    memory = profile.memory is not None and len(gpus) > 1 and not any(_has(gpu, profile.memory) for gpu in gpus)
    number = all(len(of_node) == counted.get(node) != profile.count for node, of_node in present.items() if of_node)
    if not (names or memory or number):
        return None
    return _contradiction(group, present, _text(profile.count, profile.name, profile.memory))


def _present(fleet: Mapping[str, Gpus]) -> dict[str, list[Gpu]]:
    return {node: [gpu for gpu in gpus if gpu.name and not gpu.lost] for node, gpus in fleet.items()}


def _contradiction(group: Group, present: Mapping[str, list[Gpu]], stated: str) -> ProfileMismatch:
    found = Counter((len(of_node), of_node[0].name or "", of_node[0].memory) for of_node in present.values() if of_node)
    (number, name, size), *others = [hardware for hardware, _ in found.most_common()]
    return ProfileMismatch(
        nodes=group.nodes,
        profile=group.profile.name,
        found=listed(_text(*hardware) for hardware in ((number, name, size), *others)),
        stated=stated,
        fitting=() if others else fitting_profiles(name, number, size, simulated=group.profile.simulated),
    )


def _has(gpu: Gpu, memory: int) -> bool:
    return gpu.memory is None or abs(gpu.memory - memory) <= MEMORY_TOLERANCE * memory


def _text(count: int, name: str, memory: int | None) -> str:
    return f"{count} {name}" + (f" of {format_size(memory)}" if memory else "")
