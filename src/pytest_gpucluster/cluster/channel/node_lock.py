"""Who may use which nodes now: many read them at once, one loads them alone.

A turn is taken for a set of nodes in one act, and what its owner had is given back first: nobody waits with nodes in
hand, so that no two can wait for each other.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Hashable


class NodeLocks:
    """The turns of all workers; safe to use from many threads."""

    def __init__(self) -> None:
        self._held: dict[Hashable, tuple[frozenset[str], bool]] = {}
        self._changed = threading.Condition()
        self._closed = False

    def take(self, owner: Hashable, nodes: frozenset[str], *, load: bool) -> None:
        """Wait until the nodes may be used; `load`: by nobody else. TransportError where the run ends first."""
        self.leave(owner)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._free(nodes, load=load))
            if self._closed:
                raise TransportError("the run ends: no more turns on nodes are given")
            self._held[owner] = (nodes, load)

    def _free(self, nodes: frozenset[str], *, load: bool) -> bool:
        return not any((load or loaded) and nodes & theirs for theirs, loaded in self._held.values())

    def loaded_by(self, owner: Hashable) -> frozenset[str]:
        """Return the nodes that an owner has for itself."""
        with self._changed:
            nodes, load = self._held.get(owner, (frozenset(), False))
        return nodes if load else frozenset()

    def leave(self, owner: Hashable) -> None:
        """Give back what an owner has; nothing is harmless."""
        with self._changed:
            if self._held.pop(owner, None) is not None:
                self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait any longer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
