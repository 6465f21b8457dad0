"""The picture of a node: as many parts as the run knows, and those marked that findings name."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from report_helpers import a_run, failing, passing

from pytest_gpucluster.core.finding import Finding
from pytest_gpucluster.report import html_node
from pytest_gpucluster.report.run_model import Run, read_run

EIGHT = {"gpus": 8, "nvlinks": 18, "ports": 8}


def run_of(**parts: Any) -> Run:
    start = {"groups": ["odd", {"nodes": "gpu[01-02]", **parts}]}
    events = a_run([passing("gpu01")], start=start)
    events[1]["places"] = [{"group": "gpu[01-02]", "nodes": ["gpu01", "gpu02"]}]
    return read_run(events)


def drawn(part: str, *, measured: str = "bad", suite: str = "gpu", cause: str = "", **parts: Any) -> str:
    found = Finding(part, measured, "good")
    return str(html_node.picture(run_of(**(EIGHT | parts)), ["gpu01"], [(suite, cause, found)]))


def marked(picture: str) -> list[str]:
    """Return the name of each marked part, from the words for readers who do not see the picture."""
    label = re.findall(r'aria-label="([^"]*)"', picture)[0].replace("&#34;", '"')
    return [one for one in label.partition("; bad: ")[2].split(", ") if one]


@pytest.mark.parametrize(
    ("part", "options", "bad"),
    [
        ("GPU 4 (GPU-c12b, 0000:9d:00.0)", {}, ["GPU 4"]),
        ("GPU 4 (GPU-c12b, 0000:9d:00.0) NVLink 17", {}, ["GPU 4 NVLink 17"]),
        (
            "GPU 4",
            {"measured": "16 active links (inactive: link 3, 7)"},
            [f"GPU 4 NVLink {n}" for n in (3, 7)],
        ),
        ("GPU 1 to GPU 3", {}, ["GPU 1", "GPU 3"]),
        ("gpu01 GPU 3 or its adapter", {}, ["GPU 3"]),
        ("mlx5_2 port 1 (0:4f), rail of GPU 2 (0:52)", {"suite": "fabric"}, ["mlx5_2 port 1"]),
        ("mlx5_2 port 1", {"suite": "fabric"}, ["mlx5_2 port 1"]),
        ("GPU 3 (0000:61:00.0)", {"suite": "fabric"}, ["adapter of GPU 3"]),
        ("GPUs", {"measured": "6"}, ["2 of the GPUs", "missing"]),
        ("GPUs", {"measured": "7", "cause": "GPU 3 (0000:61:00.0) missing: fell off"}, ["GPU 3", "missing"]),
        ("bank 7 (kernel log: mce)", {"suite": "os"}, ["bank 7"]),
        ("gpu01", {"suite": "nccl"}, [html_node.NODE]),
        ("GPU 9", {}, ["GPU 9"]),  # the profile states no such GPU: it is among the others
        ("GPU 4 NVLink 18", {}, ["GPU 4"]),
        ("mlx5_2 port 1", {"suite": "fabric", "ports": 0}, ["mlx5_2 port 1"]),
    ],
)
def test_the_part_that_a_finding_names_is_marked(part: str, options: dict[str, Any], bad: list[str]) -> None:
    picture = drawn(part, **options)
    ET.fromstring(picture)
    assert marked(picture) == bad
    assert picture.count('class="cross"') + picture.count("tick bad") == max(
        1, len(bad) - bad.count("missing") + (options.get("measured") == "6")
    )  # a shape beside the colour
    assert f"{part}: " in picture or "missing</title>" in picture


def test_without_known_parts_there_is_no_picture() -> None:
    assert drawn("GPU 4", gpus=0) == ""
    assert drawn("GPU 4", gpus="x") == ""
    finding = [("gpu", "", Finding("GPU 4", "bad", "good"))]
    assert html_node.picture(read_run(a_run([failing("gpu01")])), ["gpu01"], finding) == ""
    assert html_node.picture(run_of(**EIGHT), ["(cluster)"], finding) == ""
    assert html_node.picture(run_of(**EIGHT), ["gpu01", "(cluster)"], finding) == ""  # not of one kind


def test_other_parts_are_listed_or_counted() -> None:
    paths = [("os", "", Finding(f"/a/path/number/{n}", "bad", "good")) for n in range(4)]
    picture = html_node.picture(run_of(**EIGHT), ["gpu01"], paths)
    assert ">/a/path/number/0, /a/path/number/1 and 2 more</text>" in picture
    assert ">1 other part</text>" in drawn("x" * 70, suite="os")
    hostile = drawn('"><script>', suite="os")
    assert "<script" not in hostile
    ET.fromstring(hostile)
