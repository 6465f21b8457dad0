"""JSON from other programs: every defect is a ValueError; what a value should be and is not is read as empty."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from sys import intern
from typing import Any

_DECODER = json.JSONDecoder()


def loads(text: str | bytes) -> Any:
    """Read one JSON value. ValueError also for deep nesting, where json raises RecursionError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def raw_decode(text: str, at: int) -> tuple[Any, int]:
    """Read the JSON value that begins at `at`: (value, where it ends). ValueError as `loads`."""
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def strict(value: Any) -> Any:
    """Return a value that every reader of JSON takes: a number that is none becomes the text 'NaN' or 'Infinity'."""
    return json.loads(json.dumps(value), parse_constant=str)


def text(value: Any) -> str:
    """Return a text; another value in its text, '' for null."""
    return value if isinstance(value, str) else "" if value is None else str(value)


def shared_text(value: Any) -> str:
    """Return a text that is equal in many values as one object."""
    return intern(value) if value.__class__ is str else text(value)


def shared_number(value: float) -> float:
    """Return a float that is equal in many values as one object."""
    return _shared(value) if value else value  # -0.0 equals 0.0


@lru_cache(1 << 12)
def _shared(value: float) -> float:
    return value


def as_list(value: Any) -> list[Any]:
    """Return a list, an empty one where the value is none."""
    return value if isinstance(value, list) else []


def as_dict(value: Any) -> dict[Any, Any]:
    """Return an object, an empty one where the value is none."""
    return value if isinstance(value, dict) else {}


def as_dicts(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list."""
    return [one for one in as_list(value) if isinstance(one, dict)]


def finite(value: Any) -> float | None:
    """Return a number; None where the value is none, NaN or infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
