"""The output of `horovodrun --check-build`: frameworks, controllers and tensor operations of the build. Pure.

Horovod 0.18 to 0.28 have this format: a line per heading, then lines `    [X] NAME` or `    [ ] NAME`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpucluster.core.errors import ProbeError

_VERSION = re.compile(r"^Horovod v(\S+):$", re.MULTILINE)
_HEADINGS = {
    "Available Frameworks:": "frameworks",
    "Available Controllers:": "controllers",
    "Available Tensor Operations:": "operations",
}
_BOX = re.compile(r"\[([X ])\] (\S+)")


@dataclass(frozen=True)
class Build:
    """The parts of a Horovod build; names in lower case."""

    version: str
    frameworks: frozenset[str]
    controllers: frozenset[str]
    operations: frozenset[str]


def read(text: str) -> Build:
    """Read the table; ProbeError if a heading or its boxes are missing."""
    version = _VERSION.search(text)
    found: dict[str, set[str]] = {}
    listed: set[str] = set()
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line in _HEADINGS:
            section = _HEADINGS[line]
            found[section] = set()
        elif section and (box := _BOX.fullmatch(line)):
            listed.add(section)
            if box[1] == "X":
                found[section].add(box[2].lower())
    missing = [heading for heading, name in _HEADINGS.items() if name not in listed]
    if version is None or missing:
        what = missing[0] if missing else "Horovod v..."
        last = text.strip().splitlines()[-1:] or ["nothing"]
        raise ProbeError(f"horovodrun --check-build: no {what!r} in its answer; it ends with: {last[0][:200]}")
    return Build(version[1], *(frozenset(found[name]) for name in ("frameworks", "controllers", "operations")))
