"""Judges the pairs of nodes that many runs have measured, as those of one run are judged. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.kit.suite_work import PairJudgement, PairResult
from pytest_gpucluster.suites.nccl.localization import Localiser
from pytest_gpucluster.suites.nccl.measurement import Measurement
from pytest_gpucluster.suites.nccl.next_pairs import wanted_pairs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PAIR_METRIC = "pair_busbw"  # of suites/nccl/fleet.py


def judge_pairs(nodes: Sequence[str], pairs: Iterable[PairResult]) -> PairJudgement:
    """Return the bad nodes and links, and the pairs that would decide what is open. The bound is the fleet's."""
    measured = [
        Measurement(pair.nodes, pair.value, pair.problem)
        for pair in pairs
        if (pair.problem or pair.name == PAIR_METRIC) and set(pair.nodes) <= set(nodes)
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
            node: f"{verdict.why.get(node, 'bad')}: {_of(node, verdict.evidence)}"
            for node in verdict.bad_nodes
        },
        tuple((one, other) for one, other in verdict.bad_links),
        tuple((one, other) for one, other in wanted),
        tuple(questions),
    )


def _of(node: str, evidence: Iterable[str]) -> str:
    return "; ".join(line for line in evidence if node in line.split()) or "slow with its partners"
