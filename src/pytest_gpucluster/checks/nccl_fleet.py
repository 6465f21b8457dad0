"""What rounds of pairs and the comparison of the fleet say of one node, and of the fabric between nodes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster import hostlist
from pytest_gpucluster.checks.outliers import outliers
from pytest_gpucluster.checks.verdict import Action, Finding, Metric, NotApplicable, NotChecked, check
from pytest_gpucluster.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.checks.localise import Localisation, Measurement
    from pytest_gpucluster.checks.verdict import Judgement

MAX_EVIDENCE = 6
PAIR = 2
NO_BOUND = "no bound"  # how the localisation says that it had nothing to compare with
STANDS_APART = 0.05  # share of the median; run to run noise of a sound node is well below


@check(
    "nccl.pairs",
    cause="a slow or failing GPU, adapter, cable or switch port of this node: its partners are fine with others",
    hint="ibstat and the error counters of its adapters (-m fabric); reseat cable or adapter; then test the pair again",
)
def pairs(node: str, found: Localisation, measured: Sequence[Measurement], size: int) -> Judgement:
    """Judge one node by its measurements with partners; `size` in bytes."""
    own = [it for it in measured if node in it.members and len(it.members) > 1]
    if not own:
        yield NotApplicable("the node was measured with no partner")
        return
    if untried := _untried(own):
        yield NotChecked(untried)
        return
    for it in own:
        if it.busbw is not None:
            yield Metric("pair_busbw", it.busbw, "GB/s", f"with {_others(it.members, node)}")
    if node not in found.bad_nodes:
        return
    parts = ", ".join(found.bad_parts.get(node, ()))
    evidence = [line for line in found.evidence if node in line]
    yield Finding(
        f"{node} {parts}".strip(),
        f"{found.why.get(node, 'bad')} at {format_size(size)}: {'; '.join(evidence[:MAX_EVIDENCE])}",
        "as fast as the fleet with every sound partner",
    )


@check(
    "nccl.links",
    cause="a link, cable or leaf switch: both ends are fine with other partners",
    hint="ibnetdiscover, iblinkinfo and perfquery for the link; the switch's log and port counters",
    action=Action.MONITOR,
)
def links(found: Localisation, measured: Sequence[Measurement], nodes: Sequence[str]) -> Judgement:
    """Judge the links and leaf switches; say honestly what could not be told."""
    if len(nodes) < PAIR:
        yield NotApplicable("one node alone has no link to another")
        return
    if untried := _untried([it for it in measured if len(it.members) > 1]):
        yield NotChecked(untried)
        return
    yield Metric("localisation_rounds", found.rounds, "rounds")
    yield Metric("localisation_steps", found.steps, "steps")
    for one, other in found.bad_links:
        evidence = "; ".join(line for line in found.evidence if one in line and other in line)
        yield Finding(
            f"link {one} - {other}", evidence or "slow", "as fast as each end with its other partners"
        )
    for leaf in found.bad_leaves:
        yield Finding(f"leaf switch {leaf}", found.why.get(leaf, "slow"), "as fast as the other leaves")
    unbound = [left for left in found.unresolved if left.reason.startswith(NO_BOUND)]
    if unbound:
        yield NotChecked(
            f"{len(nodes)} nodes are too few to judge their pairs by each other: state nccl.pair_busbw"
        )
    for left in found.unresolved:
        if left in unbound:
            continue
        # a node that is named already explains what was measured with it
        if not set(left.candidates) <= set(found.bad_nodes):
            yield Finding(
                f"one of {hostlist.fold(left.candidates)}",
                f"cannot be told apart: {left.reason}",
                "every pair as fast as the fleet",
            )


def _untried(measured: Sequence[Measurement]) -> str:
    """Return why none of these groups could be tried; '' where one was, or nothing is known."""
    return measured[0].problem if measured and all(it.skipped for it in measured) else ""


def whereabouts(found: Localisation, measured: Sequence[Measurement], nodes: Sequence[str]) -> str:
    """Say in a line which part the rounds of pairs name for a whole that is bad, or what remains."""
    named = [
        *found.bad_nodes,
        *(f"link {one} - {other}" for one, other in found.bad_links),
        *(f"leaf switch {leaf}" for leaf in found.bad_leaves),
    ]
    if named:
        return f"the rounds of pairs name {', '.join(named)}"
    if _untried(measured):
        return "no pair could be measured"
    if found.unresolved:
        left = "; ".join(f"one of {hostlist.fold(it.candidates)}: {it.reason}" for it in found.unresolved)
        return f"the rounds of pairs could not tell which part it is: {left}"
    pairs = {frozenset(it.members) for it in measured if len(it.members) == PAIR}
    possible = len(nodes) * (len(nodes) - 1) // PAIR
    return (
        f"all {len(pairs)} measured of {possible} pairs are fine, so no node or link is named: what only all of "
        f"{hostlist.fold(nodes)} together use remains (switches above the leaves, routing, congestion)"
    )


@check(
    "nccl.outlier",
    cause="above its threshold, the node still stands apart from its fleet: a part is about to fail or throttles",
    hint="compare clocks, temperature, PCIe width and NVLink errors with a sound node (-m gpu)",
    action=Action.MONITOR,
)
def outlier(node: str, values: Mapping[str, float], what: str) -> Judgement:
    """Hold one node's bandwidth (GB/s) against the fleet's, also where all are above the threshold."""
    if node not in values:
        yield NotApplicable("the node has no believed bandwidth to compare")
        return
    fleet = outliers(values, min_relative=STANDS_APART)
    if fleet.note:
        yield NotApplicable(fleet.note)
        return
    if node in fleet.low:
        yield Finding(
            what,
            f"{values[node]:.2f} GB/s, {-fleet.low[node]:.1%} below the median",
            f"within {STANDS_APART:.0%} of the median {fleet.median:.2f} GB/s (MAD {fleet.mad:.3g})",
        )


def _others(members: Iterable[str], node: str) -> str:
    return " ".join(member for member in members if member != node)
