"""The picture of a node: as many parts as the run knows, and those marked that findings name."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from report_helpers import a_run, failing, passing

from pytest_gpucluster.core.finding import Finding, Measure, Quantity
from pytest_gpucluster.core.part import GPUS, Part, gpu, named, nvlink, port
from pytest_gpucluster.report.machine.events import read_run
from pytest_gpucluster.report.page import html_node
from pytest_gpucluster.report.run_model import Run

FOUR = gpu(4, uuid="GPU-c12b", address="0000:9d:00.0")
EIGHT = {"gpus": 8, "nvlinks": 18, "ports": 8}


def run_of(**parts: Any) -> Run:
    start = {"groups": ["odd", {"nodes": "gpu[01-02]", **parts}]}
    events = a_run([passing("gpu01")], start=start)
    events[1]["places"] = [{"group": "gpu[01-02]", "nodes": ["gpu01", "gpu02"]}]
    return read_run(events)


def drawn(part: Part, *, measured: Measure = "bad", suite: str = "gpu", code: str = "", **parts: Any) -> str:
    found = Finding(part, measured, "good", code=code)
    return str(html_node.picture(run_of(**(EIGHT | parts)), ["gpu01"], [(suite, found)]))


def marked(picture: str) -> list[str]:
    """Return the name of each marked part, from the words for readers who do not see the picture."""
    label = re.findall(r'aria-label="([^"]*)"', picture)[0].replace("&#34;", '"')
    return [one for one in label.partition("; bad: ")[2].split(", ") if one]


@pytest.mark.parametrize(
    ("part", "options", "bad"),
    [
        (FOUR, {}, ["GPU 4"]),
        (nvlink(17, FOUR), {}, ["GPU 4 NVLink 17"]),
        (port("mlx5_2", 1, address="0:4f", of=gpu(2)), {"suite": "fabric"}, ["mlx5_2 port 1"]),
        (port("mlx5_2", 1), {"suite": "fabric"}, ["mlx5_2 port 1"]),
        (Part("module", serial="MT6A", of=port("mlx5_2", 1)), {"suite": "ibfabric"}, ["mlx5_2 port 1"]),
        (gpu(3, address="0000:61:00.0"), {"suite": "fabric"}, ["adapter of GPU 3"]),
        (GPUS, {"measured": Quantity(6)}, ["2 of the GPUs", "missing"]),
        (gpu(3), {"code": "absent"}, ["GPU 3", "GPU 3", "missing"]),
        (named("file", "bank 7"), {"suite": "os"}, ["bank 7"]),
        (Part("node", name="gpu01"), {"suite": "nccl"}, [html_node.NODE]),
        (gpu(9), {}, ["GPU 9"]),  # the profile states no such GPU: it is among the others
        (nvlink(18, FOUR), {}, ["GPU 4"]),
        (port("mlx5_2", 1), {"suite": "fabric", "ports": 0}, ["mlx5_2 port 1"]),
    ],
)
def test_the_part_that_a_finding_names_is_marked(part: Part, options: dict[str, Any], bad: list[str]) -> None:
    picture = drawn(part, **options)
    ET.fromstring(picture)
    assert marked(picture) == bad
    assert 'class="cross"' in picture or "tick bad" in picture  # a shape beside the colour
    assert f"{part}: " in picture or "missing</title>" in picture


def test_without_known_parts_there_is_no_picture() -> None:
    assert drawn(FOUR, gpus=0) == ""
    assert drawn(FOUR, gpus="x") == ""
    finding = [("gpu", Finding(FOUR, "bad", "good"))]
    assert html_node.picture(read_run(a_run([failing("gpu01")])), ["gpu01"], finding) == ""
    assert html_node.picture(run_of(**EIGHT), ["(cluster)"], finding) == ""
    assert html_node.picture(run_of(**EIGHT), ["gpu01", "(cluster)"], finding) == ""  # not of one kind


def test_other_parts_are_listed_or_counted() -> None:
    paths = [("os", Finding(f"/a/path/number/{n}", "bad", "good")) for n in range(4)]
    picture = html_node.picture(run_of(**EIGHT), ["gpu01"], paths)
    assert ">/a/path/number/0, /a/path/number/1 and 2 more</text>" in picture
    assert ">1 other part</text>" in drawn(named("file", "x" * 70), suite="os")
    hostile = drawn(named("file", '"><script>'), suite="os")
    assert "<script" not in hostile
    ET.fromstring(hostile)
