from __future__ import annotations

import math

import pytest
from counter_examples import CONFIGURE, DRAIN, MONITOR, PASSED, REBOOT, WARNING
from judged import figures, judged
from os_helpers import peers

from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.os.checks import state as checks
from pytest_gpucluster.suites.os.facts import Load
from pytest_gpucluster.suites.os.software_facts import TimeSync


@pytest.mark.parametrize(
    ("offset", "error", "expected"),
    [
        (1.0, None, PASSED),
        (-1.0, 1.0, PASSED),
        (None, None, PASSED),
        (1.5, None, CONFIGURE),
        (-3.0, None, CONFIGURE),
        (math.nan, None, CONFIGURE),
        (0.0, 1.5, CONFIGURE),
    ],
)
def test_the_time_service_at_its_bound(offset: float | None, error: float | None, expected: str) -> None:
    verdict = checks.time_sync(TimeSync(synchronised=True, source="x", offset=offset, error=error))
    assert judged(verdict) == (expected, [] if expected == PASSED else ["time service"])
    shown = [] if offset is None else [("time_offset", pytest.approx(offset, nan_ok=True), "s")]
    assert [(it.name, it.value, it.unit) for it in verdict.metrics] == shown


def test_a_time_service_that_is_not_synchronised_fails_whatever_its_offset() -> None:
    lost = TimeSync(synchronised=False, source="timedatectl", offset=0.0)
    assert judged(checks.time_sync(lost)) == (CONFIGURE, ["time service"])


def test_long_values_are_shown_from_where_they_part() -> None:
    common = "x" * 500
    (found,) = checks.user(common + "mine", peers(common + "mine", common + "theirs")).findings
    assert ("mine" in found.measured, "theirs" in found.expected) == (True, True)
    assert len(found.measured + found.expected) < 500


@pytest.mark.parametrize(("bit", "expected"), [(4, REBOOT), (5, REBOOT), (7, REBOOT), (14, WARNING)])
def test_a_kernel_that_is_damaged_says_so(bit: int, expected: str) -> None:
    assert judged(checks.taint(1 << bit | 1 << 12)) == (expected, ["kernel"])


def test_no_other_taint_is_a_fault() -> None:
    others = sum(1 << bit for bit in range(20) if bit not in (4, 5, 7, 14))
    assert judged(checks.taint(others)) == (PASSED, [])


def test_load_is_judged_by_cpu() -> None:
    assert judged(checks.load(Load(4.0, 9, 9), 8, 0.5)) == (PASSED, [])
    verdict = checks.load(Load(4.1, 0, 0), 8, 0.5)
    assert judged(verdict) == (MONITOR, ["load"])
    assert figures(verdict.findings[0].expected) == [4]
    assert [(it.name, it.value) for it in verdict.metrics] == [("load_per_cpu", 4.1 / 8)]


SILENT = "silent for 15 s: hung or unreachable; see its console and slurmd"


@pytest.mark.parametrize(
    ("lost", "words", "action"),
    [
        ("its agent's task ended: Exited (slurmstepd: error: TaskProlog failed)", "TaskProlog", CONFIGURE),
        ("its slurmd starts no task (Connection refused): systemctl status slurmd", "slurmd", DRAIN),
        ("its agent's task ended: Killed: see slurmd's log there", "killed", MONITOR),
        (SILENT, "hangs", REBOOT),
    ],
)
def test_a_node_that_does_not_respond_is_reported_with_reason_and_remedy(
    lost: str, words: str, action: str
) -> None:
    said = checks.responds(Answer("n1", None, problem=f"node lost: {lost}"))
    # what the channel says of the node counts more than its last answer
    for verdict in (said, checks.responds(Answer("n1", None, problem=SILENT), lost)):
        assert judged(verdict) == (action, ["node"])
        assert words in verdict.cause
        assert ("power-cycle" in verdict.hint) == (action == REBOOT)


def test_a_node_that_is_lost_without_a_reason_or_after_an_answer() -> None:
    assert judged(checks.responds(Answer("n1", 0))) == (PASSED, [])
    assert judged(checks.responds(Answer("n1", 0), "dead")) == (REBOOT, ["node"])
    assert judged(checks.responds(Answer("n1", None))) == (REBOOT, ["node"])
