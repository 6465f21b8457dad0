"""The parts of a node. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import Action, Advisory, Remark, check
from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.core.finding import Quote
from pytest_gpucluster.core.majority import owners

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.parts.inventory import NodeParts

# a cable has an end at each of two nodes, and the GPUs of a board share its number
_SHARED = ("cable", "gpu")


def serial_owners(found: Mapping[str, NodeParts]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return {kind and serial number of a part: the nodes that have it}."""
    return owners(
        {
            node: {(it.part.kind, it.part.serial) for it in its.parts if it.part.serial and it.part.kind not in _SHARED}
            for node, its in found.items()
        }
    )


@check(
    "parts.inventory",
    cause="the vendor wrote one serial number into several parts, or a node is listed under two names",
    hint="dmidecode; nvidia-smi -q; tell the vendor: a part without a serial number of its own cannot be followed",
    action=Action.MONITOR,
)
def inventory(
    installed: NodeParts, serial_owners: Mapping[tuple[str, str], Sequence[str]], node_name: str
) -> Judgement:
    """The parts of the node are listed by serial number; it fails no node."""
    if not installed.parts:
        reasons = (f"{source}: {why}" for source, why in installed.unread.items())
        raise NotApplicable(f"no part can be read: {'; '.join(reasons) or 'a node without hardware of its own'}")
    for it in installed.parts:
        others = [node for node in serial_owners.get((it.part.kind, it.part.serial), ()) if node != node_name]
        if others:
            measured = Quote(f"serial {it.part.serial}, also on {hostlist.fold(others)}")
            yield Advisory(it.part, measured, "a serial number of its own", code="same_serial")
    for source, why in installed.unread.items():
        yield Remark(f"{source} not read: {why}")
