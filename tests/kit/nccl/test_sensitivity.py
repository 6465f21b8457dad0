"""The smallest fault that rounds of pairs would have shown, and that a fault of this size is slow in 95% of the measurements."""

from __future__ import annotations

import random

import pytest

from pytest_gpucluster.core.finding import Metric
from pytest_gpucluster.kit.nccl.localization import Localiser
from pytest_gpucluster.kit.nccl.measurement import Localisation, Measurement
from pytest_gpucluster.kit.nccl.pair_findings import link_findings
from pytest_gpucluster.kit.nccl.sensitivity import SmallestFault, sensitivity

NODES = tuple(f"n{number:03}" for number in range(256))


def localised(nodes: tuple[str, ...], noise: float, expected: float | None = None) -> SmallestFault | None:
    dice = random.Random(2)
    plan = Localiser(nodes, alone=False, expected={"within": expected} if expected else None)
    while batch := plan.next_rounds():
        plan.feed(Measurement(pair, 90 * dice.lognormvariate(0, noise)) for groups in batch for pair in groups)
    return plan.verdict().smallest


def test_smallest_fault_follows_from_bound_noise_and_number_of_measurements() -> None:
    found = localised(NODES, 0.02)
    assert found
    assert found.noise == pytest.approx(0.02, rel=0.15)
    assert found.measurements == 2
    # the bound is 12% below the median: 0.88 x exp(-1.645 x 0.02 x 1.12)
    assert found.slowdown == pytest.approx(1 - 0.88 * 0.9638, abs=0.006)
    assert (1 - 0.95 * found.share) ** 2 == pytest.approx(0.05)
    links = link_findings(Localisation(smallest=found), [], NODES[:2], "")
    assert {"smallest_fault", "smallest_fault_share"} <= {it.name for it in links if isinstance(it, Metric)}
    known = [None, found, SmallestFault(0.15, 1.0, 1, 0.02)]
    assert [it.value for it in sensitivity(known) if isinstance(it, Metric)] == [15.0, 100.0]


def test_lower_bound_shows_only_larger_faults_and_few_pairs_show_nothing() -> None:
    strict, loose = localised(NODES, 0.02), localised(NODES, 0.02, expected=60.0)
    assert strict
    assert loose
    assert loose.slowdown > 1 - 60 / 90 > strict.slowdown
    assert localised(NODES[:3], 0.02) is None
