"""A check holds facts against expectations; a verdict is what comes out. Pure.

A check is a function that yields `Finding`s (what deviates) and `Metric`s (what was measured), decorated with
its cause, hint and action class:

    @check("gpu.count", cause="a GPU fell off the bus", hint="dmesg | grep -i xid; reboot; reseat")
    def gpu_count(gpus: Sequence[Gpu], profile: GpuProfile) -> Judgement:
        yield Metric("gpu_count", len(gpus), "GPUs")
        if len(gpus) != profile.count:
            yield Finding(part="GPUs", measured=f"{len(gpus)}", expected=f"{profile.count}")

Calling it gives a Verdict. Its parameters name the facts it judges: `suite.checks_as_tests` makes a test of it.
"""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec

P = ParamSpec("P")


class Outcome(str, enum.Enum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    NOT_CHECKED = "not checked"


class Action(str, enum.Enum):
    """The action that a failure requires, from mild to hard."""

    MONITOR = "monitor"
    RESET_GPU = "reset gpu"
    REBOOT = "reboot"
    DRAIN = "drain"
    VENDOR = "return to vendor"


@dataclass(frozen=True)
class Finding:
    """One deviation: the part (GPU, link, mount, ...), the measured and the expected value.

    `action`: what this finding asks for, where that is not the action of its verdict.
    """

    part: str
    measured: str
    expected: str
    action: Action | None = None

    def as_dict(self) -> dict[str, str]:
        """Return plain types; a finding without an action of its own has no such key."""
        own = {"action": self.action.value} if self.action else {}
        return {"part": self.part, "measured": self.measured, "expected": self.expected, **own}


@dataclass(frozen=True)
class Advisory:
    """A deviation that proves no fault: reports show it as a warning; it never fails a check and never drains."""

    part: str
    measured: str
    expected: str


@dataclass(frozen=True)
class Metric:
    """One measured number. `device` is a part of the node, '' for the whole node.

    `detail`: for the event log and JUnit; the summary table leaves it out. `better`: higher, lower or neither,
    where that is not what core/metric_direction.py says of the unit.
    """

    name: str
    value: float
    unit: str
    device: str = ""
    detail: bool = False
    better: str = ""


@dataclass(frozen=True)
class NotApplicable:
    """The check does not apply to this hardware or cluster, with the reason."""

    reason: str


@dataclass(frozen=True)
class NotChecked:
    """The facts do not hold what the check would judge, and why. Never a pass."""

    reason: str


Judgement = Iterator[Finding | Advisory | Metric | NotApplicable | NotChecked]


@dataclass(frozen=True)
class Verdict:
    """The result of one check on one node. `action` is the hardest that any finding asks for."""

    check: str
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    metrics: tuple[Metric, ...] = ()
    reason: str = ""
    cause: str = ""
    hint: str = ""
    action: Action = Action.MONITOR
    advisories: tuple[Advisory, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for events and for xdist."""
        return {
            **vars(self),  # asdict copies deeply: four times as slow, once an item
            "outcome": self.outcome.value,
            "action": self.action.value,
            "findings": [finding.as_dict() for finding in self.findings],
            "metrics": [dict(vars(metric)) for metric in self.metrics],
            "advisories": [dict(vars(advisory)) for advisory in self.advisories],
        }


@dataclass(frozen=True)
class About:
    """What is said of a check before it runs: what has to hold, why it fails most often, what to do then."""

    holds: str
    cause: str
    hint: str
    action: Action


def with_contention(verdict: Verdict, who: str) -> Verdict:
    """Return a failure that others at work on the GPUs may explain: it drains nobody, and says to end them.

    `who` names them: 'others are at work on GPU 1 (...): python3 (pid 7)'; '' leaves the verdict as it is.
    """
    if not who or verdict.outcome is not Outcome.FAILED:
        return verdict
    return _because(verdict, f"{who}; the hardware alone was not measured", _END_THEM, Action.MONITOR)


def with_cause(
    verdict: Verdict, words: str, cause: str, hint: str, *, action: Action = Action.MONITOR
) -> Verdict:
    """Return a verdict with this cause, hint and action, where all that was found says these words."""
    if not verdict.findings or not all(words in finding.measured for finding in verdict.findings):
        return verdict
    return _because(verdict, cause, hint, action)


def combined(verdicts: Iterable[Verdict]) -> Verdict:
    """Return one verdict of a check that was made for several allocations; the worst outcome stands.

    Each finding keeps the action of its own verdict; cause and hint are those of the hardest failure.
    """
    known = list(verdicts)
    if len(known) == 1:
        return known[0]
    if not known:
        return Verdict("", Outcome.NOT_CHECKED, reason="no allocation has nodes that can be tested")
    worst = max(known, key=lambda it: (_WORSE.index(it.outcome), list(Action).index(it.action)))
    failed = [it for it in known if it.outcome is Outcome.FAILED]
    differ = len({it.action for it in failed}) > 1
    return replace(
        worst,
        findings=tuple(
            replace(finding, action=finding.action or it.action) if differ else finding
            for it in failed
            for finding in it.findings
        ),
        metrics=tuple(metric for it in known for metric in it.metrics),
        advisories=tuple(advisory for it in known for advisory in it.advisories),
    )


def _because(verdict: Verdict, cause: str, hint: str, action: Action) -> Verdict:
    """Return a failure with another cause: its action stands for every finding."""
    findings = tuple(replace(finding, action=None) for finding in verdict.findings)
    return replace(verdict, findings=findings, cause=cause, hint=hint, action=action)


_WORSE = (Outcome.NOT_APPLICABLE, Outcome.PASSED, Outcome.NOT_CHECKED, Outcome.FAILED)
NO_MEMORY = "out of memory"  # in torch's and CUDA's words: somebody else may hold it
_END_THEM = "ps -o pid,user,lstart,cmd -p PID on the node; end it, look at Slurm's epilog, and repeat"

OURS = __package__.partition(".")[0]
CHECKS: dict[str, About] = {}  # every check of ours that was imported; the reference is made from it


class Check(Generic[P]):
    """A function of facts that returns a Verdict.

    item: whether it has items of its own; otherwise it is a part of other checks.
    marks: pytest's marks of its items.
    each: the name of a fact that has one value per allocation. An item judges every value as the first argument of the
    check and combines the verdicts.
    """

    def __init__(
        self, name: str, judge: Callable[P, Verdict], *, item: bool, marks: tuple[str, ...], each: str
    ) -> None:
        functools.update_wrapper(self, judge)
        self.name, self.item, self.marks, self.each, self._judge = name, item, marks, each, judge

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Verdict:
        """Judge."""
        __tracebackhide__ = True
        return self._judge(*args, **kwargs)

    @functools.cached_property
    def facts(self) -> tuple[str, ...]:
        """The names of the facts that an item passes: all parameters, also those with a default."""
        names = tuple(inspect.signature(self).parameters)
        return (self.each, *names[1:]) if self.each else names

    def of_facts(self, facts: Mapping[str, Any]) -> Verdict:
        """Judge facts given by name."""
        __tracebackhide__ = True
        judge: Callable[..., Verdict] = self
        first, *others = (facts[name] for name in self.facts)
        return combined(judge(one, *others) for one in first) if self.each else judge(first, *others)


def check(
    name: str,
    *,
    cause: str,
    hint: str,
    action: Action = Action.DRAIN,
    item: bool = True,
    marks: tuple[str, ...] = (),
    each: str = "",
) -> Callable[[Callable[P, Judgement]], Check[P]]:
    """Make a check from a generator of findings and metrics. `name` is SUITE.WHAT; the parameters name its facts."""

    def decorate(function: Callable[P, Judgement]) -> Check[P]:
        holds = (function.__doc__ or "").strip().partition("\n")[0]
        if function.__module__.startswith(f"{OURS}."):
            CHECKS[name] = About(holds, cause, hint, action)

        @functools.wraps(function)
        def judged(*args: P.args, **kwargs: P.kwargs) -> Verdict:
            __tracebackhide__ = True
            return conclude(name, function(*args, **kwargs), cause=cause, hint=hint, action=action)

        return Check(name, judged, item=item, marks=marks, each=each)

    return decorate


def revised(revise: Callable[..., Verdict]) -> Callable[[Check[P]], Check[P]]:
    """Pass a check's verdict, with the facts, to a function that returns the final one. Place it above `@check`."""

    def decorate(check: Check[P]) -> Check[P]:
        @functools.wraps(check, updated=())
        def judged(*args: P.args, **kwargs: P.kwargs) -> Verdict:
            __tracebackhide__ = True
            return revise(check(*args, **kwargs), *args, **kwargs)

        return Check(check.name, judged, item=check.item, marks=check.marks, each=check.each)

    return decorate


def conclude(
    name: str,
    judgement: Iterable[Finding | Advisory | Metric | NotApplicable | NotChecked],
    *,
    cause: str,
    hint: str,
    action: Action,
) -> Verdict:
    """Gather what a check yielded into a verdict."""
    __tracebackhide__ = True
    findings: list[Finding] = []
    metrics: list[Metric] = []
    advisories: list[Advisory] = []
    reason = unchecked = ""
    for said in judgement:
        if isinstance(said, Finding):
            findings.append(said)
        elif isinstance(said, Advisory):
            advisories.append(said)
        elif isinstance(said, Metric):
            metrics.append(said)
        elif isinstance(said, NotChecked):
            unchecked = unchecked or said.reason
        else:
            reason = said.reason
    without = Outcome.NOT_CHECKED if unchecked else Outcome.NOT_APPLICABLE if reason else Outcome.PASSED
    outcome = Outcome.FAILED if findings else without
    if findings:
        own = action
        action = max((finding.action or own for finding in findings), key=list(Action).index)
        if action is not own:  # beside one that asks for more, the others keep the action of the check
            findings = [replace(finding, action=finding.action or own) for finding in findings]
    return Verdict(
        name,
        outcome,
        tuple(findings),
        tuple(metrics),
        unchecked or reason,
        cause,
        hint,
        action,
        tuple(advisories),
    )
