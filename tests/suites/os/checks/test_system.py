from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from os_helpers import ALONE, MOST, NO_OTHER, failed, not_applicable, passed, peers

from pytest_gpucluster.core.check import Action, Advisory, Finding, Outcome
from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.os.checks import system as checks
from pytest_gpucluster.suites.os.facts import Clock

if TYPE_CHECKING:
    from collections.abc import Mapping


def test_release_as_stated_or_alike() -> None:
    passed(checks.release("ubuntu 22.04", "Ubuntu 22.04", ALONE))
    failed(checks.release("ubuntu 20.04", "ubuntu 22.04", ALONE), "release")
    odd = peers("ubuntu 20.04", "ubuntu 22.04")
    assert "3 of 4" in failed(checks.release("ubuntu 20.04", None, odd), "release")
    passed(checks.release("ubuntu 22.04", None, odd))


def test_kernel_takes_a_prefix() -> None:
    passed(checks.kernel("6.8.0-51-generic", "6.8.0-*", ALONE))
    failed(checks.kernel("6.8.0-51-generic", "6.8.0", ALONE), "kernel")
    failed(checks.kernel("5.15.0", None, peers("5.15.0", "6.8.0")), "kernel")


def test_cmdline_names_the_words() -> None:
    said = failed(
        checks.cmdline("quiet nosmt", peers("quiet nosmt", "quiet iommu=pt")), "kernel command line"
    )
    assert "additional: nosmt; missing: iommu=pt" in said
    passed(checks.cmdline("quiet", peers("x", "quiet")))


def test_uptime_bounds() -> None:
    passed(checks.uptime(7200, 3600, 86400))
    failed(checks.uptime(60, 3600, None), "uptime")
    failed(checks.uptime(90000, None, 86400), "uptime")
    verdict = checks.uptime(60, None, None)
    assert not_applicable(verdict)
    assert verdict.metrics[0].value == 60


def clocks(**seconds: float) -> Mapping[str, Clock]:
    return {name: Clock(1000 + value, 1000.0, 1000.5) for name, value in seconds.items()}


def test_clock_skew_is_what_the_window_of_the_answer_can_not_explain() -> None:
    fleet = clocks(n1=0.1, n2=0.3, n3=120, n4=0.2)
    common = checks.CommonTime.of(fleet, 1.0)
    for name in ("n1", "n2", "n4"):
        passed(checks.clock(fleet[name], common, 1.0))
    assert "ahead" in failed(checks.clock(fleet["n3"], common, 1.0), "clock")
    late = Clock(1009.0, 1000.0, 1009.5)  # an answer that took long is no skew
    passed(checks.clock(late, common, 1.0))
    assert checks.clock(fleet["n3"], common, 1.0).action is Action.CONFIGURE
    few = replace(common, agreeing=3)  # of 5, with the controller's
    assert failed(checks.clock(fleet["n3"], few, 1.0), "clock")
    behind = Clock(900, 1000.0, 1000.5)
    assert "behind" in failed(checks.clock(behind, common, 1.0), "clock")


def test_answers_of_very_different_length_make_no_skew() -> None:
    """A wide fleet starts over seconds: the windows differ, and all of them hold the one time."""
    ends = [
        (0.0, 9.0),
        (0.1, 8.0),
        (5.0, 5.1),
        (6.0, 6.1),
        (7.9, 9.5),
        (8.9, 9.0),
    ]  # asked at 0, answered at 9 and so on
    fleet = {f"n{place}": Clock(read, 0.0, received) for place, (read, received) in enumerate(ends)}
    for clock in fleet.values():
        passed(checks.clock(clock, checks.CommonTime.of(fleet, 1.0), 1.0))
    fleet["n0"] = Clock(60.0, 0.0, 9.0)
    assert "at least 51.000 s ahead of the time that 6 of 7 clocks share" in failed(
        checks.clock(fleet["n0"], checks.CommonTime.of(fleet, 1.0), 1.0), "clock"
    )


def test_between_two_clocks_the_controller_decides() -> None:
    fleet = clocks(n1=0.2, n2=-300)
    common = checks.CommonTime.of(fleet, 1.0)
    passed(checks.clock(fleet["n1"], common, 1.0))
    failed(checks.clock(fleet["n2"], common, 1.0), "clock")


def test_two_halves_of_a_fleet_accuse_nobody() -> None:
    bare = {"n1": Clock(100.0), "n2": Clock(100.3), "n3": Clock(160.0), "n4": Clock(160.2)}
    for clock in bare.values():
        passed(checks.clock(clock, checks.CommonTime.of(bare, 1.0), 1.0))


def test_a_fleet_that_differs_from_the_controller_is_no_skew() -> None:
    fleet = clocks(n1=50, n2=50.2, n3=50.1)
    for clock in fleet.values():
        passed(checks.clock(clock, checks.CommonTime.of(fleet, 1.0), 1.0))


def test_clocks_without_windows_and_alone() -> None:
    bare = {"n1": Clock(100.0), "n2": Clock(100.3), "n3": Clock(160.0)}
    passed(checks.clock(bare["n1"], checks.CommonTime.of(bare, 1.0), 1.0))
    failed(checks.clock(bare["n3"], checks.CommonTime.of(bare, 1.0), 1.0), "clock")
    one = {"n1": Clock(100.0, 1.0, 2.0)}
    assert not_applicable(checks.clock(one["n1"], checks.CommonTime.of(one, 1.0), 1.0))


def test_bounds_of_uptime() -> None:
    assert checks.uptime(60, 60, 60).outcome is Outcome.PASSED
    assert checks.uptime(59, 60, None).findings == (Finding("uptime", "59 s", "at least 1 min"),)
    assert checks.uptime(61, None, 60).findings == (Finding("uptime", "1 min 1 s", "at most 1 min"),)
    for verdict in (checks.uptime(60, 60, None), checks.uptime(60, None, 60)):
        assert (verdict.outcome, verdict.reason) == (Outcome.PASSED, "")
    assert checks.uptime(59, 60, None).reason == checks.uptime(61, None, 60).reason == ""


def test_words_of_the_command_line() -> None:
    verdict = checks.cmdline("b a", peers("b a", "a"))
    assert verdict.advisories == (Advisory("kernel command line", "additional: b; missing: none", MOST),)
    verdict = checks.cmdline("a", peers("a", "a d c"))
    assert verdict.findings == (Finding("kernel command line", "additional: none; missing: c d", MOST),)
    halves = norm({"n1": "a", "n2": "b"})
    assert checks.cmdline("a", halves).findings == (
        Finding(
            "kernel command line",
            "a",
            "one value on all nodes of its group; no majority: a on n1, b on n2",
            Action.CONFIGURE,
        ),
    )
    assert checks.cmdline("a", halves).reason == ""
    assert checks.cmdline("a", peers("a", "a")).outcome is Outcome.PASSED
    assert (checks.cmdline("x", ALONE).reason, checks.cmdline("x", ALONE).outcome) == (
        NO_OTHER,
        Outcome.NOT_APPLICABLE,
    )


def test_a_clock_at_its_bound() -> None:
    assert checks.clock(Clock(99), checks.CommonTime(0, 0, 1, 1), 1).metrics == ()
    assert checks.clock(Clock(99), checks.CommonTime(0, 0, 1, 1), 1).findings == ()
    common = checks.CommonTime(10, 20, 2, 3)
    for time in (9.0, 21.0):
        assert checks.clock(Clock(time), common, 1).outcome is Outcome.PASSED
    assert checks.clock(Clock(21.5), common, 1).findings == (
        Finding("clock", "at least 1.500 s ahead of the time that 2 of 3 clocks share", "within 1 s"),
    )
    assert checks.clock(Clock(8.5), checks.CommonTime(10, 20, 1, 2), 1).findings == (
        Finding("clock", "at least 1.500 s behind the time that 1 of 2 clocks share", "within 1 s"),
    )


def test_the_time_that_most_clocks_share() -> None:
    assert checks.CommonTime.of({}, 1.0) == checks.CommonTime(0.0, 0.0, 1, 0)
    assert checks.CommonTime.of({"a": Clock(5.0)}, 1.0) == checks.CommonTime(5.0, 5.0, 1, 1)
    timed = {"a": Clock(5.0, 4.0, 4.5)}
    assert checks.CommonTime.of(timed, 1.0) == checks.CommonTime(
        0.5, 1.0, 1, 1
    )  # one node: the controller has no voice
    assert checks.CommonTime.of({**timed, "b": Clock(4.25, 4.0, 4.5)}, 1.0) == checks.CommonTime(
        0.25, 0.25, 3, 3
    )
    assert checks.CommonTime.of({**timed, "b": Clock(9.0)}, 1.0).nodes == 2  # its window is not known
    assert checks._shared([(0.0, 2.0), (1.0, 3.0)], 0.0) == (1.0, 2.0, 2)
    assert checks._shared([(0.0, 1.0), (5.0, 6.0)], 0.0) == (0.0, 6.0, 1)
    assert checks._shared([(0.0, 0.0), (1.0, 1.0)], 0.5) == (0.5, 0.5, 2)
