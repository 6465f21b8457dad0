"""Crashes of the kernel before the present boot."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Judgement, check
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.part import Part, named

if TYPE_CHECKING:
    from pytest_gpucluster.suites.os.crash_facts import Crashes
    from pytest_gpucluster.suites.os.facts import Clock

KERNEL = named("software", "kernel")
DAY = 86400.0
SHOWN_DAYS = 30  # older events are history
REPEATED, WITHIN_DAYS = 3, 7


@check(
    "os.crashes",
    cause="the kernel crashed (memory, a driver, the power), or the node was reset; each left a record",
    hint="read the end of the record, or vmcore-dmesg.txt beside it; ipmitool sel list; journalctl -b -1 -n 100; remove records that were read",
    action=Action.MONITOR,
)
def crashes(crashes: Crashes, clock: Clock, last_good: float) -> Judgement:
    """The kernel left fewer than three records of crashes in 7 days.

    A record of 30 days, or a boot that no shutdown preceded, is a warning, if no run has found the node good since.
    Nothing here proves that the node is faulty now: no node is drained for a crash in the past.
    """
    begin, since = clock.time - SHOWN_DAYS * DAY, f"in {SHOWN_DAYS} days"
    if last_good > begin:
        begin, since = last_good, f"since the last run that found the node good, at {_date(last_good)}"
    recent = [one for one in crashes.records if one.time > begin]
    often = [one for one in crashes.records if one.time > clock.time - WITHIN_DAYS * DAY]
    if len(often) >= REPEATED:
        times = ", ".join(_date(one.time) for one in often[-REPEATED:])
        text = f"{len(often)} records of crashes in {WITHIN_DAYS} days, at {times}: {often[-1].path}"
        found, most = (Quantity(len(often), "records", text), Quantity(REPEATED, "records", f"fewer than {REPEATED}"))
        yield Finding(KERNEL, found, most, code="crashed_often")
    elif recent:
        measured = f"a record of a crash at {_date(recent[-1].time)}: {recent[-1].path}"
        yield Advisory(KERNEL, measured, f"none {since}", code="crashed")
    resets = [one for one in crashes.unclean if one > begin]
    if resets:
        measured = f"the boot at {_date(resets[-1])} followed no shutdown"
        yield Advisory(Part("node"), measured, f"a shutdown before each boot {since}", code="was_reset")


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
