"""Output of real machines: every sick one is found, with its part and action, and no healthy one fails a check."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import corpus_decisions
import pytest
from corpus_cases import all_cases, wrong

if TYPE_CHECKING:
    from pathlib import Path

    from corpus_cases import Case

CASES = all_cases()
PARTS = 4  # of the decisions; each takes some seconds


def of_the_night(name: str) -> bool:
    """Return whether `make test` leaves a case to `make test-all` and `make corpus`: it judges each sixteenth, by a hash of the name."""
    return zlib.crc32(name.encode()) % 16 != 0


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.thorough] * of_the_night(case.name))
        for case in CASES
    ],
)
def test_recorded_machine_is_judged_as_expected(case: Case, tmp_path: Path) -> None:
    assert wrong(case, tmp_path) == []


def test_at_least_half_of_the_machines_are_healthy() -> None:
    assert 2 * sum(not case.sick for case in CASES) >= len(CASES)


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(PARTS))
def test_the_checks_share_every_decision(part: int) -> None:
    number, found = corpus_decisions.differences(part, PARTS)
    assert number > 300
    assert found == []
