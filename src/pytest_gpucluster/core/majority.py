"""Comparison of all nodes: their norm, deviations from it, duplicates. Pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import Action, Advisory, Finding
from pytest_gpucluster.core.common_cause import NO_MAJORITY
from pytest_gpucluster.core.finding import in_words, measure
from pytest_gpucluster.core.grouping import grouped

if TYPE_CHECKING:
    from pytest_gpucluster.core.finding import Measure
    from pytest_gpucluster.core.part import Part

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)

SHOWN = 160  # characters of a value or a list of nodes that a finding quotes
DIFFERS = "differs_from_peers"  # the code of a finding whose norm the other nodes give
MOST_VALUES = 4  # that a finding without a majority lists


def differs(mine: object, theirs: object) -> bool:
    """Any difference is a deviation. Which of two values is the faulty one is not known, so no repair may depend on it."""
    return mine != theirs


def less(mine: Any, theirs: Any) -> bool:
    """Fewer or smaller than the others is a deviation; more is none."""
    return bool(mine < theirs)


def older(mine: str, theirs: str) -> bool:
    """A lower version is a deviation; a higher one is ahead of an update. Versions of different kinds are not ordered."""
    words, others = _version(mine), _version(theirs)
    if words[0] != others[0]:
        return mine != theirs
    return words[1] < others[1]


def _version(text: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the words and the numbers: 6.8.0-45-generic is of another kind than 6.8.0-1015-nvidia."""
    return tuple(re.findall(r"[A-Za-z]+", text)), tuple(map(int, re.findall(r"\d+", text)))


@dataclass(frozen=True)
class Norm(Generic[T]):
    """The values of all nodes: `votes` holds each value with the nodes that have it, the most frequent first.

    A value is the norm if at least two thirds have it: two of three is the smallest majority against a single node.
    A smaller share shows the progress of an upgrade, not which node is at fault: no node may be drained for it.
    `voters` names what was counted: 'nodes of its group', or 'GPUs of this model', of which a node has several.
    """

    votes: tuple[tuple[T, tuple[str, ...]], ...] = ()
    voters: str = "nodes"

    @cached_property
    def total(self) -> int:
        """How many votes there are."""
        return sum(len(nodes) for _, nodes in self.votes)

    @property
    def agree(self) -> int:
        """How many have the most frequent value."""
        return len(self.votes[0][1]) if self.votes else 0

    @property
    def clear(self) -> bool:
        """At least two thirds agree: all of two, two of three."""
        return decides(self.agree, self.total)

    @property
    def value(self) -> T | None:
        """The value that at least two thirds have."""
        return self.votes[0][0] if self.clear else None

    @property
    def most(self) -> str:
        """Like 'as on 3 of 4 nodes'."""
        return f"as on {self.agree} of {self.total} {self.voters}"

    @property
    def absent(self) -> str:
        """Why there is nothing to compare with; '' where there is."""
        return "" if self.total > 1 else "not stated in the cluster file, and no other node to compare with"

    def judge(
        self,
        part: Part | str,
        value: T,
        *,
        worse: Callable[[T, T], bool],
        measured: str = "",
        shown: Callable[[T], Measure] = measure,
        action: Action | None = None,
        harmless: str = "",
    ) -> Iterator[Finding | Advisory]:
        """Yield a finding if what is installed or set is worse than the norm, with this action instead of that of its check.

        worse: the faulty direction (`less`, `older`), or `differs`, for which a repair is a TypeError: the norm then does not
        prove which value is the wrong one. harmless: what a warning states of a value in the other direction; '': no warning.
        Without a norm, as in the middle of an upgrade, no node is at fault: the finding, which names all values with their
        nodes, is one of the cluster. `measured` replaces the shown value.
        """
        if action and action.is_repair and worse is differs:
            raise TypeError(f"{part}: a repair requires the faulty direction; other than the others is none")
        found = next(self.judge_result(part, value, measured=measured, shown=shown, worse=worse), None)
        if found:
            yield replace(found, action=action) if self.clear else replace(found, setting=NO_MAJORITY)
        elif harmless and self.clear and value != self.votes[0][0]:
            mine, theirs = shown(value), shown(self.votes[0][0])
            usual = _apart(str(theirs), str(mine))
            kept = in_words(mine, f"{measured or mine}: {harmless}")
            yield Advisory(part, kept, in_words(theirs, f"{usual}, {self.most}"), code=DIFFERS)

    def judge_result(
        self,
        part: Part | str,
        value: T,
        *,
        measured: str = "",
        shown: Callable[[T], Measure] = measure,
        worse: Callable[[T, T], bool] = differs,
    ) -> Iterator[Finding]:
        """Yield a finding if the result of one computation is worse than the norm; without a norm, than any other.

        Two results of one computation prove a fault even if no majority names the node: then the finding names all values
        with their nodes and drains no node.
        """
        if self.total < 2:  # a node cannot differ from itself
            return
        if self.clear:
            if worse(value, self.votes[0][0]):
                mine, theirs = shown(value), shown(self.votes[0][0])
                found = in_words(mine, measured or _apart(str(mine), str(theirs)))
                usual = in_words(theirs, f"{_apart(str(theirs), str(mine))}, {self.most}")
                yield Finding(part, found, usual, code=DIFFERS)
        elif any(worse(value, other) for other, _ in self.votes):
            texts = [str(shown(one)) for one, _ in self.votes[:MOST_VALUES]]
            groups = [f"{_apart(text, texts[not index])}{self._where[index]}" for index, text in enumerate(texts)]
            more = len(self.votes) - len(groups)
            expected = f"one value on all {self.voters}; no majority: {', '.join(groups)}"
            expected += f", and {more} more values" if more else ""
            mine = shown(value)
            other = next((text for text in texts if text != str(mine)), str(mine))
            found = in_words(mine, measured or _apart(str(mine), other))
            yield Finding(part, found, expected, Action.CONFIGURE, code="no_majority")

    @cached_property
    def _where(self) -> tuple[str, ...]:
        """Cached: folding thousands of nodes takes milliseconds, and each node has a finding."""
        return tuple(
            f" on {_folded(set(nodes))}"
            if len(set(nodes)) == len(nodes)
            else f" ({len(nodes)}) on {_folded(set(nodes))}"
            for _, nodes in self.votes[:MOST_VALUES]
        )


def norm(votes: Iterable[tuple[str, T]], voters: str = "nodes") -> Norm[T]:
    """Count votes, pairs of node and value; ties keep the order of the values."""
    found: dict[str, tuple[T, list[str]]] = {}
    for node, value in votes:
        found.setdefault(repr(value), (value, []))[1].append(node)  # repr: not all facts can be hashed
    ordered = sorted(found.values(), key=lambda one: -len(one[1]))
    return Norm(tuple((value, tuple(nodes)) for value, nodes in ordered), voters)


def norms(votes: Iterable[tuple[H, str, T]], voters: str = "nodes") -> dict[H, Norm[T]]:
    """Return {key: norm of its values} of votes, triples of key, node and value."""
    found = grouped((key, (node, value)) for key, node, value in votes)
    return {key: norm(pairs, voters) for key, pairs in found.items()}


def decides(agree: int, total: int) -> bool:
    """Return whether `agree` of `total` are a majority: at least two thirds (see Norm)."""
    return agree > 0 and 3 * agree >= 2 * total


def near(values: Mapping[str, float], tolerance: float) -> dict[str, float]:
    """Return {node: the common value of all nodes within `tolerance` of it}, from the median outwards."""
    found: dict[str, float] = {}
    rest = dict(values)
    while rest:
        middle = statistics.median_high(rest.values())
        close = [node for node, value in rest.items() if abs(value - middle) <= tolerance * abs(middle)]
        found.update(dict.fromkeys(close, middle))
        rest = {node: value for node, value in rest.items() if node not in found}
    return found


def _apart(text: str, other: str) -> str:
    """Return a value; a long one from the point where it differs from the other."""
    if len(text) <= SHOWN:
        return text or "nothing"
    same = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), len(other))
    start = max(0, min(same, len(text)) - 20)
    return ("..." if start else "") + text[start : start + SHOWN] + "..."


def _folded(nodes: Collection[str]) -> str:
    text = hostlist.fold(nodes)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(nodes)} nodes)"


def owners(values: Mapping[str, Iterable[H]]) -> dict[H, tuple[str, ...]]:
    """Return {value: the nodes that have it}; a node appears as often as it has the value."""
    having = grouped((value, node) for node, of_node in values.items() for value in of_node)
    return {value: tuple(nodes) for value, nodes in having.items()}
