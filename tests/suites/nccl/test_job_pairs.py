"""Pairs that the gates of a job have measured: the node that is slow with each partner is bad, a slow link names none."""

from __future__ import annotations

import itertools

from pytest_gpucluster.suites.nccl.job_pairs import bad_nodes, rounds

NODES = [f"gpu0{n}" for n in range(1, 7)]


def rows(slow: dict[frozenset[str], float | str]) -> list[dict[str, object]]:
    results = [(pair, slow.get(frozenset(pair), 40.0)) for one in rounds(NODES) for pair in one]
    return [{"pair": pair, "problem" if isinstance(it, str) else "busbw_gb_s": it} for pair, it in results]


def test_each_node_has_two_partners() -> None:
    pairs = [frozenset(pair) for one in rounds(NODES) for pair in one]
    assert all(sum(node in pair for pair in pairs) == 2 for node in NODES)
    assert rounds(["gpu01"]) == []


def test_a_node_that_is_slow_with_each_partner_is_bad() -> None:
    all_pairs = map(frozenset, itertools.combinations(NODES, 2))
    pairs = [pair for pair in all_pairs if "gpu03" in pair]
    for result in (9.0, "NCCL error: unhandled system error"):
        assert bad_nodes(rows(dict.fromkeys(pairs, result)), NODES).keys() == {"gpu03"}
    assert bad_nodes([*rows({}), {"pair": 7}, {"pair": [[], {}]}, {"gate": "gpu01"}], NODES) == {}


def test_a_slow_link_names_no_node() -> None:
    (first, *_), *_ = rounds(NODES)
    assert bad_nodes(rows({frozenset(first): 9.0}), NODES) == {}
