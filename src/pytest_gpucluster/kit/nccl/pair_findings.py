"""What measurements of pairs say of a node and of the links between nodes: findings for the checks of several suites. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import Action, Finding, Metric
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.part import Part, pair
from pytest_gpucluster.kit.nccl.inference import PARTNERS
from pytest_gpucluster.kit.nccl.open_questions import NO_BOUND
from pytest_gpucluster.kit.nccl.sensitivity import sensitivity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.nccl.measurement import Localisation, Measurement

PAIR = 2


def all_slow(
    node: str, found: Localisation, measured: Sequence[Measurement], hard: float | None, where: str = ""
) -> Finding | None:
    """Return the finding on a node whose best pair is below the hard limit, also if the whole fleet is slow.

    Only the node is at fault if it has two partners, one of them reaches the limit with another node, and the
    localisation has no other candidate.
    """
    pairs = [it for it in measured if len(it.members) == PAIR and it.busbw is not None and not it.problem]
    best = {
        name: max(it.busbw or 0 for it in pairs if name in it.members)
        for name in {name for it in pairs for name in it.members}
    }
    if hard is None or best.get(node, hard) >= hard:
        return None
    partners = {name for it in pairs if node in it.members for name in it.members} - {node}
    fast = len(partners) >= PARTNERS and any(best[name] >= hard for name in partners)
    proved = fast and not any(node in left.candidates for left in found.unresolved)
    slow = sum(value < hard for value in best.values())
    unproved = "see nccl.links or rdma.links" if fast else "no partner is known to be fast"
    why = "" if proved else f"; the node, its partners or the network: {unproved}"
    most = f"; {slow} of {len(best)} nodes are below it" if 2 * slow > len(best) else ""
    text = f"{best[node]:.4g} GB/s{where} with the best of {len(partners)} partners{why}{most}"
    return Finding(
        Part("node", name=node),
        Quantity(best[node], "GB/s", text),
        Quantity(hard, "GB/s", f"at least {hard:.4g} GB/s with one of them (hard limit)"),
        None if proved else Action.MONITOR,
        code="below_hard_limit" if proved else "below_hard_limit_undecided",
    )


def link_findings(
    found: Localisation, measured: Sequence[Measurement], nodes: Sequence[str], otherwise: str
) -> Judgement:
    """Yield the bad links and leaf switches, the candidates for a part that could not be identified, and the smallest fault that would show.

    `otherwise`: what to do if the nodes are too few to be compared.
    """
    if len(nodes) < PAIR:
        raise NotApplicable("one node alone has no link to another")
    if untried := untried_pairs([it for it in measured if len(it.members) > 1]):
        raise NotAvailable(untried)
    yield Metric("localisation_rounds", found.rounds, "rounds")
    yield Metric("localisation_steps", found.steps, "steps")
    yield from sensitivity([found.smallest])
    for ends in found.bad_links:
        evidence, usual = found.evidence_of(*ends), "as fast as each end with its other partners"
        yield Finding(pair(*ends), "; ".join(evidence) or "slow", usual, code="slow_link")
    for leaf in found.bad_leaves:
        why, usual = found.reason(leaf).text, "as fast as the other leaves"
        yield Finding(Part("leaf", name=leaf), why, usual, code="slow_leaf")
    unbound = [left for left in found.unresolved if left.reason.code == NO_BOUND]
    few = f"{len(nodes)} nodes are too few to judge their pairs by each other: {otherwise}"
    # a question about leaves has its own reason
    reasons = (few if {*left.candidates} <= {*nodes} else left.reason.text for left in unbound)
    yield from map(NotAvailable, dict.fromkeys(reasons))
    for left in found.unresolved:
        # a bad node already explains the measurements with it
        if left not in unbound and not set(left.candidates) <= set(found.bad_nodes):
            names = tuple(name for name in left.candidates if name in nodes)
            part = Part("group", name=hostlist.fold(left.candidates), nodes=names)
            text, code = f"undecided: {left.reason}", left.reason.code
            yield Finding(part, text, "every pair as fast as the fleet", code=code)


def untried_pairs(measured: Sequence[Measurement]) -> str:
    """Return why none of these groups was run; '' if one was run or there are no groups."""
    return measured[0].problem if measured and all(it.skipped for it in measured) else ""
