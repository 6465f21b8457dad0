from __future__ import annotations

import math
from dataclasses import replace

import pytest
from os_helpers import failed, not_applicable, passed, peers

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, Outcome, Verdict
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.os.checks import state as checks
from pytest_gpucluster.suites.os.facts import Load
from pytest_gpucluster.suites.os.software_facts import TimeSync


def test_a_node_that_answers_not_fails_with_why() -> None:
    passed(checks.responds(Answer("n1", 0)))
    assert "timed out" in failed(checks.responds(Answer("n1", None, problem="timed out after 30 s")), "node")
    assert "slurmd died" in failed(checks.responds(Answer("n1", 0), "slurmd died"), "node")
    failed(checks.responds(Answer("n1", 137)), "node")


def test_time_sync() -> None:
    passed(checks.time_sync(TimeSync(synchronised=True, source="chronyc", offset=0.001)))
    failed(checks.time_sync(TimeSync(synchronised=False, source="timedatectl")), "time service")
    failed(checks.time_sync(TimeSync(synchronised=True, source="ntpq", offset=-3.0)), "time service")
    failed(checks.time_sync(TimeSync(synchronised=True, source="ntpq", offset=math.nan)), "time service")


def test_long_values_are_shown_from_where_they_part() -> None:
    common = "x" * 500
    said = failed(checks.user(common + "mine", peers(common + "mine", common + "theirs")), "id")
    assert "mine" in said
    assert "theirs" in said
    assert len(said) < 500


def test_sysctls() -> None:
    passed(checks.sysctls({"a.b": "1 2"}, {"a.b": "1\t2"}))
    failed(checks.sysctls({"a.b": "1", "c.d": ""}, {"a.b": "2", "c.d": "1"}), "a.b", "c.d")
    assert not_applicable(checks.sysctls({}, {}))


@pytest.mark.parametrize(("bits", "word"), [(1 << 4, "machine check"), (1 << 5, "page"), (1 << 7, "oops")])
def test_a_kernel_that_is_damaged_says_so(bits: int, word: str) -> None:
    assert word in failed(checks.taint(12_289 | bits), "kernel")
    passed(checks.taint(12_289))  # NVIDIA's driver
    passed(checks.taint(512))  # a warning


def test_load_is_judged_by_cpu() -> None:
    passed(checks.load(Load(4.0, 0, 0), 8, 0.5))
    verdict = checks.load(Load(4.1, 0, 0), 8, 0.5)
    assert verdict.findings == (Finding("load", "4.1 over 1 minute on 8 CPUs", "at most 4"),)
    assert verdict.metrics == (Metric("load_per_cpu", 4.1 / 8, ""),)
    assert verdict.action is Action.MONITOR


def test_sysctls_are_compared_with_blanks_folded() -> None:
    assert checks.sysctls({}, {}).reason == "the cluster file states no os.sysctls"
    stated = {"vm.a": "1  2", "vm.b": "3", "vm.c": "4"}
    verdict = checks.sysctls({"vm.a": "1 2", "vm.b": "", "vm.c": "5"}, stated)
    assert verdict.findings == (Finding("vm.b", "unknown to this kernel", "3"), Finding("vm.c", "5", "4"))


def test_the_time_service_at_its_bound() -> None:
    def sync(offset: float | None, *, synchronised: bool = True) -> Verdict:
        return checks.time_sync(TimeSync(synchronised, "chronyc", offset, "leap status x"))

    assert sync(1.0).outcome is sync(-1.0).outcome is sync(None).outcome is Outcome.PASSED
    assert sync(None).metrics == ()
    assert sync(1.5).findings == (Finding("time service", "offset 1.5 s (chronyc)", "within 1 s"),)
    unsure = checks.time_sync(TimeSync(True, "chronyc", 0.0, error=1.5))
    assert unsure.findings == (Finding("time service", "an error of up to 1.5 s (chronyc)", "within 1 s"),)
    assert sync(9.0, synchronised=False).findings == (
        Finding("time service", "not synchronised (chronyc: leap status x)", "synchronised"),
    )


@pytest.mark.parametrize("at", range(4))
def test_each_taint_in_full(at: int) -> None:
    bit, text = (
        (4, "M: the processor reported a machine check exception"),
        (5, "B: a page of memory was in a bad state"),
        (7, "D: the kernel has died before (oops or BUG)"),
        (14, "L: a soft lockup occurred"),
    )[at]
    verdict = checks.taint(1 << bit | 1 << 12)
    if bit == 14:  # of a busy host of VMs
        assert verdict.advisories == (Advisory("kernel", f"tainted {text}", "no such taint"),)
        assert verdict.outcome is Outcome.PASSED
    else:
        assert verdict.findings == (Finding("kernel", f"tainted {text}", "no such taint"),)
        assert verdict.action is Action.REBOOT


def test_no_other_taint_is_a_fault() -> None:
    assert (
        checks.taint(sum(1 << bit for bit in range(20) if bit not in (4, 5, 7, 14))).outcome is Outcome.PASSED
    )


def test_losses_in_full() -> None:
    def told(lost: str) -> tuple[str, str, Action]:
        verdict = checks.responds(Answer("n1", None), lost)
        return verdict.cause, verdict.hint, verdict.action

    assert told("TaskProlog failed") == checks._LOSSES[0][1:]
    assert told("its slurmd starts no task") == checks._LOSSES[1][1:]
    assert told("its agent's task ended") == checks._LOSSES[2][1:]
    assert [loss[3] for loss in checks._LOSSES] == [Action.CONFIGURE, Action.DRAIN, Action.MONITOR]
    assert told("other")[2] is Action.REBOOT
    words = "its agent's task ended"
    assert checks.responds(Answer("n1", None, problem=words)).action is Action.MONITOR
    assert (
        checks.responds(Answer("n1", None, problem=words), "gone").action is Action.REBOOT
    )  # the channel's word
    healthy = checks.responds(Answer("n1", 0))
    assert (healthy.outcome, healthy.action) == (Outcome.PASSED, Action.REBOOT)


@pytest.mark.parametrize(
    ("lost", "words", "action"),
    [
        (
            "its agent's task ended: Exited with exit code 1 (slurmstepd-gpu03: error: TaskProlog failed status=1)",
            "TaskProlog",
            Action.CONFIGURE,
        ),
        ("its slurmd starts no task (Connection refused): systemctl status slurmd", "slurmd", Action.DRAIN),
        ("its agent's task ended: Killed: see slurmd's log there", "killed", Action.MONITOR),
        ("silent for 15 s: hung or unreachable; see its console and slurmd", "hangs", Action.REBOOT),
    ],
)
def test_a_node_that_does_not_respond_is_reported_with_reason_and_remedy(
    lost: str, words: str, action: Action
) -> None:
    verdict = checks.responds(Answer("n1", None), lost)
    assert checks.responds(Answer("n1", None, problem=f"node lost: {lost}")) == replace(
        verdict, findings=(replace(verdict.findings[0], measured=f"node lost: {lost}"),)
    )
    assert words in verdict.cause
    assert verdict.action is action
    assert ("power-cycle" in verdict.hint) == (action is Action.REBOOT)
