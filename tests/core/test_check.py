"""Verdicts: what a judgement adds up to, which action it asks for, and what payload steps told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from report_helpers import a_run, passing

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
from pytest_gpucluster.kit.framework.payload_result import (
    PayloadResult,
    PayloadTask,
    last_stderr_line,
    most_common,
    read_facts,
)
from pytest_gpucluster.kit.mpi.mpi_errors import code_of, with_software_cause
from pytest_gpucluster.report.machine.events import read_run
from pytest_gpucluster.run.item_record import Record

FINDING = Finding("GPU 1", "7", "8")
METRIC = Metric("m", 1, "s")
SENTENCE = "made for a test"
WORDS = {"cause": "c", "hint": "h"}
MILD = [Action.CONFIGURE, Action.MONITOR]
REPAIRS = [Action.RESET_GPU, Action.REBOOT, Action.DRAIN, Action.VENDOR]


def concluded(*given: Any, action: Action = Action.DRAIN) -> Verdict:
    return conclude("gpu.count", given, cause="c", hint="h", action=action, never_healthy=SENTENCE)


@pytest.mark.parametrize(
    ("given", "outcome", "reason"),
    [
        ((), Outcome.PASSED, ""),
        ((NotApplicable("none"),), Outcome.NOT_APPLICABLE, "none"),
        ((NotApplicable("none"), NotAvailable("unknown")), Outcome.NOT_CHECKED, "unknown"),
        ((NotAvailable("1"), NotAvailable("2"), NotApplicable("none")), Outcome.NOT_CHECKED, "1"),
        ((NotAvailable("unknown"), FINDING), Outcome.FAILED, "unknown"),
        ((FINDING, NotApplicable("none")), Outcome.FAILED, "none"),
    ],
)
def test_what_a_judgement_adds_up_to(given: tuple[Any, ...], outcome: Outcome, reason: str) -> None:
    verdict = concluded(*given)
    assert (verdict.outcome, verdict.reason) == (outcome, reason)
    assert (verdict.check, verdict.cause, verdict.hint) == ("gpu.count", "c", "h")
    warned = concluded(*given, Advisory("GPU 0", "1", "0"))  # a warning changes neither outcome nor action
    assert (warned.outcome, warned.action) == (outcome, Action.DRAIN)


@pytest.mark.parametrize("raised", [NotAvailable, NotApplicable])
def test_a_raised_reason_ends_the_check_and_counts_as_a_yielded_one(raised: type[NotJudged]) -> None:
    def ends(*before: Metric | Finding) -> Judgement:
        yield from before
        raise raised("why")

    for before in ((), (METRIC,), (METRIC, FINDING)):
        assert conclude("gpu.count", ends(*before), **WORDS, action=Action.MONITOR) == replace(
            concluded(*before, raised("why"), action=Action.MONITOR), never_healthy=""
        )


def test_a_check_may_raise_without_a_yield_and_other_errors_stay_errors() -> None:
    @verdicts.check("a.b", cause="c", hint="h", action=Action.MONITOR)
    def judge(error: Exception | None) -> Judgement:  # no generator
        if error:
            raise error
        return None  # type: ignore[return-value]

    verdict = judge(NotAvailable("no facts"))
    assert (verdict.outcome, verdict.reason) == (Outcome.NOT_CHECKED, "no facts")
    with pytest.raises(ProbeError, match="half a line"):
        judge(ProbeError("half a line"))
    with pytest.raises(TypeError, match="returns None"):
        judge(None)
    for item in ("too old", None, 7):
        with pytest.raises(TypeError, match=r"gpu\.count: the check yields"):
            concluded(item)


@pytest.mark.parametrize(
    ("actions", "hardest", "own"),
    [
        ([None, None], Action.REBOOT, [None, None]),
        ([None, Action.MONITOR], Action.REBOOT, [None, Action.MONITOR]),
        ([None, Action.VENDOR], Action.VENDOR, [Action.REBOOT, Action.VENDOR]),
        ([Action.MONITOR, Action.RESET_GPU], Action.RESET_GPU, [Action.MONITOR, Action.RESET_GPU]),
        ([Action.DRAIN, None, Action.MONITOR], Action.DRAIN, [Action.DRAIN, Action.REBOOT, Action.MONITOR]),
    ],
)
def test_the_hardest_finding_decides_and_each_tells_its_own(
    actions: list[Action | None], hardest: Action, own: list[Action | None]
) -> None:
    lost = [Finding(f"GPU {number}", "1", "2", action) for number, action in enumerate(actions)]
    found = concluded(*lost, action=Action.REBOOT)
    assert (found.action, [finding.action for finding in found.findings]) == (hardest, own)


@pytest.mark.parametrize("action", REPAIRS)
def test_no_repair_is_asked_for_without_the_reason_why_no_healthy_node_fails(action: Action) -> None:
    for sentence in ("", "  "):
        with pytest.raises(TypeError, match="takes a node out of service requires never_healthy"):
            verdicts.check("a.b", cause="c", hint="h", action=action, never_healthy=sentence)
    verdicts.check("a.b", cause="c", hint="h", action=action, never_healthy=SENTENCE)
    for of_check in MILD:

        def judge() -> Judgement:
            yield replace(FINDING, action=action)

        with pytest.raises(TypeError, match="never_healthy"):
            verdicts.check("a.b", cause="c", hint="h", action=of_check)(judge)()
        stated = verdicts.check("a.b", cause="c", hint="h", action=of_check, never_healthy=SENTENCE)(judge)
        assert stated().action is action


@pytest.mark.parametrize("action", REPAIRS)
def test_no_transformation_makes_a_repair_of_a_verdict_without_the_sentence(action: Action) -> None:
    mild = conclude("site.fit", [FINDING], cause="c", hint="h", action=Action.MONITOR)
    with pytest.raises(TypeError, match="never_healthy"):
        replace(mild, action=action)
    with pytest.raises(TypeError, match="never_healthy"):
        replace(mild, findings=(replace(FINDING, action=action),))
    with pytest.raises(TypeError, match="never_healthy"):
        with_cause(mild, "", "x", "y", action=action)
    assert with_cause(replace(mild, never_healthy=SENTENCE), "", "x", "y", action=action).action is action
    passed = conclude("site.fit", [], cause="c", hint="h", action=Action.MONITOR)
    assert replace(passed, action=action).outcome is Outcome.PASSED  # it asks nobody for anything


def test_another_cause_of_the_whole_failure_has_one_action_for_all_findings() -> None:
    verdict = concluded(Finding("GPU 0", "1", "2", Action.VENDOR, code="memory"), Finding("1", "1", "2", code="memory"))
    plain = tuple(replace(finding, action=None) for finding in verdict.findings)
    other = with_contention(verdict, "python3 (pid 7)")
    assert (other.action, other.findings) == (Action.MONITOR, plain)
    assert other.cause.startswith("python3 (pid 7); ")
    assert "end the process" in other.hint
    other = with_cause(verdict, "memory", "why", "what", action=Action.DRAIN)
    assert (other.action, other.findings, other.cause, other.hint) == (Action.DRAIN, plain, "why", "what")
    assert with_cause(verdict, "memory", "why", "what").action is Action.MONITOR
    passed = concluded()
    assert with_contention(verdict, "") is with_cause(verdict, "other", "why", "what") is verdict
    assert with_contention(passed, "somebody") is with_cause(passed, "memory", "why", "what") is passed


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("CUDA error: out of memory", "low limits"),
        ("The NVIDIA driver on your system is too old", "driver library"),
        ("No module named 'torch'", "no torch"),
        ("CUDA error: an illegal memory access was encountered", ""),
    ],
)
def test_software_that_keeps_cuda_away_drains_nobody(words: str, kind: str) -> None:
    verdict = concluded(
        Finding("p", words, "e", Action.VENDOR, code=code_of(words, "other", low_limits=kind == "low limits"))
    )
    found = with_software_cause(verdict)
    assert found.action is (Action.MONITOR if kind else Action.VENDOR)
    assert found.cause.startswith(kind or "c")
    for other in (concluded(*verdict.findings, FINDING), concluded()):
        assert with_software_cause(other) is other


def of_allocation(outcome: Outcome, *, part: str = "", action: Action = Action.MONITOR, reason: str = "") -> Verdict:
    found = (Finding(part, "1", "2"),) if part else ()
    advisory, told = Advisory(part, "odd", "usual"), (f"cause {part}", f"hint {part}")
    made = Verdict("x.y", outcome, found, (METRIC,), reason, *told, action, (advisory,), never_healthy=SENTENCE)
    return replace(made, remarks=(Remark(part),))


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ("PASSED NOT_CHECKED", "NOT_CHECKED"),
        ("NOT_APPLICABLE NOT_CHECKED", "NOT_CHECKED"),
        ("NOT_APPLICABLE FAILED", "FAILED"),
        ("FAILED NOT_CHECKED PASSED", "FAILED"),
    ],
)
def test_the_worst_outcome_stands_for_all(outcomes: str, expected: str) -> None:
    parts = [of_allocation(Outcome[name], reason=name) for name in outcomes.split()]
    found = combined(parts)
    assert (found.outcome, found.reason) == (Outcome[expected], expected)
    assert len(found.metrics) == len(found.advisories) == len(found.remarks) == len(parts)
    assert combined(parts[:1]) is parts[0]
    assert combined([]).outcome is Outcome.NOT_CHECKED


def test_findings_of_all_allocations_keep_the_action_of_their_own() -> None:
    mild = of_allocation(Outcome.FAILED, part="a")
    hard = of_allocation(Outcome.FAILED, part="b", action=Action.DRAIN)
    found = combined([mild, hard, of_allocation(Outcome.PASSED)])
    assert [(str(it.part), it.action) for it in found.findings] == [("a", Action.MONITOR), ("b", Action.DRAIN)]
    assert (found.action, found.cause, found.hint) == (Action.DRAIN, "cause b", "hint b")
    own = replace(mild, findings=(Finding("c", "bad", "good", Action.REBOOT),))
    assert [it.action for it in combined([own, hard]).findings] == [Action.REBOOT, Action.DRAIN]
    assert [it.action for it in combined([mild, mild]).findings] == [None, None]


def test_a_check_of_several_allocations_judges_all_of_them() -> None:
    def of_count(count: int) -> Verdict:
        return of_allocation(Outcome.FAILED, part=str(count))

    every = verdicts.Check("made.up", of_count, item=True, marks=(), each="counts")
    assert [str(it.part) for it in every.of_facts({"counts": [1, 2]}).findings] == ["1", "2"]


def test_facts_are_in_the_order_of_ranks() -> None:
    first = PayloadTask(0, "gpu01", 0, None, ({"k": "a", "rank": 2, "node": "gpu01"}, {"k": "b", "rank": 0}))
    odd = ({"k": "a", "rank": 1, "node": "gpu02"}, {"k": "a"}, {"k": "a", "rank": "x"})
    step = PayloadResult("k", ("gpu01", "gpu02"), 2, (first, PayloadTask(1, "gpu02", 0, None, odd)))
    assert [fact.get("rank") for fact in step.facts("a")] == [None, 1, 2]
    assert step.of_node("gpu02", "a") == [{"k": "a", "rank": 1, "node": "gpu02"}]
    twice = PayloadTask(2, "gpu02", 0, None, ({"k": "c", "rank": 1, "n": 1}, {"k": "c", "rank": 1, "n": 2}))
    assert PayloadResult("k", (), 1, (twice,)).by_rank("c") == {1: {"k": "c", "rank": 1, "n": 2}}
    made: list[str] = []

    def count(of_step: PayloadResult, word: str) -> int:
        made.append(word)
        return of_step.ntasks

    assert [step.once(count, word) for word in "aba"] == [2] * 3
    assert made == ["a", "b"]  # once per result


def test_why_a_node_is_silent() -> None:
    good, bad = PayloadTask(0, "gpu01", 0, None, ()), PayloadTask(1, "gpu01", 2, None, (), "boom")
    for tasks, problem, node, why in (
        ((good, bad), "late", "gpu01", "task 1: exit status 2: boom"),
        ((good, PayloadTask(3, "gpu01", None, None, ())), "", "gpu01", "task 3: never ended"),
        ((good,), "late", "gpu01", "late"),
        ((good,), "", "gpu01", "sent no result"),
        ((good,), "", "gpu02", "no task started there"),
    ):
        assert PayloadResult("k", ("gpu01",), 2, tasks, problem).silence(node) == why


def test_facts_among_chatter() -> None:
    text = 'noise {"k": "a", "n": 1}\n{"k": "b", "n"\n{"x": 1}\n{"k": "c"}\n{"k": 1} x\n[{"k": 3}]\n{"kk": 4}'
    assert read_facts(text, "k") == ({"k": "a", "n": 1}, {"k": "c"})
    lines = {" a \n b \n\n": "b", "-----\nAll filled.\n-----\n": "All filled.", "\n": ""}
    lines |= {"x" * 300: "x" * 300, "x" * 301: "x" * 300}
    for line in ("37: p: not found", "line 37: p: not found", "exec: line 37: p: not found"):
        lines[f"task-0123456789abcdef: {line}\n"] = "p: not found"  # of the script around the task
    assert {text: last_stderr_line(text) for text in lines} == lines
    most = {"aba": "a", "ab": "", "aaabb": "", "": ""}  # less than two thirds accuse nobody
    assert {values: most_common(iter(values)) for values in most} == most


def test_what_a_verdict_does_not_have_is_no_key_of_it() -> None:
    bare = Verdict("a.b", Outcome.PASSED)
    more: dict[str, Any] = {"setting": "x.y", "explained_by": "c.d", "reason_code": "r"}
    assert replace(bare, **more).as_dict() == {**bare.as_dict(), **more}
    assert not {*more, "remarks"} & bare.as_dict().keys()


def test_a_warning_is_sanitised_and_redacted_as_a_finding_is() -> None:
    hostile = "bad\x1b[31m\x00 API_TOKEN=hunter2hunter2 https://ops:pw@host/ \u202e"
    clean = "bad?[31m? API_TOKEN=<redacted> https://ops:<redacted>@host/ ?"
    record = Record("gpu", "gpu.x", "gpu01")
    record.add(concluded(Advisory(hostile, hostile, hostile), Finding(hostile, hostile, hostile)))
    (verdict,) = record.as_dict()["verdicts"]
    assert verdict["advisories"] == [{"code": "", "part": {"name": clean}, "measured": clean, "expected": clean}]
    assert verdict["findings"] == verdict["advisories"]


@pytest.mark.parametrize("odd", [None, 7, "text", [None], [7], [["part"]], {"part": "x"}])
def test_a_damaged_warning_of_a_foreign_log_is_no_crash(odd: Any) -> None:
    verdict = {"findings": [], "advisories": odd}
    assert read_run(a_run([passing("gpu01", verdicts=[verdict])])).warnings == {}
