# ruff: noqa: FBT001 - hypothesis and parametrize give arguments by name
"""The bandwidth curve: right place, no line too long, ASCII where asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.report.curve import MIN_WIDTH, draw, fits

POINTS = [(2**power, 400 * (1 - 0.7 ** (power - 19))) for power in range(20, 33)]


def test_the_curve_rises_to_the_right() -> None:
    lines = draw(POINTS, width=80, unicode=False)
    marked = {place: line.index("o") for place, line in enumerate(lines) if "o" in line and "|" in line}
    columns = [column for _, column in sorted(marked.items())]
    assert columns == sorted(columns, reverse=True)
    assert columns[0] > 30
    assert sum(line.count("o") for line in lines if "|" in line) == len(POINTS)


def test_axes_are_named() -> None:
    lines = draw(POINTS, width=80, unicode=False, title="all_reduce, gpu01")
    assert lines[0] == "all_reduce, gpu01"
    assert lines[1].startswith(" 400 |")
    assert "1MiB" in lines[-2]
    assert "4GiB" in lines[-2]
    assert lines[-1].startswith("GB/s by size")


def test_points_below_their_bound_are_marked() -> None:
    bounds = {2**32: 450.0, 2**20: 10.0}
    lines = draw(POINTS, width=100, unicode=False, thresholds=bounds)
    body = [line for line in lines if "|" in line]
    assert sum(line.count("X") for line in body) == 1
    assert next(line for line in body if "X" in line).rstrip().endswith("X")
    assert any("=" in line for line in body)
    assert "X below its bound" in lines[-1]


@given(
    st.lists(st.tuples(st.integers(-1, 2**50), st.floats(allow_nan=True, allow_infinity=True)), max_size=20),
    st.integers(0, 200), st.integers(-1, 40), st.booleans(),
    st.dictionaries(st.integers(-1, 2**50), st.floats(0, 1e6), max_size=3),
)  # fmt: skip
def test_nothing_breaks_and_no_line_is_too_long(
    points: list[tuple[int, float]], width: int, height: int, unicode: bool, bounds: dict[int, float]
) -> None:
    lines = draw(points, width=width, height=height, unicode=unicode, thresholds=bounds)
    assert all(len(line) <= width for line in lines)
    if not unicode:
        assert all(line.isascii() for line in lines)
    drawable = [size for size, value in points if size > 0 and 0 <= value < float("inf")]
    assert bool(lines) == (bool(drawable) and width >= MIN_WIDTH)


@pytest.mark.parametrize("unicode", [True, False])
def test_one_point_is_drawn(unicode: bool) -> None:
    lines = draw([(2**20, 12.5)], width=40, unicode=unicode)
    assert sum(("●" if unicode else "o") in line for line in lines[:-1]) == 1


def test_fits() -> None:
    assert fits(MIN_WIDTH)
    assert not fits(MIN_WIDTH - 1)
    assert draw(POINTS, width=MIN_WIDTH - 1) == []
    assert draw([], width=80) == []
