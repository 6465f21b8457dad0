"""Which ports carry the traffic of which GPUs, and what the other ports of a node are. Pure.

A rail is a port that the profile names, else one behind the PCIe switch of a GPU (the same root port: PIX or PXB in
`nvidia-smi topo -m`), on the board of the profile's link layer and rate that serves most GPUs: a card for storage may share a
GPU's switch. Without such a switch (guests, Grace) any port of the profile's link layer may be one, and only their number is known.

Where not even PCI addresses are known, the names of a whole DGX or the cards decide (`_by_card`). A healthy machine must not fail by
this, so the number decides as before wherever it is not certain: rails on dual-port cards or as many ports there as GPUs, a
lost rail that a port of another board or of a dual-port card may replace, bonds, missing or zero GUIDs, virtual functions (they
share the GUID of their adapter), fewer or more rails than GPUs, names that the driver has moved up or that udev has changed. A
machine without a name in DMI is the DGX that its profile states.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.majority import Norm, norms
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.values import Model, Text
from pytest_gpucluster.kit.fabric.facts import Adapters, Location, Port
from pytest_gpucluster.kit.gpu.pcie import root_port, served
from pytest_gpucluster.kit.node.known_lines import data_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.config.models import FabricProfile, Profile

# {PCI address of a GPU: the locations of its rails on all nodes}
NO_PEERS: Mapping[str, Norm[tuple[Location, ...]]] = MappingProxyType({})


@dataclass(frozen=True)
class GpuAddress:
    """A GPU by its place: `index` is that of nvidia-smi, None if its driver does not have it."""

    index: int | None
    address: str

    @property
    def part(self) -> Part:
        """The GPU as a part: GPU 3 (0000:61:00.0)."""
        known = self.address != f"GPU{self.index}"
        return Part("gpu", self.index, address=self.address if known else "")


@dataclass(frozen=True)
class Rails:
    """Ports of which at least `need` must work, for the traffic of `gpus`; () if that is not known.

    `missing`: the PCI addresses or names of adapters that are not there. `usual`: two thirds of the nodes have them.
    """

    need: int
    ports: tuple[Port, ...]
    gpus: tuple[GpuAddress, ...] = ()
    missing: tuple[str, ...] = ()
    usual: bool = False

    @property
    def owner(self) -> Part | None:
        """The GPU, or several by their names; None if it is not known."""
        parts = [gpu.part for gpu in self.gpus]
        several = Part("gpu", name=", ".join(map(str, parts)))
        return None if not parts else several if len(parts) > 1 else parts[0]

    def part(self, port: Port) -> Part:
        """Return a port with its GPU: 'mlx5_5 port 1 (0000:5e:00.0), rail of GPU 3 (0000:61:00.0)'."""
        return replace(port.part, of=self.owner)


@dataclass(frozen=True)
class RailPort:
    """A port for the traffic of GPUs: its adapter, number and part; `gpu` is that of nvidia-smi, None if unknown."""

    device: str
    number: int
    part: Part
    gpu: int | None = None


def rail_ports(rails: Iterable[Rails], fabric: FabricProfile) -> dict[str, RailPort]:
    """Return {location: port} of a node: the same place has the same name on all nodes, also if an adapter is missing."""
    return {
        str(port.location): RailPort(port.device, port.number, one.part(port), one.gpus[0].index if one.gpus else None)
        for one in rails
        for port in in_use(one, fabric)
    }


def in_use(rails: Rails, fabric: FabricProfile) -> tuple[Port, ...]:
    """Return the ports without the spare ones: of another link layer, not up, or slower, as far as enough others are left.

    The fabric suite accepts those: the second port of a card is without a cable, or belongs to storage.
    """
    ports, least = rails.ports, 0.99 * (fabric.rate or 0.0)
    for fits in (
        lambda port: port.link_layer in (fabric.link_layer, None),
        lambda port: port.state in ("ACTIVE", None),
        lambda port: (port.rate or least) >= least,
    ):
        left = tuple(filter(fits, ports))
        ports = left if len(left) >= rails.need else ports
    return ports


def role(port: Port) -> str:
    """Return what a port is that cannot carry traffic of GPUs to other nodes; '' for any other port."""
    if port.virtual:
        return "virtual function of an adapter of this host"
    if port.representor:
        return "representor of a function"
    if port.bridge:
        return "bridge to NVSwitches"
    return "plane of an XDR adapter" if re.match(r"smi\d", port.device) else ""


def usable(adapters: Adapters) -> list[Port]:
    """Return the ports to cables."""
    return [port for port in adapters.ports if not role(port)]


def rails_of(
    adapters: Adapters, profile: Profile, usual: Mapping[str, Norm[tuple[Location, ...]]] = NO_PEERS
) -> tuple[Rails, ...]:
    """Return the rails of a node: as the profile names them, else by the PCIe tree, else by their number.

    Where a shipped profile names an adapter that is not there, a sound tree decides: a BIOS may number the buses differently.
    """
    if profile.fabric.link_layer == "none":  # EFA
        ports = usable(adapters)
        efa = [port for port in ports if port.link_layer not in ("InfiniBand", "Ethernet")]
        return (Rails(profile.fabric.hcas, tuple(efa or ports)),)
    named = _named(adapters, profile)
    if named and (not profile.fabric.systems or all(one.ports for one in named)):
        return named
    near = _near(adapters, profile, usual)
    sound = near and all(len(one.ports) >= one.need for one in near)
    return (near if sound else named or near) or (_by_card(adapters, profile) or _counted(adapters, profile),)


def rail_majority(facts: Mapping[str, Adapters]) -> dict[str, Norm[tuple[Location, ...]]]:
    """Return {PCI address of a GPU: norm of the places of the ports behind its switch}."""
    return norms(
        (gpu.address, node, tuple(port.location for port in ports.get(root, [])))
        for node, adapters in facts.items()
        for gpus, ports in [_by_root(adapters)]
        for root, found in gpus.items()
        for gpu in found
    )


def rails_of_all(found: Mapping[str, Adapters], nodes: Mapping[str, Any]) -> dict[str, tuple[Rails, ...]]:
    """Return {node: its rails} of the nodes whose profile has adapters. `found`: their adapters; `nodes`: those of the session."""
    usual = {
        peers.nodes: rail_majority({name: found[name] for name in peers.names if name in found})
        for peers in {nodes[name].peers for name in found}
    }
    return {
        name: rails_of(adapters, nodes[name].profile, usual[nodes[name].peers.nodes])
        for name, adapters in found.items()
        if nodes[name].profile.fabric.has_adapters
    }


# --- by name -----------------------------------------------------------------------------------------------------


def _named(adapters: Adapters, profile: Profile) -> tuple[Rails, ...]:
    """Return the rails that the profile names, () if it names none of this machine.

    Rails of a shipped profile hold for the systems that it names; another BIOS may number the buses differently, so half of
    the adapters must be where the profile has them. A person who names rails in a cluster file is taken at his word.
    """
    fabric, ports = profile.fabric, usable(adapters)
    of_system = not fabric.systems or any(fnmatchcase(adapters.product, system) for system in fabric.systems)
    if not fabric.rails or not of_system or fabric.hcas > len(fabric.rails):
        return ()
    seen = {path[-1] for path in adapters.gpus}
    present = [rail for rail in fabric.rails if rail.gpu in seen]  # a guest may have some of the GPUs
    by_name = {
        rail: tuple(port for port in ports if rail.adapter in (port.address, port.device))
        for rail in (present if len(present) == fabric.hcas else fabric.rails)
    }
    if fabric.systems and 2 * sum(map(bool, by_name.values())) < len(by_name):
        return ()
    if fabric.hcas < len(by_name):  # a site that has cables at some of them
        return (Rails(fabric.hcas, tuple(port for found in by_name.values() for port in found)),)
    gpus = {gpu.address: gpu for gpu in _gpus(adapters)}
    return tuple(
        Rails(1, found, (gpus.get(rail.gpu, GpuAddress(None, rail.gpu)),), () if found else (rail.adapter,))
        for rail, found in by_name.items()
    )


# --- by the PCIe tree --------------------------------------------------------------------------------------------


def _gpus(adapters: Adapters) -> list[GpuAddress]:
    return [GpuAddress(index, path[-1]) for index, path in enumerate(adapters.gpus)]


def _by_root(adapters: Adapters) -> tuple[dict[str, list[GpuAddress]], dict[str, list[Port]]]:
    """Return the GPUs, and the ports beside them, of each root port."""
    pairs = zip(_gpus(adapters), adapters.gpus, strict=True)
    gpus = grouped((root_port(path) or gpu.address, gpu) for gpu, path in pairs)
    ports = grouped((root_port(port.path), port) for port in usable(adapters))
    return gpus, {root: found for root, found in ports.items() if root in gpus}


def _trees(adapters: Adapters, profile: Profile, usual: Mapping[str, Norm[tuple[Location, ...]]]) -> list[Rails]:
    """Return the GPUs behind each root port with the ports for their traffic; `need` is not set."""
    gpus, ports = _by_root(adapters)
    board, found = _board(gpus, ports, profile), []
    for root, mine in gpus.items():
        near = ports.get(root, [])
        rails = [port for port in near if port.board_or_chip == board]
        # a replaced adapter may be another board; a card for storage is one too, so the slot of a lost adapter must not be empty
        if not rails and not _absent(mine, near, usual):
            rails = [port for port in near if port.link_layer in (profile.fabric.link_layer, None)]
        found.append(Rails(0, tuple(rails), tuple(mine)))
    return found


def _absent(
    gpus: Iterable[GpuAddress], ports: Iterable[Port], usual: Mapping[str, Norm[tuple[Location, ...]]]
) -> list[str]:
    """Return the PCI addresses of adapters beside these GPUs that two thirds of the nodes have and this one lacks."""
    here = {port.location for port in ports}
    theirs = [usual.get(gpu.address, Norm[tuple[Location, ...]]()) for gpu in gpus]
    lacking = (location for one in theirs for location in one.value or () if location not in here)
    return list(dict.fromkeys(location.adapter for location in lacking))


def _board(gpus: Mapping[str, list[GpuAddress]], ports: Mapping[str, list[Port]], profile: Profile) -> str:
    """Return the board of the rails: of the profile's link layer and rate, near to most GPUs."""
    numbers = {root: len(found) for root, found in gpus.items()}
    right = {
        root: [port for port in found if port.link_layer in (profile.fabric.link_layer, None)]
        for root, found in ports.items()
    }
    near = served(numbers, {root: [port.board_or_chip for port in found] for root, found in right.items()})
    rates = grouped(
        (port.board_or_chip, min(port.rate or 0.0, profile.fabric.rate or math.inf))
        for found in right.values()
        for port in found
        if port.state == "ACTIVE"
    )
    return max(sorted(near), key=lambda board: (max(rates.get(board, [0.0])), near[board]), default="")


def _near(adapters: Adapters, profile: Profile, usual: Mapping[str, Norm[tuple[Location, ...]]]) -> tuple[Rails, ...]:
    """Return the rails behind the PCIe switches of the GPUs; () if the machine has no such switches, or too few ports there."""
    trees, fabric = _trees(adapters, profile, usual), profile.fabric
    ports = tuple(port for tree in trees for port in tree.ports)
    gpus = max(len(adapters.gpus), profile.gpu.count if profile.gpu else 0)
    if not ports:
        return ()
    if any(fabric.hcas * len(tree.gpus) % gpus for tree in trees):  # not every GPU has one
        return (Rails(fabric.hcas, ports),) if len(ports) >= fabric.hcas else ()
    found = [
        Rails(need, tree.ports, tree.gpus, *_missing(tree, need, profile, usual))
        for tree in trees
        for need in (fabric.hcas * len(tree.gpus) // gpus,)
    ]
    short = [tree for tree in found if len(tree.ports) < tree.need]
    return () if short and _is_design(short, found, usual) else tuple(found)


def _is_design(short: Sequence[Rails], trees: Sequence[Rails], usual: Mapping[str, Norm[tuple[Location, ...]]]) -> bool:
    """Return whether the machine has adapters at the processor too, rather than a lost one: others have as few, or most lack it."""
    if any(tree.usual for tree in short):
        return False
    theirs = [usual.get(gpu.address, Norm[tuple[Location, ...]]()) for tree in short for gpu in tree.gpus]
    return all(one.value is not None and one.total > 1 for one in theirs) or 2 * len(short) >= len(trees)


def _missing(
    tree: Rails, need: int, profile: Profile, usual: Mapping[str, Norm[tuple[Location, ...]]]
) -> tuple[tuple[str, ...], bool]:
    """Return the adapters that a tree lacks, and whether other nodes show it."""
    if len(tree.ports) >= need:
        return (), False
    if absent := _absent(tree.gpus, tree.ports, usual):
        return tuple(name for name in absent if ":" in name), True  # other names move up
    named = {rail.gpu: rail.adapter for rail in profile.fabric.rails}
    return tuple(named[gpu.address] for gpu in tree.gpus if gpu.address in named), False


# --- by card -----------------------------------------------------------------------------------------------------


class _System(Model):
    """One kind of machine; data/systems.yaml describes the keys."""

    profiles: tuple[Text, ...]
    functions: tuple[int, ...]
    rails: tuple[int, ...]
    source: Text


def _by_card(adapters: Adapters, profile: Profile) -> Rails | None:
    """Return the rails of a node without PCI addresses; None if it is not certain which they are.

    They are the rails by name of a whole DGX, else the cards of one port on the board with most of them, beside cards of two ports.
    """
    ports, fabric, dgx = usable(adapters), profile.fabric, adapters.product.upper().startswith("DGX")
    odd = any(port.path or "bond" in port.device for port in ports)
    if odd or profile.gpu is None or fabric.hcas != profile.gpu.count:
        return None
    is_known = dgx or (not adapters.product and profile.name.startswith("dgx"))
    systems = data_file("systems.yaml", _System, "pytest_gpucluster.kit.fabric") if is_known else ()
    machine = next((one for one in systems if profile.name in one.profiles), None)
    wholes, numbers = (machine.functions, machine.rails) if machine else ((), ())
    right = [port for port in ports if port.link_layer in (fabric.link_layer, None)]
    cards = grouped((port.card, port) for port in ports)
    named = [port for port in right if port.device in {f"mlx5_{number}" for number in numbers}]
    alone = [port for port in right if port.card and len(cards[port.card]) == 1]
    names = {f"mlx5_{number}" for number in range(len(ports))}
    whole = len(ports) in wholes and {port.device for port in ports} == names and len(named) == fabric.hcas
    one_board = len({port.board_or_chip for port in named}) == 1
    if whole and one_board and (None in cards or all(port in alone for port in named)):
        return Rails(fabric.hcas, tuple(named))
    found = right if None in cards else alone
    boards = Counter(port.board_or_chip for port in found)
    rails = [port for port in found if port.board_or_chip == boards.most_common(1)[0][0]]
    lost = fabric.hcas - len(rails)
    if lost < 0 or 2 * lost >= fabric.hcas:
        return None
    if lost and len(ports) - len(rails) in {functions - fabric.hcas for functions in wholes}:
        return Rails(fabric.hcas, tuple(rails))
    pairs = [card for card in cards.values() if len(card) == 2]  # a bridge to NVSwitches has four functions
    beside = sum(port in right for card in pairs for port in card)
    if None in cards or not pairs or beside >= fabric.hcas:
        return None
    # a rail that was replaced: another board, or one port of a card with two
    replaced = any(port not in rails for port in alone) or any(
        sum(port.state == "ACTIVE" for port in card) == 1 for card in pairs
    )
    return Rails(fabric.hcas, tuple(rails)) if not lost or (lost == 1 and not replaced) else None


# --- by number ---------------------------------------------------------------------------------------------------


def _counted(adapters: Adapters, profile: Profile) -> Rails:
    """Return all ports, or those of the one board that has enough: ports for storage must not stand in for lost rails."""
    fabric, ports = profile.fabric, usable(adapters)
    of_layer = (port for port in ports if port.board_or_chip and port.link_layer == fabric.link_layer)
    boards = grouped((port.board_or_chip, port) for port in of_layer)
    least = (fabric.rate or 0) * 0.99
    enough = [
        found
        for found in boards.values()
        if len(found) >= max(1, fabric.hcas)
        and 2 * sum(port.state == "ACTIVE" and (port.rate or 0) >= least for port in found) >= fabric.hcas
    ]
    found = enough[0] if len(enough) == 1 else ports
    # a port that is up at a lower rate is of another network, where enough others are rails or may be
    slower = [port for port in found if port.state == "ACTIVE" and port.rate and port.rate < least]
    rest = [port for port in found if port not in slower]
    fast = sum(port.state == "ACTIVE" for port in rest)
    narrowed = len(rest) >= fabric.hcas and 2 * fast >= fabric.hcas
    return Rails(fabric.hcas, tuple(rest if narrowed else found))
