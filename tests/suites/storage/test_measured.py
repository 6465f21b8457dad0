"""Figures of all nodes: which facts they are made of, and which node is slow."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.storage import measured

NODES = ("gpu01", "gpu02", "gpu03", "gpu04", "gpu05")


def step(*facts: dict[str, Any]) -> PayloadResult:
    """Return a step in which each node reports these facts; a list has one value per node."""
    tasks = []
    for rank, node in enumerate(NODES):
        place = {"path": "/s", "rank": rank, "node": node}
        own = [{key: it[rank] if isinstance(it, list) else it for key, it in fact.items()} for fact in facts]
        tasks.append(PayloadTask(rank, node, 0, None, tuple({**place, **fact} for fact in own)))
    return PayloadResult("storage", NODES, len(NODES), tuple(tasks))


def test_of_two_readings_the_better_counts() -> None:
    first, second = [1.0, 5.0, 5.0, 5.0, 5.0], [4.0, 2.0, 5.0, 5.0, 5.0]
    result = step(
        *({"storage": "write", "how": "alone", "seconds": 3.0, "rate": rates} for rates in (first, second))
    )
    values = measured.rates(result, "/s", "write", "alone").values
    assert (values["gpu01"], values["gpu02"]) == (4.0, 5.0)


@pytest.mark.parametrize(("less_is_worse", "slow"), [(True, ["gpu01"]), (False, ["gpu05"])])
def test_a_node_is_slow_in_the_direction_that_is_worse(less_is_worse: bool, slow: list[str]) -> None:
    values = dict(zip(NODES, (1.0, 10.0, 10.1, 9.9, 90.0), strict=True))
    figure = measured.Figure("f", "", values, less_is_worse)
    assert figure.median == 10.0
    assert [node for node in NODES if figure.slow(node, 0.3)] == slow
    assert not any(figure.slow(node, 10.0) for node in NODES)
    assert not figure.slow("gpu09", 0.3)
    assert measured.Figure("f", "", {}).median == 0.0


@pytest.mark.parametrize(("took", "slow"), [(0.004, False), (0.1, False), (0.12, True), (None, True)])
def test_a_node_that_is_late_by_a_moment_is_not_slow(took: float | None, *, slow: bool) -> None:
    """Of 1000 nodes each writes 16 MiB in some ms: the first connection and the ms of fio's clock are in each rate."""
    values = dict(zip(NODES, (1.0, 10.0, 10.1, 9.9, 10.2), strict=True))
    seconds = {} if took is None else dict.fromkeys(NODES, took)
    assert measured.Figure("f", "", values, seconds=seconds).slow("gpu01", 0.3) is slow


@pytest.mark.parametrize(
    ("slow", "named"), [([4.6], True), ([4.6] * 2, True), ([4.6] * 3, False), ([4.6] * 5, False)]
)
def test_a_slow_node_stands_apart_only_from_a_faster_majority(slow: list[float], *, named: bool) -> None:
    values = dict(enumerate([*slow, *[9.5] * (7 - len(slow))]))
    higher = measured.Figure("f", "", {f"n{at}": value for at, value in values.items()})
    lower = measured.Figure("f", "", {f"n{at}": 1 / it for at, it in values.items()}, less_is_worse=False)
    assert higher.has_faster_majority("n0", 0.3) is lower.has_faster_majority("n0", 0.3) is named
