"""JSON from other programs: every defect is a ValueError."""

from __future__ import annotations

import json
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
