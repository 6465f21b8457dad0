"""The bandwidth curve: right place, no line too long, ASCII where asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.report.terminal.ascii_plot import MIN_WIDTH, draw, fits


@given(
    st.lists(st.tuples(st.integers(-1, 2**50), st.floats(allow_nan=True, allow_infinity=True)), max_size=20),
    st.integers(0, 200),
    st.integers(-1, 40),
    st.booleans(),
    st.dictionaries(st.integers(-1, 2**50), st.floats(0, 1e6), max_size=3),
)
def test_nothing_breaks_and_no_line_is_too_long(
    points: list[tuple[int, float]], width: int, height: int, unicode: bool, bounds: dict[int, float]
) -> None:
    lines = draw(points, width=width, height=height, unicode=unicode, thresholds=bounds)
    assert all(len(line) <= width for line in lines)
    if not unicode:
        assert all(line.isascii() for line in lines)
    drawable = [size for size, value in points if size > 0 and 0 <= value < float("inf")]
    assert bool(lines) == (bool(drawable) and width >= MIN_WIDTH)
    assert fits(width) == (width >= MIN_WIDTH == 30)


MIB, GIB = 1 << 20, 1 << 30
FOUR = [(MIB, 50.0), (4 * MIB, 100.0), (64 * MIB, 390.0), (GIB, 200.0)]


def test_a_drawing_with_bounds_in_ascii() -> None:
    bounds = {GIB: 300.0, 64 * MIB: 390.0, 0: 5.0, 7: float("inf")}
    assert draw(FOUR[::-1], width=60, height=9, unicode=False, thresholds=bounds, title="T" * 61) == [
        "T" * 60,
        " 400 |                              =o=",
        "     |                           ...   ......",
        "     |                       ....            .....       ==",
        "     |                    ...                     ......",
        " 200 |                ....                              ..X",
        "     |            ....",
        "     |     .....o.",
        "     |o....",
        "   0 |",
        "     ++---------+--------------------+--------------------+",
        "    1MiB      4MiB                 64MiB                1GiB",
        "GB/s by size; o measured, X below its bound, = bound",
    ]
