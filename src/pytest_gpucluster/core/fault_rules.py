"""Rules of every check that may fail a node, beside the direction of a comparison (core/majority.py). Pure; docs/how-it-decides.md."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.part import Part

SETTLED = 600.0  # seconds after boot: time services, fabric managers and automounters have begun by then


@dataclass(frozen=True)
class Allowance:
    """The errors that a source allows: `count` within `seconds`. `source`: who states it, as reports show it."""

    count: float
    seconds: float
    source: str

    def within(self, seconds: float) -> float:
        """Return how many errors are allowed in a time; a shorter time than that of the source allows its whole count."""
        return self.count * max(1.0, seconds / self.seconds)

    def judge(
        self, part: Part | str, errors: float, seconds: float | None, what: str = "errors"
    ) -> Iterator[Finding | NotAvailable]:
        """Yield a finding if more errors were counted in `seconds` than allowed; not checked if the time is not known."""
        if errors <= self.count:
            return
        expected = f"at most {self.count:g} per {format_duration(self.seconds)} ({self.source})"
        if seconds is None:
            yield NotAvailable(f"{part}: {errors:g} {what}, in an unknown time: read the counter twice ({expected})")
        elif errors > self.within(seconds):
            measured = Quantity(errors, what, f"{errors:g} {what} in {format_duration(seconds)}")
            yield Finding(part, measured, expected, code="too_many_errors")


def unless_it_works(works: bool | None, found: Finding) -> Finding | Advisory:
    """Return what a missing mechanism (a file, a module, a daemon) proves beside the function that it serves.

    The function works: a warning. It fails: the finding. None, it is not known: a finding that takes no node out of service.
    """
    if works:
        return Advisory(found.part, found.measured, found.expected, found.code)
    if works is None and (found.action is None or found.action.is_repair):
        return replace(found, action=Action.MONITOR)
    return found


@dataclass(frozen=True)
class Situation:
    """What explains a state that will pass. `uptime`: seconds since boot; `maintenance`: what holds the node, or ''."""

    uptime: float | None = None
    maintenance: str = ""

    def why_not_yet(self, settled: float = SETTLED) -> str:
        """Return why a state that takes `settled` seconds after boot cannot be judged now; '' if it can."""
        if self.maintenance:
            return f"in maintenance ({self.maintenance}): repeat the check afterwards"
        if self.uptime is not None and self.uptime < settled:
            return f"booted {format_duration(self.uptime)} ago: repeat the check {format_duration(settled)} after boot"
        return ""


def unless_unsettled(why: str, judgement: Judgement) -> Judgement:
    """Yield a judgement; with a reason (`Situation.why_not_yet`), its findings are not checked."""
    for one in judgement:
        if why and isinstance(one, Finding):
            yield NotAvailable(f"{one.part}: {one.measured}, expected {one.expected}; {why}")
        else:
            yield one


def floor(least: float, size: float, share: float) -> float:
    """Return the least free amount of something of this size: `least`, or `share` of a small one."""
    return min(least, share * size)
