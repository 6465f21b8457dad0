"""The picture of the fabric: slow links are named by both ends, leaves are Slurm's, nothing else is drawn."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

from report.test_html import page_of
from report_helpers import a_run, failing, passing

from pytest_gpucluster.core.part import Part, pair
from pytest_gpucluster.report.machine.events import read_run
from pytest_gpucluster.report.page import html_fabric
from pytest_gpucluster.report.verdict import ordered

DASH = "\N{EN DASH}"


def a_fabric(*parts: Part, leaves: int = 3, nodes: int = 4, known: bool = True) -> list[dict[str, Any]]:
    names = [f"gpu{n:03}" for n in range(1, leaves * nodes + 1)]
    found = [{"part": part.as_dict(), "measured": f"{n} GB/s", "expected": "as fast"} for n, part in enumerate(parts)]
    results = [passing(names[0]), *([failing("", check="nccl.links", findings=found)] if parts else [])]
    events = a_run(results, nodes=names)
    events[1]["places"] = [
        {"switch": f"leaf{leaf}" * known, "nodes": names[leaf * nodes : (leaf + 1) * nodes]} for leaf in range(leaves)
    ]
    return events


def drawn(events: list[dict[str, Any]]) -> dict[str, Any]:
    run = read_run(events)
    found = html_fabric.fabric(run, {id(group): "g1" for group in ordered(run)})
    assert found is not None
    if found["picture"]:
        ET.fromstring(found["picture"])
    return found


def test_a_slow_link_is_drawn_and_named_by_both_ends() -> None:
    found = drawn(a_fabric(pair("gpu001", "gpu007")))
    (row,) = found["rows"]
    where = f"gpu001 {DASH} gpu007"
    assert row == {"number": 1, "kind": "slow link", "where": where, "measured": "0 GB/s", "anchor": "g1"}
    picture = found["picture"]
    assert picture.count('class="link"') == 1
    assert "<title>gpu001 - gpu007: 0 GB/s</title>" in picture
    assert re.findall(r'class="part bad" d="[^"]*"><title>(\w+)', picture) == ["gpu001", "gpu007"]
    assert (picture.count("<rect"), found["others"]) == (2, 1)  # the third leaf has no finding
    # without Slurm's topology the ends alone are drawn
    found = drawn(a_fabric(pair("gpu001", "gpu007"), known=False))
    assert f">{html_fabric.UNKNOWN} (gpu[001,007])</text>" in found["picture"]
    assert (found["picture"].count("<title>gpu0"), found["others"]) == (3, 0)


def test_a_slow_leaf_and_what_is_undecided() -> None:
    found = drawn(
        a_fabric(
            Part("leaf", name="leaf1"), Part("group", name="gpu[009-010]", nodes=("gpu009", "gpu010")), Part(name="odd")
        )
    )
    assert [(row["kind"], row["where"]) for row in found["rows"]] == [
        ("slow leaf switch", "leaf1"),
        ("one of", "gpu[009-010]"),
    ]
    assert ">leaf1: slow (gpu005 to gpu008)</text>" in found["picture"]
    assert 'class="link"' not in found["picture"]
    assert re.findall(r'class="part bad" d="[^"]*"><title>(\w+)', found["picture"]) == ["gpu009", "gpu010"]


def test_nothing_is_drawn_where_nothing_is_named() -> None:
    for events in (
        a_fabric(),
        a_fabric(Part(name="odd")),
        a_run([failing("", check="nccl.whole", part=pair("a", "b"))]),
    ):
        assert html_fabric.fabric(read_run(events), {id(g): "g" for g in ordered(read_run(events))}) is None
    assert "Between nodes" not in page_of(a_fabric()).text
