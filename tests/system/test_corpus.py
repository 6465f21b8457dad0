"""Output of real machines: every sick one is found, with its part and action, and no healthy one fails a check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from corpus_cases import all_cases, wrong

if TYPE_CHECKING:
    from pathlib import Path

    from corpus_cases import Case

CASES = all_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_recorded_machine_is_judged_as_expected(case: Case, tmp_path: Path) -> None:
    assert wrong(case, tmp_path) == []


def test_at_least_half_of_the_machines_are_healthy() -> None:
    assert 2 * sum(not case.sick for case in CASES) >= len(CASES)
