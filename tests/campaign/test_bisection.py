"""Larger groups find the node that pairs do not show."""

from __future__ import annotations

import pytest

from pytest_gpucluster.campaign.bisection import LEAST, Bisection, bisect, next_group

NODES = tuple(f"n{number}" for number in range(16))
Groups = list[tuple[tuple[str, ...], frozenset[str]]]


def drive(bad: set[str], size: int, names: tuple[str, ...] = NODES) -> tuple[Bisection, Groups]:
    """Test groups until nothing is pending; a group fails as a whole if it has a bad node."""
    groups: Groups = []
    for _ in range(60):
        found = bisect(groups)
        pending = [node for node in names if node not in found.good and node not in found.bad]
        chosen = next_group(found, [node for node in names if node not in found.bad], pending, size)
        if not chosen:
            return found, groups
        assert LEAST <= len(chosen) <= size
        assert len(set(chosen)) == len(chosen)
        groups.append((chosen, frozenset(chosen if set(chosen) & bad else ())))
    pytest.fail("the groups do not end")


@pytest.mark.parametrize("size", [3, 4, 5, 8])
def test_one_bad_node_is_named_and_no_other(size: int) -> None:
    for names, most in ((NODES, len(NODES) // size + 7), (NODES[:6], 8)):
        for bad in names:
            found, groups = drive({bad}, size, names)
            assert set(found.bad) == {bad}
            assert found.good == {*names} - {bad}
            assert len(groups) <= most


@pytest.mark.parametrize("bad", [set(), {"n0", "n1"}, {"n2", "n9"}, {"n5", "n10", "n15"}])
def test_several_bad_nodes_are_named_and_sound_ones_tested_once(bad: set[str]) -> None:
    found, groups = drive(bad, 4)
    assert (set(found.bad), set(found.good)) == (bad, {*NODES} - bad)
    assert bad or len(groups) == 4


def test_nodes_that_fail_only_together_are_named_together() -> None:
    whole = NODES[:4]
    halves: Groups = [((*whole[:2], "n8", "n9"), frozenset()), ((*whole[2:], "n8", "n9"), frozenset())]
    found = bisect([(whole, frozenset(whole)), *halves])
    assert (found.together, found.bad, found.candidates) == ((whole,), {}, ())


def test_a_node_that_the_run_named_explains_its_group() -> None:
    found = bisect([(NODES[:4], frozenset({"n1"}))])
    assert set(found.bad) == {"n1"}
    assert found.good == {"n0", "n2", "n3"}
    assert not found.candidates
