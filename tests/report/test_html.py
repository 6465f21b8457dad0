"""The HTML report: what it says of a run, and that nothing which a node sends can change the page."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import DATA
from report_helpers import a_run, event, failing, passing, result, unjudged

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.finding import Metric
from pytest_gpucluster.core.sanitize import printable, shorten
from pytest_gpucluster.report import html, svg
from pytest_gpucluster.report.events import read_events, read_log
from pytest_gpucluster.report.regression import Compared, ShownComparison
from pytest_gpucluster.report.run_model import read_run

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

RECORDED = DATA / "h200x4-slurm" / "nccl-hostid-events.jsonl"
VOID = {"meta", "link", "br", "input", "hr", "img"}
OPTIONAL_END = {"tr", "td", "th", "p", "li", "dt", "dd"}


class Page(HTMLParser):
    """The text, elements and attributes of a page, as a browser's parser sees them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self._silent = 0
        self.feed(page)
        self.close()
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self._silent += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.words.append(data)

    def of(self, tag: str, kind: str | None = None) -> list[dict[str, str]]:
        """Return the attributes of all elements of a tag (and class)."""
        found = [attributes for name, attributes in self.elements if name == tag]
        return [one for one in found if kind is None or kind in one.get("class", "").split()]

    @property
    def verdict(self) -> str:
        (heading,) = (one for one in self.of("h1") if one.get("id") == "verdict")
        return heading["data-verdict"]


def page_of(events: Iterable[dict[str, Any]], **options: Any) -> Page:
    return Page(html.render(read_run(events), **options))


# --- the verdict


@pytest.mark.parametrize(
    ("results", "options", "kind", "part"),
    [
        ([passing("gpu01"), passing("gpu02")], {}, "accepted", "All that was selected is proved."),
        ([passing("gpu01"), failing("gpu02")], {}, "rejected", "1 of 2 nodes failed at least one check."),
        ([passing("gpu01"), failing("")], {}, "rejected", "A check of the whole cluster failed."),
        (
            [passing("gpu01")],
            {"not_tested": {"gpu02": ["busy", "ALLOCATED"]}},
            "accepted",
            "1 of 2 nodes (1 busy)",
        ),
        ([passing("gpu01"), unjudged("gpu02", "not checked")], {}, "unproved", "1 check not checked"),
        ([passing("gpu01")], {}, "unproved", "Without any result: gpu02"),
        ([passing("gpu01"), passing("gpu02")], {"finish": None}, "unproved", "The run did not end"),
        ([failing("gpu01")], {"finish": None}, "rejected", "The run did not end"),
        ([passing("gpu01"), passing("gpu02")], {"finish": 2}, "unproved", "stopped before its end"),
        ([passing("gpu01"), passing("gpu02")], {"finish": 1}, "unproved", "ended with status 1"),
        ([passing("gpu01"), failing("gpu02", outcome="error")], {"finish": 1}, "unproved", "see the errors"),
        ([unjudged("gpu01", "not tested")], {}, "unproved", "No check was executed"),
        ([], {}, "unproved", "No check was executed"),
    ],
)
def test_the_verdict(results: list[Any], options: dict[str, Any], kind: str, part: str) -> None:
    page = page_of(a_run(results, **options))
    assert page.verdict == kind
    assert part in page.text


def test_an_empty_log_accepts_nothing() -> None:
    assert page_of([]).verdict == "unproved"


def test_complaints_of_a_run_without_failures_are_shown() -> None:
    run = [
        *a_run([passing("gpu01"), passing("gpu02")], finish=None),
        event("finish", exit=1, complaints=["gpu02 was lost"]),
    ]
    page = page_of(run)
    assert page.verdict == "unproved"
    assert "Failures and errors gpu02 was lost" in page.text


def test_counts_of_nodes_stand_first() -> None:
    results = [passing("gpu01"), failing("gpu02"), unjudged("gpu03", "not tested")]
    drained = {"gpu03": ["unavailable", 'DRAINED: "bad cable" by root since 2026-11-20T10:00:00']}
    run = a_run(results, nodes=("gpu01", "gpu02", "gpu03"), not_tested=drained)
    assert read_run(run).proofs.nodes == {"gpu01": "fit", "gpu02": "failed", "gpu03": "not tested"}
    text = page_of(run).text
    assert (
        "3 nodes selected 1 fit 1 failed a check 0 not proved 1 not tested 2 checks judged 1 of them failed"
        in text
    )
    assert text.index("Not accepted") < text.index("Acceptance record") < text.index("Map: nodes by suites")


def test_the_record_lists_what_was_accepted_and_can_be_signed() -> None:
    groups = [
        {"nodes": "gpu[01-02]", "profile": "dgx-h100", "description": "8 H100", "source": "vendor's sheet"}
    ]
    start = {"user": "ops", "host": "login1", "groups": groups, "scope": {"-m": "gpu or os"}}
    start |= {"not_applicable": {"fabric.*": "no InfiniBand"}, "versions": {"pytest-gpucluster": "1.2.3"}}
    page = page_of(a_run([passing("gpu01"), passing("gpu02")], start=start))
    record = page.text[page.text.index("Acceptance record") :]
    for part in (
        "Cluster prod",
        "2026-11-2",
        "by ops@login1",
        "2 nodes: gpu[01-02]",
        "suites: gpu narrowed by: -m 'gpu or os'",
        "dgx-h100 , 8 H100 (figures: vendor's sheet)",
        "not applicable by the cluster file: fabric.* (no InfiniBand)",
        "pytest-gpucluster 1.2.3",
        "Result Accepted: 2 of 2 nodes.",
        "Waivers none used",
        "For the operator: name, signature",
        "For the supplier: name, signature",
    ):
        assert part in record, part


@pytest.mark.parametrize("simulated", [True, False])
def test_a_simulated_run_is_marked(simulated: bool) -> None:  # a table of two
    page = page_of(a_run([passing("gpu01"), passing("gpu02")], start={"simulated": simulated}))
    assert ("SIMULATED" in page.text) is simulated


# --- failures


def test_a_failure_has_all_its_details() -> None:
    slurm = ["Slurm state: IDLE+DRAIN", 'reason: "bad cable" by root since 2026-11-20T10:00:00']
    more = ["reproduce:    srun -w gpu02 nvidia-smi", "rerun:        pytest --cluster=prod 'x[gpu02]'"]
    one = failing(
        "gpu02", annotation=[*slurm, *more], text="the whole log", logs=["steps/0001-gpu.count.log"]
    )
    page = page_of(a_run([passing("gpu01"), one]))
    for part in (
        "gpu.nvlink_state failed on gpu02 action: drain",
        "GPU 4 (GPU-c12b, 0000:9d:00.0) 17 active links 18 gpu02",
        "likely cause an NVLink is down",
        "what to do reseat the GPU",
        'Slurm says IDLE+DRAIN; reason: "bad cable" by root since 2026-11-20T10:00:00',
        "reproduce srun -w gpu02 nvidia-smi",
        "rerun pytest --cluster=prod 'x[gpu02]'",
        "the whole log",
    ):
        assert part in page.text, part
    assert {"href": "steps/0001-gpu.count.log"} in page.of("a")


def test_a_thousand_nodes_that_fail_alike_are_one_group() -> None:
    nodes = [f"gpu{number:04}" for number in range(1, 1001)]
    results = [failing(node, part=f"GPU 4 (GPU-{node}, 0000:9d:00.0)") for node in nodes]
    page = page_of(a_run(results, nodes=nodes))
    assert len(page.of("article", "fail")) == 1
    assert "failed on 1,000 nodes: gpu[0001-1000]" in page.text
    assert (
        "GPU 4 17 active links 18 1,000 nodes: gpu[0001-1000]" in page.text
    )  # one row; the UUIDs are each node's own


def test_failures_that_differ_stand_apart() -> None:
    results = [
        failing("gpu01"),
        failing("gpu02", check="gpu.count"),
        failing("gpu03", cause="another cause"),
        failing("gpu04", outcome="error", findings=[], message="gpu04 did not answer in 30 s"),
        failing("gpu05", outcome="error", findings=[], message="gpu05 did not answer in 31 s"),
        failing("gpu06", measured="16 active links"),
    ]
    nodes = [f"gpu0{number}" for number in range(1, 7)]
    page = page_of(a_run(results, nodes=nodes))
    assert len(page.of("article", "fail")) == 4
    assert "gpu.nvlink_state error on 2 nodes: gpu[04-05]" in page.text
    assert "gpu.nvlink_state failed on 2 nodes: gpu[01,06]" in page.text


def test_errors_come_after_failures_and_hard_actions_first() -> None:
    results = [
        failing("gpu01", check="gpu.a", outcome="error", findings=[]),
        failing("gpu02", check="gpu.b", action="monitor"),
        failing("gpu03", check="gpu.c", action="return to vendor"),
    ]
    text = page_of(a_run(results, nodes=("gpu01", "gpu02", "gpu03"))).text
    found = re.findall(r"gpu\.[abc] (?:failed|error) on", text)
    assert found == ["gpu.c failed on", "gpu.b failed on", "gpu.a error on"]


def test_a_node_stands_under_its_hardest_action() -> None:
    results = [
        failing("gpu01", check="gpu.a", action="monitor"),
        failing("gpu01", check="gpu.b", action="reboot"),
    ]
    work = page_of(a_run(results)).text
    work = work[work.index("What to do") : work.index("Map:")]
    assert "gpu01 reboot gpu.b GPU 4" in work
    assert "gpu.a (monitor) GPU 4" in work
    assert work.count("gpu01") == 1


def test_a_pass_at_last_does_not_hide_the_first_failure() -> None:
    again = [
        failing(node, message=f"gpu.count on {node}: flaked") | {"event": "rerun"}
        for node in ("gpu01", "gpu02")
    ]
    page = page_of(a_run([*again, passing("gpu01"), passing("gpu02")]))
    assert page.verdict == "accepted"
    assert "1 check passed only when repeated: gpu.nvlink_state" in page.text
    assert "gpu.nvlink_state passed 2 nodes: gpu[01-02] gpu.count on gpu[01-02]: flaked" in page.text
    assert "Tried again" not in page_of(a_run([passing("gpu01")])).text


def test_what_was_not_tested_is_named_with_its_reason() -> None:
    drained = 'DRAINED: "bad cable" by root since 2026-11-20T10:00:00'
    results = [
        passing("gpu01"),
        unjudged("gpu01", "not checked", check="os.mce", message="not checked: kernel log: no permission"),
        unjudged("gpu01", "not applicable", check="gpu.mig", message="not applicable: no MIG here"),
    ]
    run = a_run(results, nodes=("gpu01", "gpu02", "gpu03"), not_tested={"gpu02": ["unavailable", drained]})
    run.insert(-1, event("lost", node="gpu03", why="the agent ended"))
    text = page_of(run).text
    gaps = text[text.index("What was not tested, and why") :]
    for part in (f"gpu02 {drained}", "gpu03 the agent ended", "os.mce gpu01 kernel log: no permission"):
        assert part in gaps
    assert "gpu.mig gpu01 no MIG here" in gaps


def test_a_cell_of_a_suite_that_is_proved_is_green_and_names_what_was_not_checked() -> None:
    run = read_run(a_run([passing("gpu01"), unjudged("gpu01", "not checked"), passing("gpu02")]))
    assert [run.state(node, "gpu") for node in ("gpu01", "gpu02", "gpu03")] == ["passed", "passed", ""]


# --- numbers


def test_the_node_that_is_slow_is_marked_in_the_curves() -> None:
    nodes = [f"gpu{number:02}" for number in range(1, 21)]
    sizes = {"all_reduce 1 MiB": 50, "all_reduce 1 GiB": 400, "all_reduce 4 GiB": 440}
    bound = {"name": "bound all_reduce 4 GiB alone", "value": 420, "unit": "GB/s", "device": "x"}
    results = []
    for node in nodes:
        share = 0.9 if node == "gpu07" else 1
        measured = [
            {"name": "busbw", "value": value * share, "unit": "GB/s", "device": size}
            for size, value in sizes.items()
        ]
        results.append(passing(node, suite="nccl", metrics=[*measured, bound]))
    page = html.render(read_run(a_run(results, nodes=nodes)))
    assert "Apart from the fleet: <strong>gpu07</strong> (90% of the median)" in page
    assert "gpu07: 396 GB/s at 4 GiB, below 420" in page
    assert len(Page(page).of("path", "mark")) == 1


def test_what_stands_apart_is_a_diamond_in_the_distribution() -> None:
    nodes = [f"gpu{number:02}" for number in range(1, 13)]
    results = [
        passing(
            node,
            metrics=[
                {
                    "name": "power",
                    "value": 200 if node == "gpu05" else 80 + i,
                    "unit": "W",
                    "device": "GPU 0 (x)",
                }
            ],
        )
        for i, node in enumerate(nodes)
    ]
    page = html.render(read_run(a_run(results, nodes=nodes)))
    assert "gpu05 GPU 0 (200)" in page
    picture = page[page.index('aria-label="power') :]
    assert picture[: picture.index("</svg>")].count('class="low"') == 1


def test_no_bar_of_a_histogram_reaches_over_the_bound() -> None:
    values = [191.3, *(460 + i / 2 for i in range(20))]
    picture = svg.histogram(values, [191.3], [449.3], unit="GB/s", title="busbw")
    spans = [
        tuple(map(float, one)) for one in re.findall(r"<title>\d+ from ([\d.]+) to ([\d.]+) GB/s", picture)
    ]
    counts = [int(one) for one in re.findall(r"<title>(\d+) from", picture)]
    assert sum(counts) == len(values)
    assert spans
    assert all(high <= 449.31 or low >= 449.29 for low, high in spans)
    assert picture.count("bar apart") == 1


def test_the_same_everywhere_and_once_are_no_distributions() -> None:
    same = [{"name": "gpu_count", "value": 8, "unit": "GPUs"}]
    once = [{"name": "job_start", "value": 3, "unit": "s"}]
    page = page_of(
        a_run([passing("gpu01", metrics=same), passing("gpu02", metrics=same), passing("", metrics=once)])
    )
    assert "gpu_count 8 GPUs 2" in page.text
    assert "job_start 3 s (cluster)" in page.text
    assert not page.of("path", "median")


def test_a_real_log_makes_a_report() -> None:
    page = page_of(read_events(RECORDED))
    assert page.verdict == "rejected"
    assert "nccl.whole_bandwidth failed on (cluster)" in page.text
    assert "all_reduce 1 GiB 7.22 GB/s at least 306.00 GB/s" in page.text
    assert "1 point below its bound." in page.text
    assert "SIMULATED" not in page.text


def test_every_picture_is_well_formed() -> None:
    nodes = [f"gpu{number:03}<&" for number in range(60)]
    text = html.render(
        read_run([*read_events(RECORDED), *a_run([failing(node) for node in nodes], nodes=nodes)])
    )
    pictures = re.findall(r"<svg .*?</svg>", text, re.DOTALL)
    assert len(pictures) > 5
    for picture in pictures:
        ET.fromstring(picture)


def test_each_state_has_a_shape_of_its_own() -> None:
    shapes = [
        svg.SHAPES[state][1]
        for state in ("passed", "failed", "error", "not tested", "not checked", "not applicable")
    ]
    assert all(one != other for one, other in itertools.combinations(shapes, 2))


# --- history, drain, tables


def test_the_slot_of_the_history() -> None:
    rows = (
        Compared(
            "gpu02",
            Metric("busbw", 440, "GB/s"),
            last_good=478,
            previous=477,
            fleet=476,
            worse=True,
            note="8% below",
        ),
        Compared("gpu01", Metric("busbw", 477, "GB/s"), last_good=478),
    )
    shown = ShownComparison("history.db", rows, last_good="2026-11-20 02:00", runs=5)
    page = page_of(a_run([passing("gpu01"), passing("gpu02")]), comparison=shown)
    assert "1 got worse since the last good run" in page.text
    assert "gpu02 busbw GB/s 440 478 -7.9% 477 476 8% below" in page.text
    assert "History" not in page_of(a_run([passing("gpu01")])).text


def test_drain_acts_are_shown_as_the_log_has_them() -> None:
    run = a_run([passing("gpu01")], nodes=("gpu01", "gpu02", "gpu03"))
    for node in ("gpu02", "gpu03"):
        run.append(
            event("drain_decision", node=node, decision="spare", why="over the budget", checks=["gpu.count"])
        )
    run.append(event("drain_over_budget", nodes=["gpu02", "gpu03"], budget="10%"))
    text = page_of(run).text
    assert (
        "drain_decision 2 nodes: gpu[02-03] decision: spare; why: over the budget; checks: gpu.count" in text
    )
    assert "drain_over_budget 2 nodes: gpu[02-03] budget: 10%" in text
    assert "More nodes failed than the budget allows to drain" in text


def test_one_act_keeps_its_command_and_many_share_it() -> None:
    acts = [event("node_intent", node=n, command=f"scontrol update NodeName={n}") for n in ("gpu01", "gpu02")]
    assert "gpu01 command: scontrol update NodeName=gpu01" in page_of(a_run([], nodes=()) + acts[:1]).text
    assert (
        "gpu[01-02] command: scontrol update NodeName=gpu[01-02]" in page_of(a_run([], nodes=()) + acts).text
    )


def test_a_failure_links_to_the_steps_of_its_check_or_suite() -> None:
    logs = {"nccl.pairs": "steps/0001-nccl.pairs.log", "nccl.whole": "steps/0002-nccl.whole.log"}
    ran = [passing("gpu01", check=check, logs=[log]) for check, log in logs.items()]
    own = page_of(a_run([*ran, failing("gpu02", check="nccl.pairs")]))
    assert [one["href"] for one in own.of("a") if one["href"].startswith("steps/")] == [
        "steps/0001-nccl.pairs.log"
    ]
    suite = page_of(a_run([*ran, failing("gpu02", check="nccl.outlier")]))
    assert [one["href"] for one in suite.of("a") if one["href"].startswith("steps/")] == list(logs.values())


def test_tables_of_suites_keep_rows_columns_and_notes() -> None:
    cells = [
        {
            "title": "matrix",
            "row": "srun",
            "column": "MPI",
            "text": "fails",
            "note": "no PMI",
            "place": [1, 0],
        },
        {"title": "matrix", "row": "mpirun", "column": "MPI", "text": "works", "note": "", "place": [0, 0]},
    ]
    assert "matrix MPI mpirun works srun fails no PMI" in page_of(a_run([passing("", cells=cells)])).text


def test_versions_of_the_nodes_are_folded() -> None:
    results = [
        passing(f"gpu0{n}", versions={"NVIDIA driver": "580.1" if n < 3 else "570.9"}) for n in (1, 2, 3)
    ]
    text = page_of(a_run(results, nodes=("gpu01", "gpu02", "gpu03"), start={"slurm": "23.11.4"})).text
    assert "NVIDIA driver 580.1 2 nodes: gpu[01-02] 570.9 gpu03" in text
    assert "Slurm 23.11.4" in text


# --- hostile text

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)> '\" \x1b[31mred\x1b[0m "
    "\x00\x07\x85\u202e\ud800 {{ 7*7 }} ]]>"
)


def hostile_run(text: str = HOSTILE) -> list[dict[str, Any]]:
    """Return a run that has the text in every place that a node, Slurm or a file can fill."""
    finding = {"part": text, "measured": text, "expected": text}
    metric = {"name": text, "value": 1.0, "unit": text, "device": text}
    curve = {"title": text, "points": [[1024, 1.0], [2048, 2.0]]}
    cell = {"title": text, "row": text, "column": text, "text": text, "note": text, "place": [0, 0]}
    busbw = {"name": "busbw", "value": 9.0, "unit": "GB/s", "device": "all_reduce 1 GiB"}
    red = failing(
        text, check=text, suite=text, findings=[finding], cause=text, hint=text, action=text, message=text, text=text,
        output=text, annotation=[f"Slurm state: {text}", f"by hand: {text}", f"again: {text}", text],
        logs=["javascript:alert(1)", "steps/../../etc/passwd", 'steps/x" onclick="a.log', text],
        metrics=[metric, busbw], curves=[curve], cells=[cell], versions={text: text},
    )  # fmt: skip
    start = {
        "cluster": text, "description": text, "user": text, "host": text, "slurm": text, "arguments": [text],
        "versions": {text: text}, "scope": {text: text}, "not_applicable": {text: text}, "slurmd": {text: [text]},
        "groups": [dict.fromkeys(("nodes", "profile", "description", "source", "partition"), text)],
    }  # fmt: skip
    skip = unjudged(text, "not checked", check=text, message=text)
    run = a_run(
        [red, skip, passing("gpu01")], nodes=(text, "gpu01"), not_tested={text: [text, text]}, start=start
    )
    return [
        *run,
        event("lost", node=text, why=text),
        event("error", message=text),
        event("drain_x", node=text, why=text),
    ]


def hostile_page() -> str:
    row = Compared(HOSTILE, Metric(HOSTILE, 1.0, HOSTILE, HOSTILE), last_good=2.0, worse=True, note=HOSTILE)
    shown = ShownComparison(
        HOSTILE, (row,), last_good=HOSTILE, previous=HOSTILE, fleet_is=HOSTILE, note=HOSTILE
    )
    return html.render(read_run(hostile_run()), comparison=shown)


def test_nothing_that_a_node_sends_becomes_markup() -> None:
    page = Page(hostile_page())
    assert len(page.of("script")) == 1
    assert not page.of("img")
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in ("href", "src"):
            address = attributes.get(name, "#")
            assert re.fullmatch(r"#\w*|data:,|events\.jsonl|steps/[\w-][\w.-]*\.log", address), address
    assert page.text.count("alert(1)") > 40  # it is shown, as text


def test_no_control_character_and_no_escape_sequence_is_left() -> None:
    page = hostile_page()
    assert not [char for char in page if not char.isprintable() and char not in "\n\t"]
    assert "[31m" not in page
    page.encode()


def test_a_log_of_invalid_utf8_is_read(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    lines = [json.dumps(one).encode() for one in a_run([failing("gpu01", message="caf@")])]
    log.write_bytes(b"\n".join(lines).replace(b"caf@", b"caf\xe9\xff") + b'\n{"event": "result", "cut')
    html.write(read_log(log), tmp_path / "report.html")
    assert "Not accepted" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_endless_output_is_cut_and_marked() -> None:
    page = html.render(
        read_run(
            a_run([failing("gpu01", text="x" * 5_000_000, message="y" * 5_000_000, measured="z" * 5_000_000)])
        )
    )
    assert len(page) < 100_000
    assert "characters left out ...]" in page


def test_a_page_stays_small_where_everything_fails_differently() -> None:
    nodes = [f"gpu{number:04}" for number in range(1000)]
    results = [
        failing(node, check=f"gpu.check_{check}", cause=f"cause {'abcdefghij'[check % 10] * (check + 1)} of {node}",
                measured=f"{node} {check} " + "m" * 700, text="t" * 30_000,
                annotation=[f"Slurm state: IDLE {node}", f"again: pytest {'a' * 500}"])
        for node in nodes
        for check in range(20)
    ]  # fmt: skip
    page = html.render(read_run(a_run(results, nodes=nodes)))
    assert len(page.encode()) < 15_000_000
    assert "further findings of this check are in the event log" in page


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    *(
        "time",
        "run",
        "nodeid",
        "outcome",
        "message",
        "suite",
        "check",
        "node",
        "verdicts",
        "metrics",
        "curves",
    ),
    *(
        "cells",
        "annotation",
        "text",
        "output",
        "logs",
        "selected",
        "not_tested",
        "versions",
        "groups",
        "scope",
        "exit",
    ),
    *(
        "slurmd",
        "job",
        "nodes",
        "arguments",
        "why",
        "processes",
        "not_applicable",
        "host",
        "cluster",
        "simulated",
    ),
)
KINDS = (
    "start",
    "nodes",
    "result",
    "lost",
    "allocation",
    "error",
    "finish",
    "rerun",
    "drain_decision",
    "other",
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=8)),
        max_size=5,
    )
)
def test_whatever_a_log_holds_a_page_comes_out(events: list[tuple[str, dict[str, Any]]]) -> None:
    page = page_of([fields | {"event": kind} for kind, fields in events])
    assert page.verdict in ("unproved", "rejected", "accepted", "waived")


# --- small parts


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain\n\ttext", "plain\n\ttext"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("a\r\nb", "a\nb"),
        ("nul\x00 bell\x07", "nul\ufffd bell\ufffd"),
        ("\u202egnp.exe", "\ufffdgnp.exe"),
        ("\ud800", "\ufffd"),
        (None, ""),
        (7, "7"),
    ],
)
def test_printable(raw: Any, shown: str) -> None:
    assert printable(raw) == shown


def test_a_cut_text_keeps_both_ends() -> None:
    short = shorten("begin" + "x" * 1000 + "end", 20)
    assert short.startswith("begin")
    assert short.endswith("end")
    assert "[... 988 characters left out ...]" in short


def test_a_page_that_cannot_be_written_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GpuClusterError, match="cannot be written"):
        html.write(read_run([]), tmp_path / "file" / "report.html")


def test_result_is_the_shape_of_real_events() -> None:
    real = next(one for one in read_events(RECORDED) if one["event"] == "result")
    assert set(real) <= set(result("gpu01", "passed"))


def test_no_placeholder_of_a_node_is_shown() -> None:
    hint = "scontrol show node NODE"
    results = [failing(node, hint=hint) for node in ("gpu01", "gpu02")]
    results.append(
        failing("gpu03", findings=[], outcome="error", message="STEP 7.0 ON gpu03: DUE TO NODE FAILURE")
    )
    text = page_of(a_run(results, nodes=("gpu01", "gpu02", "gpu03"), finish=1)).text
    assert "scontrol show node gpu[01-02]" in text
    assert "STEP 7.0 ON gpu03: DUE TO NODE FAILURE" in text
