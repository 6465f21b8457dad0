"""Output of real machines: every sick one is found, with its part and action, and no healthy one fails a check.

Each verdict is the same with every text of ours as noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import corpus_decisions
import pytest
from corpus_cases import all_cases, wrong

if TYPE_CHECKING:
    from pathlib import Path

    from corpus_cases import Case

CASES = all_cases()
FIRST = 60  # each so many-th case is judged by `make test` too
MARKED = [pytest.param(it, id=it.name, marks=[pytest.mark.thorough] * bool(at % FIRST)) for at, it in enumerate(CASES)]
PARTS = 4  # of the decisions: one here, all by `make corpus`


@pytest.mark.parametrize("case", MARKED)
def test_recorded_machine_is_judged_as_expected(case: Case, tmp_path: Path) -> None:
    assert wrong(case, tmp_path) == []


def test_at_least_half_of_the_machines_are_healthy() -> None:
    assert 2 * sum(not case.sick for case in CASES) >= len(CASES)


@pytest.mark.thorough
def test_the_checks_share_every_decision() -> None:
    number, found = corpus_decisions.differences(0, PARTS)
    assert number > 300
    assert found == []
