"""Pairs that the gates of a job have measured: the node that is slow with each partner is bad, a slow link names none."""

from __future__ import annotations

import itertools

from pytest_gpucluster.suites.nccl.job_pairs import bad_nodes, rounds

NODES = [f"gpu0{n}" for n in range(1, 7)]


def lines(slow: dict[frozenset[str], str]) -> list[str]:
    pairs = [pair for one in rounds(NODES) for pair in one]
    return [f"{a}: pair {a} {b}: {slow.get(frozenset((a, b)), '40.00 GB/s')}" for a, b in pairs]


def test_each_node_has_two_partners() -> None:
    pairs = [frozenset(pair) for one in rounds(NODES) for pair in one]
    assert all(sum(node in pair for pair in pairs) == 2 for node in NODES)
    assert rounds(["gpu01"]) == []


def test_a_node_that_is_slow_with_each_partner_is_bad() -> None:
    all_pairs = map(frozenset, itertools.combinations(NODES, 2))
    slow = {pair: "9.00 GB/s" for pair in all_pairs if "gpu03" in pair}
    assert bad_nodes(lines(slow), NODES).keys() == {"gpu03"}
    failed = dict.fromkeys(slow, "NCCL error: unhandled system error")
    assert bad_nodes(lines(failed), NODES).keys() == {"gpu03"}
    assert bad_nodes(lines({}), NODES) == {}


def test_a_slow_link_names_no_node() -> None:
    (first, *_), *_ = rounds(NODES)
    assert bad_nodes(lines({frozenset(first): "9.00 GB/s"}), NODES) == {}
