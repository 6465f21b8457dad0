"""What the burn-in needs of pytest: its options, its items, its live line, and an end that comes early."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.units import parse_option_time
from pytest_gpucluster.plugin.item_result import clean
from pytest_gpucluster.plugin.node_items import marks_of
from pytest_gpucluster.report.events import read_events
from pytest_gpucluster.report.run_model import read_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import pytest

    from pytest_gpucluster.suites.burnin.config import BurninConfig
    from pytest_gpucluster.suites.burnin.steps import ResumeState

MARK = "burnin"
AROUND = 600.0  # seconds of the allocation beside the burn-in: start, collectives that end, judging
A_MINUTE = 60.0


def asked(option: Any) -> bool:
    """Tell whether this run has a burn-in: hours of load never come unasked."""
    return bool(option.burnin_time or option.burnin_resume or MARK in (option.markexpr or ""))


def before(option: Any) -> ResumeState | None:
    """Read the log of --burnin-resume; ConfigError where it holds no burn-in, or one that is over."""
    refuse_workers(option)
    if not option.burnin_resume:
        return None
    from pytest_gpucluster.suites.burnin.steps import ResumeState  # noqa: PLC0415 - a tenth of the start of every other run

    path = Path(option.burnin_resume)
    try:
        found = ResumeState()
        read_run(read_events(path), burnin=found.add)
    except OSError as error:
        raise ConfigError(f"--burnin-resume: {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"--burnin-resume: {path}: not an event log of this release: {error!r}") from error
    if not found.asked:
        raise ConfigError(f"--burnin-resume: {path}: no burn-in is in this event log")
    return found


def seconds(option: Any, config: BurninConfig) -> float:
    """Return how long the burn-in is to last: --burnin-time, the log's that is resumed, or the cluster file's."""
    resumed: ResumeState | None = getattr(option, "burnin_before", None)
    if option.burnin_time:
        try:
            total = parse_option_time(option.burnin_time)
        except ValueError as error:
            raise ConfigError(f"--burnin-time: {error}") from error
    else:
        total = resumed.asked if resumed else config.time
    if total <= 0:
        raise ConfigError("--burnin-time: nothing is left to do in no time")
    if resumed and resumed.seconds >= total:
        raise ConfigError(
            f"--burnin-resume: that burn-in is over: {resumed.seconds:.0f} s of {total:.0f} s; "
            "ask for more with --burnin-time"
        )
    return total


def refuse_workers(option: Any) -> None:
    """A burn-in is one measurement: xdist's workers would each run one."""
    if getattr(option, "numprocesses", None) or getattr(option, "tx", None):
        raise ConfigError("a burn-in loads all nodes at once: leave -n away")


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the burn-in's items out of a run that did not ask for it, be it by naming nothing else."""
    if asked(config.option):
        return
    left: list[pytest.Item] = []
    gone: list[pytest.Item] = []
    for item in items:
        (gone if MARK in marks_of(item) else left).append(item)
    if gone and left:
        config.hook.pytest_deselected(items=gone)
        items[:] = left


class Screen(Protocol):
    """What the live line needs of pytest's terminal reporter."""

    def rewrite(self, line: str, **markup: bool) -> None:
        """Write over the line that the cursor is on."""

    def write_line(self, line: str | bytes, **markup: bool) -> None:
        """Write a line of its own."""

    def ensure_newline(self) -> None:
        """Leave a line that was begun."""


class LiveLine:
    """A line that is rewritten on a terminal, and written once a minute elsewhere."""

    def __init__(
        self,
        screen: Screen | None,
        *,
        terminal: bool,
        uncaptured: Callable[[], AbstractContextManager[None]] = nullcontext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._screen, self._terminal, self._clock, self._uncaptured = screen, terminal, clock, uncaptured
        self._last: float | None = None
        self._text = ""

    def show(self, text: str) -> None:
        """Show how far it is; called as often as one likes."""
        if self._screen is None:
            return
        text, now = clean(text), self._clock()
        if self._terminal:
            if text != self._text:
                with self._uncaptured():
                    if self._last is None:
                        self._screen.ensure_newline()
                    self._screen.rewrite(text, erase=True)
                self._last, self._text = now, text
        elif self._last is None or now - self._last >= A_MINUTE:
            self.say(text)
            self._last = now

    def say(self, text: str) -> None:
        """Write a line that stays."""
        if self._screen is not None:
            with self._uncaptured():
                self._screen.ensure_newline()
                self._screen.write_line(clean(text))
            self._text = ""

    def close(self) -> None:
        """Leave the last state standing."""
        if self._screen is not None and self._terminal and self._text:
            with self._uncaptured():
                self._screen.write_line("")
            self._text = ""
