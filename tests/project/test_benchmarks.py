"""The benchmarks: what they read is read rightly, and the smallest size of each comparison runs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "sides")]

import controller  # the folder is no package
import counted
import rivals

SDIAG = """\
Remote Procedure Call statistics by message type
\tREQUEST_RESOURCE_ALLOCATION             ( 4001) count:57     ave_time:443    total_time:25302
\tMESSAGE_NODE_REGISTRATION_STATUS        ( 1002) count:2      ave_time:451    total_time:903

Remote Procedure Call statistics by user
\troot            (       0) count:345    ave_time:429    total_time:148232
"""


def test_requests_are_counted_by_type_once() -> None:
    assert rivals.requests_in(SDIAG) == 59


@pytest.mark.parametrize(
    ("output", "verdicts"),
    [
        ("...F\n1 failed, 9 passed in 3.11s\n", (9, 1)),
        ("160 passed, 2 warnings in 0.5s\nreports: x\n", (160, 0)),
        ("1 failed, 9 passed, 3 failed alike in 3.1s\n4 nodes: 0 fit, 4 failed, 0 not tested\n", (9, 4)),
        ("", (0, 0)),
    ],
)
def test_verdicts_of_pytest(output: str, verdicts: tuple[int, int]) -> None:
    assert rivals.pytest_verdicts(output) == verdicts


def test_what_reframe_skipped_or_aborted_is_no_verdict() -> None:
    printed = {"num_cases": 10, "num_failures": 2, "num_aborted": 1, "num_skipped": 3}
    assert rivals.reframe_verdicts({"session_info": printed}) == (4, 2)


def test_what_fewer_checks_took_is_extended_by_a_line_and_marked() -> None:
    full = rivals.Measured(2.0, 10, 20, 160, 0, 40)
    half, part = rivals.Measured(4.0, 100, 60, 20, 0, 5), rivals.Measured(6.0, 110, 120, 40, 0, 10)
    found = rivals.Found({rivals.OURS: [full], "ReFrame": [rivals.extrapolated(half, part, 40)]})
    ours, other = found.rows(4, 40)
    assert ours == ["4", rivals.OURS, "160", "2.0", "1.00", "10", "20"]
    assert other == ["4", "ReFrame", "40", "~18.0", "~9.00", "~170", "~480"]


def test_sides_that_do_not_agree_are_no_comparison() -> None:
    found = rivals.Found({"ReFrame": [rivals.Measured(1.0, 1, 1, 160, 0, 40)]})
    assert rivals.disagreeing(found, 0) == []
    assert rivals.disagreeing(found, 1) == ["ReFrame found 0 checks wrong, there are 1"]


def test_the_count_of_processes_survives_the_greatest_number() -> None:
    counter = counted.Counter(32768)
    for last in (10, 32000, 32700, 400):
        counter.see(last)
    assert counter.total == 32768 + 400 - counted.RESERVED


@pytest.mark.thorough
def test_the_controller_is_measured_with_recorded_answers() -> None:
    argv = [sys.executable, str(BENCHMARKS / "controller.py"), "3", "--checks", "3"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2].split()[:4] == ["3", "3", "9", "0"]
    assert len(controller.checks()) == 50
