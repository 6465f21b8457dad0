"""Name and clock of a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding, Judgement, Metric, check
from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.metric_direction import NEITHER
from pytest_gpucluster.core.part import named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.suites.os.facts import Clock


@check(
    "os.hostname",
    cause="the node was installed or cloned under another name",
    hint="set Slurm's name of the node with hostnamectl; state NodeHostname in slurm.conf where the names differ on purpose",
    action=Action.CONFIGURE,
)
def hostname(hostname: str, node_name: str, slurm_hostname: str) -> Judgement:
    """The short host name is Slurm's node name, or the NodeHostName that slurm.conf states for it."""
    names = list(dict.fromkeys(filter(None, (node_name, slurm_hostname))))
    if hostname.partition(".")[0].lower() not in {name.partition(".")[0].lower() for name in names}:
        part = named("setting", "host name")
        yield Finding(part, Quote(hostname), " or ".join(names), code="other_name")


@dataclass(frozen=True)
class CommonTime:
    """The time of most nodes: `least` to `greatest` seconds after the controller's clock.

    agreeing: how many of `nodes` clocks may show it; both count the controller's clock if that takes part.
    """

    least: float
    greatest: float
    agreeing: int
    nodes: int

    @classmethod
    def of(cls, clocks: Mapping[str, Clock], max_skew: float) -> CommonTime:
        """Return the time that most clocks may show, as NTP selects its servers (Marzullo's algorithm).

        The longer an answer took, the wider is the window of its clock. The controller's clock takes part if the times
        of all answers are known: it decides between two nodes.
        """
        windows = [_offsets(clock) for clock in clocks.values()]
        if len(windows) > 1 and all(clock.sent is not None for clock in clocks.values()):
            windows.append((0.0, 0.0))
        least, greatest, agreeing = _shared(windows or [(0.0, 0.0)], max_skew / 2)
        return cls(least, greatest, agreeing, len(windows))


def _shared(windows: Sequence[tuple[float, float]], slack: float) -> tuple[float, float, int]:
    """Return begin and end of the overlap of most windows, each extended by `slack` on both sides, and their number.

    If several overlaps have the same number of windows, the result spans all of them.
    """
    ends = sorted(
        (end, closing) for window in windows for closing, end in enumerate((window[0] - slack, window[1] + slack))
    )
    open_now = most = 0
    first = last = 0.0
    for end, closing in ends:
        if closing:
            last = end if open_now == most else last
            open_now -= 1
        else:
            open_now += 1
            if open_now > most:
                most, first = open_now, end
    least, greatest = first + slack, last - slack
    if least > greatest:  # no point is in all windows as they were: the middle is at most `slack` from each
        least = greatest = (least + greatest) / 2
    return least, greatest, most


def _offsets(clock: Clock) -> tuple[float, float]:
    """Return the least and the greatest offset: the clock was read between the command and its answer."""
    if clock.sent is None or clock.received is None:
        return clock.time, clock.time
    return clock.time - clock.received, clock.time - clock.sent


@check(
    "os.clock",
    cause="its time service is off or cannot reach its servers, or the clock was set by hand",
    hint="date; chronyc tracking; chronyc makestep; timedatectl set-ntp true (munge refuses a skew of minutes)",
    action=Action.CONFIGURE,
)
def clock(clock: Clock, common_time: CommonTime, max_clock_skew: float) -> Judgement:
    """The clock agrees with most nodes, apart from the time that the answer took."""
    if common_time.nodes < 2:  # a node cannot differ from itself
        raise NotApplicable("no other node to compare the clock with")
    least, greatest = _offsets(clock)
    skew = max(least - common_time.greatest, 0.0) + min(greatest - common_time.least, 0.0)
    yield Metric("clock_skew", skew, "s", better=NEITHER)  # has a sign
    if abs(skew) > max_clock_skew:
        code, side = ("ahead", "ahead of") if skew > 0 else ("behind", "behind")
        clocks = f"{common_time.agreeing} of {common_time.nodes} clocks"
        text = f"at least {abs(skew):.3f} s {side} the time that {clocks} share"
        most = Quantity(max_clock_skew, "s", f"within {max_clock_skew:g} s")
        yield Finding(named("setting", "clock"), Quantity(abs(skew), "s", text), most, code=code)
