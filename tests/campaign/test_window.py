"""The daily window of a campaign."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from pytest_gpucluster.campaign.window import Window


def test_seconds_until_the_window_closes() -> None:
    for window, now, left in (
        ("22:00-06:00", "21:59:59", 0),
        ("22:00-06:00", "22:00:00", 8 * 3600),
        ("22:00-06:00", "05:59:00", 60),
        ("22:00-06:00", "06:00:00", 0),
        ("08:00-12:30", "12:00:00", 1800),
        ("08:00-12:30", "12:30:00", 0),
    ):
        time = datetime.fromisoformat(f"2026-03-01T{now}").replace(tzinfo=timezone.utc)
        made = Window.of(window)
        assert made.seconds_left(time) == left
        assert made.contains(time) == bool(left)


@pytest.mark.parametrize("text", ["", "22-06", "24:00-06:00", "22:00-22:00", "22:00", "22:60-23:00"])
def test_refuses_what_is_no_window(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be HH:MM-HH:MM|has no length"):
        Window.of(text)
