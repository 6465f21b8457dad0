from __future__ import annotations

from dataclasses import replace

import pytest
from counter_examples import CONFIGURE, NOT_APPLICABLE, PASSED, result
from judged import figures, judged
from os_helpers import ALONE, NONE

from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.os.checks import system as checks
from pytest_gpucluster.suites.os.checks.system import CommonTime
from pytest_gpucluster.suites.os.facts import Clock


@pytest.mark.parametrize(
    ("mine", "stated", "expected"),
    [("6.8.0-51", "6.8.0-*", PASSED), ("6.8.0", "*", PASSED), ("6.8.0-51", "6.8.0", CONFIGURE)],
)
def test_a_stated_kernel_may_be_a_prefix(mine: str, stated: str, expected: str) -> None:
    assert result(checks.kernel(mine, stated, NONE)) == expected


def test_a_group_in_halves_accuses_the_nodes_that_are_behind() -> None:
    halves = norm({"n1": "5.15.0", "n2": "5.15.0", "n3": "6.8.0", "n4": "6.8.0"})
    assert judged(checks.kernel("5.15.0", None, halves)) == (CONFIGURE, ["kernel"])
    assert judged(checks.kernel("6.8.0", None, halves)) == (PASSED, [])
    assert result(checks.cmdline("a", norm({"n1": "a", "n2": "b"}))) == CONFIGURE
    assert result(checks.cmdline("x", ALONE)) == NOT_APPLICABLE


def test_the_uptime_is_a_metric_without_bounds_too() -> None:
    assert [(it.name, it.value) for it in checks.uptime(60, None, None).metrics] == [("uptime", 60)]


# --- clocks


def clocks(**seconds: float) -> dict[str, Clock]:
    return {name: Clock(1000 + value, 1000.0, 1000.5) for name, value in seconds.items()}


# a wide fleet starts over seconds: the windows differ, and all of them hold the one time
WINDOWS = [(0.0, 9.0), (0.1, 8.0), (5.0, 5.1), (6.0, 6.1), (7.9, 9.5), (8.9, 9.0)]
WIDE = {f"n{n}": Clock(read, 0.0, received) for n, (read, received) in enumerate(WINDOWS)}


@pytest.mark.parametrize(
    ("fleet", "wrong"),
    [
        (clocks(n1=0.1, n2=0.3, n3=120, n4=0.2), ["n3"]),
        ({**clocks(n1=0.1, n2=0.3, n3=0.2), "late": Clock(1009.0, 1000.0, 1009.5)}, []),  # a slow answer
        (WIDE, []),
        ({**WIDE, "n9": Clock(60.0, 0.0, 9.0)}, ["n9"]),
        (clocks(n1=0.2, n2=-300), ["n2"]),  # between two clocks the controller decides
        (clocks(n1=50, n2=50.2, n3=50.1), []),  # the controller is the one that differs
        ({f"n{t}": Clock(t) for t in (100.0, 100.3, 160.0, 160.2)}, []),  # halves
        ({f"n{t}": Clock(t) for t in (100.0, 100.3, 160.0)}, ["n160.0"]),
    ],
)
def test_clock_skew_is_what_the_window_of_the_answer_can_not_explain(
    fleet: dict[str, Clock], wrong: list[str]
) -> None:
    common = CommonTime.of(fleet, 1.0)
    judged_wrong = [it for it in fleet if result(checks.clock(fleet[it], common, 1.0)) == CONFIGURE]
    assert judged_wrong == wrong


def test_a_clock_at_its_bound() -> None:
    common = CommonTime(10, 20, 2, 3)
    for time in (9.0, 21.0):
        assert result(checks.clock(Clock(time), common, 1)) == PASSED
    for time, skew, side in ((21.5, 1.5, "ahead"), (8.5, -1.5, "behind")):
        verdict = checks.clock(Clock(time), common, 1)
        assert figures(verdict.findings[0].measured) == [1.5, 2, 3]
        assert side in verdict.findings[0].measured
        assert verdict.metrics[0].value == skew
    assert result(checks.clock(Clock(8.5), replace(common, agreeing=1, nodes=2), 1)) == CONFIGURE
    alone = checks.clock(Clock(99), CommonTime(0, 0, 1, 1), 1)
    assert (result(alone), alone.metrics) == (NOT_APPLICABLE, ())


def test_the_time_that_most_clocks_share() -> None:
    timed = {"a": Clock(5.0, 4.0, 4.5)}
    assert CommonTime.of({}, 1.0) == CommonTime(0.0, 0.0, 1, 0)
    assert CommonTime.of({"a": Clock(5.0)}, 1.0) == CommonTime(5.0, 5.0, 1, 1)
    assert CommonTime.of(timed, 1.0) == CommonTime(0.5, 1.0, 1, 1)  # one node: the controller has no voice
    assert CommonTime.of({**timed, "b": Clock(4.25, 4.0, 4.5)}, 1.0) == CommonTime(0.25, 0.25, 3, 3)
    assert CommonTime.of({**timed, "b": Clock(9.0)}, 1.0).nodes == 2  # its window is not known
    pairs = {"a": Clock(2.0, 0.0, 2.0), "b": Clock(3.0, 0.0, 2.0)}
    assert CommonTime.of(pairs, 0.0).nodes == 3
