"""The parts of the loop of a campaign that need no Slurm."""

from __future__ import annotations

import pytest
import yaml

from pytest_gpucluster.campaign.campaign import quoted, was_booted


@pytest.mark.parametrize(
    ("before", "now", "booted"),
    [
        ("2026-11-26T21:03:58", "2026-11-26T21:03:58", False),
        ("2026-11-26T21:03:59", "2026-11-26T21:03:58", False),  # slurmd computes it from its uptime
        ("2026-11-26T21:03:58", "2026-11-26T21:04:10", False),
        ("2026-11-26T21:03:58", "2026-11-27T08:00:00", True),
        ("", "2026-11-27T08:00:00", False),
        ("2026-11-26T21:03:58", "None", False),
    ],
)
def test_a_boot_is_more_than_the_jitter_of_slurms_boot_time(before: str, now: str, booted: bool) -> None:
    assert was_booted(before, now) == booted


@pytest.mark.parametrize("text", ["--nice=1000", "--comment=a 'b' : c", "--x=[1, 2]"])
def test_options_of_salloc_survive_yaml(text: str) -> None:
    assert yaml.safe_load(f"[{quoted(text)}]") == [text]
