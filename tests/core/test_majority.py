"""The norm of a fleet and who deviates from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kernel_logs import fold

from pytest_gpucluster.core import check as verdict
from pytest_gpucluster.core import majority as fleet
from pytest_gpucluster.core.check import CHECKS, Action, Advisory, Finding, Verdict
from pytest_gpucluster.core.common_cause import NO_MAJORITY
from pytest_gpucluster.core.majority import Norm, decides, differs, less, near, norm, older, owners
from pytest_gpucluster.core.registry import import_checks
from pytest_gpucluster.kit.framework.payload_result import (
    PayloadResult,
    PayloadTask,
    last_stderr_line,
    most_common,
    read_facts,
)
from pytest_gpucluster.kit.gpu import xid_check as xid
from pytest_gpucluster.kit.mpi import mpi_errors
from pytest_gpucluster.kit.nccl import pairing as schedule

if TYPE_CHECKING:
    from pathlib import Path


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


def test_long_values_of_a_finding_begin_where_they_differ() -> None:
    usual, other = "x" * 300 + "A" * 200, "x" * 300 + "B" * 200
    found = norm([("n1", usual), ("n2", usual), ("n3", other)])
    mine, theirs = (f"...{'x' * 20}{letter * 140}..." for letter in "BA")
    assert list(found.judge_result("list", other)) == [Finding("list", mine, f"{theirs}, as on 2 of 3 nodes")]
    (warning,) = found.judge("list", other, worse=less, harmless="more")
    assert warning == Advisory("list", f"{other}: more", f"{theirs}, as on 2 of 3 nodes")


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
        # another flavour is not ordered, whichever has the higher number
        ("6.8.0-45-generic", "6.8.0-1015-nvidia", True),
        ("6.8.0-1015-nvidia", "6.8.0-45-generic", True),
        ("5.3.18-2-RT", "5.3.18-1-PREEMPT", True),
        ("ubuntu 22.04", "ubuntu 24.04", True),
        ("ubuntu 24.04", "ubuntu 22.04", False),
        ("ubuntu 22.04", "debian 12", True),
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


# --- the norm


def test_how_long_values_and_lists_are_shown() -> None:
    assert (fleet.SHOWN, fleet.MOST_VALUES) == (160, 4)
    assert fleet._apart("", "x") == "nothing"
    assert fleet._apart("x" * 160, "y") == "x" * 160
    assert fleet._apart("x" * 161, "y") == f"{'x' * 160}..."
    assert fleet._apart("x" * 161, "x" * 300) == f"...{'x' * 20}..."  # the beginning of the other
    assert fleet._apart(f"{'x' * 300}end", "x" * 300) == f"...{'x' * 20}end..."
    assert fleet._apart(f"{'x' * 20}a{'y' * 200}", f"{'x' * 20}b") == f"{'x' * 20}a{'y' * 139}..."
    assert fleet._apart(f"{'x' * 21}a{'y' * 200}", f"{'x' * 21}b") == f"...{'x' * 20}a{'y' * 139}..."
    assert fleet._folded(["n" * 160]) == "n" * 160
    assert fleet._folded(["n" * 161]) == f"{'n' * 160}... (1 nodes)"
    assert fleet._folded(["n1", "n2"]) == "n[1-2]"


def test_a_norm_in_full() -> None:
    found = norm([("a", 1), ("b", 2), ("c", 2), ("a", 2)], "GPUs")
    assert found.votes == ((2, ("b", "c", "a")), (1, ("a",)))
    assert (found.total, found.agree, found.clear, found.value, found.most) == (
        4,
        3,
        True,
        2,
        "as on 3 of 4 GPUs",
    )
    assert list(found.judge("p", 1, measured="one", worse=differs)) == [
        Finding("p", "one", "2, as on 3 of 4 GPUs")
    ]
    assert list(found.judge("p", 3, worse=lambda mine, theirs: mine < theirs)) == []
    assert norm([]).voters == fleet.Norm[str]().voters == "nodes"
    five = norm((f"n{number}", number) for number in range(5))
    (printed,) = five.judge("p", 4, worse=differs)
    assert printed == Finding(
        "p", "4",
        "one value on all nodes; no majority: 0 on n0, 1 on n1, 2 on n2, 3 on n3, and 1 more values", Action.CONFIGURE,
    )  # fmt: skip
    four = norm((f"n{number}", number) for number in range(4))
    assert next(four.judge("p", 0, worse=differs)).expected.endswith("2 on n2, 3 on n3")
    alike = norm([("a", "x" * 161), ("b", "x" * 161 + "y")])
    assert next(alike.judge("p", "x" * 161, worse=differs)).measured == f"...{'x' * 20}..."
    same = norm([("a", 1), ("b", 2)])  # two values that look alike
    assert next(same.judge("p", 1, shown=lambda _: "z", worse=differs)).measured == "z"


def test_values_near_each_other_share_that_of_the_upper_median() -> None:
    assert fleet.near({"a": 1.0, "b": 4.0}, 0.1) == {"a": 1.0, "b": 4.0}
    assert fleet.near({"a": 95.0, "b": 100.0}, 0.05) == {"a": 100.0, "b": 100.0}
    assert fleet.near({"a": 94.9, "b": 100.0}, 0.05) == {"a": 94.9, "b": 100.0}
    assert fleet.near({"a": -95.0, "b": -100.0, "c": -100.0}, 0.05) == {"a": -100.0, "b": -100.0, "c": -100.0}


# --- rounds


def test_rounds_of_more_members() -> None:
    for members in ("abc", "abcde", "abcdef", "abcdefg"):
        rounds = schedule.circle(members)
        assert len(rounds) == (len(members) if len(members) % 2 else len(members) - 1)
        pairs = [frozenset(pair) for one in rounds for pair in one]
        assert len(pairs) == len(set(pairs)) == len(members) * (len(members) - 1) // 2
        for one in rounds:
            names = [name for pair in one for name in pair]
            assert len(names) == len(set(names)) == len(members) // 2 * 2
    assert schedule.neighbours("abcdef", shift=1) == (("b", "c"), ("d", "e"), ("f", "a"))
    assert schedule.neighbours("abcdefg", shift=1) == (("b", "c"), ("d", "e"), ("f", "g"))
    assert schedule.neighbours("ab", shift=1) == (("b", "a"),)


def test_leaves_of_unequal_size() -> None:
    leaves = {**dict.fromkeys("abcde", "1"), **dict.fromkeys("fg", "2"), "h": "3"}
    assert schedule.within_leaves("abcdefgh", leaves) == (("a", "b"), ("c", "d"), ("f", "g"), ("e", "h"))
    assert schedule.across_leaves("abcdefgh", leaves) == (("f", "h"), ("c", "g"))
    assert schedule.across_leaves("abxy", {"a": "1", "b": "1"}) == (("a", "x"), ("b", "y"))
    assert schedule._leftovers("abc", {"a": "1", "b": "2", "c": "3"}) == (("a", "c"),)
    assert schedule._leftovers("abcd", {"a": "1", "b": "1", "c": "1", "d": "2"}) == (("b", "d"),)
    assert schedule.across_leaves("", {}) == ()


# --- verdicts


def failed(measured: str, action: Action | None = None) -> Verdict:
    return verdict.conclude(
        "x.y",
        [Finding("p", measured, "e", action)],
        cause="c",
        hint="h",
        action=Action.DRAIN,
        never_healthy="n",
    )


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("CUDA error: out of memory (limits of this process: as 1G)", "low limits"),
        ("The NVIDIA driver on your system is too old", "driver library"),
        ("torch sees no GPU: it is a CPU build", "CPU build of torch"),
        ("No module named 'torch'", "no torch"), ("CUDA error: an illegal memory access was encountered", ""),
    ],
)  # fmt: skip
def test_which_words_are_of_software(words: str, kind: str) -> None:
    found = mpi_errors.with_software_cause(failed(words, Action.VENDOR))
    assert found.action is (Action.MONITOR if kind else Action.VENDOR)
    assert found.cause == (f"{kind}: settings or software of the node, not its GPU" if kind else "c")
    assert found.findings == (Finding("p", words, "e", None if kind else Action.VENDOR),)


def test_others_at_work_take_the_action_of_each_finding() -> None:
    found = verdict.with_contention(failed("m", Action.VENDOR), "others")
    assert found.findings == (Finding("p", "m", "e"),)
    assert found.hint == (
        "ps -eo pid,user,lstart,cmd on the node; end the process, check Slurm's epilog, and repeat"
    )
    assert verdict.NO_MEMORY == "out of memory"
    assert [it.value for it in verdict.Outcome] == ["passed", "failed", "not applicable", "not checked"]
    hard = verdict.conclude(
        "x.y", [Finding("a", "", "", Action.VENDOR), Finding("b", "", ""), Finding("c", "", "", Action.MONITOR)],
        cause="", hint="", action=Action.REBOOT, never_healthy="n",
    )  # fmt: skip
    assert [it.action for it in hard.findings] == [Action.VENDOR, Action.REBOOT, Action.MONITOR]
    mild = verdict.conclude(
        "x.y",
        [Finding("b", "", ""), Finding("c", "", "", Action.MONITOR)],
        cause="",
        hint="",
        action=Action.REBOOT,
        never_healthy="n",
    )
    assert ([it.action for it in mild.findings], mild.action) == ([None, Action.MONITOR], Action.REBOOT)


# --- what steps printed


def test_what_a_step_reported() -> None:
    assert (PayloadTask(0, "a", 0, None, ()).error, PayloadResult("k", (), 1).tasks) == ("", ())
    step = PayloadResult("k", ("a",), 1)
    assert (step.problem, step.command, step.seconds, step.rc) == ("", "", 0.0, 0)
    reported = PayloadTask(
        0, "a", 0, None, ({"k": "x", "rank": 0}, {"k": "x", "node": "a"}, {"k": "x", "rank": None})
    )
    assert PayloadResult("k", ("a",), 1, (reported,)).facts("x") == [
        {"k": "x", "node": "a"},
        {"k": "x", "rank": 0},
    ]
    hung = PayloadTask(3, "a", None, None, ())
    assert PayloadResult("k", ("a",), 1, (reported, hung)).silence("a") == "task 3: never ended"
    assert PayloadTask(0, "a", 137, 9, (), "x").ending() == "ended by signal 9 (SIGKILL)"
    assert read_facts('{"k": 1} x\n{"k": 2}\n[{"k": 3}]\n{"kk": 4}', "k") == ({"k": 2},)
    assert last_stderr_line("a\n  b c  \n \n") == "b c"
    assert last_stderr_line("x" * 300) == "x" * 300
    assert most_common(iter(["b", "a", "a"])) == "a"


# --- Xids


@pytest.mark.parametrize(
    ("line", "last", "belongs"),
    [(1, None, True), (2, None, True), (3, None, False), (3, 61.0, True), (3, 61.1, False), (3, 1.0, True)],
)
def test_how_long_after_an_xid_a_message_belongs_to_it(
    tmp_path: Path, line: int, last: float | None, *, belongs: bool
) -> None:
    log = fold(tmp_path, "NVRM: Xid (PCI:0000:43:00): 79, pid=1, GPU has fallen off the bus.")
    (found,) = log.xids
    assert (found.event.line, found.event.last) == (2, 1.0)
    assert xid.explains(log, line, last) is belongs
