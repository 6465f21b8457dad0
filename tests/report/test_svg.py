"""The pictures of the HTML report: each element in its place."""

from __future__ import annotations

import re

from pytest_gpucluster.report.page.svg import Curve, curves, histogram, node_map, strip, suite_map, trend

KIB, MIB = 1 << 10, 1 << 20


def test_names_of_nodes_and_titles_are_escaped() -> None:
    drawn = node_map(["a<1"], lambda _: "failed", link=lambda _: "") + curves([Curve("n<1", [(KIB, 1.0)])], title="t<&")
    drawn += suite_map(["b<"], ["os"], lambda *_: "passed", link=lambda *_: "") + strip([1.0, 2.0], [], [], title="s<")
    assert len(re.findall(r"a&lt;1|n&lt;1|t&lt;&amp;|b&lt;|s&lt;", drawn)) >= 5
    assert not re.search(r"[abnts]<[1&\"]", drawn)


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
