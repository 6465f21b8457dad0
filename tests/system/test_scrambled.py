"""No decision depends on words: the fault matrix has the same outcomes, actions and drains when every text is noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from system import test_fault_matrix as matrix

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def run() -> Iterator[matrix.Run]:
    yield from matrix.runs("-p", "scrambled")


def test_every_fault_has_its_outcome_and_action(run: matrix.Run) -> None:
    for kind in (*matrix.SHOWN, *matrix.ACTED):
        matrix.test_fault_changes_the_outcome_of_its_own_checks_alone(run, kind)
    for kind in (*matrix.SHOWN, "slurmd_dead"):
        matrix.test_fault_of_the_hardware_takes_its_node_out_and_no_other_does(run, kind)
    for kind in matrix.HARMLESS:
        matrix.test_what_is_harmless_changes_no_outcome(run, kind)
    matrix.test_fault_of_a_setting_is_a_finding_of_this_setting_alone(run)
    matrix.test_healthy_nodes_are_alike_in_every_outcome(run)
    matrix.test_only_nodes_with_a_fault_fail(run)
