"""One `result` or `rerun` event as a compact value. Pure.

Logs come from killed runs and older versions: whatever a field should hold and does not is read as empty. A run may have
half a million results: what is the same in many of them is one object, and a verdict without deviations is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from sys import intern
from typing import Any, NamedTuple

RED = ("failed", "error")


class Deviation(NamedTuple):
    """A finding or a warning of a verdict. `action` and `setting` '' are those of the verdict."""

    part: str
    measured: str
    expected: str
    action: str
    setting: str = ""


class DeviatingVerdict(NamedTuple):
    """A verdict that deviates."""

    outcome: str
    action: str
    cause: str
    hint: str
    findings: tuple[Deviation, ...]
    advisories: tuple[Deviation, ...]
    setting: str = ""
    remarks: tuple[tuple[str, int], ...] = ()  # text, count


class LoggedMetric(NamedTuple):
    """A metric of a result. `value`: a number, or the text that the log has for what is none."""

    name: str
    unit: str
    device: str
    better: str
    detail: bool
    value: float | str


class Waived(NamedTuple):
    """What waivers of the cluster file cover: where they are written, their words, and how the item ended without them."""

    at: tuple[str, ...]
    words: str
    outcome: str
    message: str
    text: str


@dataclass(frozen=True, slots=True)
class Result:
    """How an item ended, in the texts of the log; each report makes them fit for its own format.

    common: the item failed only by findings of the cluster (core/common_cause.py): its node is not at fault.
    """

    nodeid: str
    node: str
    suite: str
    check: str
    outcome: str
    phase: str
    seconds: float
    message: str
    verdicts: tuple[DeviatingVerdict, ...]
    metrics: tuple[LoggedMetric, ...]
    text: str = ""
    annotation: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    waiver: Waived | None = None
    common: bool = False

    @property
    def red(self) -> bool:
        """Whether the item failed or broke."""
        return self.outcome in RED


def read_result(event: dict[str, Any]) -> Result:
    """Return what a `result` or `rerun` event holds."""
    return Result(
        nodeid=_text(event.get("nodeid")),
        node=_shared(event.get("node")),
        suite=_shared(event.get("suite")),
        check=_shared(event.get("check")),
        outcome=_shared(event.get("outcome")),
        phase=_shared(event.get("phase")),
        seconds=finite(event.get("seconds")) or 0.0,
        message=_shared(event.get("message")),
        verdicts=tuple(_verdict(it) for it in as_dicts(event.get("verdicts")) if _deviates(it)),
        metrics=tuple(map(_metric, as_dicts(event.get("metrics")))),
        text=_text(event.get("text")),
        annotation=tuple(map(_text, as_list(event.get("annotation")))),
        properties=tuple((_text(key), _text(value)) for key, value in _pairs(event.get("properties"))),
        waiver=_waived(event["waiver"]) if isinstance(event.get("waiver"), dict) else None,
    )


def _waived(waiver: dict[str, Any]) -> Waived:
    at = tuple(map(_shared, as_list(waiver.get("at"))))
    return Waived(at, *(_shared(waiver.get(key)) for key in Waived._fields[1:]))


def _deviates(verdict: dict[str, Any]) -> bool:
    return any(verdict.get(key) for key in ("findings", "advisories", "remarks"))


def _verdict(verdict: dict[str, Any]) -> DeviatingVerdict:
    findings, advisories = (
        tuple(map(_deviation, as_dicts(verdict.get(key)))) for key in ("findings", "advisories")
    )
    outcome, action, cause, hint, setting = (
        _shared(verdict.get(key)) for key in ("outcome", "action", "cause", "hint", "setting")
    )
    remarks = tuple(
        (_text(it.get("text")), int(finite(it.get("count")) or 1)) for it in as_dicts(verdict.get("remarks"))
    )
    return DeviatingVerdict(outcome, action, cause, hint, findings, advisories, setting, remarks)


def _deviation(finding: dict[str, Any]) -> Deviation:
    return Deviation(*(_shared(finding.get(key)) for key in Deviation._fields))


def _metric(metric: dict[str, Any]) -> LoggedMetric:
    value = metric.get("value")
    return LoggedMetric(
        _shared(metric.get("name")),
        _shared(metric.get("unit")),
        _shared(metric.get("device")),
        _shared(metric.get("better")),
        bool(metric.get("detail")),
        value if isinstance(value, (int, float, str)) and not isinstance(value, bool) else "NaN",
    )


def _shared(value: Any) -> str:
    return intern(value) if value.__class__ is str else _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _pairs(value: Any) -> list[list[Any]]:
    return [pair for pair in as_list(value) if isinstance(pair, list) and len(pair) == 2]


def as_list(value: Any) -> list[Any]:
    """Return a list of a log, an empty one where it is none."""
    return value if isinstance(value, list) else []


def as_dict(value: Any) -> dict[Any, Any]:
    """Return an object of a log, an empty one where it is none."""
    return value if isinstance(value, dict) else {}


def as_dicts(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list of a log."""
    return [one for one in as_list(value) if isinstance(one, dict)]


def finite(value: Any) -> float | None:
    """Return a number of a log; None where it is none, NaN or infinite, which the log holds as texts."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
