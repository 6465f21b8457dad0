"""What a check finds: findings, advisories, remarks and metrics, the same objects from the check to every report. Pure.

`as_dict` returns what the event log holds; `from_dict` reads it. Logs come from killed runs and other versions: what a field
should hold and does not is read as empty.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.safe_json import finite, shared_text, text

if TYPE_CHECKING:
    from collections.abc import Mapping


class Action(str, enum.Enum):
    """Who must act after a failure, and how, from mild to hard.

    configure: a person who maintains the cluster file, the profile or the software; the node stays in service. monitor: a
    person who repeats the check later. All others are repairs, which take the node out of service: jobs fail or are slow there
    now, or a part states that it will fail.
    """

    CONFIGURE = "configure"
    MONITOR = "monitor"
    RESET_GPU = "reset gpu"
    REBOOT = "reboot"
    DRAIN = "drain"
    VENDOR = "return to vendor"

    @property
    def is_repair(self) -> bool:
        """Whether the action takes the node out of service."""
        return self not in (Action.CONFIGURE, Action.MONITOR)

    @staticmethod
    def read(value: Any) -> Action | None:
        """Return the action of a log; None where it holds none, or one of another version."""
        return _ACTIONS.get(value) if value.__class__ is str else None


_ACTIONS = {action.value: action for action in Action}


@dataclass(frozen=True, slots=True)
class Finding:
    """One deviation: the part (GPU, link, mount, ...), the measured and the expected value.

    `action`: the required action, if it differs from that of the verdict. `setting`: what a person has stated and the
    finding compares with, like `os.limits`, if it differs from that of the check.
    """

    part: str
    measured: str
    expected: str
    action: Action | None = None
    setting: str = field(default="", compare=False)

    def as_dict(self) -> dict[str, str]:
        """Return plain types; a finding without its own action or setting has no such key."""
        own = {"action": self.action.value} if self.action else {}
        own |= {"setting": self.setting} if self.setting else {}
        return {"part": self.part, "measured": self.measured, "expected": self.expected, **own}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Finding:
        """Read a finding of a log."""
        return cls(*_deviation(plain), Action.read(plain.get("action")), shared_text(plain.get("setting")))


@dataclass(frozen=True, slots=True)
class Advisory:
    """A deviation that proves no fault: reports show a warning; it neither fails a check nor drains a node."""

    part: str
    measured: str
    expected: str

    def as_dict(self) -> dict[str, str]:
        """Return plain types."""
        return {"part": self.part, "measured": self.measured, "expected": self.expected}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Advisory:
        """Read an advisory of a log."""
        return cls(*_deviation(plain))


def _deviation(plain: Mapping[str, Any]) -> tuple[str, str, str]:
    return (
        shared_text(plain.get("part")),
        shared_text(plain.get("measured")),
        shared_text(plain.get("expected")),
    )


@dataclass(frozen=True, slots=True)
class Remark:
    """What has no known meaning, like `count` lines of a log: no failure and no warning. `-v` and HTML fold all of a check."""

    text: str
    count: int = 1

    def as_dict(self) -> dict[str, Any]:
        """Return plain types."""
        return {"text": self.text, "count": self.count}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Remark:
        """Read a remark of a log."""
        return cls(text(plain.get("text")), int(finite(plain.get("count")) or 1))


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured number. `device` is a part of the node, '' for the whole node.

    `detail`: for the event log and JUnit; the summary table omits it. `better`: higher, lower or neither, if that
    differs from the direction of the unit in core/metric_direction.py.
    """

    name: str
    value: float
    unit: str
    device: str = ""
    detail: bool = False
    better: str = ""

    @property
    def number(self) -> float | None:
        """The value; None where it is NaN or infinite."""
        return finite(self.value)

    def as_dict(self) -> dict[str, Any]:
        """Return plain types."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "device": self.device,
            "detail": self.detail,
            "better": self.better,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Metric:
        """Read a metric of a log, which holds 'NaN' and 'Infinity' as texts."""
        value = plain.get("value")
        return cls(
            shared_text(plain.get("name")),
            value if value.__class__ is float else _number(value),
            shared_text(plain.get("unit")),
            shared_text(plain.get("device")),
            bool(plain.get("detail")),
            shared_text(plain.get("better")),
        )


def _number(value: Any) -> float:
    """Return a number of a log, NaN where it is none or exceeds a float."""
    if value in ("Infinity", "-Infinity"):
        return float(value)
    return math.nan if finite(value) is None else value
