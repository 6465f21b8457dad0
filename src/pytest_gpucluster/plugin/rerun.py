"""Repeat a failed item in the process that ran it: with new fixtures, and with every command sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.plugin.items import CheckItem, phases
from pytest_gpucluster.plugin.node_partition import PLACE
from pytest_gpucluster.plugin.summary import classify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pytest

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.core.probe import Answer
    from pytest_gpucluster.plugin.session import ClusterSession

TIMEOUT, CAP = 30.0, 1 << 20


class UncachedChannel:
    """A channel without cached answers; satisfies Channel.

    Answers are cached by the text of a command: a comment makes it another one with the same effect.
    """

    def __init__(self, channel: Channel, attempt: int) -> None:
        self._channel = channel
        self._mark = f"\n# fresh attempt {attempt}"

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes of the channel."""
        return self._channel.nodes

    @property
    def lost(self) -> Mapping[str, str]:
        """The nodes that no longer answer, and why."""
        return self._channel.lost

    @property
    def cut(self) -> frozenset[str]:
        """The lost nodes that went with the channel as a whole."""
        return self._channel.cut

    def ask(self, command: str, *, timeout: float = TIMEOUT, cap: int = CAP) -> dict[str, Answer]:
        """Send a command to all nodes, once in this attempt."""
        return self._channel.ask(command + self._mark, timeout=timeout, cap=cap)

    def ask_node(
        self, node: str, command: str, *, timeout: float = TIMEOUT, cap: int = CAP, fresh: bool = False
    ) -> Answer:
        """Return one node's answer of this attempt."""
        return self._channel.ask_node(node, command + self._mark, timeout=timeout, cap=cap, fresh=fresh)

    def prefetch(self, commands: Sequence[tuple[str, float]]) -> None:
        """Send commands without waiting."""
        self._channel.prefetch([(command + self._mark, timeout) for command, timeout in commands])

    def close(self) -> None:
        """Leave the channel open: it belongs to the session."""


def is_repeatable(item: pytest.Item) -> bool:
    """Return False for an item on jobs that go before the allocation: they could not start beside it."""
    works = (suite.before_allocation for suite in suites())
    return not {work.fixture for work in works if work is not None} & {*getattr(item, "fixturenames", ())}


def run_again(
    items: Sequence[pytest.Item], session: ClusterSession, attempt: int
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Run failed items once more: nodeid -> (how it ended, its record). They are not counted or reported."""
    before, found = session.channel, {}
    if before is not None:
        session.forget(UncachedChannel(before, attempt))
    try:
        again = [_new_item(item) for item in items]
        for item, following in zip(again, [*again[1:], None], strict=True):
            # the last one takes every fixture down
            with session.turn(item.stash.get(PLACE, None)):
                make = item.ihook.pytest_runtest_makereport  # these reports are not logged
                reports = [make(item=item, call=call) for call in phases(item, following)]
                found[item.nodeid] = _end_of(reports)
    finally:
        if before is not None:
            session.forget(before)
    return found


def _new_item(item: pytest.Item) -> pytest.Item:
    """Return an item like one that has run. Only the plugin's own can run twice: pytest collects others once more."""
    if isinstance(item, CheckItem):
        item.record = None
        return item
    collector: Any = item.parent
    name = getattr(item, "originalname", item.name)
    hook = collector.ihook.pytest_pycollect_makeitem
    made = hook(collector=collector, name=name, obj=getattr(collector.obj, name))
    fresh: pytest.Item = next(it for it in made if it.nodeid == item.nodeid)
    fresh.own_markers[:] = item.own_markers
    if PLACE in item.stash:
        fresh.stash[PLACE] = item.stash[PLACE]
    return fresh


def _end_of(reports: Sequence[pytest.TestReport]) -> tuple[str, dict[str, Any]]:
    """Return how the item ended: the worst of its phases, and its record."""
    ends = [(classify(r), r) for r in reports]
    known = [(end, report) for end, report in ends if end is not None]
    for wanted in ("error", "failed"):
        for end, report in known:
            if end == wanted:
                return end, getattr(report, "gpucluster", {})
    return (known[0][0], getattr(known[0][1], "gpucluster", {})) if known else ("error", {})
