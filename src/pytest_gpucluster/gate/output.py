"""What a gate prints and its exit status: for people, for Slurm, for Nagios, as JSON. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import CHECKS, Outcome
from pytest_gpucluster.core.text import count, some
from pytest_gpucluster.core.units import format_duration
from pytest_gpucluster.drain.reason import PREFIX, deviation
from pytest_gpucluster.gate.collect import GATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.core.finding import Finding
    from pytest_gpucluster.gate.gate import GateResult
    from pytest_gpucluster.gate.judge import CheckResult

NAGIOS = {"OK": 0, "WARNING": 1, "CRITICAL": 2, "UNKNOWN": 3}
MAX_NAMES = 4
OF_A_JOB = "a job may be the cause"


def first_line(found: GateResult) -> str:
    """Return the one line for a log: the hardest failure, or how many checks passed; with the age of an earlier gate's answers."""
    word, text = _result(found)
    return f"{PREFIX}{word and f' {word}: '}{text}"


def _result(found: GateResult) -> tuple[str, str]:
    """Return a word for the result, '' where a repair is required, and what was found."""
    word, text = _newest(found)
    return word, text + (f", answer of {format_duration(found.age)} ago" if found.age is not None else "")


def _newest(found: GateResult) -> tuple[str, str]:
    repairs = sorted(found.repairs, key=lambda it: _severity(it[1]), reverse=True)
    for judged, finding in repairs:
        others = len(found.failed) - 1
        # in the form of a reason: the check comes first, since sinfo -R shows 20 characters
        return "", f"{judged.check} {deviation(finding)}" + (f" (and {others} more)" if others else "")
    unchecked = len(found.of(Outcome.NOT_CHECKED.value))
    words = [f"{count(found.judged, 'check')} judged", *([f"{unchecked} not checked"] if unchecked else [])]
    if found.aside:
        words.append(f"nothing of {some(found.aside, MAX_NAMES)} applies (profile {found.profile})")
    if found.failed:
        names = some([it.check for it in found.failed], MAX_NAMES)
        words.append(f"failed without a repair of the node: {names}")
    return _word(found), ", ".join(words)


def _word(found: GateResult) -> str:
    if not found.judged:
        return "nothing was judged"
    if unproved := found.unproved:
        ends = dict.fromkeys(f"{it.check} {it.outcome}" for it in unproved)
        return f"NOT PROVED ({some(ends, MAX_NAMES)})"
    return "OK"


def lines(found: GateResult) -> Iterator[str]:
    """Yield what a person reads: each failure, what was not checked and why, the slow commands."""
    for judged in found.failed:
        for finding in judged.findings:
            by_job = f"; {OF_A_JOB}" if CHECKS[judged.check].of_job else ""
            action = finding.action.value if finding.action else "inspect"
            yield f"{judged.check}: {finding.words} ({action}{by_job})"
    for judged in found.of("waived"):
        yield f"waived: {judged.check}: {judged.why}"
    reasons: dict[str, list[str]] = {}
    for judged in found.of(Outcome.NOT_CHECKED.value):
        reasons.setdefault(judged.why, []).append(judged.check)
    yield from (f"not checked: {some(checks, MAX_NAMES)}: {why}" for why, checks in reasons.items())
    yield from (f"slow: {command}" for command in found.slow)
    yield from (f"note: {note}" for note in found.notes)
    if found.simulated:
        yield "note: SIMULATED hardware (sandbox)"


def nagios(found: GateResult) -> tuple[str, int]:
    """Return the line and the exit status of a Nagios plugin."""
    word = "OK"
    if not found.judged:
        word = "UNKNOWN"
    elif found.repairs:
        word = "CRITICAL"
    elif found.failed or found.of(Outcome.NOT_CHECKED.value):
        word = "WARNING"
    text = _result(found)[1] if found.fit else _why(found)
    data = f"judged={found.judged} failed={len(found.failed)} seconds={found.seconds:.2f}s"
    return f"GPUCLUSTER {word} - {text} | {data}", NAGIOS[word]


def row(found: GateResult) -> dict[str, Any]:
    """Return what `gpucluster gate --collect` reads of a gate in a job."""
    return {GATE: found.node, "fit": found.fit, "why": _why(found)}


def _why(found: GateResult) -> str:
    return ": ".join(filter(None, _result(found)))


def as_json(found: GateResult, open_because: str, done: str) -> dict[str, Any]:
    """Return the document of --json. `open_because`: why the breaker keeps the node in service; `done`: what --drain did."""
    return {
        "cluster": found.cluster,
        "node": found.node,
        "simulated": found.simulated,
        "seconds": round(found.seconds, 3),
        "line": first_line(found),
        "proved": bool(found.judged) and not found.unproved,
        "out_of_service": bool(found.repairs) and not open_because,
        "breaker": open_because,
        "drain": done,
        "slow": list(found.slow),
        "commands": dict(found.fresh),
        "checks": [_check(it) for it in found.results],
    }


def _check(judged: CheckResult) -> dict[str, Any]:
    return {
        "check": judged.check,
        "outcome": judged.outcome,
        "why": judged.why,
        "of_job": CHECKS[judged.check].of_job,
        "findings": [it.as_dict() for it in judged.findings],
        "metrics": [it.as_dict() for it in judged.verdict.metrics] if judged.verdict else [],
    }


def _severity(finding: Finding) -> int:
    actions = list(type(finding.action)) if finding.action else []
    return actions.index(finding.action) if finding.action in actions else -1
