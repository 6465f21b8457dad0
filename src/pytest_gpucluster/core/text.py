"""Lists in messages, and comparison with a stated text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def listed(values: Iterable[object]) -> str:
    """Return the values in one line.

    >>> listed([2, "b"]), listed([])
    ('2, b', 'none')
    """
    return ", ".join(map(str, values)) or "none"


def some(values: Iterable[object], most: int = 8) -> str:
    """Return the first values, and how many more there are.

    >>> some(range(9), 3), some([1])
    ('0, 1, 2 and 6 more', '1')
    """
    known = list(values)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return listed(known[:most]) + more


def count(number: int, word: str) -> str:
    """Count things.

    >>> count(1, "node"), count(1000, "node")
    ('1 node', '1,000 nodes')
    """
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def quantity(number: str, unit: str) -> str:
    """Write a number with its unit, which may be things that are counted.

    >>> quantity("1", "events"), quantity("1", "processes"), quantity("2", "events"), quantity("1", "ms"), quantity("3", "")
    ('1 event', '1 process', '2 events', '1 ms', '3')
    """
    things = re.fullmatch(r"([A-Za-z]{2,}?[a-zA-Z])(?:(?<=ch|ss)e)?s", unit)
    return f"{number} {things[1] if things and number == '1' else unit}".strip()


def matches(value: str, stated: str) -> bool:
    """Compare with an exact text, or with a prefix that ends in *.

    >>> matches("6.8.0", "6.8.*"), matches("6.8.0", "6.8")
    (True, False)
    """
    return value.startswith(stated[:-1]) if stated.endswith("*") else value == stated
