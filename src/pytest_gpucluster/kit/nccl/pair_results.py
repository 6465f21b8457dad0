"""Judges the pairs of nodes that many runs have measured, as those of one run are judged. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.kit.nccl.localization import Localiser
from pytest_gpucluster.kit.nccl.measurement import Measurement
from pytest_gpucluster.kit.nccl.next_pairs import wanted_pairs
from pytest_gpucluster.kit.suite_work import PairJudgement, PairResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PAIR_BUSBW = "pair_busbw"  # the metric of the nccl suite


def judge_pairs(nodes: Sequence[str], pairs: Iterable[PairResult], metric: str = PAIR_BUSBW) -> PairJudgement:
    """Return the bad nodes and links, and the pairs that would decide what is open. The bound is the fleet's.

    `metric`: the name of the metric, in GB/s, with which a suite records a pair.
    """
    measured = [
        Measurement(pair.nodes, pair.value, pair.problem)
        for pair in pairs
        if (pair.problem or pair.name == metric) and set(pair.nodes) <= set(nodes)
    ]
    if not measured:
        return PairJudgement({})
    plan = Localiser(nodes, alone=False)
    plan.feed(measured)
    found, verdict = plan.infer(), plan.verdict()
    met = {node for it in measured for node in it.members}
    # a node without a pair yet is no question: its turn comes
    wanted = [pair for pair in wanted_pairs(found) if met & set(pair)]
    questions = [
        f"one of {hostlist.fold(open_now)}: {it.reason}"
        for it in verdict.unresolved
        if (open_now := [name for name in it.candidates if name in met])
    ]
    return PairJudgement(
        {
            node: f"{verdict.reason(node)}: {'; '.join(verdict.evidence_of(node)) or 'slow with its partners'}"
            for node in verdict.bad_nodes
        },
        tuple((one, other) for one, other in verdict.bad_links),
        tuple((one, other) for one, other in wanted),
        tuple(questions),
    )
