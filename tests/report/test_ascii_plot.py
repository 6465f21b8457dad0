"""The bandwidth curve: right place, no line too long, ASCII where asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.report.ascii_plot import MIN_WIDTH, STEPS, draw, fits
from pytest_gpucluster.report.words import round_up


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


def test_a_drawing_in_unicode() -> None:
    assert draw(FOUR, width=60, height=9) == [
        " 400 │                              ·●·",
        "     │                           ···   ······",
        "     │                       ····            ·····",
        "     │                    ···                     ······",
        " 200 │                ····                              ··●",
        "     │            ····",
        "     │     ·····●·",
        "     │●····",
        "   0 │",
        "     └┬─────────┬────────────────────┬────────────────────┬",
        "    1MiB      4MiB                 64MiB                1GiB",
        "GB/s by size; ● measured",
    ]
    marked = draw([(MIB, 1.0)], width=60, height=3, thresholds={MIB: 2.0})
    assert marked == [
        "   2 │                         ━━━",
        "   1 │                          ▼",
        "   0 │",
        "     └──────────────────────────┬──────────────────────────",
        "                              1MiB",
        "GB/s by size; ● measured, ▼ below its bound, ━ bound",
    ]
    assert len(draw(FOUR)) == 13 + 3  # 80 columns and 13 rows by themselves
    assert max(map(len, draw(FOUR))) == 80


def test_the_smallest_drawing_has_three_rows_and_cuts_its_legend() -> None:
    assert draw([(8, 0.0), (0, 5.0), (9, -1.0)], width=30, height=1, thresholds={8: 0.0}, unicode=False) == [
        "   1 |",
        " 0.5 |",
        "   0 |          =o=",
        "     +-----------+-----------",
        "                8B",
        "GB/s by size; o measured, X be",
    ]


def test_labels_leave_room_between_them() -> None:
    lines = draw([(1 << n, 5.0 + n) for n in range(20, 28)], width=46, height=4, unicode=False)
    assert lines == [
        "  40 |",
        "26.7 |o....o.....o....o.....o....o.....o....o",
        "     |",
        "   0 |",
        "     ++----------+----------+---------------+",
        "    1MiB       4MiB       16MiB         128MiB",
        "GB/s by size; o measured",
    ]


def test_a_label_needs_four_columns_beside_it() -> None:
    def named(last: float) -> str:
        return draw([(MIB, 1.0), (2 * MIB, 1.0), (int(last * MIB), 1.0)], width=60, unicode=False)[-2]

    assert named(90.5) == f"{'    1MiB    2MiB':53}90.5MiB"
    assert named(128) == f"{'    1MiB':54}128MiB"  # it would be 3 apart


def test_the_axis_ends_at_a_round_number() -> None:
    rounded = {
        0: 1.0,
        1e-300: 1e-300,
        0.99: 1.0,
        1.00001: 1.5,
        1.6: 2.0,
        2.2: 2.5,
        2.7: 3.0,
        3.5: 4.0,
        9: 10.0,
        95: 100.0,
    }
    assert {value: round_up(value, STEPS) for value in rounded} == rounded


def test_a_label_has_no_exponent_where_people_look() -> None:
    tops = {100.0: "100", 1000.0: "1000", 1200.0: "1500", 800000.0: "800000", 1e6: "1e+06"}
    for value, label in tops.items():
        assert draw([(MIB, value)], width=60, unicode=False)[0].split()[0] == label
    assert draw([(MIB, 9e5)], width=60, height=4, unicode=False)[1].split()[0] == "666667"
