"""The line of a long measurement that shows how far it is."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

from pytest_gpucluster.plugin.item_result import clean

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

A_MINUTE = 60.0


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
