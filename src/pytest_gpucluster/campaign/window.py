"""The daily window of a campaign: outside of it nothing starts. Local time. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta

_WINDOW = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True)
class Window:
    """From `begin` to `end` of each day; over midnight if `end` is earlier."""

    begin: time
    end: time

    def __str__(self) -> str:
        """As it is written: 22:00-06:00."""
        return f"{self.begin:%H:%M}-{self.end:%H:%M}"

    @classmethod
    def of(cls, text: str) -> Window:
        """Read HH:MM-HH:MM; ValueError if it is none, or has no length.

        >>> Window.of("22:00-06:00")
        Window(begin=datetime.time(22, 0), end=datetime.time(6, 0))
        """
        match = _WINDOW.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} must be HH:MM-HH:MM, like 22:00-06:00")
        hour, minute, last_hour, last_minute = map(int, match.groups())
        begin, end = time(hour, minute), time(last_hour, last_minute)
        if begin == end:
            raise ValueError(f"{text!r} has no length: leave the option out for all day")
        return cls(begin, end)

    def contains(self, now: datetime) -> bool:
        """Return whether a time is in the window."""
        if self.begin < self.end:
            return self.begin <= now.time() < self.end
        return now.time() >= self.begin or now.time() < self.end

    def seconds_left(self, now: datetime) -> float:
        """Return the seconds until the window closes; 0 outside of it."""
        if not self.contains(now):
            return 0.0
        end = datetime.combine(now.date(), self.end, now.tzinfo)
        return ((end if end > now else end + timedelta(days=1)) - now).total_seconds()
