"""A known line says what a line of a log means; a wrong entry of the cluster file is an error with its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core.check import Action
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.known_lines import known

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.core.known_lines import KnownLine


def loaded(folder: Path, *entries: str) -> tuple[KnownLine, ...]:
    path = folder / "prod.yaml"
    path.write_text("nodes: gpu01\nknown:\n" + "".join(f"  - {{{entry}}}\n" for entry in entries))
    return load_cluster(path).known


ONE = "pattern: 'Xid .*: 74,', meaning: cable of rack 7, reason: TICKET-1"


def test_the_first_entry_that_occurs_in_a_line_decides(tmp_path: Path) -> None:
    lines = loaded(tmp_path, f"{ONE}, action: reset gpu", "pattern: Xid, meaning: any, reason: test")
    found = known(lines, "NVRM: Xid (PCI:0000:1b:00): 74, x")
    assert found is lines[0]
    assert (found.failure, found.words) == (Action.RESET_GPU, "cable of rack 7 (known: TICKET-1)")
    other = known(lines, "NVRM: Xid (PCI:0000:1b:00): 79, x")
    assert other is lines[1]
    assert (other.action, other.failure) == ("ignore", None)
    assert known(lines, "NVRM: xid") is None
    (warning,) = loaded(tmp_path, f"{ONE}, action: warn")
    assert warning.failure is None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("pattern: '(', meaning: m, reason: r", r"pattern: must be a regular expression"),
        ("pattern: 'x*', meaning: m, reason: r", r"pattern: must not match the empty line"),
        ("pattern: '[0-9]{2}', meaning: m, reason: r", r"pattern: must be an extended .*without '{'"),
        (r"pattern: '\d', meaning: m, reason: r", r"pattern: must be an extended .*\[0-9\]"),
        ("pattern: '(?i)x', meaning: m, reason: r", r"pattern: must be an extended "),
        ("pattern: x, meaning: m", r"reason: is missing"),
        ("pattern: x, meaning: m, reason: r, action: explode", r"action: .*ignore"),
        ("pattern: x, meaning: m, reason: r, lines: 3", r"lines: "),
    ],
)
def test_a_wrong_entry_is_an_error_with_its_line(tmp_path: Path, entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"prod.yaml:4: known\[1\].{message}"):
        loaded(tmp_path, ONE, entry)
