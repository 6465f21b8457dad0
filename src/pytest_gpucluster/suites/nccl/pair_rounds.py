"""Rounds of pairs of nodes until the bad part is found or cannot be; further rounds if only the whole is bad."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.kit.nccl.localization import Localiser
from pytest_gpucluster.kit.nccl.measurement import Localisation
from pytest_gpucluster.kit.nccl.pairing import circle
from pytest_gpucluster.suites.nccl.fleet import OUTLIER_DISTANCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpucluster.kit.nccl.measurement import Bound, Measurement

PAIR = 2
# on a fabric whose traffic slows one pair in twenty, one run in seven accuses a link of 64 healthy nodes without it: benchmarks/localisation.py
REPEATS = 1
MAX_ROUNDS = 63  # of further pairs: all pairs of 64 nodes; on more nodes some minutes


@dataclass(frozen=True)
class PairRounds:
    """How the pairs of some nodes are measured and compared.

    `measure` runs a batch of rounds of these nodes. `lost`: {node: why}, which grows while batches run. `expected`:
    {kind of pair: lowest accepted GB/s}. `least`: what pairs must reach if nothing is expected.
    """

    nodes: tuple[str, ...]
    measure: Callable[[Sequence[str], Sequence[Sequence[Sequence[str]]]], Iterable[Measurement]]
    lost: Mapping[str, str]
    leaves: Mapping[str, str]
    expected: Mapping[str, float]
    least: Bound | None
    gpus_per_node: int
    min_distance: float

    def localise(self, whole_is_bad: Callable[[], bool]) -> tuple[Localisation, tuple[Measurement, ...]]:
        """Return the bad parts and all measurements; nothing if fewer than two nodes are left or one was lost.

        `whole_is_bad` is called only if the pairs of more than two nodes are clean.
        """
        if len(self.nodes) < PAIR:
            return Localisation(), ()
        plan = self._plan(self.min_distance, self.expected)
        if not self._drive(plan):
            return Localisation(), ()
        found, measured = plan.verdict(), plan.measurements
        if not found.clean or len(self.nodes) == PAIR or not whole_is_bad():
            return found, measured
        if self._lost_some():
            return found, measured  # the caller localises again without them
        refined, further = self._refine()
        second = refined.verdict()
        rounds, steps = found.rounds + second.rounds + further, found.steps + second.steps + bool(further)
        return replace(second, rounds=rounds, steps=steps), (*measured, *refined.measurements)

    def _plan(self, distance: float, expected: Mapping[str, float] | None = None) -> Localiser:
        return Localiser(
            self.nodes,
            leaves=self.leaves,
            expected=expected,
            least=self.least,
            gpus_per_node=self.gpus_per_node,
            alone=False,
            repeats=REPEATS,
            min_distance=distance,
        )

    def _refine(self) -> tuple[Localiser, int]:
        """Measure pairs again, then all remaining pairs in one step; return the plan and the number of further rounds.

        The distance from the fleet's median is smaller: one slow adapter of eight makes a pair slower by an eighth. A
        slow link may be in a pair that was not measured before.
        """
        plan = self._plan(OUTLIER_DISTANCE)
        if not self._drive(plan) or not plan.verdict().clean:
            return plan, 0
        used = {frozenset(it.members) for it in plan.measurements}
        rest = [[pair for pair in groups if frozenset(pair) not in used] for groups in circle(plan.nodes)]
        wanted = [groups for groups in rest if groups][:MAX_ROUNDS]
        if wanted:
            plan.feed(self.measure(plan.nodes, wanted))
            self._drive(plan)
        return plan, len(wanted)

    def _drive(self, plan: Localiser) -> bool:
        """Run all rounds of a plan; return False if one of its nodes was lost, so that a new plan is necessary."""
        while not self._lost_some():
            if not (batch := plan.next_rounds()):
                return True
            plan.feed(self.measure(plan.nodes, batch))
        return False

    def _lost_some(self) -> bool:
        return not self.lost.keys().isdisjoint(self.nodes)
