"""The norm of a fleet and who deviates from it, and duplicates."""

from __future__ import annotations

import pytest

from pytest_gpucluster.core import majority as fleet
from pytest_gpucluster.core.check import CHECKS, Action, Advisory, Finding
from pytest_gpucluster.core.common_cause import NO_MAJORITY
from pytest_gpucluster.core.majority import Norm, decides, differs, less, near, norm, older, owners
from pytest_gpucluster.core.registry import import_checks


def _fleet(*counts: int) -> Norm[str]:
    """As many nodes with A, B, C, ... as `counts` says."""
    values = [value for value, count in zip("ABCDEF", counts, strict=False) for _ in range(count)]
    return norm((f"n{number:03}", value) for number, value in enumerate(values, 1))


def test_who_deviates_from_two_thirds_is_named_with_the_action_of_its_check() -> None:
    found = _fleet(2, 1)
    assert (found.value, found.clear, found.total, found.agree) == ("A", True, 3, 2)
    assert list(found.judge("driver", "A", worse=differs)) == []
    assert list(found.judge("driver", "B", worse=differs)) == [
        Finding("driver", "B", "A, as on 2 of 3 nodes")
    ]


@pytest.mark.parametrize(
    ("counts", "clear"),
    [
        ((1,), True), ((2,), True), ((1, 1), False), ((2, 1), True), ((2, 2), False), ((3, 1), True),
        ((3, 2), False), ((2, 2, 1), False), ((4, 2), True), ((51, 49), False), ((66, 34), False), ((67, 33), True),
        ((199, 101), False), ((200, 100), True),
    ],
)  # fmt: skip
def test_two_thirds_are_a_majority(counts: tuple[int, ...], *, clear: bool) -> None:
    found = _fleet(*counts)
    assert found.clear is clear
    assert found.value == ("A" if clear else None)
    actions = [finding.action for value in "AB" for finding in found.judge_result("x", value)]
    if len(counts) > 1:
        assert actions == ([None] if clear else [Action.CONFIGURE] * 2)


def test_without_a_majority_all_values_are_named_and_nobody_is_drained() -> None:
    halves = norm({f"gpu0{n}": "535.104" if n < 5 else "550.54" for n in range(1, 9)}.items())
    expected = "one value on all nodes; no majority: 535.104 on gpu[01-04], 550.54 on gpu[05-08]"
    for mine in ("535.104", "550.54"):
        assert list(halves.judge("driver", mine, worse=differs)) == [
            Finding("driver", mine, expected, Action.CONFIGURE)
        ]


def test_a_fleet_of_one_and_of_none_has_nothing_to_compare_with() -> None:
    why = "not stated in the cluster file, and no other node to compare with"
    assert (Norm[str]().absent, _fleet(1).absent, _fleet(1, 1).absent) == (why, why, "")
    assert (
        list(Norm[str]().judge("x", "A", worse=differs))
        == list(_fleet(1).judge("x", "B", worse=differs))
        == []
    )
    assert (Norm[str]().value, Norm[str]().clear, Norm[str]().agree) == (None, False, 0)


def test_a_node_that_votes_several_times_is_named_once_with_how_often() -> None:
    votes = [("gpu01", "A")] * 5 + [("gpu01", "B")] * 3 + [("gpu02", "B")]
    (found,) = norm(votes, "GPUs of this model").judge("GPU 1", "A", worse=differs)
    assert found.expected == (
        "one value on all GPUs of this model; no majority: A (5) on gpu01, B (4) on gpu[01-02]"
    )


def test_four_values_are_listed_and_the_others_counted() -> None:
    (found,) = _fleet(2, 1, 1, 1).judge("x", "D", worse=differs)
    assert found.expected.endswith("A on n[001-002], B on n003, C on n004, D on n005")
    (found,) = _fleet(2, 1, 1, 1, 1, 1).judge("x", "F", worse=differs)
    assert found.expected.endswith("D on n005, and 2 more values")
    assert found.measured == "F"


def test_values_that_cannot_be_hashed_are_compared() -> None:
    found = norm([("a", {"x": 1}), ("b", {"x": 1}), ("c", {})])
    assert [one.expected for one in found.judge("x", {}, worse=differs)] == ["{'x': 1}, as on 2 of 3 nodes"]
    assert [one.measured for one in _fleet(3).judge("x", "", worse=differs)] == ["nothing"]


def test_who_has_more_than_the_others_may_not_be_worse() -> None:
    found = norm([("a", 4), ("b", 8)])
    assert list(found.judge("x", 8, worse=lambda mine, theirs: mine < theirs)) == []
    (less,) = found.judge("x", 4, measured="four", shown=hex, worse=lambda mine, theirs: mine < theirs)
    assert less == Finding(
        "x", "four", "one value on all nodes; no majority: 0x4 on a, 0x8 on b", Action.CONFIGURE
    )


def test_long_values_are_shown_from_where_they_part() -> None:
    same = "x" * fleet.SHOWN
    found = norm([("a", f"{same}mine"), ("b", f"{same}theirs")])
    (one,) = found.judge("x", f"{same}mine", worse=differs)
    assert one.measured == f"...{'x' * 20}mine..."
    assert f"...{'x' * 20}mine... on a, ...{'x' * 20}theirs... on b" in one.expected
    exactly = norm([("a", same), ("b", "y")])
    assert next(iter(exactly.judge("x", same, worse=differs))).measured == same
    head = norm([("a", f"a{same}"), ("b", f"b{same}")])
    assert (
        next(iter(head.judge("x", f"a{same}", worse=differs))).measured == f"a{same}"[: fleet.SHOWN] + "..."
    )


def test_a_long_list_of_nodes_is_cut_and_counted() -> None:
    odd = norm((f"gpu{number:04}", str(number % 2)) for number in range(1, 201))
    (one,) = odd.judge("x", "1", worse=differs)
    assert "... (100 nodes), 0 on gpu[0002,0004" in one.expected
    assert len(one.expected) < 3 * fleet.SHOWN


def test_values_near_each_other_are_one() -> None:
    assert near({"a": 100, "b": 101, "c": 99, "d": 50}, 0.02) == {"a": 100, "b": 100, "c": 100, "d": 50}
    assert near({"a": 100, "b": 102, "c": 100}, 0.02) == {"a": 100, "b": 100, "c": 100}  # at the limit
    assert near({"a": 100, "b": 103, "c": 100}, 0.02) == {"a": 100, "b": 103, "c": 100}
    assert near({"a": 0.0, "b": 0.0}, 0.02) == {"a": 0.0, "b": 0.0}
    assert near({}, 0.02) == {}


def test_two_thirds_decide() -> None:
    assert [decides(agree, 3) for agree in range(4)] == [False, False, True, True]
    assert not decides(0, 0)


def test_only_the_faulty_direction_condemns_and_a_warning_may_name_the_other() -> None:
    usual = norm([("a", 64), ("b", 64), ("c", 48), ("d", 96)] + [(f"e{n}", 64) for n in range(4)])
    (lost,) = usual.judge("memory", 48, worse=less, action=Action.VENDOR)
    assert isinstance(lost, Finding)
    assert (lost.action, lost.measured) == (Action.VENDOR, "48")
    assert list(usual.judge("memory", 96, worse=less)) == []
    assert list(usual.judge("memory", 96, worse=less, harmless="more")) == [
        Advisory("memory", "96: more", "64, as on 6 of 8 nodes")
    ]
    assert list(usual.judge("memory", 64, worse=less, harmless="more")) == []
    assert list(norm([("a", 1), ("b", 2)]).judge("memory", 2, worse=less, harmless="more")) == []
    with pytest.raises(TypeError, match="faulty direction"):
        list(usual.judge("memory", 96, worse=differs, action=Action.VENDOR))


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        ("5.14.0-427.13.1.el9_4.x86_64", "5.14.0-503.11.1.el9_5.x86_64", True),
        ("5.14.0-503.11.1.el9_5.x86_64", "5.14.0-427.13.1.el9_4.x86_64", False),
        ("6.8.0-45-generic", "6.8.0-45-generic", False),
        ("6.8.0-45-generic", "6.8.0-1015-nvidia", True),  # another flavour is not ordered
        ("ubuntu 22.04", "ubuntu 24.04", True),
        ("ubuntu 24.04", "ubuntu 22.04", False),
        ("debian 12", "ubuntu 22.04", True),
    ],
)
def test_an_older_version_and_a_version_of_another_kind_deviate(
    mine: str, theirs: str, expected: bool
) -> None:
    assert older(mine, theirs) is expected


def test_values_name_their_owners() -> None:
    assert owners({"a": [1, 2], "b": [2], "c": [3, 3]}) == {1: ("a",), 2: ("a", "b"), 3: ("c", "c")}


def test_checks_that_compare_nodes_require_no_repair() -> None:
    """What differs from most nodes may be the first node of an upgrade. os.memory and gpu.driver judge more than that."""
    import_checks()
    comparing = [
        "os.release",
        "os.kernel",
        "os.cmdline",
        "os.architecture",
        "os.kernel_settings",
        "os.user",
        "os.mtu",
        "os.drift",
        "os.cpus",
        "os.cpu_model",
        "os.numa",
        "os.governor",
        "os.hugepages",
        "os.swap",
        "os.limits",
        "os.scratch",
        "gpu.vbios",
        "gpu.clocks",
        "fabric.firmware",
        "mpi.alike",
        "ddp.framework",
        "training.framework",
        "tensorflow.framework",
        "horovod.versions",
        "container.release",
        "nccl.environment",
        "nccl.outlier",
        "burnin.stragglers",
        "training.stragglers",
        "kubernetes.rdma",
        "kubernetes.labels",
        "kubernetes.software",
    ]
    repairs = {name: CHECKS[name].action for name in comparing if CHECKS[name].action.is_repair}
    assert repairs == {}


def test_without_a_majority_the_finding_is_one_of_the_cluster_but_two_results_are_not() -> None:
    halves = norm({f"gpu0{n}": "535.104" if n < 5 else "550.54" for n in range(1, 9)}.items())
    assert [getattr(it, "setting", None) for it in halves.judge("driver", "550.54", worse=differs)] == [
        NO_MAJORITY
    ]
    assert [it.setting for it in halves.judge_result("driver", "550.54")] == [""]
    assert [getattr(it, "setting", None) for it in _fleet(2, 1).judge("driver", "B", worse=differs)] == [""]
