"""--until: pairs are measured until each node is decided, on a model of a fabric."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from counter_examples import MONITOR, NOT_CHECKED, PASSED, CounterExample
from paths import ROOT
from suite_helpers import considered

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.errors import ConfigError, NotAvailable
from pytest_gpucluster.core.intermittent import Decision
from pytest_gpucluster.kit.nccl.measurement import Measurement
from pytest_gpucluster.suites.nccl.at_times import (
    BATCH,
    RepeatedPairs,
    at_times,
    confidence_of,
    measure_until,
    measurements_for,
)

sys.path.insert(0, str(ROOT / "benchmarks"))
from link_model import LinkModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.core.intermittent import PartJudgement
    from pytest_gpucluster.kit.nccl.pairing import Batch


class Fabric:
    """Measures with a model whose `bad` nodes are slow in a share of their measurements; loses a node in the second step."""

    def __init__(self, nodes: int, bad: dict[str, float], *, traffic: float = 0.0, loses: str = "") -> None:
        self.nodes = tuple(f"gpu{number:02}" for number in range(nodes))
        self.model = LinkModel(network=dict.fromkeys(bad, 0.7), shares=dict(bad.items()), traffic=traffic, seed=3)
        self.loses, self.lost = loses, dict[str, str]()
        self.batches: list[Batch] = []

    def measure(self, _: Sequence[str], batch: Batch) -> list[Measurement]:
        self.batches.append(batch)
        if len(self.batches) == 2 and self.loses:
            self.lost[self.loses] = "Node failure"
        return [
            Measurement(it.members, problem="lost") if self.lost.keys() & {*it.members} else it
            for it in self.model.run(batch)
        ]

    def judged(self, confidence: float = 0.95) -> dict[str, PartJudgement]:
        return measure_until(RepeatedPairs(self.nodes, {}, confidence), self.measure, self.lost)

    @property
    def rounds(self) -> int:
        return sum(map(len, self.batches))


@pytest.mark.parametrize(("confidence", "fewest"), [(0.95, 59), (0.5, 14), (0.99, 90)])
def test_sound_nodes_are_free_after_as_many_rounds_as_the_confidence_needs(confidence: float, fewest: int) -> None:
    fabric = Fabric(8, {})
    assert measurements_for(confidence) == fewest
    judged = fabric.judged(confidence)
    assert {it.decision for it in judged.values()} == {Decision.FREE}
    assert fabric.rounds == fewest
    assert max(map(len, fabric.batches)) == BATCH
    verdict = at_times(judged, confidence)
    assert verdict.outcome is Outcome.PASSED
    assert f"with {confidence:.0%} confidence" in verdict.remarks[0].text


def test_a_slow_one_is_accused_and_its_partners_are_free_without_it() -> None:
    fabric = Fabric(9, {"gpu04": 0.3})
    judged = fabric.judged()
    assert {node for node, it in judged.items() if it.decision is Decision.INTERMITTENT} == {"gpu04"}
    assert {it.decision for node, it in judged.items() if node != "gpu04"} == {Decision.FREE}
    assert fabric.rounds < 100
    assert not any("gpu04" in pair for groups in fabric.batches[-1] for pair in groups)
    (finding,) = at_times(judged, 0.95).findings
    assert (str(finding.part), finding.code) == ("gpu04", "slow_at_times")


def test_the_traffic_of_others_accuses_none_and_the_looks_come_to_an_end() -> None:
    fabric = Fabric(16, {}, traffic=0.1)
    judged = fabric.judged()
    assert Decision.INTERMITTENT not in {it.decision for it in judged.values()}
    assert fabric.rounds == 4 * 59
    verdict = at_times(judged, 0.95)
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert "open after the last look: gpu[00-15], slow in up to " in verdict.reason


def test_a_lost_node_is_left_out_and_its_partners_keep_their_name() -> None:
    fabric = Fabric(6, {}, loses="gpu03")
    judged = fabric.judged()
    assert sorted(judged) == ["gpu00", "gpu01", "gpu02", "gpu04", "gpu05"]
    assert {it.decision for it in judged.values()} == {Decision.FREE}
    with pytest.raises(NotAvailable, match="fewer than 3 nodes are left"):
        Fabric(3, {}, loses="gpu01").judged()


def test_a_step_that_measured_nothing_accuses_none() -> None:
    plan = RepeatedPairs(("a", "b", "c"), {}, 0.95)
    with pytest.raises(NotAvailable, match="measured nothing: no torch"):
        plan.feed([Measurement(pair, problem="no torch") for groups in plan.next_rounds() for pair in groups])


def example(machine: str, expected: str, bad: dict[str, float], *, traffic: float = 0.0) -> CounterExample:
    """Return what --until says of 16 nodes."""

    def judged() -> Verdict:
        return at_times(Fabric(16, bad, traffic=traffic).judged(), 0.95)

    return CounterExample("nccl.at_times", machine, ISSUE, expected, judged, sick=expected == MONITOR)


ISSUE = "https://github.com/NVIDIA/nccl-tests/issues/283"
COUNTER_EXAMPLES = (
    example("16 nodes with 3% of noise", PASSED, {}),
    example("other jobs slow one pair in two hundred", PASSED, {}, traffic=0.0025),
    example("other jobs slow one pair in ten", NOT_CHECKED, {}, traffic=0.1),
    example("a node that is slow in a fifth of its measurements", MONITOR, {"gpu07": 0.2}),
)


test_considered = considered(COUNTER_EXAMPLES)


@pytest.mark.parametrize("text", ["", "95", "0.95", "100%", "49%", "nan%", "inf%", "many%", "-95%"])
def test_what_is_no_confidence_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="like 95%"):
        confidence_of(text)
    assert confidence_of(" 97.5% ") == 0.975
