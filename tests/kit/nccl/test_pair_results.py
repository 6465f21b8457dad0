"""Pairs of many runs are judged together."""

from __future__ import annotations

from itertools import combinations

from pytest_gpucluster.kit.nccl.pair_results import PAIR_BUSBW, judge_pairs
from pytest_gpucluster.kit.suite_work import PairResult

NODES = tuple(f"n{number}" for number in range(8))


def pair(one: str, other: str, value: float = 100.0) -> PairResult:
    return PairResult((one, other), PAIR_BUSBW, value)


def test_a_slow_pair_of_monday_and_another_of_tuesday_name_the_node_that_they_share() -> None:
    monday = [pair("n0", "n1", 40.0), pair("n2", "n3"), pair("n4", "n5")]
    assert judge_pairs(NODES, monday).bad == {}
    tuesday = [pair("n0", "n2", 41.0), pair("n1", "n3"), pair("n4", "n6")]
    found = judge_pairs(NODES, [*monday, *tuesday])
    assert list(found.bad) == ["n0"]
    assert "n0" in found.bad["n0"]


def test_a_slow_pair_wants_the_pairs_that_decide_which_node_it_is() -> None:
    found = judge_pairs(NODES, [pair("n0", "n1", 40.0), pair("n2", "n3"), pair("n4", "n5")])
    assert any(set(wanted) & {"n0", "n1"} for wanted in found.wanted)
    assert any("n[0-1]" in question for question in found.questions)
    first = judge_pairs(NODES, [pair("n0", "n1")]).questions  # of a campaign
    assert all("no bound" in question for question in first)


def test_a_slow_link_between_good_nodes_is_a_link() -> None:
    measured = [pair(*ends) for ends in combinations(NODES[:5], 2) if ends != ("n0", "n1")]
    found = judge_pairs(NODES[:5], [*measured, pair("n0", "n1", 40.0), pair("n0", "n1", 41.0)])
    assert (dict(found.bad), found.bad_links) == ({}, (("n0", "n1"),))


def test_a_pair_that_crashed_counts_as_bad_and_other_metrics_do_not_count() -> None:
    crashed = [PairResult(("n0", other), "", None, "nccl.whole: rank 3 ended") for other in ("n1", "n2")]
    good = [pair("n1", "n2"), pair("n3", "n4"), pair("n1", "n3"), PairResult(("n5", "n6"), "latency", 1.0)]
    found = judge_pairs(NODES, [*crashed, *good])
    assert list(found.bad) == ["n0"]
