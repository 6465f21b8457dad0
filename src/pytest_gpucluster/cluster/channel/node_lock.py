"""Reader-writer locks on nodes: shared use, or exclusive use for load.

A set of nodes is locked at once, after the release of the owner's former nodes: no owner waits while it holds nodes, so
there is no deadlock.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Hashable


class NodeLocks:
    """The locks of all workers. Thread-safe."""

    def __init__(self) -> None:
        self._held: dict[Hashable, tuple[frozenset[str], bool]] = {}
        self._changed = threading.Condition()
        self._closed = False

    def take(self, owner: Hashable, nodes: frozenset[str], *, load: bool) -> None:
        """Wait for the nodes and lock them; `load`: exclusively. TransportError if the run ends first."""
        self.leave(owner)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._free(nodes, load=load))
            if self._closed:
                raise TransportError("the run ends: no more nodes are locked")
            self._held[owner] = (nodes, load)

    def _free(self, nodes: frozenset[str], *, load: bool) -> bool:
        return not any((load or loaded) and nodes & theirs for theirs, loaded in self._held.values())

    def loaded_by(self, owner: Hashable) -> frozenset[str]:
        """Return the nodes that an owner holds exclusively."""
        with self._changed:
            nodes, load = self._held.get(owner, (frozenset(), False))
        return nodes if load else frozenset()

    def leave(self, owner: Hashable) -> None:
        """Release the nodes of an owner, if it has any."""
        with self._changed:
            if self._held.pop(owner, None) is not None:
                self._changed.notify_all()

    def close(self) -> None:
        """Wake all waiters with a TransportError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
