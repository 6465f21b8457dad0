"""What a run of the punch list tests. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Scope:
    """`items`: the numbers of what was done. `checks`: patterns by node, '' for those of the cluster; `neighbours` are healthy nodes."""

    items: tuple[int, ...] = ()
    checks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    neighbours: tuple[str, ...] = ()
    asked: Mapping[str, Sequence[str]] = field(default_factory=dict)  # the checks of the items, with their nodes
    gone: tuple[int, ...] = ()  # items none of whose nodes may be tested

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes to test."""
        return tuple(filter(None, self.checks))

    def has(self, check: str, node: str) -> bool:
        """Return whether the run tests this."""
        return any(fnmatchcase(check, pattern) for pattern in self.checks.get(node, ()))
