"""Checks of the cabling plan: on InfiniBand against the subnet, on Ethernet against the neighbours that lldpd has found. Pure.

No check takes a node out of service: the plan may be wrong as well as the cable, and a node with swapped cables still works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Judgement, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.metric_direction import NEITHER
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.text import some
from pytest_gpucluster.suites.ibfabric.wiring import node_key

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytest_gpucluster.suites.ibfabric.wiring import WiringDiff

_CAUSE = "a cable is at another port than the plan states, or is missing; or the plan is not that of this cluster"
_PLAN = "ibfabric.plan"


@check(
    "ibfabric.cabling",
    cause=_CAUSE,
    hint="ibnetdiscover -p shows the port at both ends; move the cable, or correct the plan",
    action=Action.CONFIGURE,
    setting=_PLAN,
)
def cabling(node_name: str, node_cables: WiringDiff) -> Judgement:
    """Every InfiniBand cable of the node is where the cabling plan has it."""
    yield from _of_node(node_name, node_cables, "the subnet")


@check(
    "ibfabric.neighbours",
    cause=_CAUSE,
    hint="lldpcli show neighbors shows the other end; move the cable, or correct the plan. lldpd and the switch must send LLDP, and the "
    "adapter must pass it on (LLDP_NB_DCBX_P1 and LLDP_NB_RX_MODE_P1 of mlxconfig)",
    action=Action.CONFIGURE,
    setting=_PLAN,
)
def neighbours(node_name: str, node_neighbours: WiringDiff) -> Judgement:
    """Every Ethernet cable of the node is where the cabling plan has it, by LLDP."""
    yield from _of_node(node_name, node_neighbours, "what lldpd has found")


def _of_node(node_name: str, compared: WiringDiff, found: str) -> Judgement:
    node = node_key(node_name)
    if not compared.planned[node]:
        raise NotApplicable("the plan has no cable of this node for this network")
    yield Metric("cables_as_planned", compared.right[node], "cables", better=NEITHER)
    yield from (it.finding for it in compared.wrong if node in it.nodes)
    for name, nodes in compared.unknown.items():
        if node in nodes:
            yield NotAvailable(f"{name} of the plan is not in {found} by this name; a node name map may name it")


@check(
    "ibfabric.switch_cabling",
    cause=_CAUSE,
    hint="ibnetdiscover -p shows the port at both ends; move the cable, or correct the plan; where a switch has another name than in the "
    "plan, add a node name map to ibfabric.plan",
    action=Action.CONFIGURE,
    setting=_PLAN,
)
def switch_cabling(planned_cables: WiringDiff, slurm_nodes: Collection[str]) -> Judgement:
    """Every InfiniBand cable between switches, or to a host outside of Slurm, is where the cabling plan has it."""
    nodes = set(map(node_key, slurm_nodes))
    yield Metric("cables_as_planned", planned_cables.right[""], "cables", better=NEITHER)
    yield from (it.finding for it in planned_cables.wrong if not nodes & it.nodes)
    for name in planned_cables.unknown:
        if node_key(name.partition(" ")[0]) not in nodes:
            part = Part("device", name=f"{name} of the plan")
            found = "not in the subnet by this name"
            yield Finding(part, found, "the name that the subnet has", code="not_found")
    if planned_cables.extra:
        part = Part("cable", name="links that the plan lacks")
        yield Advisory(part, some(planned_cables.extra), "none", code="not_planned")
