"""Hostlists of the sandbox's own names, which end in a number: gpu[01-16,20]."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

from slurm_sandbox.collectives import expand as expand_part

if TYPE_CHECKING:
    from collections.abc import Iterable

_RANGE = r"\d{1,4}(?:-\d{1,4})?"
_PART = re.compile(rf"[\w.-]+(?:\[{_RANGE}(?:,{_RANGE})*\])?", re.ASCII)


def expand(hostlist: str) -> tuple[str, ...]:
    """Return the sorted names in a hostlist; ValueError if it is none.

    >>> expand("gpu[03-04],gpu01")
    ('gpu01', 'gpu03', 'gpu04')
    """
    parts = re.split(r",(?![^\[]*\])", hostlist)
    wrong = [part for part in parts if not _PART.fullmatch(part)]
    if wrong:
        raise ValueError(f"not a hostlist: {hostlist[:80]!r}")
    return tuple(sorted({name for part in parts for name in expand_part(part)}))


def fold(names: Iterable[str]) -> str:
    """Return names as a hostlist.

    >>> fold(["gpu01", "gpu02", "gpu03", "gpu05", "login"])
    'gpu[01-03,05],login'
    """
    parts = []
    numbered = sorted({_divided(name) for name in names})
    for (stem, width), group in groupby(numbered, key=lambda name: name[:2]):
        ranges: list[tuple[int, int]] = []
        for number in (name[2] for name in group):
            if ranges and number == ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], number)
            else:
                ranges.append((number, number))
        texts = [f"{a:0{width}}" if a == b else f"{a:0{width}}-{b:0{width}}" for a, b in ranges]
        text = ",".join(texts) if width else ""
        parts.append(stem + (f"[{text}]" if re.search("[-,]", text) else text))
    return ",".join(parts)


def _divided(name: str) -> tuple[str, int, int]:
    """Return the stem, the number of digits and the number of a name."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, len(digits), int(digits or 0)
