"""Rounds of pairs, pair by pair; tests/kit/nccl/test_localization.py shows that every pair comes once."""

from __future__ import annotations

from pytest_gpucluster.kit.nccl.pairing import across_leaves, by_leaf, circle, neighbours, within_leaves

LEAVES = {"a": "s1", "b": "s1", "c": "s1", "d": "s2", "e": "s2", "f": "s2"}


def test_all_pairs_in_rounds() -> None:
    assert circle("") == ()
    assert circle("ab") == ((("a", "b"),),)
    assert circle("abc") == ((("b", "c"),), (("a", "c"),), (("a", "b"),))
    assert circle("abcd") == ((("a", "d"), ("b", "c")), (("a", "c"), ("d", "b")), (("a", "b"), ("c", "d")))


def test_pairs_of_neighbours() -> None:
    assert neighbours("abcd") == (("a", "b"), ("c", "d"))
    assert neighbours("abcd", shift=1) == (("b", "c"), ("d", "a"))
    assert neighbours("abcde") == (("a", "b"), ("c", "d"))
    assert neighbours("abcde", shift=1) == (("b", "c"), ("d", "e"))
    assert neighbours("a") == neighbours("") == ()


def test_nodes_by_leaf() -> None:
    assert by_leaf("xadby", LEAVES) == {"": ["x", "y"], "s1": ["a", "b"], "s2": ["d"]}


def test_pairs_within_and_across_leaves() -> None:
    assert within_leaves("abcdef", LEAVES) == (("a", "b"), ("d", "e"), ("c", "f"))
    assert within_leaves("abcd", LEAVES) == (("a", "b"), ("c", "d"))
    assert across_leaves("abcdef", LEAVES) == (("a", "d"), ("b", "e"), ("c", "f"))
    assert across_leaves("abcd", LEAVES) == (("a", "d"),)
    three = {"a": "1", "b": "1", "c": "2", "d": "2", "e": "3", "f": "3"}
    assert across_leaves("abcdef", three) == (("c", "e"), ("b", "f"), ("a", "d"))
    assert across_leaves("ab", LEAVES) == ()
