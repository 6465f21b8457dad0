"""Which xdist worker runs which item: facts by any, the loads of a lane by its owner, those of all nodes by one.

Facts go first, then the lanes beside each other, then what needs all nodes. A worker whose queue holds one item waits
for the next before it runs it, so that nothing here may hold an item back: the turns on nodes do that.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from xdist.scheduler import LoadScheduling

from pytest_gpucluster.plugin.node_partition import ALL, ANY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

ENOUGH = 2  # items that a worker must have, to run the first of them


def unit_of(nodeid: str, dist: str) -> str:
    """Return what items have in common that --dist keeps together in one worker; '' where it is nothing."""
    if dist == "loadfile":
        return nodeid.partition("::")[0]
    if dist == "loadscope":
        return nodeid.rpartition("::")[0]
    if dist == "loadgroup" and nodeid.rfind("@") > nodeid.rfind("]"):
        return nodeid.rpartition("@")[2]
    return ""


class LaneScheduling(LoadScheduling):
    """A scheduler of xdist. `places` returns the lane of every item, in their order; None: all are for any worker."""

    def __init__(
        self, config: pytest.Config, log: Producer, places: Callable[[], Sequence[str] | None]
    ) -> None:
        super().__init__(config, log)
        self._places = places
        self.collection: list[str] | None = None
        self._lane_of: Sequence[str] = ()
        self._units: deque[list[int]] = deque()  # items for any worker; a unit is not divided
        self._queues: dict[str, deque[int]] = {}  # lane -> its items that wait
        self._owners: dict[str, WorkerController] = {}

    @property
    def _waiting(self) -> bool:
        return bool(self._units) or any(self._queues.values())

    @property
    def tests_finished(self) -> bool:
        """All is sent, and no worker has more than its last item."""
        return not self._waiting and bool(super().tests_finished)

    @property
    def has_pending(self) -> bool:
        """There is something to run."""
        return self._waiting or bool(super().has_pending)

    def schedule(self) -> None:
        """Begin, or bring in a worker that has come later."""
        if self.collection is None:
            if not self._check_nodes_have_same_collection():
                return
            self.collection = next(iter(self.node2collection.values()))
            self._sort()
            for _ in range(ENOUGH):  # in turns, so that the first takes not all of a few
                for node in self.nodes:
                    if len(self.node2pending[node]) < ENOUGH:
                        self._send(node)
        for node in self.nodes if self.collection else ():
            self.check_schedule(node)

    def _sort(self) -> None:
        assert self.collection is not None  # schedule() has set it
        places, dist = self._places(), self.config.getvalue("dist")
        self._lane_of = places if places is not None else [ANY] * len(self.collection)
        units: dict[str, list[int]] = {}
        for index, nodeid in enumerate(self.collection):
            lane = self._lane_of[index]
            if lane != ANY:
                self._queues.setdefault(lane, deque()).append(index)
            else:
                units.setdefault(unit_of(nodeid, dist) or str(index), []).append(index)
        self._units.extend(units.values())
        workers = self.nodes
        self._owners = {
            lane: workers[0 if lane == ALL else int(lane) % len(workers)] for lane in sorted(self._queues)
        }

    def check_schedule(self, node: WorkerController, duration: float = 0) -> None:  # xdist's
        """Give a worker its next items; end it where there is none for it."""
        if node.shutting_down:
            return
        while len(self.node2pending[node]) < ENOUGH:
            if not self._send(node):
                node.shutdown()
                return

    def _send(self, node: WorkerController) -> bool:
        batch = self._next(node)
        if batch:
            self.node2pending[node].extend(batch)
            node.send_runtest_some(batch)
        return bool(batch)

    def _next(self, node: WorkerController) -> list[int]:
        if self._units:
            share = max(1, len(self._units) // (4 * len(self.nodes)))  # large at first, small at the end
            share = min(share, self.maxschedchunk or share)
            return [index for _ in range(share) for index in self._units.popleft()]
        for lane in sorted(self._queues, key=lambda lane: (lane == ALL, lane)):
            if self._queues[lane] and self._owners.setdefault(lane, node) is node:
                return [self._queues[lane].popleft()]
        return []

    def remove_node(self, node: WorkerController) -> str | None:
        """Remove a worker; items that it has not started go to others. Return the item that it died in, or None."""
        pending = self.node2pending.pop(node)
        self._owners = {lane: owner for lane, owner in self._owners.items() if owner is not node}
        crashed = self.collection[pending.pop(0)] if pending and self.collection else None
        for index in reversed(pending):
            self._put_back(index)
        for other in self.nodes:
            self.check_schedule(other)
        return crashed

    def mark_test_pending(self, item: str) -> None:
        """Run an item once more: another plugin asks for it."""
        assert self.collection is not None  # an item has run
        self._put_back(self.collection.index(item))
        for node in self.nodes:
            self.check_schedule(node)

    def _put_back(self, index: int) -> None:
        lane = self._lane_of[index]
        if lane == ANY:
            self._units.appendleft([index])
        else:
            self._queues[lane].appendleft(index)
