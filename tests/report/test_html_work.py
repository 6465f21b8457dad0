"""What to do in the HTML report: a card for each bad node, the hardest first; no card merges different causes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from report.test_html import page_of
from report_helpers import a_run, failing, passing, unjudged

from pytest_gpucluster.core.part import gpu, nvlink
from pytest_gpucluster.report.history.regression import ShownComparison
from pytest_gpucluster.report.machine.events import read_run
from pytest_gpucluster.report.page import html_work
from pytest_gpucluster.report.verdict import ordered

if TYPE_CHECKING:
    import pytest

NODES = ("gpu01", "gpu02", "gpu03", "gpu04")


def work(
    results: list[dict[str, Any]], comparison: ShownComparison | None = None, *, places: bool = False
) -> dict[str, Any]:
    events = a_run(results, nodes=NODES)
    events[1] |= {"places": [{"group": "g", "nodes": list(NODES)}]} if places else {}
    run = read_run(events)
    return html_work.work(run, {id(group): group.check for group in ordered(run)}, comparison)


def nodes_of_cards(results: list[dict[str, Any]]) -> list[list[str]]:
    return [card["nodes"] for card in work(results)["cards"]]


def cards(found: dict[str, Any]) -> list[tuple[list[str], str, list[str]]]:
    return [(it["nodes"], it["action"], [one["check"] for one in it["failures"]]) for it in found["cards"]]


def test_each_node_has_a_card_the_hardest_first() -> None:
    results = [
        failing("gpu01", check="gpu.a", action="monitor"),
        failing("gpu01", check="gpu.b", action="return to vendor"),
        failing("gpu02", check="gpu.a", action="monitor"),
        failing("gpu03", check="gpu.c", action="burn"),
        failing("gpu04", check="gpu.a", outcome="error", findings=[]),
        failing("gpu01", check="gpu.d", outcome="error", findings=[]),
    ]
    assert cards(work(results)) == [
        (["gpu01"], "return to vendor", ["gpu.b", "gpu.a", "gpu.d"]),
        (["gpu02"], "monitor", ["gpu.a"]),
        (["gpu03"], "monitor", ["gpu.c"]),
        (["gpu04"], html_work.INSPECT, ["gpu.a"]),
    ]


def test_a_node_that_was_not_tested_has_no_picture_of_whole_gpus() -> None:
    found = [failing("gpu01", check="gpu.a"), failing("gpu02", check="run.available", outcome="error", findings=[])]
    start = {"groups": [{"nodes": "g", "gpus": 8}]}
    events = a_run(found, nodes=NODES[:2], not_tested={"gpu02": ["unavailable", "DRAINED"]}, start=start)
    events[1]["places"] = [{"group": "g", "nodes": list(NODES)}]
    run = read_run(events)
    drawn = html_work.work(run, {id(group): group.check for group in ordered(run)})["cards"]
    assert [bool(card["picture"]) for card in drawn] == [True, False]


def test_only_nodes_with_the_same_findings_share_a_card() -> None:
    results = [*(failing(node) for node in NODES[:3]), failing("gpu04", cause="another cause")]
    assert nodes_of_cards(results) == [[*NODES[:3]], ["gpu04"]]
    results[1] = failing("gpu02", part=gpu(5, uuid="GPU-x"))
    assert nodes_of_cards(results) == [["gpu01", "gpu03"], ["gpu02"], ["gpu04"]]
    results[2] = failing("gpu03", check="gpu.other")
    assert nodes_of_cards(results) == [["gpu01"], ["gpu02"], ["gpu04"], ["gpu03"]]
    links = [failing(node, part=nvlink(link, gpu(4, uuid="x"))) for node, link in (("gpu01", 7), ("gpu02", 9))]
    found = [str(card["failures"][0]["findings"][0][0]) for card in work(links)["cards"]]
    assert found == ["GPU 4 (x) NVLink 7", "GPU 4 (x) NVLink 9"]  # of one GPU, and yet different parts


def test_a_finding_of_the_cluster_has_a_card_of_its_own() -> None:
    noexec = [
        {
            "code": "noexec",
            "part": {"kind": "mount", "name": "/tmp"},
            "measured": "noexec",
            "expected": "programs can be run",
        }
    ]
    results = [*(failing(node, check="os.tmp", findings=noexec) for node in NODES), failing("gpu02")]
    found = work(results, places=True)
    assert cards(found) == [(["gpu02"], "drain", ["gpu.nvlink_state"]), ([*NODES], "configure", ["os.tmp"])]
    assert [bool(card["common"]) for card in found["cards"]] == [False, True]


def test_what_to_do_names_the_nodes_and_parts_of_the_card() -> None:
    hint = "nvidia-smi -q -i INDEX; scontrol show node NODE"
    results = [failing("gpu01", hint=hint), failing("gpu02", hint=hint, part=gpu(6, uuid="x"))]
    found = [card["failures"][0]["to_do"] for card in work(results)["cards"]]
    assert found == [f"nvidia-smi -q -i {gpu}; scontrol show node gpu0{n}" for gpu, n in ((4, 1), (6, 2))]
    text = page_of(a_run([failing("gpu01", annotation={"state": "IDLE+DRAIN"})])).text
    section = text[text.index("What to do") : text.index("Map:")]
    assert "GPU 4 (GPU-c12b, 0000:9d:00.0) : 17 active links expected 18" in section
    for shown in ("Cause an NVLink is down", "To do reseat the GPU", "Slurm: IDLE+DRAIN"):
        assert shown in section
    assert "What to do" not in page_of(a_run([passing("gpu01"), unjudged("gpu02", "not checked")])).text


def test_nodes_beyond_the_limit_are_rows_of_their_hardest_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_work, "MAX_CARDS", 1)
    results = [failing(node, part=gpu(n)) for n, node in enumerate(NODES)]
    results.append(failing("gpu04", check="gpu.mild", action="reboot"))
    found = work([*results, failing("gpu03", check="gpu.mild", action="monitor")])
    assert cards(found) == [(["gpu01"], "drain", ["gpu.nvlink_state"])]
    rest = [(row["action"], row["group"].check, row["nodes"]) for row in found["rest"]]
    assert rest == [("drain", "gpu.nvlink_state", ["gpu02", "gpu03", "gpu04"])]
    assert found["carded"] == set()  # on paper all failures are sections
