"""The rule of common cause on hand-written findings: what nodes share is found, and sick nodes stay sick nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_gpucluster.core.common_cause import NO_MAJORITY, Place, common_findings, likeness, peer_groups
from pytest_gpucluster.core.finding import Action, Finding, Measure, Quantity, Quote
from pytest_gpucluster.core.part import GPUS, Part, gpu, named, port

NodeFinding = tuple[str, Finding]
SIX = tuple(f"gpu{number:02}" for number in range(1, 7))
HERE = dict.fromkeys(SIX, Place())
UUIDS = {node: f"GPU-{number:08x}-1b2c-4d5e-8f90-0a1b2c3d4e5f" for number, node in enumerate(SIX)}


def finding(
    node: str, part: Part, measured: str, expected: str, action: str, setting: str = "", code: str = "bad"
) -> NodeFinding:
    return node, Finding(part, measured, expected, Action(action), setting, code)


def lost_gpu(node: str, index: int) -> NodeFinding:
    part = gpu(index, uuid=UUIDS[node], address=f"00000000:{index:02X}:00.0")
    return finding(node, part, "GPU is lost", "answers", "reboot", code="lost")


def limits(node: str, value: int = 1024, setting: str = "os.limits") -> NodeFinding:
    return finding(node, named("setting", "nofile"), str(value), "at least 65536", "monitor", setting)


def found(seen: list[NodeFinding], judged: tuple[str, ...] = SIX, **places: Place) -> list[tuple[str, tuple[str, ...]]]:
    return [(it.where, tuple(it.nodes)) for it in common_findings("x.y", seen, judged, places or HERE)]


@pytest.mark.parametrize(
    ("failing", "judged", "common"),
    [(6, 6, True), (4, 6, True), (2, 3, True), (2, 2, True), (1, 2, False), (1, 1, False)],
)
def test_all_or_most_nodes_of_a_group_are_one_finding(failing: int, judged: int, *, common: bool) -> None:
    """Most: more than half of at least three judged nodes. The action makes no difference."""
    seen = [lost_gpu(node, index) for index, node in enumerate(SIX[:failing])]
    assert found(seen, SIX[:judged]) == ([("in the cluster", SIX[:failing])] if common else [])


def test_the_only_node_counts_where_a_setting_explains_it() -> None:
    (one,) = common_findings("os.limits", [limits("gpu01")], ["gpu01"], HERE)
    assert list(one.nodes) == ["gpu01"]
    assert "os.limits explains it" in one.cause
    slow = finding("gpu01", port("mlx5_2", 1), "200 Gb/s", "400 Gb/s", "configure")  # a cable, or the profile
    assert found([slow], ("gpu01",)) == []
    assert found([slow], ("gpu01", "x1"), gpu01=Place("g"), x1=Place("x")) == []
    assert found([limits("gpu01", setting="")], ("gpu01",)) == []
    assert found([lost_gpu("gpu01", 3)], ("gpu01",)) == []
    assert found([limits("gpu02")], SIX) == []  # one of several nodes
    assert common_findings("x.y", [*map(limits, SIX)], SIX, {}) == []  # of an old log, without places


@pytest.mark.parametrize("code", ["count", ""])
@pytest.mark.parametrize("values", [(Quantity(7), Quantity(9)), ("7 of 8", "9 of 8")])
def test_nodes_that_miss_a_setting_by_different_values_miss_the_same_setting(
    code: str, values: tuple[Measure, Measure]
) -> None:
    stated = [
        (node, Finding(GPUS, what, Quantity(8), setting="gpu.count", code=code))
        for node, what in zip(SIX, values * 3, strict=True)
    ]
    assert found(stated) == [("in the cluster", SIX)]
    unexplained = [(node, replace(one, setting="")) for node, one in stated]
    assert bool(found(unexplained)) == (code != "" and isinstance(values[0], str))


@pytest.mark.parametrize(
    ("first", "other", "same"),
    [
        ((gpu(3, uuid="GPU-1", address="0:1b"), 7, 8, "count"), (gpu(5, uuid="GPU-2"), 6, 8, "count"), True),
        ((GPUS, 7, 8, "count"), (GPUS, 9, 8, "count"), False),
        ((GPUS, 7, 8, "count"), (GPUS, 8, 8, "count"), False),
        ((gpu(3), "Xid 79", "", "xid_79"), (gpu(3), "Xid 48", "", "xid_48"), False),
        ((named("mount", "/tmp"), "gpu01: a", "b", "x"), (named("mount", "/tmp"), "gpu02: c", "d", "x"), True),
        ((named("mount", "/tmp"), "noexec", "", "x"), (named("mount", "/raid"), "noexec", "", "x"), False),
        ((port("mlx5_0", 1), "25 Gb/s", "50", "x"), (port("mlx5_7", 1), "12.5 Gb/s", "50", "x"), True),
        ((port("mlx5_0", 1), "down", "", "x"), (Part("adapter", name="mlx5_0"), "down", "", "x"), False),
        ((Part(), "one", "two", ""), (Part(), "one", "two", ""), True),  # of a suite without codes
        ((Part(), "one", "two", ""), (Part(), "1", "two", ""), False),
    ],
)
def test_code_kind_of_part_and_relation_make_findings_alike(
    first: tuple[Any, ...], other: tuple[Any, ...], *, same: bool
) -> None:
    """Neither words nor quotations, names of devices, addresses and serial numbers."""
    alike = []
    for part, measured, expected, code in (first, other):
        found, wanted = (Quantity(one) if isinstance(one, int) else one for one in (measured, expected))
        alike.append(likeness(Finding(part, found, wanted, code=code)))
        if code and isinstance(measured, str):
            assert likeness(Finding(part, Quote("hostile\nGPU is lost"), "x", code=code)) == alike[-1]
    assert (alike[0] == alike[1]) == same


def test_sick_nodes_that_are_most_of_a_group_are_reported_and_not_drained() -> None:
    seen = [lost_gpu(node, index) for index, node in enumerate(SIX[:5])]
    (one,) = common_findings("gpu.count", seen, SIX, HERE)
    assert "5 of 6 nodes" in one.cause
    assert "drain them by hand" in one.hint
    (mild,) = common_findings("os.limits", [*map(limits, SIX)], SIX, HERE)
    assert "by hand" not in mild.hint


def test_groups_and_what_divides_a_group_are_judged_apart() -> None:
    places = {node: Place(group="a" if node < "gpu03" else "b") for node in SIX}
    assert found([limits("gpu01"), limits("gpu02"), limits("gpu03")], SIX, **places) == [
        ("in group a", ("gpu01", "gpu02"))
    ]
    two = ("gpu01", "gpu02")
    for name, words in (("partition", "of partition new"), ("arch", "on new"), ("image", "with new")):
        places = {node: Place(group="g", **{name: "new" if node in two else "old"}) for node in SIX}
        assert found([*map(limits, two)], SIX, **places) == [(f"in group g {words}", two)], name


def test_all_groups_alike_are_one_finding() -> None:
    places = {node: Place(group=node) for node in SIX}
    seen = [limits(node, setting="") for node in SIX]
    assert found(seen, SIX, **places) == [("in all groups", SIX)]
    assert found(seen[:5], SIX, **places) == []


def test_all_nodes_of_a_leaf_switch_are_a_finding_of_the_switch() -> None:
    many = tuple(f"n{number:02}" for number in range(12))
    places = {node: Place(group="g", switch=f"leaf{number // 4}") for number, node in enumerate(many)}
    down = [finding(node, port("mlx5_0", 1), "Down", "Active", "drain") for node in many[4:8]]
    assert found(down, many, **places) == [("in group g below switch leaf1", many[4:8])]
    assert found(down[:3], many, **places) == []
    # a node counts once where it shares more than one thing
    places = {node: Place(group="g", image="a" if node < "gpu04" else "b") for node in SIX}
    assert found([*map(limits, SIX)], SIX, **places) == [("in group g", SIX)]


def test_nodes_are_compared_within_group_partition_architecture_and_image() -> None:
    places = {
        "x1": Place("x[1-3]", "batch", "x86_64", "6.1", "leaf1"),
        "x2": Place("x[1-3]", "batch", "x86_64", "6.1", "leaf2"),
        "x3": Place("x[1-3]", "batch", "x86_64", "6.8", "leaf2"),
        "x4": Place("x[1-3]", "batch", "aarch64", "6.1"),
        "g1": Place("g1", "batch", "aarch64", "6.1"),
        "d1": Place("x[1-3]", "debug", "x86_64", "6.1"),
    }
    peers, twins = (peer_groups(places, image=image) for image in (False, True))
    assert {node: group.names for node, group in peers.items()} == {
        **dict.fromkeys(("x1", "x2", "x3"), ("x1", "x2", "x3")),
        "x4": ("x4",),
        "g1": ("g1",),
        "d1": ("d1",),
    }
    assert (twins["x1"].names, twins["x3"].names) == (("x1", "x2"), ("x3",))
    assert (peers["x1"].nodes, peers["x1"] is peers["x2"]) == ("x[1-3]", True)


def test_where_nodes_differ_without_a_majority_none_is_at_fault_however_many_are_named() -> None:
    words = ("64 KiB", "one value on all nodes; no majority: ...", "configure", NO_MAJORITY)
    uneven = [finding(node, named("setting", "memlock"), *words) for node in SIX[:2]]
    (one,) = common_findings("os.limits", uneven, SIX, HERE)
    assert list(one.nodes) == list(SIX[:2])
    assert "an upgrade that has not reached all nodes; no node is at fault" in one.cause
