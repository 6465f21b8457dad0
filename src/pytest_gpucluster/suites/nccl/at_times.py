"""`--until=95%`: pairs are measured again and again until each node is free of faults that show at times, or accused.

Random partners, so that a slow one explains nothing. A pair is slow if it is below the median of the like pairs of the same step, or
fails while others do not; then both of its nodes were slow once.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import Action, Finding, Metric, check
from pytest_gpucluster.core.errors import ConfigError, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Remark
from pytest_gpucluster.core.intermittent import (
    SHARE,
    Decision,
    IntermittentLimits,
    Looks,
    SlowCount,
    beside_others,
    judge_parts,
    more_needed,
    slow_among,
)
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.kit.nccl.measurement import MIN_DISTANCE, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.intermittent import PartJudgement
    from pytest_gpucluster.kit.nccl.measurement import GroupKind, Measurement
    from pytest_gpucluster.kit.nccl.pairing import Batch, Group, Round

OPTION = "--until"
BATCH = 10  # rounds of one Slurm step: a hang costs no more than these
FEWEST_NODES = 3  # of two, both are in each slow pair


def confidence_of(text: str) -> float:
    """Return 0.95 for '95%'; ConfigError for what is no confidence."""
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / 100
    except ValueError:
        value = 0.0
    if not (text.strip().endswith("%") and 0.5 <= value < 1):
        raise ConfigError(f"{OPTION}={text}: must be a confidence from 50% to below 100%, like 95%")
    return value


def measurements_for(confidence: float) -> int:
    """Return how many fast measurements prove that a node is slow in at most SHARE of them: 59 for 0.95."""
    return more_needed(SlowCount(0, 0), SHARE, confidence)


@dataclass
class RepeatedPairs:
    """Plans rounds of pairs and counts how often each node was slow. Pure: an executor measures the rounds.

    `nodes`: those that are measured; `leave_out` removes one. `leaves`: {node: leaf switch}, may lack nodes.
    """

    nodes: tuple[str, ...]
    leaves: Mapping[str, str]
    confidence: float

    def __post_init__(self) -> None:
        self.limits = IntermittentLimits(confidence=self.confidence)
        self.looks: Looks[str] = Looks(measurements_for(self.confidence), self.limits)
        self._pairs: list[tuple[Group, bool]] = []  # whether it was slow
        self._dice = random.Random(0)  # noqa: S311 - the same pairs again in the next run

    def leave_out(self, nodes: Container[str]) -> None:
        """Measure these nodes no more, and forget what was measured with them: it says nothing on their partners."""
        self.nodes = tuple(node for node in self.nodes if node not in nodes)
        self._pairs = [(pair, slow) for pair, slow in self._pairs if not any(it in nodes for it in pair)]

    def next_rounds(self) -> Batch:
        """Return the rounds of the next step, () if nothing more is to be measured; take a look where one is due."""
        while (wanted := self.looks.measurements) and len(self.nodes) >= FEWEST_NODES:
            counts = self._counts()
            looked = wanted > self.looks.first
            if looked and all(it.decision is Decision.FREE for it in self._of_others(counts).values()):
                break
            left = wanted - min(it.measured for it in counts.values())
            if left > 0:
                return tuple(self._rounds(min(BATCH, left), counts))
            self.looks.take(beside_others(counts))
            self.leave_out(self.looks.accused)
        return ()

    def _rounds(self, number: int, counts: Mapping[str, SlowCount]) -> Iterable[Round]:
        planned = Counter({node: it.measured for node, it in counts.items()})
        for _ in range(number):
            # where the number is odd, one that was measured most rests
            nodes = sorted(self.nodes, key=lambda node: (planned[node], self._dice.random()))
            nodes = nodes[: len(nodes) // 2 * 2]
            self._dice.shuffle(nodes)
            planned.update(nodes)
            yield tuple(zip(nodes[::2], nodes[1::2], strict=True))

    def feed(self, measurements: Sequence[Measurement]) -> None:
        """Count the results of a step. NotAvailable if it measured nothing."""
        tried = [it for it in measurements if not it.skipped]
        fast: defaultdict[GroupKind, dict[int, float]] = defaultdict(dict)
        for at, it in enumerate(tried):
            if it.busbw is not None and not it.problem:
                fast[kind_of(it.members, self.leaves)][at] = it.busbw
        if not fast:  # no fault of a pair
            problem = next((it.problem for it in measurements if it.problem), "no pair was measured")
            raise NotAvailable(f"a step with rounds of pairs measured nothing: {problem}")
        slow = {at for values in fast.values() for at in slow_among(values, MIN_DISTANCE)}
        self._pairs += [(it.members, at in slow or bool(it.problem)) for at, it in enumerate(tried)]

    def judged(self) -> dict[str, PartJudgement]:
        """Return the nodes that are accused, and those that are free of faults or open."""
        return {**self.looks.accused, **self._of_others(self._counts())}

    def _of_others(self, counts: Mapping[str, SlowCount]) -> dict[str, PartJudgement]:
        return judge_parts(beside_others(counts), replace(self.limits, alpha=0.0))

    def _counts(self) -> dict[str, SlowCount]:
        measured, slow = Counter[str](), Counter[str]()
        for pair, was_slow in self._pairs:
            measured.update(pair)
            slow.update(pair if was_slow else ())
        return {node: SlowCount(slow[node], measured[node]) for node in self.nodes}


def measure_until(
    plan: RepeatedPairs, measure: Callable[[Sequence[str], Batch], Sequence[Measurement]], lost: Mapping[str, str]
) -> dict[str, PartJudgement]:
    """Measure until each node is decided or the last look was taken; nodes that are lost meanwhile are left out."""
    while batch := plan.next_rounds():
        plan.feed(measure(plan.nodes, batch))
        plan.leave_out(lost)
        if len(plan.nodes) < FEWEST_NODES:
            raise NotAvailable(f"fewer than {FEWEST_NODES} nodes are left")
    return plan.judged()


@check(
    "nccl.at_times",
    cause="a cable, adapter, GPU or switch port that is slow at times: one fast run does not acquit it",
    hint="gpucluster history --intermittent for its earlier runs; swap cable or adapter with a sound node and measure again: "
    "gpucluster parts says whether the fault moved with the part",
    action=Action.MONITOR,
)
def at_times(judged: Mapping[str, PartJudgement], confidence: float) -> Judgement:
    """Judge the nodes by how often their pairs were slow, each against the others of the run."""
    accused = {node: it for node, it in judged.items() if it.decision is Decision.INTERMITTENT}
    for node, it in accused.items():
        text = f"slow in {it.count} measurements (fleet {it.fleet}; by chance {it.corrected:.1g}, corrected for {len(judged)} nodes)"
        own = Quantity(_percent(it.count), "%", text)
        usual = Quantity(_percent(it.fleet), "%", "no more often than the other nodes")
        yield Finding(Part("node", name=node), own, usual, code="slow_at_times")
    free = {node: it for node, it in judged.items() if it.decision is Decision.FREE}
    if free:
        least = max(it.upper for it in free.values())
        yield Metric("free_nodes", len(free), "nodes")
        yield Metric("largest_hidden_share", 100 * least, "%")
        yield Remark(
            f"{hostlist.fold(free)}: free of faults in more than {least:.1%} of the measurements, with {confidence:.0%} confidence for "
            f"each node ({min(it.count.measured for it in free.values())} measurements and more)"
        )
    if left := {node: it for node, it in judged.items() if it.decision is Decision.OPEN}:
        worst = max(left.values(), key=lambda it: it.more)
        text = f"{hostlist.fold(left)}, slow in up to {worst.count}: {worst.more} more fast measurements prove that each is sound"
        if not accused:
            raise NotAvailable(f"open after the last look: {text}")
        yield Remark(f"open: {text}")


def _percent(count: SlowCount) -> float:
    return 100 * count.slow / count.measured
