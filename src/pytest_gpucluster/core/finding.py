"""What a check finds: findings, advisories, remarks and metrics, the same objects from the check to every report. Pure.

`as_dict` returns what the event log holds; `from_dict` reads it. Logs come from killed runs and other versions: what a field
should hold and does not is read as empty.
"""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_gpucluster.core import redact
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.safe_json import finite, shared_number, shared_text, text
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.core.text import quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

D = TypeVar("D", bound="Deviation")
MAX_QUOTE = 600  # characters
NODE = Part()
_CODE = re.compile(r"[a-z0-9_]*")


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
class Quantity:
    """A number with its unit. `text`: what people read, if that differs from both, like '17 active links (7 is down)'."""

    number: float
    unit: str = ""
    text: str = ""

    def __str__(self) -> str:
        number = f"{self.number}" if isinstance(self.number, int) else f"{self.number:g}"
        return self.text or quantity(number, self.unit)


@dataclass(frozen=True, slots=True)
class Quote:
    """A text that a node printed: bounded, without secrets."""

    text: str

    def __post_init__(self) -> None:
        """Bound and redact the text where it enters."""
        object.__setattr__(self, "text", redact.text(one_line(self.text, MAX_QUOTE)))

    def __str__(self) -> str:
        return self.text


Words = str  # what a check states, for people alone
Measure = Words | Quantity | Quote


def measure(value: object) -> Measure:
    """Return a value of a node: a number as it is, anything else as its text."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Quantity(value, text=str(value) * isinstance(value, float))
    return Quote(str(value))


def in_words(value: Measure, text: str) -> Measure:
    """Return a value with this text for people; one that is no quantity is that text."""
    if isinstance(value, Quantity):
        return value if text == str(value) else replace(value, text=text)
    return Quote(text)


@dataclass(frozen=True, slots=True)
class Deviation:
    """What is not as expected: the part, the measured and the expected value, and `code`, a stable word for what is wrong.

    Programs decide by the code, the kind of part and the relation of two quantities, never by words.
    """

    part: Part
    measured: Measure
    expected: Measure
    code: str

    @property
    def words(self) -> str:
        """The sentence about it in every report."""
        return f"{self.part}: measured {self.measured}, expected {self.expected}"

    @property
    def relation(self) -> str:
        """How two quantities compare: '<', '>' or '='; '' where no two are compared."""
        first, second = self.measured, self.expected
        if not isinstance(first, Quantity) or not isinstance(second, Quantity):
            return ""
        return "<" if first.number < second.number else ">" if first.number > second.number else "="

    def as_dict(self) -> dict[str, Any]:
        """Return plain types."""
        return {
            "code": self.code,
            "part": self.part.as_dict(),
            "measured": _plain(self.measured),
            "expected": _plain(self.expected),
        }


@dataclass(frozen=True, slots=True, init=False)
class Finding(Deviation):
    """A deviation that fails a check.

    `action`: the required action, if it differs from that of the verdict. `setting`: what a person has stated and the
    finding compares with, like `os.limits`, if it differs from that of the check.
    """

    action: Action | None = None
    setting: str = field(default="", compare=False)

    def __init__(
        self,
        part: Part | str,
        measured: Measure,
        expected: Measure,
        action: Action | None = None,
        setting: str = "",
        code: str = "",
    ) -> None:
        """A text is a part that has a name alone. Raise TypeError or ValueError for what no program can decide by."""
        _require(measured, expected, code)
        for name, value in (("part", part if isinstance(part, Part) else Part(name=part)), ("measured", measured),
                            ("expected", expected), ("action", action), ("setting", setting), ("code", code)):  # fmt: skip
            object.__setattr__(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        """Return plain types; a finding without its own action or setting has no such key."""
        own = {"action": self.action.value} if self.action else {}
        own |= {"setting": self.setting} if self.setting else {}
        return {**Deviation.as_dict(self), **own}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Finding:
        """Read a finding of a log."""
        part, measured, expected, code = _deviation(plain)
        action, setting = Action.read(plain.get("action")), shared_text(plain.get("setting"))
        return cls(part, measured, expected, action, setting, code)


def summed(findings: Sequence[Finding]) -> str:
    """Return the first finding in words, and the number of the others."""
    return findings[0].words + (f" (and {len(findings) - 1} more)" if findings[1:] else "")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a part is bad, or there is no result: a stable code, and the words of our program, a tool or Slurm.

    `at`: the file at fault, like a hook of Enroot.
    """

    code: str
    text: str
    at: str = ""

    def finding(self, part: Part, expected: str, action: Action | None = None) -> Finding:
        """Return the finding of a part that lacks what is expected."""
        return Finding(part, Quote(str(self)), expected, action, code=self.code)

    def __str__(self) -> str:
        return f"{self.at} {self.text}".lstrip()


@dataclass(frozen=True, slots=True, init=False)
class Advisory(Deviation):
    """A deviation that proves no fault: reports show a warning; it neither fails a check nor drains a node."""

    def __init__(self, part: Part | str, measured: Measure, expected: Measure, code: str = "") -> None:
        """A text is a part that has a name alone. Raise TypeError or ValueError for what no program can decide by."""
        _require(measured, expected, code)
        for name, value in (("part", part if isinstance(part, Part) else Part(name=part)), ("measured", measured),
                            ("expected", expected), ("code", code)):  # fmt: skip
            object.__setattr__(self, name, value)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Advisory:
        """Read an advisory of a log."""
        return cls(*_deviation(plain))


def _require(measured: object, expected: object, code: str) -> None:
    for value in (measured, expected):
        if not isinstance(value, (str, Quantity, Quote)):
            raise TypeError(f"measured and expected are a Quantity, a Quote or words, not {value!r}")
    if units := _units(measured, expected):
        raise ValueError(f"measured and expected have the units {units}: state both in one unit")
    if not _CODE.fullmatch(code):
        raise ValueError(f"code {code!r}: must be one word of a-z, 0-9 and _, like 'below_bound'")


def _units(measured: object, expected: object) -> str:
    """Return the units of two quantities that cannot be compared, else ''."""
    units = [it.unit for it in (measured, expected) if isinstance(it, Quantity)]
    return "{!r} and {!r}".format(*units) if len({*units}) > 1 else ""


def mapped(found: D, change: Callable[[str], str]) -> D:
    """Return a finding or an advisory with each of its texts changed, and nothing that decides."""
    return replace(
        found,
        part=found.part.mapped(change),
        measured=_mapped(found.measured, change),
        expected=_mapped(found.expected, change),
    )


def _mapped(measure: Measure, change: Callable[[str], str]) -> Measure:
    if isinstance(measure, str):
        return change(measure)
    changed = change(measure.text)
    return replace(measure, text=changed) if isinstance(measure, Quantity) else _entered(changed)


def _entered(words: str) -> Quote:
    """Return a quotation whose text was bounded and redacted when it entered."""
    quote = object.__new__(Quote)
    object.__setattr__(quote, "text", words)
    return quote


def _plain(measure: Measure) -> Any:
    if isinstance(measure, str):
        return measure
    if isinstance(measure, Quote):
        return {"quote": measure.text}
    found = {"number": measure.number, "unit": measure.unit, "text": measure.text}
    return {key: value for key, value in found.items() if value != ""}


def _measure(plain: Any) -> Measure:
    if not isinstance(plain, dict):
        return shared_text(plain)
    if "quote" in plain:
        return _entered(text(plain["quote"]))
    number = finite(plain.get("number"))
    return Quantity(
        math.nan if number is None else number, shared_text(plain.get("unit")), shared_text(plain.get("text"))
    )


def _deviation(plain: Mapping[str, Any]) -> tuple[Part, Measure, Measure, str]:
    measured, expected = _measure(plain.get("measured")), _measure(plain.get("expected"))
    if _units(measured, expected):
        measured, expected = str(measured), str(expected)
    code = shared_text(plain.get("code"))
    return Part.read(plain.get("part")), measured, expected, code * bool(_CODE.fullmatch(code))


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


@dataclass(frozen=True, slots=True, init=False)
class Metric:
    """One measured number of a part of the node, or of the node.

    `detail`: for the event log and JUnit; the summary table omits it. `better`: higher, lower or neither, if that
    differs from the direction of the unit in core/metric_direction.py. `bound`: what it was judged by, whose text names
    the source.
    """

    name: str
    value: float
    unit: str
    part: Part = NODE
    detail: bool = False
    better: str = ""
    bound: Quantity | None = None

    def __init__(
        self,
        name: str,
        value: float,
        unit: str,
        part: Part | str = "",
        detail: bool = False,
        better: str = "",
        bound: Quantity | None = None,
    ) -> None:
        """A text is a part that has a name alone."""
        for key, it in (("name", name), ("value", value), ("unit", unit), ("detail", detail), ("better", better), ("bound", bound),
                        ("part", part if isinstance(part, Part) else Part(name=part) if part else NODE)):  # fmt: skip
            object.__setattr__(self, key, it)

    @property
    def device(self) -> str:
        """The words for the part that are the same on other nodes, '' for the node."""
        return self.part.short

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
            "part": self.part.as_dict(),
            "detail": self.detail,
            "better": self.better,
            **({"bound": _plain(self.bound)} if self.bound is not None else {}),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Metric:
        """Read a metric of a log, which holds 'NaN' and 'Infinity' as texts."""
        value, bound = plain.get("value"), _measure(plain.get("bound"))
        return cls(
            shared_text(plain.get("name")),
            shared_number(value) if value.__class__ is float else _number(value),
            shared_text(plain.get("unit")),
            Part.read(plain["part"]) if plain.get("part") else NODE,
            bool(plain.get("detail")),
            shared_text(plain.get("better")),
            bound if isinstance(bound, Quantity) else None,
        )


def _number(value: Any) -> float:
    """Return a number of a log, NaN where it is none or exceeds a float."""
    if value in ("Infinity", "-Infinity"):
        return float(value)
    return math.nan if finite(value) is None else value
