"""The questions that the measurements leave open, and the evidence for the parts that are named. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.kit.nccl import pairing
from pytest_gpucluster.kit.nccl.inference import PARTNERS
from pytest_gpucluster.kit.nccl.measurement import Evidence, GroupKind, Status, Unresolved
from pytest_gpucluster.kit.nccl.next_pairs import ALL_PAIRS_UP_TO

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpucluster.kit.nccl.inference import Inference
    from pytest_gpucluster.kit.nccl.measurement import Bound, JudgedMeasurement
    from pytest_gpucluster.kit.nccl.pairing import Group

NO_BOUND = "no_bound"  # there are no values to compare with


def _open(candidates: Sequence[str], code: str, text: str) -> Unresolved:
    return Unresolved(tuple(candidates), Explanation(code, text))


def unresolved(found: Inference) -> Iterator[Unresolved]:
    """Yield the questions that the measurements leave open."""
    nodes = found.observed.nodes
    if found.leaves.candidates:
        why = "slow to other leaves, and none of them is acquitted"
        yield _open(found.leaves.candidates, "slow_leaves", why)
    if found.slow_spine:
        yield _open(sorted(set(found.observed.leaves.values())), NO_BOUND, found.slow_spine)
    for node in sorted(found.alone.slow_once, key=found.observed.position.__getitem__):
        yield _open((node,), "slow_alone_once", "slow alone, measured once")
    for edge in found.doubtful_links:
        code, why = "slow_link_by_chance", "every time, as pairs were that are fine now"
        if edge.bad == 1:
            code, why = "slow_link_once", "once, not measured again"
        yield _open((link(edge.ends),), code, f"slow or failed {why}")
    yield from _wrong_data(found)
    if len(nodes) > 1:
        yield from _open_nodes(found)


def _wrong_data(found: Inference) -> Iterator[Unresolved]:
    """Yield the pairs with wrong data that were right when repeated: no traffic of other jobs changes data."""
    pairs = {
        frozenset(one.measured.members): one.measured
        for one in found.observed.judged
        if one.kind in (GroupKind.WITHIN, GroupKind.ACROSS) and one.measured.wrong
    }
    for edge in found.edges:
        one = pairs.get(frozenset(edge.ends))
        if one and edge.good and found.bad_nodes.keys().isdisjoint(edge.ends):
            candidates = (*edge.ends, link(edge.ends))
            yield _open(candidates, "wrong_data_once", f"{one.problem}, right when repeated")


def _open_nodes(found: Inference) -> Iterator[Unresolved]:
    left = found.suspects
    # one pair, or one without a bound, says nothing of a fabric
    bad = sum(edge.bad > 0 for edge in found.edges)
    if not found.acquitted and len(left) > ALL_PAIRS_UP_TO and bad >= PARTNERS:
        yield _open(left, "no_good_pair", "no pair is fine: the fabric as a whole, or the bound is too high")
        return
    reported: set[str] = set()
    for leaf, members in pairing.by_leaf(left, found.observed.leaves).items():
        if leaf in found.closed_leaves and len(members) > PARTNERS:
            reported.update(members)
            why = "no pair across this leaf is fine: the leaf, or all these nodes"
            yield _open((leaf, *members), "leaf_or_nodes", why)
    for edge in found.open_edges:
        nodes = tuple(end for end in edge.ends if end in left and end not in reported)
        leaves = sorted(found.closed_leaves.intersection(edge.leaves)) if edge.crosses else []
        if nodes:
            reported.update(nodes)
            candidates = (*nodes, link(edge.ends), *leaves)
            yield _open(candidates, "no_partner", "no further acquitted partner to decide between them")
        elif leaves and reported.isdisjoint((*leaves, *edge.ends)):
            reported.update(leaves)
            yield _open((*leaves, link(edge.ends)), "few_across", "too few pairs cross these leaves")
    for node in left:
        if node not in reported:
            yield Unresolved((node,), _why_open(found, node))


def _why_open(found: Inference, node: str) -> Explanation:
    edges = [edge for edge in found.edges if node in edge.ends]
    if any(edge.counts[Status.UNJUDGED] for edge in edges):
        why = "no bound: state the expected bandwidth, there are too few pairs to compare"
        return Explanation(NO_BOUND, why)
    if any(not found.bad_nodes.keys().isdisjoint(edge.ends) for edge in edges):
        return Explanation("bad_partners_only", "measured with bad nodes only")
    return Explanation("no_pair", "never measured in a pair")


def evidence(found: Inference, questions: Iterable[Unresolved]) -> Iterator[Evidence]:
    """Yield each measurement of a named part, and for each disturbance that passed."""
    links = {frozenset(ends) for ends in found.bad_links}
    named = found.bad_nodes.keys() | {part for entry in questions for part in entry.candidates}
    for leaf, why in found.leaves.bad.items():
        yield Evidence(f"{leaf}: {why}")
    for one in found.observed.judged:
        nodes = frozenset(member.partition(":")[0] for member in one.measured.members)
        if not nodes.isdisjoint(named) or nodes in links:
            yield Evidence(line(one, found.observed.bounds.get(one.kind)), nodes)
    for edge in found.edges:
        if edge.bad and edge.good:
            times = f"bad {edge.bad} time(s), fine {edge.good}"
            yield Evidence(f"{link(edge.ends)}: {times}: a passing disturbance")


def line(judged: JudgedMeasurement, bound: Bound | None) -> str:
    """Return a measurement as one line of evidence."""
    measured = judged.measured
    who = " with ".join(measured.members) if len(measured.members) > 1 else f"{measured.members[0]} alone"
    if judged.status is Status.SKIPPED:
        return f"{who}: not measured, {measured.problem or 'skipped'}"
    if judged.status is Status.FAILED:
        return f"{who}: {measured.problem or 'no bandwidth'}"
    return f"{who}: {measured.busbw:.4g} GB/s, {bound or 'no bound'}: {judged.status.value}"


def link(ends: Group) -> str:
    """Return the name of the link between two nodes."""
    return f"link {'-'.join(ends)}"
