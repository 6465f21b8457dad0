"""Verdicts: what a judgement adds up to, which action it asks for, and what payload steps told."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from pytest_gpucluster.core import check as verdicts
from pytest_gpucluster.core.check import (
    Action,
    Advisory,
    Finding,
    Judgement,
    Metric,
    Outcome,
    Remark,
    Verdict,
    combined,
    conclude,
    with_cause,
    with_contention,
)
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable, NotJudged, ProbeError
from pytest_gpucluster.core.registry import import_checks
from pytest_gpucluster.kit.framework.payload_result import (
    PayloadResult,
    PayloadTask,
    last_stderr_line,
    most_common,
    read_facts,
    signal_name,
)
from pytest_gpucluster.kit.mpi.mpi_errors import with_software_cause

FINDING = Finding("GPU 1", "7", "8")
SENTENCE = "made for a test"


def concluded(*printed: Finding | Advisory | Metric | NotJudged, action: Action = Action.DRAIN) -> Verdict:
    return conclude("gpu.count", printed, cause="c", hint="h", action=action, never_healthy=SENTENCE)


@pytest.mark.parametrize(
    ("printed", "outcome", "reason"),
    [
        ((), Outcome.PASSED, ""),
        ((Metric("m", 1, "s"), Advisory("p", "m", "e")), Outcome.PASSED, ""),
        ((NotApplicable("none"),), Outcome.NOT_APPLICABLE, "none"),
        ((NotApplicable("none"), NotAvailable("unknown")), Outcome.NOT_CHECKED, "unknown"),
        (
            (NotAvailable("first"), NotAvailable("second"), NotApplicable("none")),
            Outcome.NOT_CHECKED,
            "first",
        ),
        ((NotAvailable("unknown"), FINDING), Outcome.FAILED, "unknown"),
        ((FINDING, NotApplicable("none")), Outcome.FAILED, "none"),
    ],
)
def test_what_a_judgement_adds_up_to(
    printed: tuple[Finding | Advisory | Metric | NotJudged, ...],
    outcome: Outcome,
    reason: str,
) -> None:
    verdict = concluded(*printed)
    assert (verdict.outcome, verdict.reason) == (outcome, reason)
    assert (verdict.check, verdict.cause, verdict.hint, verdict.action) == (
        "gpu.count",
        "c",
        "h",
        Action.DRAIN,
    )


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [(NotAvailable, Outcome.NOT_CHECKED), (NotApplicable, Outcome.NOT_APPLICABLE)],
)
def test_a_raised_reason_ends_the_check_and_counts_as_a_yielded_one(
    raised: type[NotJudged], outcome: Outcome
) -> None:
    metric = Metric("m", 1, "s")

    def ends(*before: Metric | Finding) -> Judgement:
        yield from before
        raise raised("why")

    for before in ((), (metric,), (metric, FINDING)):
        verdict = conclude("a.b", ends(*before), cause="c", hint="h", action=Action.MONITOR)
        assert verdict == conclude(
            "a.b", (*before, raised("why")), cause="c", hint="h", action=Action.MONITOR
        )
        assert verdict.outcome is (Outcome.FAILED if FINDING in before else outcome)


def test_a_check_that_is_no_generator_may_raise_too() -> None:
    @verdicts.check("a.b", cause="c", hint="h", action=Action.MONITOR)
    def absent() -> Judgement:
        raise NotAvailable("no facts")

    assert (absent().outcome, absent().reason) == (Outcome.NOT_CHECKED, "no facts")


def test_an_answer_that_is_not_understood_stays_an_error() -> None:
    @verdicts.check("a.b", cause="c", hint="h", action=Action.MONITOR)
    def damaged() -> Judgement:
        yield Metric("m", 1, "s")
        raise ProbeError("half a line")

    with pytest.raises(ProbeError, match="half a line"):
        damaged()


def test_the_action_is_the_hardest_that_a_finding_asks_for() -> None:
    actions = [Action.CONFIGURE, Action.MONITOR, Action.RESET_GPU, Action.REBOOT, Action.DRAIN, Action.VENDOR]
    assert list(Action) == actions
    mild = Finding("a", "b", "c", Action.MONITOR)
    hard = Finding("a", "b", "c", Action.VENDOR)
    assert concluded(mild).action is Action.MONITOR
    assert concluded(mild, FINDING).action is Action.DRAIN
    assert concluded(mild, hard, FINDING).action is Action.VENDOR
    assert concluded(mild, Finding("a", "b", "c", Action.REBOOT)).action is Action.REBOOT
    assert concluded(action=Action.REBOOT).action is Action.REBOOT


@pytest.mark.parametrize("item", ["too old", None, 7])
def test_a_check_that_yields_anything_else_is_refused_not_taken_for_a_reason(item: Any) -> None:
    with pytest.raises(TypeError, match=r"site\.fit: the check yields .*; it must yield findings"):
        conclude("site.fit", [item], cause="c", hint="h", action=Action.MONITOR)


REPAIRS = [action for action in Action if action.is_repair]
MILD = [Action.CONFIGURE, Action.MONITOR]


@pytest.mark.parametrize("action", REPAIRS)
def test_a_check_with_a_repair_must_state_why_no_healthy_node_fails_it(action: Action) -> None:
    for sentence in ("", "  "):
        with pytest.raises(
            TypeError, match=r"site\.fit: an action that takes a node out of service requires"
        ):
            verdicts.check("site.fit", cause="c", hint="h", action=action, never_healthy=sentence)
    verdicts.check("site.fit", cause="c", hint="h", action=action, never_healthy=SENTENCE)


@pytest.mark.parametrize("action", MILD)
@pytest.mark.parametrize("own", REPAIRS)
def test_a_finding_with_a_repair_of_a_milder_check_needs_the_sentence(own: Action, action: Action) -> None:
    def judge() -> verdicts.Judgement:
        yield Finding("GPU 1", "7", "8", own)

    silent = verdicts.check("site.fit", cause="c", hint="h", action=action)(judge)
    with pytest.raises(TypeError, match="never_healthy"):
        silent()
    stated = verdicts.check("site.fit", cause="c", hint="h", action=action, never_healthy=SENTENCE)(judge)
    assert stated().action is own


@pytest.mark.parametrize("action", REPAIRS)
def test_no_transformation_makes_a_repair_of_a_verdict_without_the_sentence(action: Action) -> None:
    mild = conclude("site.fit", [FINDING], cause="c", hint="h", action=Action.MONITOR)
    with pytest.raises(TypeError, match="never_healthy"):
        replace(mild, action=action)
    with pytest.raises(TypeError, match="never_healthy"):
        replace(mild, findings=(replace(FINDING, action=action),))
    with pytest.raises(TypeError, match="never_healthy"):
        with_cause(mild, "7", "x", "y", action=action)
    assert with_cause(replace(mild, never_healthy=SENTENCE), "7", "x", "y", action=action).action is action
    passed = conclude("site.fit", [], cause="c", hint="h", action=Action.MONITOR)
    assert replace(passed, action=action).outcome is Outcome.PASSED  # it asks nobody for anything


def test_a_verdict_as_plain_types() -> None:
    own = Finding("a", "b", "c", Action.REBOOT)
    plain = concluded(FINDING, own, Metric("m", 1.5, "s", "GPU 1"), Advisory("p", "x", "y")).as_dict()
    assert plain == {
        "check": "gpu.count", "outcome": "failed", "reason": "", "cause": "c", "hint": "h", "action": "drain",
        "findings": [
            {"part": "GPU 1", "measured": "7", "expected": "8"},
            {"part": "a", "measured": "b", "expected": "c", "action": "reboot"},
        ],
        "metrics": [
            {"name": "m", "value": 1.5, "unit": "s", "device": "GPU 1", "detail": False, "better": ""}
        ],
        "advisories": [{"part": "p", "measured": "x", "expected": "y"}],
    }  # fmt: skip


def test_others_at_work_explain_a_failure_and_drain_nobody() -> None:
    failed = concluded(FINDING)
    mild = with_contention(failed, "python3 (pid 7)")
    assert (mild.action, mild.cause) == (
        Action.MONITOR,
        "python3 (pid 7); the hardware alone was not measured",
    )
    assert mild.hint.startswith("ps -eo pid,user,lstart,cmd on the node")
    assert with_contention(failed, "") is failed
    passed = concluded()
    assert with_contention(passed, "python3 (pid 7)") is passed


def test_words_that_every_finding_says_explain_a_failure() -> None:
    port = Finding("port", "port 1 is taken", "free")
    assert with_cause(concluded(port, FINDING), "is taken", "x", "y") == concluded(port, FINDING)
    assert with_cause(concluded(), "is taken", "x", "y") == concluded()
    mild = with_cause(concluded(port), "is taken", "x", "y")
    assert (mild.cause, mild.hint, mild.action) == ("x", "y", Action.MONITOR)
    assert with_cause(concluded(port), "is taken", "x", "y", action=Action.REBOOT).action is Action.REBOOT


def test_software_that_keeps_cuda_away_drains_nobody() -> None:
    cpu = Finding(
        "rank 0", "torch 2.13.0+cpu sees no GPU: it is a CPU build (CUDA_VISIBLE_DEVICES=0)", "a GPU"
    )
    mild = with_software_cause(concluded(cpu))
    assert (mild.action, mild.cause) == (
        Action.MONITOR,
        "CPU build of torch: settings or software of the node, not its GPU",
    )
    assert mild.hint not in {"h", ""}
    for verdict in (concluded(cpu, FINDING), concluded(FINDING), concluded()):
        assert with_software_cause(verdict) is verdict


def test_a_check_of_ours_is_listed_and_one_of_others_is_not() -> None:
    def judge(value: int) -> verdicts.Judgement:
        """Judge it.

        More words.
        """
        if value:
            yield FINDING

    ours = judge
    ours.__module__ = "pytest_gpucluster.checks.some"
    try:
        made = verdicts.check("some.check", cause="c", hint="h", action=Action.REBOOT, never_healthy="n")(
            ours
        )
        assert verdicts.CHECKS["some.check"] == verdicts.CheckDescription(
            "Judge it.", "c", "h", Action.REBOOT, "n"
        )
    finally:
        verdicts.CHECKS.pop("some.check", None)
    assert made(0) == Verdict(
        "some.check", Outcome.PASSED, cause="c", hint="h", action=Action.REBOOT, never_healthy="n"
    )
    assert made(1).findings == (FINDING,)
    judge.__module__ = "site.checks"
    assert (
        verdicts.check("other.check", cause="c", hint="h", action=Action.MONITOR)(judge)(1).action
        is Action.MONITOR
    )
    assert "other.check" not in verdicts.CHECKS


def test_every_check_is_listed_by_suite_and_what() -> None:
    """Imported here, so that a changed name is noticed by this test."""
    import_checks()
    assert len(verdicts.CHECKS) > 100
    for name, about in verdicts.CHECKS.items():
        assert re.fullmatch(r"[a-z_]+\.[a-z0-9_]+", name), name
        assert about.holds, name
        assert about.cause, name
        assert about.hint, name


# -- what steps told ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rc", "signal", "words", "printed"),
    [
        (137, 9, "x", "ended by signal 9 (SIGKILL)"),
        (None, 250, "", "ended by signal 250 (unknown)"),
        (None, None, "x", "never ended"),
        (3, None, "boom", "exit status 3: boom"),
        (3, None, "", "exit status 3"),
        (0, None, "chatter", "exit status 0"),
    ],
)
def test_how_a_task_ended(rc: int | None, signal: int | None, words: str, printed: str) -> None:
    assert PayloadTask(0, "gpu01", rc, signal, (), words).ending() == printed


def test_facts_are_in_the_order_of_ranks() -> None:
    first = PayloadTask(0, "gpu01", 0, None, ({"k": "a", "rank": 2, "node": "gpu01"}, {"k": "b", "rank": 0}))
    other = PayloadTask(
        1, "gpu02", 0, None, ({"k": "a", "rank": 1, "node": "gpu02"}, {"k": "a"}, {"k": "a", "rank": "x"})
    )
    step = PayloadResult("k", ("gpu01", "gpu02"), 2, (first, other))
    assert [fact.get("rank") for fact in step.facts("a")] == [None, 1, 2]
    assert step.of_node("gpu02", "a") == [{"k": "a", "rank": 1, "node": "gpu02"}]
    twice = PayloadTask(2, "gpu02", 0, None, ({"k": "c", "rank": 1, "n": 1}, {"k": "c", "rank": 1, "n": 2}))
    assert PayloadResult("k", (), 1, (twice,)).by_rank("c") == {1: {"k": "c", "rank": 1, "n": 2}}


def test_what_concerns_all_tasks_is_made_once_per_result() -> None:
    made: list[tuple[str, int]] = []

    def count(result: PayloadResult, word: str) -> int:
        made.append((word, result.ntasks))
        return result.ntasks

    step = PayloadResult("k", (), 3)
    assert [step.once(count, word) for word in ("a", "b", "a")] == [3, 3, 3]
    assert replace(step, ntasks=4).once(count, "a") == 4
    assert made == [("a", 3), ("b", 3), ("a", 4)]
    assert step == PayloadResult("k", (), 3)


def test_why_a_node_is_silent() -> None:
    good, bad = PayloadTask(0, "gpu01", 0, None, ()), PayloadTask(1, "gpu01", 2, None, (), "boom")
    assert (
        PayloadResult("k", ("gpu01",), 2, (good, bad), "late").silence("gpu01")
        == "task 1: exit status 2: boom"
    )
    assert PayloadResult("k", ("gpu01",), 2, (good,), "late").silence("gpu01") == "late"
    assert PayloadResult("k", ("gpu01",), 2, (good,)).silence("gpu01") == "sent no result"
    assert PayloadResult("k", ("gpu01",), 2, (good,)).silence("gpu02") == "no task started there"


def test_facts_among_chatter() -> None:
    text = 'noise {"k": "a", "n": 1}\n{"k": "b", "n"\n{"x": 1}\n{"k": "c"}\n'
    assert read_facts(text, "k") == ({"k": "a", "n": 1}, {"k": "c"})
    assert last_stderr_line(" a \n b \n\n") == "b"
    assert last_stderr_line("-----\nAll nodes are filled.\n-----\n") == "All nodes are filled."
    assert last_stderr_line("\n") == ""
    for line in (
        "37: p: not found",
        "line 37: p: not found",
        "exec: line 37: p: not found",
        "1: exec: p: not found",
    ):
        assert (
            last_stderr_line(f"task-0123456789abcdef: {line}\n") == "p: not found"
        )  # of the script around the task
    assert len(last_stderr_line("x" * 301)) == 300
    assert most_common(["a", "b", "a"]) == "a"
    assert most_common(["a", "b"]) == ""
    assert most_common(["a", "a", "a", "b", "b"]) == "", "less than two thirds accuse nobody"
    assert most_common([]) == ""
    assert signal_name(11) == "SIGSEGV"


def test_a_remark_changes_no_outcome_and_is_logged() -> None:
    def remarks(count: int) -> Verdict:
        found = (Remark(f"odd {number}", 2) for number in range(count))
        return conclude("a.b", found, cause="c", hint="h", action=Action.MONITOR)

    verdict = remarks(2)
    assert (verdict.outcome, verdict.advisories) == (Outcome.PASSED, ())
    assert verdict.as_dict()["remarks"] == [{"text": "odd 0", "count": 2}, {"text": "odd 1", "count": 2}]
    assert "remarks" not in remarks(0).as_dict()
    assert [it.text for it in combined([verdict, remarks(1)]).remarks] == ["odd 0", "odd 1", "odd 0"]


# --- several allocations


def of_allocation(
    outcome: Outcome, *, part: str = "", action: Action = Action.MONITOR, reason: str = ""
) -> Verdict:
    found = (Finding(part, "bad", "good"),) if part else ()
    metrics, advisories = (Metric("speed", 1.0, "GB/s", part),), (Advisory(part, "odd", "usual"),)
    return Verdict(
        "x.y", outcome, found, metrics, reason, f"cause {part}", f"hint {part}", action, advisories,
        never_healthy="no healthy machine is bad",
    )  # fmt: skip


def test_one_allocation_has_its_own_verdict() -> None:
    for outcome in Outcome:
        one = of_allocation(outcome, part="a", reason="r")
        assert combined([one]) is one


def test_no_allocation_is_no_pass() -> None:
    assert combined([]).outcome is Outcome.NOT_CHECKED


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ("PASSED NOT_APPLICABLE", "PASSED"),
        ("NOT_APPLICABLE NOT_APPLICABLE", "NOT_APPLICABLE"),
        ("PASSED NOT_CHECKED", "NOT_CHECKED"),
        ("NOT_APPLICABLE NOT_CHECKED", "NOT_CHECKED"),
        ("NOT_APPLICABLE FAILED", "FAILED"),
        ("FAILED NOT_CHECKED PASSED", "FAILED"),
    ],
)
def test_the_worst_outcome_stands_for_all(outcomes: str, expected: str) -> None:
    parts = [of_allocation(Outcome[name], reason=name) for name in outcomes.split()]
    found = combined(parts)
    assert found.outcome is Outcome[expected]
    assert found.reason == expected
    assert (len(found.metrics), len(found.advisories)) == (len(parts), len(parts))


def test_findings_of_all_allocations_keep_the_action_of_their_own() -> None:
    mild = of_allocation(Outcome.FAILED, part="a")
    hard = of_allocation(Outcome.FAILED, part="b", action=Action.DRAIN)
    found = combined([mild, hard, of_allocation(Outcome.PASSED)])
    assert [(it.part, it.action) for it in found.findings] == [("a", Action.MONITOR), ("b", Action.DRAIN)]
    assert (found.action, found.cause, found.hint) == (Action.DRAIN, "cause b", "hint b")
    own = replace(mild, findings=(Finding("c", "bad", "good", Action.REBOOT),), never_healthy="stated")
    assert [it.action for it in combined([own, hard]).findings] == [Action.REBOOT, Action.DRAIN]
    # with one action for all, a finding has none of its own
    assert combined([mild, mild]).findings == (*mild.findings, *mild.findings)
    assert mild.findings[0].action is None
