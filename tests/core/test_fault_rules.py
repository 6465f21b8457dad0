"""Rates, mechanisms beside functions, states that pass, and floors."""

from __future__ import annotations

import pytest

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.fault_rules import SETTLED, Allowance, Situation, floor, unless_it_works, unless_unsettled
from pytest_gpucluster.core.finding import Quantity

DAY = 86400.0
CRC = Allowance(100, 1, "DCGM")
HOURLY = Allowance(1440, 3600, "IBTA")
FOUND = Finding("/dev/nvidia-uvm", "absent", "present", Action.REBOOT)


def test_errors_are_judged_per_time_of_their_source() -> None:
    assert list(CRC.judge("GPU 1", 143, 22 * DAY, "CRC errors")) == []
    assert list(CRC.judge("GPU 1", 250, 2)) == [
        Finding(
            "GPU 1", Quantity(250, "errors", "250 errors in 2 s"), "at most 100 per 1 s (DCGM)", code="too_many_errors"
        )
    ]
    assert list(HOURLY.judge("mlx5_0", 400, 8 * 3600)) == []
    assert list(HOURLY.judge("mlx5_0", 1440, 1)) == []  # its whole count in less than its time
    assert [type(one) for one in HOURLY.judge("mlx5_0", 1441, 1)] == [Finding]
    assert HOURLY.within(7200) == 2880
    assert floor(5 << 30, 1 << 30, 0.1) == 0.1 * (1 << 30)  # floors follow the size
    assert floor(5 << 30, 1 << 40, 0.1) == 5 << 30


def test_a_count_without_its_time_is_judged_only_if_it_is_always_allowed() -> None:
    assert list(CRC.judge("GPU 1", 100, None)) == []
    (unknown,) = CRC.judge("GPU 1", 101, None, "CRC errors")
    assert isinstance(unknown, NotAvailable)
    assert str(unknown) == (
        "GPU 1: 101 CRC errors, in an unknown time: read the counter twice (at most 100 per 1 s (DCGM))"
    )


def test_the_function_decides_and_the_mechanism_alone_takes_no_node_out_of_service() -> None:
    assert unless_it_works(True, FOUND) == Advisory(FOUND.part, FOUND.measured, FOUND.expected)
    assert unless_it_works(False, FOUND) == FOUND
    unknown = unless_it_works(None, FOUND)
    assert isinstance(unknown, Finding)
    assert unknown.action is Action.MONITOR
    mild = Finding("x", "a", "b", Action.CONFIGURE)
    assert unless_it_works(None, mild) == mild


@pytest.mark.parametrize(
    ("situation", "words"),
    [
        (Situation(), ""),
        (Situation(SETTLED), ""),
        (Situation(SETTLED - 1), "booted 9 min 59 s ago: repeat the check 10 min after boot"),
        (Situation(DAY, "night"), "in maintenance (night): repeat the check afterwards"),
    ],
)
def test_a_state_that_will_pass_is_not_checked(situation: Situation, words: str) -> None:
    assert situation.why_not_yet() == words
    metric = Metric("x", 1, "s")
    judged = list(unless_unsettled(situation.why_not_yet(), iter((metric, FOUND))))
    expected = NotAvailable(f"/dev/nvidia-uvm: absent, expected present; {words}") if words else FOUND
    assert repr(judged) == repr([metric, expected])
