from __future__ import annotations

from dataclasses import replace

import pytest
from counter_examples import CONFIGURE, MONITOR, NOT_APPLICABLE, PASSED, WARNING, result
from judged import figures, judged
from os_helpers import ALONE, NONE, peers

from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.os.checks import system as checks
from pytest_gpucluster.suites.os.checks.system import CommonTime
from pytest_gpucluster.suites.os.facts import Clock


@pytest.mark.parametrize(
    ("mine", "stated", "expected"),
    [
        ("6.8.0-51-generic", "6.8.0-*", PASSED),
        ("6.8.0", "6.8.0", PASSED),
        ("6.8.0", "*", PASSED),
        ("6.8.0-51-generic", "6.8.0", CONFIGURE),
        ("6.8.0", "6.1*", CONFIGURE),
    ],
)
def test_a_stated_kernel_may_be_a_prefix(mine: str, stated: str, expected: str) -> None:
    assert result(checks.kernel(mine, stated, NONE)) == expected


def test_a_stated_release_counts_whatever_the_others_have() -> None:
    assert result(checks.release("a 1", "A 1", NONE)) == PASSED
    assert result(checks.release("a 1", "a 2", peers("a 1", "a 1"))) == CONFIGURE


def test_words_of_the_command_line() -> None:
    more = checks.cmdline("b a", peers("b a", "a"))
    assert (judged(more)[0], more.advisories[0].measured) == (WARNING, "additional: b; missing: none")
    less = checks.cmdline("a", peers("a", "a d c"))
    assert (judged(less)[0], less.findings[0].measured) == (CONFIGURE, "additional: none; missing: c d")
    assert result(checks.cmdline("a", norm({"n1": "a", "n2": "b"}))) == CONFIGURE
    assert result(checks.cmdline("x", ALONE)) == NOT_APPLICABLE


@pytest.mark.parametrize(
    ("seconds", "least", "most", "expected"),
    [
        (60, 60, 60, PASSED),
        (60, 60, None, PASSED),
        (60, None, 60, PASSED),
        (59, 60, None, MONITOR),
        (61, None, 60, MONITOR),
        (60, None, None, NOT_APPLICABLE),
    ],
)
def test_bounds_of_uptime(seconds: int, least: int | None, most: int | None, expected: str) -> None:
    verdict = checks.uptime(seconds, least, most)
    assert result(verdict) == expected
    assert [(it.name, it.value) for it in verdict.metrics] == [("uptime", seconds)]


@pytest.mark.parametrize(
    ("mine", "node", "shown", "expected"),
    [
        ("GPU01.site", "gpu01.x", "", PASSED),
        ("vm", "gpu01", "vm.site", PASSED),  # NodeHostname in slurm.conf
        ("gpu02", "gpu01", "gpu01", CONFIGURE),
        ("gpu02", "gpu01", "vm", CONFIGURE),
    ],
)
def test_the_name_of_the_host(mine: str, node: str, shown: str, expected: str) -> None:
    assert result(checks.hostname(mine, node, shown)) == expected


# --- clocks


def clocks(**seconds: float) -> dict[str, Clock]:
    return {name: Clock(1000 + value, 1000.0, 1000.5) for name, value in seconds.items()}


def skewed(fleet: dict[str, Clock]) -> list[str]:
    common = CommonTime.of(fleet, 1.0)
    return [name for name, clock in fleet.items() if result(checks.clock(clock, common, 1.0)) == CONFIGURE]


# a wide fleet starts over seconds: the windows differ, and all of them hold the one time
WIDE = {
    f"n{n}": Clock(read, 0.0, received)
    for n, (read, received) in enumerate(
        [(0.0, 9.0), (0.1, 8.0), (5.0, 5.1), (6.0, 6.1), (7.9, 9.5), (8.9, 9.0)]
    )
}


@pytest.mark.parametrize(
    ("fleet", "wrong"),
    [
        (clocks(n1=0.1, n2=0.3, n3=120, n4=0.2), ["n3"]),
        ({**clocks(n1=0.1, n2=0.3, n3=0.2), "late": Clock(1009.0, 1000.0, 1009.5)}, []),  # a slow answer
        (WIDE, []),
        ({**WIDE, "n0": Clock(60.0, 0.0, 9.0)}, ["n0"]),
        (clocks(n1=0.2, n2=-300), ["n2"]),  # between two clocks the controller decides
        (clocks(n1=50, n2=50.2, n3=50.1), []),  # the controller is the one that differs
        ({f"n{t}": Clock(t) for t in (100.0, 100.3, 160.0, 160.2)}, []),  # halves
        ({f"n{t}": Clock(t) for t in (100.0, 100.3, 160.0)}, ["n160.0"]),
    ],
)
def test_clock_skew_is_what_the_window_of_the_answer_can_not_explain(
    fleet: dict[str, Clock], wrong: list[str]
) -> None:
    assert skewed(fleet) == wrong


def test_a_clock_at_its_bound() -> None:
    common = CommonTime(10, 20, 2, 3)
    for time in (9.0, 21.0):
        assert result(checks.clock(Clock(time), common, 1)) == PASSED
    ahead, behind = checks.clock(Clock(21.5), common, 1), checks.clock(Clock(8.5), common, 1)
    assert [figures(it.findings[0].measured) for it in (ahead, behind)] == [[1.5, 2, 3]] * 2
    assert ("ahead" in ahead.findings[0].measured, "behind" in behind.findings[0].measured) == (True, True)
    assert [it.metrics[0].value for it in (ahead, behind)] == [1.5, -1.5]
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
