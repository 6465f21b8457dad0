"""The norm of a fleet and who deviates from it."""

from __future__ import annotations

import pytest

from pytest_gpucluster.core.check import Action, Advisory, Finding
from pytest_gpucluster.core.common_cause import NO_MAJORITY
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.majority import DIFFERS, Norm, decides, differs, less, near, norm, older


def fleet_of(*counts: int) -> Norm[str]:
    values = [value for value, count in zip("ABCDEF", counts, strict=False) for _ in range(count)]
    return norm((f"n{number:03}", value) for number, value in enumerate(values, 1))


@pytest.mark.parametrize(
    ("clear", "several"),
    [
        (True, [(1,), (2,), (2, 1), (3, 1), (4, 2), (67, 33), (200, 100)]),
        (False, [(1, 1), (2, 2), (3, 2), (2, 2, 1), (51, 49), (66, 34), (199, 101)]),
    ],
)
def test_two_thirds_are_a_majority(several: list[tuple[int, ...]], *, clear: bool) -> None:
    for counts in several:
        found = fleet_of(*counts)
        assert (found.clear, found.value) == (clear, "A" if clear else None)
        assert (found.total, found.agree) == (sum(counts), counts[0])
        actions = [finding.action for value in "AB" for finding in found.judge_result("x", value)]
        if len(counts) > 1:
            assert actions == ([None] if clear else [Action.CONFIGURE] * 2)
    assert [decides(agree, 3) for agree in range(4)] == [False, False, True, True]
    assert not decides(0, 0)


def test_who_deviates_from_two_thirds_is_named_with_the_action_of_its_check() -> None:
    found = fleet_of(2, 1)
    assert list(found.judge("driver", "A", worse=differs)) == []
    assert list(found.judge("driver", "B", worse=differs)) == [
        Finding("driver", Quote("B"), Quote("A, as on 2 of 3 nodes"), code=DIFFERS)
    ]
    (unlike,) = norm([("a", {"x": 1}), ("b", {"x": 1}), ("c", {})]).judge("x", {}, worse=differs)  # no hash
    assert str(unlike.expected) == "{'x': 1}, as on 2 of 3 nodes"


def test_without_a_majority_all_values_are_named_and_nobody_is_drained() -> None:
    halves = norm({f"gpu0{n}": "535.104" if n < 5 else "550.54" for n in range(1, 9)}.items())
    expected = "one value on all nodes; no majority: 535.104 on gpu[01-04], 550.54 on gpu[05-08]"
    for mine in ("535.104", "550.54"):
        (found,) = halves.judge("driver", mine, worse=differs)
        assert found == Finding("driver", Quote(mine), expected, Action.CONFIGURE, code="no_majority")
        assert isinstance(found, Finding)
        assert found.setting == NO_MAJORITY  # a finding of the cluster; two results of a computation are none
        assert [it.setting for it in halves.judge_result("driver", mine)] == [""]
    assert [getattr(it, "setting", None) for it in fleet_of(2, 1).judge("x", "B", worse=differs)] == [""]


def test_a_fleet_of_one_and_of_none_has_nothing_to_compare_with() -> None:
    assert fleet_of(1, 1).absent == ""
    for alone in (Norm[str](), fleet_of(1)):
        assert alone.absent
        assert list(alone.judge("x", "B", worse=differs)) == []
    assert (Norm[str]().value, Norm[str]().clear, Norm[str]().agree) == (None, False, 0)
    assert norm([]).voters == Norm[str]().voters == "nodes"


def test_a_node_that_votes_several_times_is_named_once_with_how_often() -> None:
    votes = [("gpu01", "A")] * 5 + [("gpu01", "B")] * 3 + [("gpu02", "B")]
    (found,) = norm(votes, "GPUs of this model").judge("GPU 1", "A", worse=differs)
    assert str(found.expected).endswith("GPUs of this model; no majority: A (5) on gpu01, B (4) on gpu[01-02]")
    clear = norm([("a", 1), ("b", 2), ("c", 2), ("a", 2)], "GPUs")
    assert clear.votes == ((2, ("b", "c", "a")), (1, ("a",)))
    assert list(clear.judge("p", 1, measured="one", worse=differs)) == [
        Finding("p", Quantity(1, text="one"), Quantity(2, text="2, as on 3 of 4 GPUs"), code=DIFFERS)
    ]


def test_only_the_faulty_direction_condemns_and_a_warning_may_name_the_other() -> None:
    usual = norm([("a", 64), ("b", 64), ("c", 48), ("d", 96)] + [(f"e{n}", 64) for n in range(4)])
    (lost,) = usual.judge("memory", 48, worse=less, action=Action.VENDOR)
    assert isinstance(lost, Finding)
    assert (lost.action, lost.measured, lost.relation) == (Action.VENDOR, Quantity(48), "<")
    assert list(usual.judge("memory", 96, worse=less)) == []
    assert list(usual.judge("memory", 96, worse=less, harmless="more")) == [
        Advisory("memory", Quantity(96, text="96: more"), Quantity(64, text="64, as on 6 of 8 nodes"), code=DIFFERS)
    ]
    (named,) = usual.judge("memory", 96, worse=less, harmless="more", measured="much")
    assert str(named.measured) == "much: more"
    assert list(usual.judge("memory", 64, worse=less, harmless="more")) == []
    with pytest.raises(TypeError, match="faulty direction"):
        list(usual.judge("memory", 96, worse=differs, action=Action.VENDOR))
    assert [getattr(it, "action", None) for it in usual.judge("memory", 96, worse=differs, action=Action.MONITOR)] == [
        Action.MONITOR
    ]


def test_who_has_more_than_the_others_is_not_worse_without_a_majority_either() -> None:
    found = norm([("a", 4), ("b", 8)])
    assert list(found.judge("x", 8, worse=less)) == list(found.judge("x", 8, worse=less, harmless="m")) == []
    (fewer,) = found.judge("x", 4, measured="four", shown=hex, worse=less)
    assert (str(fewer.measured), str(fewer.expected)[-16:]) == ("four", "0x4 on a, 0x8 on b"[-16:])
    (same,) = found.judge("x", 4, shown=lambda _: "z", worse=differs)  # two values that look alike
    assert str(same.measured) == "z"


@pytest.mark.parametrize(
    ("values", "tolerance", "shared"),
    [
        ({"a": 100, "b": 101, "c": 99, "d": 50}, 0.02, {"a": 100, "b": 100, "c": 100, "d": 50}),
        ({"a": 100, "b": 103, "c": 100}, 0.02, {"a": 100, "b": 103, "c": 100}),
        ({"a": 95.0, "b": 100.0}, 0.05, {"a": 100.0, "b": 100.0}),  # the upper median
        ({"a": 94.9, "b": 100.0}, 0.05, {"a": 94.9, "b": 100.0}),
        ({"a": -95.0, "b": -100.0, "c": -100.0}, 0.05, dict.fromkeys("abc", -100.0)),
        ({}, 0.02, {}),
    ],
)
def test_values_near_each_other_are_one(values: dict[str, float], tolerance: float, shared: dict[str, float]) -> None:
    assert near(values, tolerance) == shared


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        ("5.14.0-427.13.1.el9_4.x86_64", "5.14.0-503.11.1.el9_5.x86_64", True),
        ("5.14.0-503.11.1.el9_5.x86_64", "5.14.0-427.13.1.el9_4.x86_64", False),
        # another flavour is not ordered, whichever has the higher number
        ("6.8.0-45-generic", "6.8.0-1015-nvidia", True),
        ("6.8.0-1015-nvidia", "6.8.0-45-generic", True),
        ("ubuntu 22.04", "debian 12", True),
    ],
)
def test_an_older_version_and_a_version_of_another_kind_deviate(mine: str, theirs: str, *, expected: bool) -> None:
    assert older(mine, theirs) is expected


def test_long_values_are_shown_from_where_they_part() -> None:
    mine, theirs = f"{'x' * 200}end", "x" * 200
    (one,) = norm([("a", mine), ("b", theirs)]).judge("x", mine, worse=differs)
    assert str(one.measured) == f"...{'x' * 20}end..."
    assert f"{one.measured!s} on a" in str(one.expected)
