"""Several channels as one, for nodes of different partitions, which are in different allocations."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.core.finding import Explanation
    from pytest_gpucluster.core.probe import Answer


class JoinedChannel:
    """Uses its parts in parallel and joins their answers; satisfies Channel."""

    def __init__(self, parts: Sequence[Channel]) -> None:
        self._parts = tuple(parts)
        self._home = {node: part for part in parts for node in part.nodes}
        self._threads = ThreadPoolExecutor(len(self._parts), thread_name_prefix="channel")

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, part by part."""
        return tuple(self._home)

    @property
    def lost(self) -> dict[str, Explanation]:
        """{node: why it no longer answers}."""
        return {node: why for part in self._parts for node, why in part.lost.items()}

    @property
    def disconnected(self) -> frozenset[str]:
        """The nodes that were lost with the channel of their part."""
        return frozenset().union(*(part.disconnected for part in self._parts))

    def ask(self, command: str, *, timeout: float = 30.0, cap: int = 1 << 20) -> dict[str, Answer]:
        """Run a command on all nodes of all parts."""
        pending = [self._threads.submit(part.ask, command, timeout=timeout, cap=cap) for part in self._parts]
        return {node: answer for answers in pending for node, answer in answers.result().items()}

    def ask_node(
        self, node: str, command: str, *, timeout: float = 30.0, cap: int = 1 << 20, fresh: bool = False
    ) -> Answer:
        """Return the answer of one node, from its part."""
        return self._home[node].ask_node(node, command, timeout=timeout, cap=cap, fresh=fresh)

    def prefetch(self, commands: Iterable[tuple[str, float]]) -> None:
        """Send the commands to all parts."""
        wanted = tuple(commands)
        for part in self._parts:
            part.prefetch(wanted)

    def close(self) -> None:
        """Close every part."""
        for part in self._parts:
            part.close()
        self._threads.shutdown(wait=False)
