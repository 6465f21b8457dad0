"""What a fleet has in common and who stands apart, at each bound; verdicts and what steps told, word by word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kernel_logs import fold

from pytest_gpucluster.core import check as verdict
from pytest_gpucluster.core import majority as fleet
from pytest_gpucluster.core import outliers
from pytest_gpucluster.core.check import Action, Finding, Verdict
from pytest_gpucluster.core.majority import differs, norm
from pytest_gpucluster.core.outliers import Halves, Outliers, beyond_spread
from pytest_gpucluster.kit import mpi_errors
from pytest_gpucluster.kit import pairing as schedule
from pytest_gpucluster.kit import xid_check as xid
from pytest_gpucluster.kit.payload_result import (
    PayloadResult,
    PayloadTask,
    last_stderr_line,
    most_common,
    read_facts,
)

if TYPE_CHECKING:
    from pathlib import Path


# --- who stands apart


@pytest.mark.parametrize(
    ("distance", "mad", "among", "beyond"),
    [
        # 3.5 / 0.6745 = 5.18903; of 8000 the normal distribution's quantile of 1 - 0.001 / 8000 is 5.15774
        (5.1891, 1.0, 1, True), (5.1889, 1.0, 1, False), (-5.1891, 1.0, 1, True), (-5.1889, 1.0, 1, False),
        (10.3782, 2.0, 4, True), (10.3779, 2.0, 4, False), (7.6468, 1.0, 8000, True), (7.6466, 1.0, 8000, False),
        (0.001, 0.0, 8000, True), (0.0, 0.0, 1, True), (3.5, 0.6745, 1, True),
    ],
)  # fmt: skip
def test_a_distance_beyond_the_spread(distance: float, mad: float, among: int, *, beyond: bool) -> None:
    assert beyond_spread(distance, mad, among=among) is beyond
    if among == 1:
        assert beyond_spread(distance, mad) is beyond


def by_name(*values: float) -> dict[str, float]:
    return dict(zip("abcdefghij", values, strict=False))


def test_outliers_in_full() -> None:
    assert outliers.FEWEST == 4
    assert outliers.outliers(by_name(100.0, 90.0, 100.0)) == Outliers(
        100.0, 0.0, {}, {}, "3 values are too few to name an outlier (spread 10)"
    )
    assert outliers.outliers(by_name(100.0)).note == "1 values are too few to name an outlier (spread 0)"
    assert outliers.outliers(by_name(100.0, 100.0, 80.0, 100.0, 125.0, 100.0)) == Outliers(
        100.0, 0.0, {"c": -0.2}, {"e": 0.25}
    )
    assert outliers.outliers(by_name(-100.0, -100.0, -80.0, -100.0)) == Outliers(-100.0, 0.0, {"c": -0.2}, {})
    zero = outliers.outliers(by_name(0.0, 0.0, 0.0, 5.0))
    assert zero == Outliers(0.0, 0.0, {}, {}, "median is 0: no relative distance")
    # median 101, MAD 1: of 8 values 3.662 / 0.6745 = 5.429 is beyond the spread; 5.05 is the least distance
    spread = by_name(100.0, 102.0, 100.0, 102.0, 100.0, 102.0, 95.58, 106.42)
    assert outliers.outliers(spread).low == outliers.outliers(spread).high == {}
    spread = by_name(100.0, 102.0, 100.0, 102.0, 100.0, 102.0, 95.56, 106.44)
    assert list(outliers.outliers(spread).low) == ["g"]
    assert list(outliers.outliers(spread).high) == ["h"]
    assert outliers.outliers(spread, min_relative=0.06).low == {}


@pytest.mark.parametrize(
    ("least", "low"), [(0.05, {}), (0.049, {"d": -0.05})],
)  # fmt: skip
def test_the_least_distance_is_not_enough_by_itself(least: float, low: dict[str, float]) -> None:
    assert outliers.outliers(by_name(100.0, 100.0, 100.0, 95.0), min_relative=least).low == low
    assert outliers.outliers(by_name(100.0, 100.0, 100.0, 95.0)).low == {}


@pytest.mark.parametrize(
    ("values", "halves"),
    [
        ((50.0, 51.0, 100.0, 102.0), Halves(("a", "b"), ("c", "d"), 50.5, 101.0)),
        ((100.0, 50.0, 102.0, 51.0), Halves(("b", "d"), ("a", "c"), 50.5, 101.0)),
        ((50.0, 51.0, 52.0, 100.0, 102.0), Halves(("a", "b", "c"), ("d", "e"), 51.0, 101.0)),
        ((50.0, 51.0, 100.0, 101.0, 102.0), None),  # a minority is named as outliers
        ((50.0, 51.0, 52.0, 102.0), None),  # one alone is fast
        ((50.0, 50.0, 50.0, 50.0, 60.0, 100.0, 100.0), Halves(tuple("abcde"), ("f", "g"), 50.0, 100.0)),
        ((50.0, 50.0, 50.0, 50.0, 90.0, 100.0, 100.0), Halves(tuple("abcd"), tuple("efg"), 50.0, 100.0)),
        ((95.0, 95.0, 100.0, 100.0), None),  # the least distance
        ((94.9, 94.9, 100.0, 100.0), Halves(("a", "b"), ("c", "d"), 94.9, 100.0)),
        ((80.0, 90.0, 100.0, 110.0), None),  # no wider than noise
        # MAD of the slow half 1, of the fast one 0: the gap must be 5.189
        ((90.0, 92.0, 97.18, 97.18), None),
        ((90.0, 92.0, 97.20, 97.20), Halves(("a", "b"), ("c", "d"), 91.0, 97.20)),
        ((90.0, 90.0, 95.18, 97.18), None),
        ((90.0, 90.0, 95.20, 97.20), Halves(("a", "b"), ("c", "d"), 90.0, 96.20)),
    ],
)  # fmt: skip
def test_a_fleet_of_two_speeds(values: tuple[float, ...], halves: Halves | None) -> None:
    found = outliers.outliers(by_name(*values)).halves
    assert (found is None) is (halves is None)
    if found and halves:
        assert (found.slow, found.fast) == (halves.slow, halves.fast)
        assert (found.slow_median, found.fast_median) == pytest.approx(
            (halves.slow_median, halves.fast_median)
        )


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
    (said,) = five.judge("p", 4, worse=differs)
    assert said == Finding(
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


# --- what steps told


def test_what_a_step_told() -> None:
    assert (PayloadTask(0, "a", 0, None, ()).error, PayloadResult("k", (), 1).tasks) == ("", ())
    step = PayloadResult("k", ("a",), 1)
    assert (step.problem, step.command, step.seconds, step.rc) == ("", "", 0.0, 0)
    told = PayloadTask(
        0, "a", 0, None, ({"k": "x", "rank": 0}, {"k": "x", "node": "a"}, {"k": "x", "rank": None})
    )
    assert PayloadResult("k", ("a",), 1, (told,)).facts("x") == [
        {"k": "x", "node": "a"},
        {"k": "x", "rank": 0},
    ]
    hung = PayloadTask(3, "a", None, None, ())
    assert PayloadResult("k", ("a",), 1, (told, hung)).silence("a") == "task 3: never ended"
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
