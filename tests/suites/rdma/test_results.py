"""The rails of a fleet on a fabric with one fault: the part that is named, how many steps that takes, and nothing else."""

from __future__ import annotations

import random

import pytest
from rdma_helpers import GOOD, RAILS, SLOW, measured, names, rails_of

from pytest_gpucluster.suites.rdma.results import RdmaResult

LEAVES = {node: f"leaf{n // 8}" for n, node in enumerate(names(32))}
EIGHT_RAILS = [f"0000:{n:02x}:00.0 port 1" for n in range(8)]


def bad(result: RdmaResult) -> dict[str, tuple[str, ...]]:
    return {rail: found.bad_nodes for rail, found in result.found.items() if found.bad_nodes}


def slow_adapter(count: int, steps: list[int] | None = None) -> RdmaResult:
    """Measure nodes of which gpu02 is slow on its second rail."""
    return measured(
        names(count),
        lambda rail, a, b, test: SLOW if rail == RAILS[1] and "gpu02" in (a, b) and test != "read" else None,
        steps=steps,
    )


@pytest.mark.parametrize("count", [4, 5, 33])
def test_a_slow_adapter_is_named_on_its_rail_alone(count: int) -> None:
    steps: list[int] = []
    result = slow_adapter(count, steps)
    assert bad(result) == {RAILS[1]: ("gpu02",)}
    assert result.found[RAILS[0]].clean
    assert len(steps) <= 6  # two repeat what convicts, the last one measures all rails together


@pytest.mark.parametrize("sends", [True, False])
def test_an_adapter_that_is_slow_in_one_direction_is_named_too(sends: bool) -> None:
    """Whether it was first or second in a pair does not matter."""

    def fault(rail: str, a: str, b: str, kind: str) -> float | None:
        return SLOW if kind != "read" and (a if sends else b) == "gpu03" and rail == RAILS[0] else None

    assert bad(measured(names(6), fault)) == {RAILS[0]: ("gpu03",)}


def test_a_node_that_lacks_an_adapter_is_measured_on_the_others() -> None:
    nodes = names(5)
    rails = rails_of(nodes)
    del rails["gpu04"][RAILS[1]]
    result = measured(nodes, lambda *_: None, rails=rails)
    members = {rail: {node for it in result.measured(rail) for node in it.members} for rail in RAILS}
    assert members == {RAILS[0]: {*nodes}, RAILS[1]: {*nodes} - {"gpu04"}}
    assert all(found.clean for found in result.found.values())
    assert {*result.together} == {*nodes} - {"gpu04"}


def test_all_rails_together_are_measured_with_sound_partners_only() -> None:
    rates = {node: rate for node, (rate, _) in slow_adapter(7).together.items()}
    assert rates == pytest.approx(dict.fromkeys({*names(7)} - {"gpu02"}, 2 * GOOD))
    # an odd node is measured with the first one
    assert measured(names(5), lambda *_: None).together["gpu05"][1] == "gpu01"


@pytest.mark.parametrize("seed", range(3))
def test_traffic_of_other_jobs_makes_no_node_bad(seed: int) -> None:
    """One test of ten is slow by chance, as on a fabric that other jobs use; a test takes 0.2 seconds."""
    chance = random.Random(seed)
    result = measured(
        names(64),
        lambda _rail, _a, _b, test: SLOW if test != "read" and chance.random() < 0.1 else None,
        rails=rails_of(names(64), EIGHT_RAILS),
    )
    assert bad(result) == {}


def test_the_latency_of_a_late_node_is_not_that_of_its_partners() -> None:
    result = measured(names(8), lambda _r, a, b, test: 6.0 if test == "read" and "gpu03" in (a, b) else None)
    shares = {node: share for node, (_, share) in result.latencies[RAILS[0]].items()}
    assert shares.pop("gpu03") > 2
    assert set(shares.values()) == {1.0}


def test_pairs_across_leaves_are_compared_with_each_other() -> None:
    result = measured(
        names(32), lambda _rail, a, b, test: 3.9 if test == "read" and LEAVES[a] != LEAVES[b] else None, leaves=LEAVES
    )
    assert {share for _, share in result.latencies[RAILS[0]].values()} == {1.0}


def test_the_number_of_steps_does_not_grow_with_the_rails() -> None:
    steps: list[int] = []
    measured(names(16), lambda *_: None, rails=rails_of(names(16), EIGHT_RAILS), steps=steps)
    assert steps == [16, 1]  # two rounds of each rail, and all together
