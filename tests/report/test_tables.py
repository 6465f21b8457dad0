"""Tables and lines at the width of a terminal."""

from __future__ import annotations

import pytest

from pytest_gpucluster.report.terminal.tables import table, wrapped

HEADERS = ("metric", "unit", "min", "at", "max", "at")
ROWS = [("bus bandwidth", "GB/s", 27.5, "gpu02", 361.5, "gpu03"), ("clock", "MHz", 1980, "gpu01", 1980, "gpu01")]


WHOLE = [
    "metric         unit    min    at     max    at",
    "-------------  ------  -----  -----  -----  -----",
    "bus bandwidth  GB/s    27.5   gpu02  361.5  gpu03",
    "clock          MHz     1980   gpu01  1980   gpu01",
]


def test_a_table_with_room_is_one_and_else_columns_follow_behind_the_first_one() -> None:
    assert table(HEADERS, ROWS, 80) == WHOLE
    assert table(HEADERS, [], 80) == []
    parts = [slice(15, 28), slice(30, 42), slice(44, 60)]
    expected = [(row[:15] + row[part]).rstrip() for part in parts for row in (*WHOLE, "")]
    assert table(HEADERS, ROWS, 30) == expected[:-1]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
def test_no_row_is_longer_than_the_terminal_and_no_word_is_cut(width: int) -> None:
    words = [f"gpu0{number}: {number} ok, 1 FAILED;" for number in range(1, 9)]
    lines = table(("suite", "nodes"), [("gpu", " ".join(words)), ("os", "all ok")], width)
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines[2:]).split()) == f"gpu {' '.join(words)} os all ok"


def test_lines_break_between_words() -> None:
    lines = ["not checked: os.smart on gpu[01-06]: smartctl: command not found", "coverage: 1 of 2"]
    shown = ["not checked: os.smart on gpu[01-06]:", "  smartctl: command not found", "coverage: 1 of 2"]
    assert list(wrapped(lines, 40)) == shown
    assert list(wrapped(["/a/path/that/has-no-room"], 10)) == ["/a/path/that/has-no-room"]
