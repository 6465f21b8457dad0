"""What only the whole fleet can tell: its majority, who drifts from it, duplicates, outliers. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from pytest_gpucluster.checks.verdict import Finding

T = TypeVar("T", bound=Hashable)

# 1.4826 makes the MAD of normal noise its standard deviation (Rousseeuw and Croux, 1993).
MAD_TO_SIGMA = 1.4826
MIN_FOR_OUTLIERS = 4


@dataclass(frozen=True)
class Majority(Generic[T]):
    """The value of more than half of a fleet; `value` is None, and `clear` false, where no value has that many.

    `votes` holds every value with its count, the most frequent first.
    """

    votes: tuple[tuple[T, int], ...] = ()

    @property
    def total(self) -> int:
        """How many were asked."""
        return sum(count for _, count in self.votes)

    @property
    def clear(self) -> bool:
        """More than half agree."""
        return bool(self.votes) and 2 * self.votes[0][1] > self.total

    @property
    def value(self) -> T | None:
        """The value of the majority."""
        return self.votes[0][0] if self.clear else None

    def __str__(self) -> str:
        """Like 'A (3 of 4)', or 'no majority: A (2), B (2)'."""
        if self.clear:
            return f"{self.votes[0][0]} ({self.votes[0][1]} of {self.total} in the fleet)"
        shown = ", ".join(f"{value} ({count})" for value, count in self.votes[:4])
        return (
            f"one value in the fleet; there is no majority: {shown}" if shown else "nothing to compare with"
        )


def majority(values: Iterable[T]) -> Majority[T]:
    """Count the votes of a fleet; ties keep the order in which the values came."""
    return Majority(tuple(Counter(values).most_common()))


def drift(part: str, value: T, fleet: Majority[T]) -> Iterator[Finding]:
    """Yield a finding where a value is not that of the majority; where there is none, everyone drifts."""
    if fleet.votes and (not fleet.clear or value != fleet.value):
        yield Finding(part, str(value), str(fleet))


def owners(values: Mapping[str, Iterable[T]]) -> dict[T, tuple[str, ...]]:
    """Return {value: the nodes that have it}, a node as often as it has the value."""
    having: defaultdict[T, list[str]] = defaultdict(list)
    for node, of_node in values.items():
        for value in of_node:
            having[value].append(node)
    return {value: tuple(nodes) for value, nodes in having.items()}


@dataclass(frozen=True)
class Outlier:
    """A value far from its fleet. `distance` is (value - median) / median, `sigmas` the same in robust sigmas."""

    value: float
    median: float
    distance: float
    sigmas: float


def outliers(
    values: Mapping[str, float], *, sigmas: float = 5.0, min_distance: float = 0.05
) -> dict[str, Outlier]:
    """Return who is far from the median: more than `sigmas` robust sigmas and `min_distance` of the median.

    The minimum distance keeps a fleet that is alike to the last digit (MAD 0) from accusing anyone of noise. With
    fewer than four values nothing is said: two against one proves nothing.
    """
    if len(values) < MIN_FOR_OUTLIERS:
        return {}
    median = statistics.median(values.values())
    sigma = MAD_TO_SIGMA * statistics.median(abs(value - median) for value in values.values())
    found = {}
    for name, value in values.items():
        away = value - median
        robust = abs(away) / sigma if sigma else float("inf") if away else 0.0
        relative = away / abs(median) if median else float("inf") if away else 0.0
        if robust > sigmas and abs(relative) > min_distance:
            found[name] = Outlier(value, median, relative, robust)
    return found
