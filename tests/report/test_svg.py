"""The pictures of the HTML report: each element in its place. Whole pictures are in tests/data/svg."""

from __future__ import annotations

import re

import pytest
from paths import DATA

from pytest_gpucluster.report.svg import (
    SHAPES,
    Curve,
    curves,
    histogram,
    node_map,
    strip,
    suite_map,
    trend,
)

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
