"""pytest's loop over the items, in which a row goes through pytest's wrappers once: the NodeItems of one test.

Five wrappers stand around every item (warnings, assertions, faulthandler and others), a tenth of what an item costs.
What they set up for the first item of a row serves the others too. A row ends early where an item leaves something
behind: a warning, which is told as that item's, or a filter of warnings.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from pytest_gpucluster.plugin.node_items import NodeItem, own_marks, plugins

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from pytest_gpucluster.plugin.swift import Swift

_LOOPS = {"main", "gpucluster-hooks", "gpucluster-pages"}
_AROUND = {"faulthandler", "unittest", "assertion", "warnings", "gpucluster-hooks"}


class Rows:
    """Runs all items of one process, each by `swift` where that can."""

    def __init__(self, config: pytest.Config, swift: Swift) -> None:
        self._config, self._swift = config, swift
        self._items: Sequence[pytest.Item] = ()  # none while another loop runs
        self._next = 0  # the place of the first item that has not begun

    def run_all(self, session: pytest.Session) -> bool | None:
        """Stand for pytest's loop; None where that, or another plugin's, has to run."""
        if session.testsfailed or not plugins(self._config.hook.pytest_runtestloop, around=False) <= _LOOPS:
            return None
        self._items, self._next = session.items, 0
        while self._next < len(self._items):
            item, following = self._take()
            self._config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
        return True

    def _take(self) -> tuple[pytest.Item, pytest.Item | None]:
        """Return the next item, and the one after it."""
        self._next += 1
        return self._items[self._next - 1], self._items[self._next] if self._next < len(self._items) else None

    def run(self, item: pytest.Item, following: pytest.Item | None) -> bool:
        """Run an item, and the rest of its row; False where the item is left to pytest."""
        if not (self._items and isinstance(item, NodeItem) and self._serves_all()):
            return self._swift.run(item, following)
        with warnings.catch_warnings(record=True) as caught:
            filters = warnings.filters[:]
            if not self._swift.run(item, following):
                return False
            last: pytest.Item = item
            while not caught and warnings.filters == filters and (further := self._run_next(item)):
                last = further
        for warning in caught:
            last.ihook.pytest_warning_recorded.call_historic(
                kwargs={
                    "warning_message": warning,
                    "nodeid": last.nodeid,
                    "when": "runtest",
                    "location": None,
                }
            )
        return True

    def _serves_all(self) -> bool:
        """Return True where each wrapper is known, and does the same for all items of a row."""
        hook = self._config.hook
        around = plugins(hook.pytest_runtest_protocol, around=True)
        timed = float(self._config.getini("faulthandler_timeout") or 0.0) > 0.0
        told = bool(hook.pytest_assertion_pass.get_hookimpls())
        return "warnings" in around and around <= _AROUND and not timed and not told

    def _run_next(self, first: NodeItem) -> pytest.Item | None:
        """Run the next item if it is of the same row; None where it is not, or is left to pytest."""
        if self._next == len(self._items):
            return None
        item, following = self._take()
        if _alike(item, first) and self._swift.run(item, following):
            return item
        self._next -= 1
        return None


def _alike(item: pytest.Item, first: NodeItem) -> bool:
    """Return True for another item of the same test that has no filters of warnings of its own."""
    return (
        isinstance(item, NodeItem)
        and item._shared is first._shared  # noqa: SLF001 - ours
        and not any(mark.name == "filterwarnings" for mark in (*own_marks(item), *own_marks(first)))
    )
