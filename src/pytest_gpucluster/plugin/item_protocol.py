"""Items of the plugin's own run without the reports of a set-up and a teardown that passed, where nothing reads them.

They are a third of the time of an item and two thirds of its memory. Every hook of an item is called as for any other;
another plugin that takes part in reports, and an option that shows them, get all reports by pytest's own protocol.
"""

from __future__ import annotations

import bdb

import pytest

from pytest_gpucluster.plugin.items import CheckItem, phases

READERS = ("makereport", "logreport")  # pytest_runtest_...
# by their modules: pytest's own plugins read nothing of such a report unless one of OPTIONS is given
NEUTRAL = (pytest.Item.__module__.partition(".")[0], __name__.partition(".")[0])
OPTIONS = ("durations", "setuponly", "setupshow", "usepdb", "xmlpath")


class ItemProtocol:
    """Registered in a run without xdist: its workers send all reports to the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reduced: bool | None = None  # unknown until the first item: plugins may come until then

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run an item of the plugin's own; leave others, and those that need all reports, to pytest."""
        if type(item) is not CheckItem:
            return None
        if self._reduced is None:
            self._reduced = not any(map(self._config.option.__dict__.get, OPTIONS)) and self._is_alone()
        if not self._reduced:
            return None
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for call in phases(item, nextitem):
            if call.excinfo is None and call.when != "call" and not (item.prints and call.when == "teardown"):
                continue
            report: pytest.TestReport = hook.pytest_runtest_makereport(item=item, call=call)
            hook.pytest_runtest_logreport(report=report)
            if call.excinfo is not None and not isinstance(
                call.excinfo.value, (pytest.skip.Exception, bdb.BdbQuit)
            ):
                hook.pytest_exception_interact(node=item, call=call, report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _is_alone(self) -> bool:
        """Return True where only pytest and this plugin make and read reports, and no other runs items."""
        hook = self._config.hook
        callers = [getattr(hook, f"pytest_runtest_{name}") for name in READERS]
        known = [it for caller in (*callers, hook.pytest_report_teststatus) for it in caller.get_hookimpls()]
        known += [
            it for it in hook.pytest_runtest_protocol.get_hookimpls() if not (it.wrapper or it.hookwrapper)
        ]
        return all(it.function.__module__.partition(".")[0] in NEUTRAL for it in known)
