"""A check compares facts with expectations and returns a verdict. Pure.

A check is a function that yields `Finding`s (what deviates) and `Metric`s (what was measured), decorated with
its cause, hint and action class. It raises `NotAvailable` or `NotApplicable` if it cannot judge (core/errors.py):

    @check("gpu.count", cause="a GPU fell off the bus", hint="dmesg | grep -i xid; reboot; reseat")
    def gpu_count(gpus: Sequence[Gpu], profile: GpuProfile) -> Judgement:
        yield Metric("gpu_count", len(gpus), "GPUs")
        if len(gpus) != profile.count:
            found, wanted = Quantity(len(gpus), "GPUs"), Quantity(profile.count, "GPUs")
            yield Finding(GPUS, found, wanted, code="count")

Calling it gives a Verdict. Its parameters name the facts it judges.
"""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec

from pytest_gpucluster import suite_packages
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable, NotJudged
from pytest_gpucluster.core.finding import Action, Advisory, Finding, Metric, Remark

__all__ = [
    "CHECKS",
    "NO_MEMORY",
    "Action",
    "Advisory",
    "Check",
    "CheckDescription",
    "Finding",
    "Judgement",
    "Metric",
    "Outcome",
    "Remark",
    "Verdict",
    "check",
    "combined",
    "conclude",
    "leave_to",
    "revised",
    "with_cause",
    "with_contention",
]

P = ParamSpec("P")


class Outcome(str, enum.Enum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    NOT_CHECKED = "not checked"


def inapplicable(ends: Iterable[tuple[str, str]]) -> list[str]:
    """Return the suites of which nothing applied, of (suite, outcome) of their checks.

    >>> inapplicable([("gpu", "not applicable"), ("os", "passed"), ("os", "not applicable")])
    ['gpu']
    """
    found: dict[str, set[str]] = {}
    for suite, outcome in ends:
        found.setdefault(suite, set()).add(outcome)
    return [suite for suite, outcomes in found.items() if outcomes == {Outcome.NOT_APPLICABLE.value}]


_Item = Finding | Advisory | Remark | Metric | NotJudged
Judgement = Iterator[_Item]


@dataclass(frozen=True)
class Verdict:
    """The result of one check on one node. `action` is the most severe that a finding requires.

    shown_by: the smallest command that shows the failure again, where the check knows one.
    shell: commands that show the findings again on the node, where the check knows them.
    never_healthy: why no healthy node fails with a repair as its action. TypeError if a failure with a repair lacks it.
    explained_by: the check of another suite whose finding explains this failure (hook known_cause): both are one finding.
    repeated: the facts are many measurements, so `--drain` does not repeat the check.
    """

    check: str
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    metrics: tuple[Metric, ...] = ()
    reason: str = ""
    cause: str = ""
    hint: str = ""
    action: Action = Action.MONITOR
    advisories: tuple[Advisory, ...] = ()
    setting: str = ""  # of all findings that name none
    never_healthy: str = ""
    remarks: tuple[Remark, ...] = ()
    shown_by: str = ""
    shell: tuple[str, ...] = ()
    explained_by: str = ""
    reason_code: str = ""  # of NotJudged
    repeated: bool = False

    def __post_init__(self) -> None:
        actions = (self.action, *(finding.action for finding in self.findings))
        if self.outcome is Outcome.FAILED and any(action and action.is_repair for action in actions):
            _require_reason(self.check, self.never_healthy)

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for events and for xdist, without metrics: the record of the item has them."""
        plain = {
            **vars(self),  # asdict makes a deep copy for every item: four times as slow
            "outcome": self.outcome.value,
            "action": self.action.value,
            "findings": [finding.as_dict() for finding in self.findings],
            "advisories": [advisory.as_dict() for advisory in self.advisories],
            "remarks": [remark.as_dict() for remark in self.remarks],
        }
        if not self.remarks:
            del plain["remarks"]
        # the reference and the annotation have them
        del (plain["metrics"], plain["never_healthy"], plain["shown_by"], plain["shell"])
        for name in ("setting", "explained_by", "reason_code", "repeated"):
            if not plain[name]:
                del plain[name]
        return plain


@dataclass(frozen=True)
class CheckDescription:
    """What must hold, the usual cause of a failure, what to do, and the action.

    never_healthy: why no healthy node, under any site's configuration, fails the check with a repair as its action.
    setting: what a person has stated and the check compares with: a key of the cluster file, the profile, an image.
    of_job: a job that runs, or has just ended, can be the cause: `gpucluster gate` takes no node out of service for it.
    show: the smallest command that shows a finding on its node, where that is not what its probes run (core/part_commands.py).
    rules_out: the system cause that a node does not have if it passes, like 'heat': a vendor asks for it (evidence/case_file.py).
    """

    holds: str
    cause: str
    hint: str
    action: Action
    never_healthy: str = ""
    setting: str = ""
    show: str = ""
    of_job: bool = False
    rules_out: str = ""


def _is_registered(module: str) -> bool:
    """Return whether a module is of this package, or of a suite of another distribution."""
    return module.startswith(f"{PACKAGE}.") or any(
        module.startswith(f"{package}.") for package in suite_packages().values()
    )


def _require_reason(check: str, never_healthy: str) -> None:
    if not never_healthy.strip():
        raise TypeError(
            f"{check}: an action that takes a node out of service requires never_healthy: one sentence that states why no "
            "healthy node, under any site's configuration, can fail with it"
        )


def with_contention(verdict: Verdict, who: str) -> Verdict:
    """Return a failure that other processes on the GPUs may explain: no drain, and the hint is to end them.

    `who` names them: 'others are at work on GPU 1 (...): python3 (pid 7)'; '' returns the verdict unchanged.
    """
    if not who or verdict.outcome is not Outcome.FAILED:
        return verdict
    return _because(verdict, f"{who}; the hardware alone was not measured", _END_THEM, Action.MONITOR)


def with_cause(verdict: Verdict, code: str, cause: str, hint: str, *, action: Action = Action.MONITOR) -> Verdict:
    """Return the verdict with this cause, hint and action if every finding has this code; '': whatever it has."""
    if not verdict.findings or (code and any(finding.code != code for finding in verdict.findings)):
        return verdict
    return _because(verdict, cause, hint, action)


def leave_to(other: Verdict, why: str, detail: str = "") -> None:
    """Leave a case to another check: NotAvailable if that one has a finding on it; otherwise the caller must report the case.

    other: the verdict of that check on the same facts. Only this function may say that another check judges a case
    (tests/project/test_left_to.py).
    """
    if other.findings:
        raise NotAvailable(f"{why}, which {other.check} judges" + (f": {detail}" if detail else ""))


def combined(verdicts: Iterable[Verdict]) -> Verdict:
    """Return one verdict of a check that ran in several allocations: the worst outcome.

    Each finding keeps the action of its own verdict; cause and hint are those of the most severe failure.
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
        remarks=tuple(remark for it in known for remark in it.remarks),
    )


def _because(verdict: Verdict, cause: str, hint: str, action: Action) -> Verdict:
    """Return a failure with another cause; `action` applies to every finding."""
    findings = tuple(replace(finding, action=None) for finding in verdict.findings)
    return replace(verdict, findings=findings, cause=cause, hint=hint, action=action)


_WORSE = (Outcome.NOT_APPLICABLE, Outcome.PASSED, Outcome.NOT_CHECKED, Outcome.FAILED)
NO_MEMORY = "out of memory"  # as torch and CUDA print it; another process may hold the memory
_END_THEM = "ps -eo pid,user,lstart,cmd on the node; end the process, check Slurm's epilog, and repeat"

PACKAGE = __package__.partition(".")[0]
CHECKS: dict[str, CheckDescription] = {}  # checks of this package that were imported, for the reference


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
    action: Action,
    never_healthy: str = "",
    setting: str = "",
    show: str = "",
    of_job: bool = False,
    item: bool = True,
    marks: tuple[str, ...] = (),
    each: str = "",
    repeated: Callable[..., bool] | None = None,
    rules_out: str = "",
) -> Callable[[Callable[P, Judgement]], Check[P]]:
    """Make a check from a generator of findings and metrics. `name` is SUITE.WHAT; the parameters name its facts.

    never_healthy: one sentence: why no healthy node, under any site's configuration, fails with a repair as its action, or
    as that of one of its findings. TypeError if `action` is a repair without it, and later if a finding's own action is one.
    setting: what a person has stated and the check compares with, like `os.limits`: if it explains what fails alike on all nodes,
    or on the only one, the finding is one of the cluster (core/common_cause.py).
    of_job: a job that runs, or has just ended, can be the cause: `gpucluster gate` takes no node out of service for it.
    show: the smallest command that shows a finding on its node, like `nvidia-smi -q -d ECC -i INDEX` (core/part_commands.py).
    rules_out: the system cause that a node does not have if it passes, like 'heat'.
    repeated: returns, of the facts, whether they are many measurements: then a failure is confirmed, and `--drain` does not
    repeat it.
    """
    if action.is_repair:
        _require_reason(name, never_healthy)

    def decorate(function: Callable[P, Judgement]) -> Check[P]:
        holds = (function.__doc__ or "").strip().partition("\n")[0]
        if _is_registered(function.__module__):
            CHECKS[name] = CheckDescription(holds, cause, hint, action, never_healthy, setting, show, of_job, rules_out)

        @functools.wraps(function)
        def judged(*args: P.args, **kwargs: P.kwargs) -> Verdict:
            __tracebackhide__ = True

            def judgement() -> Judgement:
                if (items := function(*args, **kwargs)) is None:
                    raise TypeError(f"{name}: the check returns None; it must be a generator: it has no `yield`")
                yield from items

            verdict = conclude(name, judgement(), cause=cause, hint=hint, action=action, never_healthy=never_healthy)
            confirmed = repeated is not None and repeated(*args, **kwargs)
            return replace(verdict, setting=setting, repeated=confirmed) if setting or confirmed else verdict

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


def _with_raised(judgement: Iterable[_Item]) -> Judgement:
    """Yield the items; NotAvailable and NotApplicable that end the judgement are the last of them."""
    __tracebackhide__ = True
    try:
        yield from judgement
    except NotJudged as error:
        yield error.with_traceback(None)  # it may be raised for each node, and would hold the facts


def conclude(
    name: str, judgement: Iterable[_Item], *, cause: str, hint: str, action: Action, never_healthy: str = ""
) -> Verdict:
    """Return the verdict of what a check yielded; TypeError for a repair without `never_healthy`."""
    __tracebackhide__ = True
    findings: list[Finding] = []
    metrics: list[Metric] = []
    advisories: list[Advisory] = []
    remarks: list[Remark] = []
    reason = unchecked = code = ""
    for item in _with_raised(judgement):
        if isinstance(item, Finding):
            findings.append(item)
        elif isinstance(item, Advisory):
            advisories.append(item)
        elif isinstance(item, Remark):
            remarks.append(item)
        elif isinstance(item, Metric):
            metrics.append(item)
        elif isinstance(item, NotAvailable):
            unchecked, code = unchecked or str(item), code or item.code
        elif isinstance(item, NotApplicable):
            reason, code = str(item), code or item.code
        else:  # taken for a reason, it would accept the node
            raise TypeError(
                f"{name}: the check yields {item!r}; it must yield findings, advisories, remarks, metrics or NotAvailable"
            )
    without = Outcome.NOT_CHECKED if unchecked else Outcome.NOT_APPLICABLE if reason else Outcome.PASSED
    outcome = Outcome.FAILED if findings else without
    if findings:
        own = action
        action = max((finding.action or own for finding in findings), key=list(Action).index)
        if action is not own:  # findings without their own action keep that of the check
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
        never_healthy=never_healthy,
        remarks=tuple(remarks),
        reason_code=code,
    )
