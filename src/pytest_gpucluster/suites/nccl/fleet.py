"""The checks of one node among the fleet, and of the fabric between nodes, from rounds of pairs. Pure."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import Action, Finding, Metric, check, revised
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.outliers import outliers
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.kit.nccl.pair_findings import PAIR, all_slow, link_findings, untried_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpucluster.core.check import Judgement, Verdict
    from pytest_gpucluster.kit.nccl.measurement import Localisation, Measurement

MAX_EVIDENCE = 2
INSIDE = "slow alone, so inside the node: a GPU, NVLink or PCIe link is slow or about to fail, throttles, or is in use by others"
COMPARE = "compare clocks, temperature, PCIe width and NVLink errors with a sound node (-m gpu)"
OUTLIER_DISTANCE = 0.05  # share of the median; the noise between runs of a sound node is well below it


def _with_inside(verdict: Verdict, *facts: object) -> Verdict:
    return replace(verdict, cause=INSIDE, hint=COMPARE) if facts[-1] is True else verdict


@revised(_with_inside)
@check(
    "nccl.pairs",
    cause="a slow or failing GPU, adapter, cable or switch port of this node: its partners are fine with others",
    hint="ibstat and the error counters of its adapters (-m fabric); reseat cable or adapter; then test the pair again",
    action=Action.DRAIN,
    never_healthy="the partners of this node are fine with each other, while every pair with this node is slow twice, fails or gives wrong data; "
    "other processes on its GPUs are recognised",
)
def pairs(
    node: str,
    found: Localisation,
    measured: Sequence[Measurement],
    size: int,
    hard: float | None = None,
    slow_alone: bool = False,
) -> Judgement:
    """Judge one node by its measurements with partners; `size` in bytes, `hard` the hard limit of a pair in GB/s.

    `slow_alone`: it is slower alone than most nodes are, which explains its pairs.
    """
    own = [it for it in measured if node in it.members and len(it.members) > 1]
    if not own:
        raise NotAvailable("the node was measured with no partner")
    if untried := untried_pairs(own):
        raise NotAvailable(untried)
    for it in own:
        if it.busbw is not None:
            others = " ".join(member for member in it.members if member != node)
            yield Metric("pair_busbw", it.busbw, "GB/s", named("peer", others))
    if node not in found.bad_nodes:
        if slow := all_slow(node, found, measured, hard, f" at {format_size(size)}"):
            yield slow
        return
    values = [it.busbw for it in own if it.busbw is not None and not it.problem]
    merely_slow = hard is not None and len(values) == len(own) and statistics.median(values) >= hard
    why = found.reason(node)
    code = why.code
    text = f"{why} at {format_size(size)}: {'; '.join(found.evidence_of(node)[:MAX_EVIDENCE])}"
    if slow_alone and values:
        code = "slow_inside"
        text = f"slow alone, so inside the node: {max(values):.4g} GB/s with its best partner at {format_size(size)}"
    action = Action.MONITOR if merely_slow else None
    for part in found.bad_parts.get(node, (Part("node", name=node),)):
        yield Finding(part, text, "as fast as the fleet with every sound partner", action, code=code)


@check(
    "nccl.links",
    cause="a link, cable or leaf switch: both ends are fine with other partners",
    hint="ibnetdiscover, iblinkinfo and perfquery for the link; the switch's log and port counters",
    action=Action.MONITOR,
)
def links(found: Localisation, measured: Sequence[Measurement], nodes: Sequence[str]) -> Judgement:
    """Judge the links and leaf switches; a part that could not be identified fails with its candidates."""
    yield from link_findings(found, measured, nodes, "state a threshold of pairs")


def suspected_parts(found: Localisation, measured: Sequence[Measurement], nodes: Sequence[str]) -> str:
    """Return a text about the parts that may make a run over all nodes fail, from the rounds of pairs."""
    named = [
        *found.bad_nodes,
        *(f"link {one} - {other}" for one, other in found.bad_links),
        *(f"leaf switch {leaf}" for leaf in found.bad_leaves),
    ]
    if named:
        return f"the rounds of pairs name {', '.join(named)}"
    if untried_pairs(measured):
        return "no pair could be measured"
    if found.unresolved:
        left = "; ".join(f"one of {hostlist.fold(it.candidates)}: {it.reason}" for it in found.unresolved)
        return f"the rounds of pairs could not identify the part: {left}"
    pairs = {frozenset(it.members) for it in measured if len(it.members) == PAIR}
    possible = len(nodes) * (len(nodes) - 1) // PAIR
    return (
        f"all {len(pairs)} measured of {possible} pairs are fine, so no node or link is at fault: the fault is in what "
        f"only all of {hostlist.fold(nodes)} together use (switches above the leaves, routing, congestion)"
    )


@check("nccl.outlier", cause=INSIDE, hint=COMPARE, action=Action.MONITOR)
def outlier(node: str, values: Mapping[str, float], what: str) -> Judgement:
    """Compare one node's bandwidth (GB/s) with the fleet's, also if all reach the threshold."""
    if node not in values:
        raise NotApplicable("the node has no valid bandwidth to compare")
    fleet = outliers(values, min_relative=OUTLIER_DISTANCE)
    if fleet.note:
        raise NotApplicable(fleet.note)
    part = Part("message", name=what)
    if node in fleet.low:
        text = f"{values[node]:.2f} GB/s, {-fleet.low[node]:.1%} below the median"
        usual = f"within {OUTLIER_DISTANCE:.0%} of the median {fleet.median:.2f} GB/s (MAD {fleet.mad:.3g})"
        mine = Quantity(values[node], "GB/s", text)
        yield Finding(part, mine, Quantity(fleet.median, "GB/s", usual), code="below_median")
    elif fleet.halves and node in fleet.halves.slow:
        halves = fleet.halves
        usual = (
            f"one speed in the fleet; it has two: {hostlist.fold(halves.fast)} about {halves.fast_median:.2f} GB/s, "
            f"{hostlist.fold(halves.slow)} about {halves.slow_median:.2f} GB/s"
        )
        mine = Quantity(values[node], "GB/s", f"{values[node]:.2f} GB/s, as the slow half of the fleet")
        yield Finding(part, mine, Quantity(halves.fast_median, "GB/s", usual), code="slow_half")


def why_alone(nodes: Sequence[str], usable: Callable[[], Sequence[str]]) -> str:
    """Return why fewer than two nodes could be used together, and what to do; '' where at least two could.

    `usable` returns the nodes with a valid run alone; it is called only for several nodes.
    """
    if len(nodes) < PAIR:
        return (
            f"nothing between nodes was proved: no other node shares partition and GPU count with {hostlist.fold(nodes)}; "
            "test it with another node of its kind, or waive the check"
        )
    valid = usable()
    if len(valid) < PAIR:
        bad = hostlist.fold([node for node in nodes if node not in valid])
        return f"nothing between nodes was proved: fewer than two have a valid run alone: see nccl.alone of {bad}"
    return ""
