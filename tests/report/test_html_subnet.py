"""The picture of the InfiniBand subnet in the report: no script, no state by colour alone, nothing of a log breaks it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

from report.test_html import Page, page_of
from report_helpers import a_run, passing

from pytest_gpucluster.report.page.html_subnet import subnet

FABRIC = {
    "switches": [["leaf01", 0, 16, "", ""], ["leaf<02>", 0, 16, "7 uplinks", "bad"], ["spine01", 1, 0, "", ""]],
    "links": [[0, 2, 2, "", ""], [1, 2, 1, "leaf<02> port 33 - spine01 port 3: 4x EDR", "bad"]],
}


def test_leaves_stand_below_and_what_is_wrong_is_marked_and_told() -> None:
    picture = subnet(FABRIC)
    ET.fromstring(picture)
    found = re.findall(r'y="(\d+)" width="14" height="14"><title>([\w&;]+)', picture)
    at = {name: int(y) for y, name in found}
    leaf = "leaf&lt;02&gt;"
    assert at["leaf01"] == at[leaf] > at["spine01"]
    told = re.findall(r'class="(link|part) bad"[^>]*><title>([^<]*)', picture)
    link = f"{leaf} - spine01, 1 links: {leaf} port 33 - spine01 port 3: 4x EDR"
    assert told == [("link", link), ("part", f"{leaf}, 16 HCAs: 7 uplinks")]
    assert "3 switches, 1 of 2 connections with a finding" in picture
    # a log of an earlier version has no kinds
    assert subnet({part: [row[:-1] for row in rows] for part, rows in FABRIC.items()}) == picture


def test_the_page_has_the_picture_of_the_run_and_none_without_the_suite() -> None:
    def page(fabric: Any) -> Page:
        return page_of(a_run([{**passing("gpu01"), "fabric": fabric}, passing("gpu02")]))

    titles = [given.get("aria-label", "") for given in page(FABRIC).of("svg")]
    assert any(title.startswith("InfiniBand subnet: 3 switches") for title in titles)
    assert "InfiniBand subnet" not in page({}).text


def test_what_a_log_should_not_hold_is_left_out() -> None:
    fabrics: list[Any] = [
        {"switches": "many"},
        {"switches": [[]], "links": [[]]},
        {"switches": [["a", 1e308, None, 7]], "links": [[[], {}, "x"], [0, 9, 1, ""], None]},
        {"switches": [["a", -3, -1, ""]], "links": [[0, 0, 1, "loop"]]},
    ]
    for picture in filter(None, map(subnet, fabrics)):
        ET.fromstring(picture)
