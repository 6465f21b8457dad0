"""Rounds of disjoint pairs: neighbours, shifted neighbours, across leaves, and all pairs. Pure.

A group is a tuple of members that measure together, a round is a tuple of disjoint groups that measure at the
same time, a batch is a tuple of rounds that one Slurm step runs one after another.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Group = tuple[str, ...]
Round = tuple[Group, ...]
Batch = tuple[Round, ...]


def circle(members: Sequence[str]) -> Batch:
    """Return all pairs in the fewest rounds (circle method): N-1 rounds, N where N is odd.

    >>> circle("abcd")
    ((('a', 'd'), ('b', 'c')), (('a', 'c'), ('d', 'b')), (('a', 'b'), ('c', 'd')))
    """
    ring: list[str | None] = [*members] if len(members) % 2 == 0 else [*members, None]
    rounds = []
    for _ in range(len(ring) - 1):
        pairs = zip(ring[: len(ring) // 2], reversed(ring[len(ring) // 2 :]), strict=True)
        rounds.append(tuple((a, b) for a, b in pairs if a is not None and b is not None))
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return tuple(rounds)


def neighbours(members: Sequence[str], shift: int = 0) -> Round:
    """Return pairs of neighbours; with shift=1 those between them, and the last with the first if N is even.

    >>> neighbours("abcd"), neighbours("abcd", shift=1)
    ((('a', 'b'), ('c', 'd')), (('b', 'c'), ('d', 'a')))
    """
    turned = [*members[shift:], *members[:shift]] if len(members) % 2 == 0 else members[shift:]
    return tuple(zip(turned[::2], turned[1::2], strict=False))


def by_leaf(nodes: Sequence[str], leaves: Mapping[str, str]) -> dict[str, list[str]]:
    """Return {leaf: its nodes in the given order}; nodes of unknown leaf share the leaf ''."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(leaves.get(node, ""), []).append(node)
    return found


def within_leaves(nodes: Sequence[str], leaves: Mapping[str, str]) -> Round:
    """Return pairs of neighbours on the same leaf; the unpaired nodes of the leaves pair with each other."""
    pairs: list[Group] = []
    odd: list[str] = []
    for members in by_leaf(nodes, leaves).values():
        pairs += neighbours(members)
        odd += members[len(members) // 2 * 2 :]
    return (*pairs, *neighbours(odd))


def across_leaves(nodes: Sequence[str], leaves: Mapping[str, str]) -> Round:
    """Return pairs of nodes on different leaves, each leaf with as many other leaves as possible.

    The n-th nodes of all leaves pair by the n-th round of the circle method over the leaves. The remaining nodes
    (leaves of unequal size, an odd number of leaves) pair greedily, across leaves first.
    """
    rows = by_leaf(nodes, leaves)
    plan = circle(list(rows))
    pairs: list[Group] = []
    for position, row in enumerate(zip_longest(*rows.values())):
        at = dict(zip(rows, row, strict=True))
        chosen = ((at[a], at[b]) for a, b in plan[position % len(plan)])
        pairs += [(a, b) for a, b in chosen if a is not None and b is not None]
    paired = {node for pair in pairs for node in pair}
    return (*pairs, *_leftovers([node for node in nodes if node not in paired], leaves))


def _leftovers(nodes: Sequence[str], leaves: Mapping[str, str]) -> Round:
    """Return pairs from the two halves of the nodes by leaf; a pair shares a leaf only if that leaf has the majority."""
    in_order = [node for members in by_leaf(nodes, leaves).values() for node in members]
    half = (len(in_order) + 1) // 2
    pairs = zip(in_order[:half], in_order[half:], strict=False)
    return tuple((a, b) for a, b in pairs if leaves.get(a) != leaves.get(b))
