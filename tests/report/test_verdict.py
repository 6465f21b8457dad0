"""The verdict and the counts of nodes: each selected node is in one state, and all outputs have the same numbers."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from report_helpers import a_run, event, failing, passing, result, unjudged

from pytest_gpucluster.report.history.run_snapshot import recorded
from pytest_gpucluster.report.machine import junit, prom
from pytest_gpucluster.report.machine.events import read_run
from pytest_gpucluster.report.page import html
from pytest_gpucluster.report.proof import NODE_STATES, Required, write_required
from pytest_gpucluster.report.run_model import Run
from pytest_gpucluster.report.terminal.last_screen import closing, counts
from pytest_gpucluster.report.verdict import judge

NODES = [f"gpu{number:02}" for number in range(1, 9)]
OUTCOMES = ("passed", "failed", "error", "not checked", "not applicable", "skipped", "waived", "not tested")


def selection(rows: list[Required], nodes: list[str]) -> dict[str, Any]:
    return event("selection", nodes=nodes, **write_required(rows))


def proof(check: str, *nodes: str, items: int = 1, whole: bool = False) -> Required:
    return Required(check.partition(".")[0], check, items, nodes, whole=whole)


def run_of(ends: list[dict[str, Any]], rows: list[Required], nodes: list[str], finish: int = 0) -> Run:
    """Return a run that had to prove these rows on these nodes."""
    start, chosen, *others = a_run(ends, nodes=nodes, finish=finish)
    return read_run([start, chosen, selection(rows, nodes), *others])


def test_every_selected_node_is_counted_once() -> None:
    results = [
        *(passing("gpu01"), failing("gpu02"), passing("gpu06"), unjudged("gpu07", "not checked")),
        unjudged("gpu03", "not tested"),  # drained, and that failed a check
        failing("gpu03", check="slurm.schedulable"),
        unjudged("gpu04", "not tested"),
        failing("gpu05", outcome="error"),
    ]  # gpu08 has no result
    drained = {node: ["unavailable", "DRAINED"] for node in ("gpu03", "gpu04", "gpu99")}
    events = a_run(results, nodes=NODES, not_tested=drained, finish=1)
    run = read_run([*events, event("lost", node="gpu06", why="gone")])
    states = ["fit", "failed", "failed", "not tested", *["not proved"] * 3, "not tested"]
    assert dict(run.proofs.nodes) == dict(zip(NODES, states, strict=True))
    assert counts(run) == "8 nodes: 1 fit, 2 failed, 3 not proved, 2 not tested"


def test_a_proof_without_a_result_is_not_proved() -> None:
    both = ["gpu01", "gpu02"]
    rows = [proof("nccl.alone", *both), proof("nccl.whole", *both, whole=True)]
    ends = [passing("gpu01", check="nccl.alone"), unjudged("gpu02", "not checked", check="nccl.alone")]
    run = run_of([*ends, passing("", check="nccl.whole")], rows, both)
    assert run.proofs.nodes == {"gpu01": "fit", "gpu02": "not proved"}
    assert run.proofs.unproved["nccl", "gpu02"].reasons == ["because"]
    assert judge(run).outcome == "unproved"
    assert (run.state("gpu01", "nccl"), run.state("gpu02", "nccl")) == ("passed", "not proved")
    # an interrupted run has no fit node where a proof is missing
    rows = [proof("burnin.matmul", *both), proof("burnin.survived", *both)]
    stopped = run_of([passing(node, check="burnin.survived") for node in both], rows, both, finish=2)
    assert stopped.proofs.counts == {"fit": 0, "failed": 0, "not proved": 2, "not tested": 0}


def test_the_state_of_a_node_by_its_proof() -> None:
    for outcomes, state in (
        ("passed", "fit"),
        ("failed", "failed"),
        ("not applicable", "not tested"),  # the hardware lacks it: nothing is proved, nothing is missing
        ("skipped", "not proved"),
        ("waived", "fit"),
        ("", "not tested"),
        ("passed, not checked", "not proved"),
    ):
        ends = [result("gpu01", outcome, check="gpu.count") for outcome in outcomes.split(", ") if outcome]
        rows = [proof("gpu.count", "gpu01", items=max(1, len(ends)))]
        assert run_of(ends, rows, ["gpu01"]).proofs.nodes == {"gpu01": state}


def test_what_is_no_proof_and_was_not_judged_changes_nothing() -> None:
    ends = [passing("gpu01", check="gpu.count"), unjudged("gpu01", "not checked", check="gpu.vbios")]
    run = run_of(ends, [proof("gpu.count", "gpu01")], ["gpu01"])
    judged = judge(run)
    assert (judged.outcome, judged.nodes) == ("accepted", "1 of 1 node")
    assert judged.unjudged == ("1 check not checked: gpu.vbios",)
    assert run.state("gpu01") == run.state("gpu01", "gpu") == "passed"  # not grey in the map


def test_any_result_proves_a_test_of_the_site() -> None:
    skipped = unjudged("gpu01", "skipped", check="own.y")
    rows = [Required("own", "", 1, ("gpu01",))]
    for ends, state in (([passing("gpu01", check="own.x"), skipped], "fit"), ([skipped], "not tested")):
        assert run_of(ends, rows, ["gpu01"]).proofs.nodes == {"gpu01": state}


def test_a_proof_of_the_cluster_without_a_result_accepts_no_node() -> None:
    ping = unjudged("", "not checked", check="controller.ping")
    rows = [proof("controller.ping", "", whole=True), proof("gpu.count", "gpu01")]
    run = run_of([ping, passing("gpu01", check="gpu.count")], rows, ["gpu01"])
    assert (run.proofs.nodes, judge(run).outcome) == ({"gpu01": "fit"}, "unproved")
    assert judge(run).sentences[0] == "Nothing failed, but controller did not prove all selected nodes."
    nothing = judge(read_run(a_run([unjudged("", "not applicable", check="controller.ping")], nodes=[])))
    assert nothing.outcome == "unproved"
    assert nothing.sentences[0] == "No check was executed: this run says nothing about the cluster."


def test_a_suite_that_judged_nothing_is_named_where_the_rest_is_accepted() -> None:
    ends = [passing("gpu01", check="os.drift"), unjudged("gpu01", "not applicable", check="gpu.count")]
    ends.append(unjudged("gpu01", "not checked", check="fabric.peer_memory"))
    judged = judge(read_run(a_run(ends, nodes=["gpu01"])))
    assert judged.outcome == "accepted"
    assert judged.sentences[0] == "All that applies is proved; nothing was judged of fabric, gpu."


def test_nodes_that_no_selected_item_concerns_do_not_count() -> None:
    events = a_run([passing("gpu02", check="gpu.count")], not_tested={"gpu01": ["unavailable", "DRAINED"]})
    run = read_run([*events[:2], selection([proof("gpu.count", "gpu02")], ["gpu02"]), *events[2:]])
    assert (judge(run).outcome, judge(run).nodes, run.untested) == ("accepted", "1 of 1 node", {})


def test_busy_nodes_are_named_in_the_verdict() -> None:
    ends = [passing("gpu01"), unjudged("gpu02", "not tested")]
    first, second, *_ = closing(read_run(a_run(ends, not_tested={"gpu02": ["busy", "b"]})), 200)
    assert first == "ACCEPTED: 1 of 2 nodes (1 busy). All that was selected is proved."
    assert second == "2 nodes: 1 fit, 0 failed, 0 not proved, 1 not tested"


CHECKS = ("gpu.count", "gpu.vbios", "nccl.alone", "os.drift")


@st.composite
def random_runs(draw: st.DrawFn) -> Run:
    """Any selection, any results, also of a run that was stopped or killed, or whose nodes were busy, drained or lost."""
    nodes = draw(st.lists(st.sampled_from(NODES), min_size=1, unique=True))
    of_node, kinds = st.sampled_from(nodes), st.sampled_from(("busy", "unavailable", "lost"))
    some = st.lists(of_node, unique=True)
    not_tested = {node: [draw(kinds), "why"] for node in draw(st.sets(of_node))}
    rows = [
        proof(check, *draw(some), items=draw(st.integers(1, 2)), whole=draw(st.booleans()))
        for check in draw(st.sets(st.sampled_from(CHECKS)))
    ]
    item = st.tuples(st.sampled_from([*nodes, ""]), st.sampled_from(OUTCOMES), st.sampled_from(CHECKS))
    ends = [
        result(node, outcome, check=check, message="m") for node, outcome, check in draw(st.lists(item, max_size=20))
    ]
    lost = [event("lost", node=node, why="gone") for node in draw(st.sets(of_node, max_size=2))]
    finish = draw(st.sampled_from((0, 1, 2, None)))
    start, chosen, *others = a_run([*ends, *lost], nodes=nodes, not_tested=not_tested, finish=finish)
    selected = [selection(rows, draw(some))] if draw(st.booleans()) else []
    return read_run([start, chosen, *selected, *others])


@settings(deadline=None, max_examples=25)
@given(random_runs())
def test_the_numbers_add_up_and_are_the_same_in_all_outputs(run: Run) -> None:
    expected = run.proofs.counts
    assert tuple(expected) == NODE_STATES
    assert sum(expected.values()) == len(run.selected)
    judged, line = judge(run), counts(run)
    assert [int(number) for number in re.findall(r"(\d+) (?:fit|failed|not proved|not tested)", line)] == [
        *expected.values()
    ]
    assert line.startswith(f"{len(run.selected)} node")
    text = html.render(run)
    at = text.index('<ul class="figures">')
    shown = re.findall(r"<li><b>(?:<svg.*?</svg>)?([\d,]+)</b>([^<]+)</li>", text[at : text.index("</ul>", at)])
    assert [int(number) for number, _ in shown[:5]] == [len(run.selected), *expected.values()]
    suite = ET.fromstring(b"".join(junit.pieces(run))).find("testsuite")
    assert suite is not None
    properties = {it.get("name"): it.get("value") for it in suite.iter("property")}
    assert {state: properties[f"nodes {state}"] for state in NODE_STATES} == {
        state: str(number) for state, number in expected.items()
    }
    assert properties["verdict"] == judged.title
    families = {it.name: it.samples for it in text_string_to_metric_families(prom.render(run))}
    assert {it.labels["state"]: it.value for it in families["gpucluster_nodes"]} == expected
    fit = {it.labels["node"] for it in families.get("gpucluster_node_fit", ()) if it.value}
    assert fit == set(run.proofs.of("fit")) == recorded(run).fit
    if judged.outcome in ("accepted", "waived"):
        assert run.exit == 0
        assert not expected["failed"]
        assert not run.proofs.unproved
        assert not run.totals["error"]
        assert f"{expected['fit']} of {len(run.selected)}" in judged.nodes or not run.selected
