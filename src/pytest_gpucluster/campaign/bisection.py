"""Which node of larger groups is at fault, if pairs show nothing: groups of halves with nodes that passed. Pure.

A group that passes acquits its nodes. A group that fails has as candidates its nodes that no group has acquitted; half of them are tested
next, together with acquitted or other nodes, until one is left. If none is left, only these nodes together fail: what they share is at
fault, like a spine switch or the trunk between two NVSwitches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

LEAST = 3  # nodes: two are a pair


@dataclass(frozen=True)
class Bisection:
    """`good`: acquitted nodes; `bad`: {node: why}; `together`: groups that fail although each node passes in another one.

    `candidates`: for each group that failed and is not explained, the nodes one of which is at fault.
    """

    good: frozenset[str]
    bad: dict[str, str]
    together: tuple[tuple[str, ...], ...]
    candidates: tuple[tuple[str, ...], ...]
    tested: frozenset[frozenset[str]]


def bisect(groups: Sequence[tuple[tuple[str, ...], frozenset[str]]]) -> Bisection:
    """Return what groups show: of each its nodes, and those of them that failed."""
    good = frozenset(
        node for nodes, failed in groups for node in nodes if node not in failed and len(failed) < len(nodes)
    )
    # the run named it
    bad = {node: "" for nodes, failed in groups if len(failed) < len(nodes) for node in failed}
    whole = [nodes for nodes, failed in groups if len(failed) == len(nodes)]
    for nodes in whole:
        left = [node for node in nodes if node not in good]
        if len(left) == 1:
            bad.setdefault(left[0], f"a group of {len(nodes)} nodes fails with it, whose other nodes pass without it")
    unexplained = [nodes for nodes in whole if not bad.keys() & set(nodes)]
    candidates = [tuple(node for node in nodes if node not in good) for nodes in unexplained]
    return Bisection(
        good - bad.keys(),
        bad,
        tuple(nodes for nodes, left in zip(unexplained, candidates, strict=True) if not left),
        tuple(sorted((left for left in candidates if left), key=len)),
        frozenset(frozenset(nodes) for nodes, _ in groups),
    )


def next_group(found: Bisection, usable: Sequence[str], pending: Collection[str], size: int) -> tuple[str, ...]:
    """Return the nodes to test together next, at most `size`; () if too few are usable, or nothing is pending."""
    for left in found.candidates:
        middle = (len(left) + 1) // 2
        for half in (left[:middle], left[middle:], left[::2], left[1::2]):
            chosen = _filled([node for node in half if node in usable], found, usable, left, size)
            if len(left) > 1 and chosen:
                return chosen
    suspected = {node for left in found.candidates for node in left}
    fresh = [node for node in usable if node in pending and node not in suspected][:size]
    return _filled(fresh, found, usable, fresh, size)


def _filled(
    chosen: Sequence[str], found: Bisection, usable: Sequence[str], without: Collection[str], size: int
) -> tuple[str, ...]:
    """Return chosen nodes with acquitted ones, else others, up to `size`; () for too few, or a group that was tested."""
    others = sorted((node for node in usable if node not in without), key=lambda node: node not in found.good)
    group = (*chosen, *others[: size - len(chosen)])
    return group if chosen and len(group) >= LEAST and frozenset(group) not in found.tested else ()
