"""The pictures of the HTML report: each element in its place. Whole pictures are in tests/data/svg."""

from __future__ import annotations

import re

import pytest
from paths import DATA

from pytest_gpucluster.report.svg import (
    SHAPES,
    STEPS,
    Curve,
    curves,
    histogram,
    node_map,
    strip,
    suite_map,
    trend,
)
from pytest_gpucluster.report.words import round_up

GOLDEN = DATA / "svg"
KIB, MIB = 1 << 10, 1 << 20
STATES = dict(zip(("a<1", *"bcdefgh"), (*list(SHAPES)[:5], "not applicable", "", "odd"), strict=True))


def pictures() -> dict[str, str]:
    """Return every kind of picture with every kind of element, by its name."""
    shown = [
        Curve("n<1", [(0, 1.0), (KIB, 10.0), (MIB, 90.0)]),
        Curve("marked", [(MIB, 40.0)], mark=True),
        Curve("", [(2 * KIB, 5.0), (4 * KIB, 6.0)]),
        Curve("nothing", []),
    ]
    bounds = {MIB: 50.0, 1 << 40: 9.0, 0: 1.0, KIB: 10.0}
    band = [(0, 1.0, 2.0), (KIB, 1.0, 5.0), (MIB, 30.0, 95.0)]
    return {
        "map": node_map(list(STATES), STATES.__getitem__, link={"b": "#g1"}.get),  # type: ignore[arg-type] # '' or None
        "curves": curves(shown, title="t<&", bounds=bounds, band=band),
        "suite-map": suite_map(
            ["a", "b<", "c"],
            ["gpu", "os"],
            lambda node, suite: "failed" if (node, suite) == ("b<", "os") else "passed",
            link=lambda node, suite: f"#{suite}" if node == "b<" else "",
        ),
        "trend": trend([3.0, None, 4.0, 3.5, 1.0], title="v<"),
        "trend-ends-without-a-number": trend([2.0, 1.0, None], title="v"),
        "strip": strip([1.0, 2.0, 3.0, 4.0, 10.0], [10.0, 10.0], [5.0], title="s<"),
        "strip-of-three": strip([1.0, 2.0, 4.0]),
        "strip-of-one": strip([3.0], title="x"),
        "histogram": histogram([1.0, 2.0, 2.0, 3.0, 9.0], [9.0], [4.0], unit="GB/s<", title="h"),
        "histogram-plain": histogram([*[1.0] * 100, 2.5], [], [], unit="W", title="h"),
    }


@pytest.mark.parametrize("name", sorted(pictures()))
def test_a_picture_is_drawn_as_before(name: str) -> None:
    assert pictures()[name] == (GOLDEN / f"{name}.svg").read_text().removesuffix("\n")


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (49, 49), (50, 50), (51, 50), (400, 50), (401, 100)])
def test_the_map_has_rows_of_fifty_or_a_hundred(count: int, columns: int) -> None:
    nodes = [f"n{number:03}" for number in range(count)]
    picture = node_map(nodes, lambda _node: "passed", link=lambda _node: "")
    rows = -(-count // columns)
    gutter = 10 + 7.5 * 4
    assert picture.startswith(f'<svg viewBox="0 0 {gutter + 12 * columns:.0f} {12 * rows + 2}" ')
    assert re.findall(r">(n\d+)</text>", picture) == nodes[::columns]
    assert picture.count("h6v6h-6z") == count


def test_what_says_nothing_is_no_picture() -> None:
    assert curves([], title="t") == ""
    assert curves([Curve("x", [(0, 1.0)])], title="t", bounds={KIB: 1.0}, band=[(0, 1.0, 2.0)]) == ""
    assert curves([], title="t", band=[(KIB, 1.0, 2.0)]) != ""
    assert histogram([2.0, 2.0], [], [2.0], unit="W", title="h") == ""
    assert histogram([2.0, 2.0], [], [3.0], unit="W", title="h") != ""
    assert trend([2.0, None, 2.0], title="v") == trend([2.0], title="v") == trend([], title="v") == ""


def test_a_point_at_its_bound_is_not_below_it() -> None:
    at = curves([Curve("x", [(KIB, 10.0), (MIB, 9.99)])], title="t", bounds={KIB: 10.0, MIB: 10.0})
    assert re.findall(r"<title>(x: [^<]*)", at) == ["x: 9.99 GB/s at 1 MiB, below 10"]


def test_a_strip_has_a_box_from_four_values_on() -> None:
    three, four = strip([1.0, 2.0, 3.0]), strip([1.0, 2.0, 3.0, 4.0])
    assert [(one.count('class="box"'), one.count('class="dot"')) for one in (three, four)] == [(0, 3), (1, 0)]


def test_the_axis_ends_at_a_round_number() -> None:
    for value in (float("nan"), float("inf"), 0, 1e-301):
        assert round_up(value, STEPS) == 1.0
    rounded = {
        1e-300: 1e-300,
        1.1: 1.2,
        1.3: 1.6,
        1.7: 2.0,
        2.1: 2.4,
        2.5: 3.0,
        9: 10.0,
        1.0000001: 1.0,
        396: 400.0,
    }
    for value, top in rounded.items():
        assert round_up(value, STEPS) == pytest.approx(top, rel=1e-9)


def named(*ends: float) -> list[tuple[str, str]]:
    """Return (y, name) of the curves a, b, c that end at these values, under an axis to 100."""
    shown = [Curve("abc"[place], [(KIB, 1.0), (MIB, end)]) for place, end in enumerate(ends)]
    picture = curves([Curve("", [(KIB, 100.0), (MIB, 100.0)]), *shown], title="t")
    return re.findall(r'y="(\d+)" class="t">([abc])<', picture)


def test_names_of_curves_are_thirteen_pixels_apart_and_end_eight_below_the_axis() -> None:
    # 2.46 pixels for 1 GB/s; the axis of 0 is at 270, a name 4 below the end of its curve
    assert named(50.0, 44.7154) == [("151", "a"), ("164", "b")]
    assert named(50.0, 44.9187) == [("151", "a"), ("166", "b")]  # 12.5 apart: moved by 2
    assert named(50.0, 50.0, 44.7154) == [("151", "a"), ("165", "b"), ("178", "c")]
    assert named(4.4715, 0.0) == [("263", "a"), ("276", "b")]
    assert named(3.6585, 0.0) == [("265", "a")]  # 278 would be free, but is too low


def test_a_curve_is_named_at_its_last_point() -> None:
    shown = [
        Curve("a", [(KIB, 9.0), (2 * KIB, 9.0), (MIB, 2.0)]),
        Curve("b", [(KIB, 1.0), (2 * KIB, 1.0), (4 * KIB, 8.0)]),
    ]
    found = re.findall(r'<text x="([\d.]+)" y="(\d+)" class="t">([ab])<', curves(shown, title="t"))
    # the axis ends at 10: 24.6 pixels for 1 GB/s; 115.6 pixels for two powers of two
    assert found == [("174.6", "77", "b"), ("637.0", "225", "a")]


@pytest.mark.parametrize(("size", "labels"), [(2206, ["52.0", "116.0", "630.0"]), (2200, ["52.0", "630.0"])])
def test_sizes_are_named_from_64_pixels_apart(size: int, labels: list[str]) -> None:
    picture = curves([Curve("x", [(KIB, 1.0), (size, 1.0), (MIB, 1.0)])], title="t")
    assert re.findall(r'x="([\d.]+)" y="290" class="t mid"', picture) == labels


def test_sizes_begin_at_one_byte_and_values_stay_in_the_picture() -> None:
    curve, band = Curve("x", [(1, -1.0), (2, float("inf"))]), [(1, 0.1, 0.2), (0, 9.0, 9.0)]
    picture = curves([curve], title="t", bounds={1: 0.5, 4: 0.5}, band=band)
    assert 'd="M52.0 270.0 L630.0 24.0"' in picture
    assert re.findall(r'class="bound" d="([^"]*)"', picture) == ["M43.0 147.0h18"]
    assert re.findall(r'class="band" d="([^"]*)"', picture) == ["M52.0 220.8 L52.0 245.4z"]
    assert "below 0.5" in picture


def test_no_bar_reaches_over_the_first_bound() -> None:
    picture = histogram([0.0, 29.5, 30.0, 60.0], [], [30.0, 40.5], unit="W", title="h")
    bars = re.findall(r"<title>1 from (\d+) to (\d+) W</title>", picture)
    assert bars == [("0", "1"), ("29", "30"), ("30", "31"), ("60", "61")]
    assert re.findall(r'class="t[^"]*">([^<]*)<', picture) == [
        "1",
        "0",
        "0",
        "15.25",
        "30.5",
        "45.75",
        "61 W",
    ]
    assert re.findall(r'class="bound" d="([^"]*)"', picture) == ["M342.0 6V106", "M446.3 6V106"]
