"""Rounds of pairs on a model of a fabric: how many are measured, and what a lost node changes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from paths import ROOT

from pytest_gpucluster.kit.nccl.measurement import Localisation
from pytest_gpucluster.suites.nccl.pair_rounds import PairRounds

sys.path.insert(0, str(ROOT / "benchmarks"))
from link_model import LinkModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.kit.nccl.measurement import Measurement
    from pytest_gpucluster.kit.nccl.pairing import Group

NODES = tuple(f"gpu{number:02}" for number in range(8))


class Fabric:
    """Measures batches with a model, and loses nodes in some of them: {number of the batch: node}."""

    def __init__(self, model: LinkModel, lost_in: dict[int, str] | None = None) -> None:
        self.model, self.lost_in = model, lost_in or {}
        self.lost: dict[str, str] = {}
        self.batches = 0

    def measure(self, _: Sequence[str], batch: Sequence[Sequence[Sequence[str]]]) -> list[Measurement]:
        if node := self.lost_in.get(self.batches):
            self.lost[node] = "Node failure"
        self.batches += 1
        return list(self.model.run(tuple(tuple(tuple(group) for group in groups) for groups in batch)))

    def rounds(self, nodes: tuple[str, ...] = NODES) -> PairRounds:
        return PairRounds(
            nodes, self.measure, self.lost, leaves={}, expected={}, least=None, gpus_per_node=1, min_distance=0.12
        )


def test_a_slow_link_that_no_pair_showed_is_found_if_the_whole_is_bad() -> None:
    slow = LinkModel(links={frozenset((NODES[0], NODES[4])): 0.5})
    found, measured = Fabric(slow).rounds().localise(lambda: False)
    assert found.clean
    refined, further = Fabric(slow).rounds().localise(lambda: True)
    assert refined.bad_links == ((NODES[0], NODES[4]),)
    assert (refined.steps, len(further)) > (found.steps + 1, len(measured))


@pytest.mark.parametrize("nodes", [NODES[:2], ()])
def test_the_whole_is_not_measured_for_so_few_nodes(nodes: tuple[str, ...]) -> None:
    found, measured = Fabric(LinkModel()).rounds(nodes).localise(lambda: pytest.fail("whole measured"))
    assert not found.bad_links
    assert len(measured) == len(nodes) // 2


@pytest.mark.parametrize(("number", "batches"), [(0, 1), (1, 2)])
def test_the_rounds_end_if_a_node_is_lost(number: int, batches: int) -> None:
    fabric = Fabric(LinkModel(), {number: NODES[3]})
    found, measured = fabric.rounds().localise(lambda: True)
    assert fabric.batches == batches
    assert (found == Localisation()) is (number == 0)
    assert bool(measured) is (number > 0)


def test_the_traffic_of_other_jobs_accuses_no_node_and_hardly_a_link() -> None:
    nodes = tuple(f"gpu{number:02}" for number in range(64))
    links: list[Group] = []
    for seed in range(30):
        found, _ = Fabric(LinkModel(traffic=0.05, seed=seed)).rounds(nodes).localise(lambda: False)
        assert found.bad_nodes == (), seed
        links += found.bad_links
    assert len(links) <= 1  # slow in three measurements of three; six without the repeat


def test_a_slow_node_is_found_beside_traffic_in_two_steps() -> None:
    nodes = tuple(f"gpu{number:02}" for number in range(64))
    found, _ = Fabric(LinkModel(network={nodes[9]: 0.7}, traffic=0.02, seed=1)).rounds(nodes).localise(lambda: False)
    assert (found.bad_nodes, found.rounds, found.steps) == ((nodes[9],), 5, 2)
