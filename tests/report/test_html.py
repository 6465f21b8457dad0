"""The HTML report: what it says of a run, and that nothing which a node sends can change the page."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import asdict
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import DATA
from report_helpers import a_run, event, failing, part_of, passing, result, unjudged

from pytest_gpucluster.core.finding import Metric
from pytest_gpucluster.core.part import Part, gpu, named
from pytest_gpucluster.report import proof
from pytest_gpucluster.report.history.regression import Compared, ShownComparison
from pytest_gpucluster.report.machine.events import read_events, read_run
from pytest_gpucluster.report.page import html, html_figures, html_map
from pytest_gpucluster.report.run_model import Run
from pytest_gpucluster.report.verdict import judge, ordered

if TYPE_CHECKING:
    from collections.abc import Iterable

RECORDED = DATA / "h200x4-slurm" / "nccl-hostid-events.jsonl"


class Page(HTMLParser):
    """The text, elements and attributes of a page, as a browser's parser sees them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.silent = 0  # inside of how many elements whose text is not shown
        self.feed(page)
        self.close()
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self.silent += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self.silent -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.words.append(data)

    def of(self, tag: str, kind: str | None = None) -> list[dict[str, str]]:
        """Return the attributes of all elements of a tag (and class)."""
        found = [attributes for name, attributes in self.elements if name == tag]
        return [one for one in found if kind is None or kind in one.get("class", "").split()]

    @property
    def verdict(self) -> str:
        (heading,) = (one for one in self.of("h1") if one.get("id") == "verdict")
        return heading["data-verdict"]


def page_of(events: Iterable[dict[str, Any]]) -> Page:
    return Page(html.render(read_run(events)))


def compared(shown: ShownComparison) -> dict[str, Any]:
    return {"event": "compared", **json.loads(json.dumps(asdict(shown)))}


def test_many_nodes_that_fail_alike_are_one_group() -> None:
    nodes = [f"gpu{number:04}" for number in range(1, 101)]
    results = [failing(node, part=gpu(4, uuid=f"GPU-{node}", address="0000:9d:00.0")) for node in nodes]
    page = page_of(a_run(results, nodes=nodes))
    assert len(page.of("article", "fail")) == 1
    assert "failed on 100 nodes: gpu[0001-0100]" in page.text
    # one row; the UUIDs are each node's own
    assert "GPU 4 17 active links 18 100 nodes: gpu[0001-0100]" in page.text


def test_a_real_log_makes_a_report() -> None:
    page = page_of(read_events(RECORDED))
    assert page.verdict == "rejected"
    for words in (
        "nccl.whole_bandwidth failed on (cluster)",
        "all_reduce 1 GiB 7.22 GB/s at least 306.00 GB/s",
        "1 point below its bound.",
    ):
        assert words in page.text
    assert "SIMULATED" not in page.text
    real = next(one for one in read_events(RECORDED) if one["event"] == "result")
    assert set(real) <= set(result("gpu01", "passed"))  # made-up events have the shape of real ones


def test_every_picture_is_well_formed() -> None:
    nodes = [f"gpu{number:03}<&" for number in range(60)]
    more = a_run([failing(node) for node in nodes], nodes=nodes)
    text = html.render(read_run([*read_events(RECORDED), *more]))
    pictures = re.findall(r"<svg .*?</svg>", text, re.DOTALL)
    assert len(pictures) > 5
    for picture in pictures:
        ET.fromstring(picture)


# --- hostile text

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)> '\" \x1b[31mred\x1b[0m "
    "\x00\x07\x85\u202e\ud800 {{ 7*7 }} ]]>"
)


def hostile_run(text: str = HOSTILE) -> list[dict[str, Any]]:
    """Return a run that has the text in every place that a node, Slurm or a file can fill."""

    def filled(*keys: str) -> dict[str, Any]:
        return dict.fromkeys(keys, text)

    busbw = {"name": "busbw", "value": 9.0, "unit": "GB/s", "part": part_of("all_reduce 1 GiB")}
    red = failing(
        text,
        findings=[{"part": {"name": text}, **filled("measured", "expected")}],
        annotation={"reproduce": [text], **filled("state", "reason", "rerun", "note")},
        logs=["javascript:alert(1)", "steps/../../etc/passwd", 'steps/x" onclick="a.log', text],
        metrics=[{"value": 1.0, "part": {"name": text}, **filled("name", "unit")}, busbw],
        curves=[{"title": text, "points": [[1024, 1.0], [2048, 2.0]]}],
        cells=[{"place": [0, 0], **filled("title", "row", "column", "text", "note")}],
        versions=filled(text),
        **filled("check", "suite", "cause", "hint", "action", "message", "text", "output"),
    )
    start = {
        **filled("cluster", "description", "user", "host", "slurm"),
        "versions": filled(text),
        "scope": filled(text),
        "not_applicable": filled(text),
        "slurmd": {text: [text]},
        "arguments": [text],
        "groups": [filled("nodes", "profile", "description", "source", "partition")],
    }
    skip = unjudged(text, "not checked", check=text, message=text)
    ends = [red, skip, passing("gpu01")]
    return [
        *a_run(ends, nodes=(text, "gpu01"), not_tested={text: [text, text]}, start=start),
        *(event("lost", node=text, why=text), event("error", message=text)),
        event("drain_x", node=text, why=text),
    ]


def hostile_page() -> str:
    row = Compared(HOSTILE, Metric(HOSTILE, 1.0, HOSTILE, HOSTILE), last_good=2.0, worse=True, note=HOSTILE)
    words: dict[str, Any] = dict.fromkeys(("last_good", "previous", "fleet_is", "note"), HOSTILE)
    return html.render(read_run([*hostile_run(), compared(ShownComparison(HOSTILE, (row,), **words))]))


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


def test_endless_output_is_cut_and_marked() -> None:
    endless: dict[str, Any] = {"text": "x" * 5_000_000, "message": "y" * 5_000_000, "measured": "z" * 5_000_000}
    page = html.render(read_run(a_run([failing("gpu01", **endless)])))
    assert len(page) < 100_000
    assert "characters left out ...]" in page


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "time run nodeid outcome message suite check node verdicts metrics curves cells annotation text output logs "
    "selected not_tested versions groups scope exit slurmd job nodes arguments why processes not_applicable host cluster simulated"
)
KINDS = "start nodes result lost allocation error finish rerun drain_decision other"


EVENTS = st.tuples(st.sampled_from(KINDS.split()), st.dictionaries(st.sampled_from(FIELDS.split()), JSON, max_size=8))


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(EVENTS, max_size=5))
def test_whatever_a_log_holds_a_page_comes_out(events: list[tuple[str, dict[str, Any]]]) -> None:
    page = page_of([fields | {"event": kind} for kind, fields in events])
    assert page.verdict in ("unproved", "rejected", "accepted", "waived")


# --- a run in which everything that a page shows has happened


def a_metric(name: str, value: float | str, unit: str, device: str = "") -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "part": part_of(device)}


def measured(node: str, place: int) -> dict[str, Any]:
    """Return the result of a node with metrics of every kind; those of gpu02 are 10% low."""
    share = 0.9 if place == 1 else 1.0
    bandwidths = enumerate(("1 KiB", "1 MiB", "1 GiB"), 1)
    limited = Part("size", 1 << 20, of=named("run", "all_reduce alone"))
    metrics = [
        *(a_metric("busbw", 100.0 * n * share, "GB/s", f"all_reduce {size}") for n, size in bandwidths),
        {**a_metric("busbw_bound", 290, "GB/s"), "part": limited.as_dict()},
        a_metric("gpu_count", 8, "GPUs"),
        *(a_metric("power", 80.0 + place, "W", f"GPU {gpu} (GPU-{node}-{gpu}, 0:1)") for gpu in (0, 1)),
        a_metric("odd", "NaN", "W"),
    ]
    versions = {"driver": "580.1" if place % 3 else "570.9"}
    return passing(node, check="nccl.alone", metrics=metrics, versions=versions)


def full_run() -> list[dict[str, Any]]:
    nodes = [f"gpu{number:02}" for number in range(1, 9)]
    *good, bad, broken, drained, lost = nodes
    told = {"state": "IDLE", "reproduce": ["srun a"], "rerun": "pytest x"}
    said: dict[str, Any] = {"annotation": told, "text": "the text", "logs": ["steps/0001-gpu.log", "../x"]}
    warning = {"part": gpu(3, uuid="GPU-d", address="0:4").as_dict(), "measured": "1 replay", "expected": "0"}
    cell = {"title": "matrix", "row": "srun", "column": "MPI", "text": "fails", "note": "no PMI", "place": [0, 0]}
    curve = {"title": "all_reduce, 2 nodes x 8 GPUs", "points": [[1024, 10.0], [1 << 20, 200.0], ["x", 1.0]]}
    results = [
        *(measured(node, place) for place, node in enumerate(good)),
        failing(bad, part=gpu(1, uuid="GPU-a", address="0:1"), **said),
        *(
            failing(node, check="gpu.other", action="reboot", part=gpu(0, uuid="GPU-b", address="0:2"))
            for node in good[:2]
        ),
        failing(broken, outcome="error", findings=[], check="os.disk", message=f"{broken} did not answer"),
        unjudged(drained, "not tested", check="gpu.nvlink_state"),
        *(unjudged(node, "not checked", check="os.mce", reason="no right") for node in good),
        unjudged(good[0], "not applicable", check="gpu.mig"),
        failing(good[1], check="gpu.flaky", message=f"gpu.flaky on {good[1]}: flaked") | {"event": "rerun"},
        passing(good[1], check="gpu.flaky"),
        passing(good[0], check="gpu.pcie", verdicts=[{"findings": [], "advisories": [warning]}]),
        passing("", check="nccl.curve", metrics=[a_metric("once", 3, "s")], curves=[curve], cells=[cell]),
    ]
    group = {"nodes": "gpu[01-02]", "profile": "h100", "description": "8 H100", "source": "a sheet"}
    slurmd = {"22.05.8": nodes[:2], "23.02": nodes[2:3]}
    start = {"simulated": True, "arguments": ["-m", "gpu"], "host": "login1", "groups": [group], "slurmd": slurmd}
    not_tested = {drained: ["unavailable", 'DRAINED: "cable" by root']}
    acts = {"decision": "drain", "why": "it failed", "checks": ["gpu.nvlink_state"], "dry_run": False}
    return [
        *a_run(results, nodes=nodes, not_tested=not_tested, start=start, finish=None),
        event("allocation", job=42, nodes=nodes[:3]),
        event("lost", node=lost, why="the agent ended"),
        event("error", message="slurm.epilog failed"),
        event("drain_decision", node=bad, **acts),
        event("drain_over_budget", nodes=good[:2], budget="10%"),
        event("finish", exit=1, complaints=["gpu02 was lost"], processes={"srun": 5}) | {"time": 1795254000.5},
    ]


COMPARISON = ShownComparison(
    "history.db",
    (
        Compared("gpu01", Metric("busbw", 440, "GB/s", "GPU 1"), 478, 477, 476, worse=True, note="8% below"),
        Compared("gpu02", Metric("busbw", 477, "GB/s"), previous=478.5),
    ),
    last_good="2026-11-20 02:00",
    previous="night 2, good",
    runs=5,
    note="gpu04: gpu.x: failed",
)
# of each section
SHOWN = """
8 nodes selected 2 fit 3 failed a check 1 not proved 2 not tested
3 of 8 nodes failed. 1 check could not be judged because something broke.
More nodes failed than the budget allows to drain.
profile h100 , 8 H100 (figures: a sheet)
fit: 2 nodes: gpu[03-04] not fit: 3 nodes: gpu[01-02,05] not proved: gpu06
Not tested gpu07: DRAINED: "cable" by root gpu08: the agent ended 1 check of these nodes
gpu05 drain gpu.nvlink_state GPU 1 (GPU-a, 0:1) : 17 active links expected 18
2 nodes: gpu[01-02] reboot gpu.other GPU 0 : 17 active links expected 18
gpu07 1 not tested
slurm.epilog failed gpu02 was lost
Slurm says IDLE reproduce srun a rerun pytest x step logs steps/0001-gpu.log log the text
os.disk error on gpu06 details where gpu06 did not answer gpu06
gpu.flaky passed gpu02 gpu.flaky on gpu02: flaked
gpu.pcie GPU 3 (GPU-d, 0:4) 1 replay 0 gpu01
matrix MPI srun fails no PMI
gpu02: 180 GB/s at 1 MiB, below 290
Apart from the fleet: gpu02 (90% of the median).
all_reduce, 2 nodes x 8 GPUs
power W h100 4 80 gpu01 GPU 0 80.5 81 gpu02 GPU 0
nccl once s whole cluster 1 3 (cluster) 3 3 (cluster)
gpu_count, h100 8 GPUs 2
From history.db, 5 runs. Last good run: 2026-11-20 02:00. Last run: night 2, good.
gpu01 GPU 1 busbw GB/s 440 478 -7.9% 477 476 8% below
gpu02 busbw GB/s 477
drain_decision gpu05 decision: drain; why: it failed; checks: gpu.nvlink_state; dry_run: False
drain_over_budget 2 nodes: gpu[01-02] budget: 10%
gpu07 DRAINED: "cable" by root gpu08 the agent ended
os.mce 4 nodes: gpu[01-04] no right
gpu.mig gpu01 because
started on login1
arguments -m gpu allocation 42 gpu[01-03] processes started srun 5 exit status 1
slurmd 22.05.8 2 nodes: gpu[01-02] 23.02 gpu03
driver 570.9 2 nodes: gpu[01,04] 580.1 2 nodes: gpu[02-03]
"""


def test_each_section_says_what_has_happened() -> None:
    page = page_of([*full_run(), compared(COMPARISON)])
    assert [line for line in SHOWN.strip().splitlines() if line not in page.text] == []
    assert "../x" not in {it["href"] for it in page.of("a")}
    left_out = event("selection", nodes=["gpu01"], on_request={"slow": {"os": 2}})
    first = [*a_run([passing("gpu01")], nodes=["gpu01"]), left_out, compared(ShownComparison("h.db"))]
    for only in ("Not tested on request only: 2 slow checks (--slow): os", "run: nothing was compared."):
        assert only in page_of(first).text


# --- limits

FAILED = "1 of 2 nodes failed"


def run_with(results: list[dict[str, Any]], count: int = 2, **options: Any) -> Run:
    """Return a run on this many nodes."""
    return read_run(a_run(results, nodes=names(count), **options))


def names(count: int) -> list[str]:
    return [f"gpu{n:0{len(str(count)) if count > 99 else 2}}" for n in range(count)]


def patterns(run: Run) -> list[dict[str, Any]]:
    """Return the rows of nodes that ended alike."""
    anchors = {id(group): f"g{place}" for place, group in enumerate(ordered(run), 1)}
    found: list[dict[str, Any]] = html_map.fleet_map(run, anchors)["patterns"]
    return found


def ended(*outcomes: str) -> list[dict[str, Any]]:
    """Return how one check of the nodes gpu01, gpu02 ended, by letters: p(assed), f(ailed), e(rror)."""
    kinds = {"p": passing, "f": failing, "e": lambda node: failing(node, outcome="error")}
    return [kinds[letter](f"gpu0{n}") for n, letter in enumerate(outcomes, 1)]


ABSENT = [failing("gpu02", outcome="error", check=check) for check in ("ddp.proved", "run.x")]


@pytest.mark.parametrize(
    ("results", "options", "kind", "sentences"),
    [
        ([failing("")], {}, "rejected", ["0 of 2 nodes failed", "A check of the whole cluster failed."]),
        # a suite without a section in the cluster file, and a node out of service: nothing broke
        ([*ended("f"), *ABSENT], {}, "rejected", [FAILED]),
        (ended("f"), {"finish": None}, "rejected", [FAILED, "The run did not end"]),
        (ended("f"), {"finish": 2}, "rejected", [FAILED, "The run was stopped before its end."]),
        (
            ended("p"),
            {"finish": 3, "nodes": ["gpu01"]},
            "unproved",
            ["1 of 1 node fit", "The run ended with status 3", "With one node"],
        ),
        (
            ended(*"pp"),
            {"start": {"full": False, "scope": {"-m": "gpu", "-k": "nvlink", "--set": ["os={}"]}}},
            "accepted",
            ["2 of 2 nodes", "All that was selected by -m gpu and -k nvlink is proved."],
        ),
    ],
)
def test_the_verdict(results: list[Any], options: dict[str, Any], kind: str, sentences: list[str]) -> None:
    found = judge(read_run(a_run(results, **options)))
    assert found.outcome == kind
    for sentence, expected in zip((found.nodes, *found.sentences), sentences, strict=True):
        assert sentence.startswith(expected)


# --- failures


def test_failures_are_ordered_by_action_then_nodes_then_name() -> None:
    checks = {"d": "", "c": "odd", "b": "reboot", "a": "reboot", "z": "reboot", "e": "drain"}
    results = [failing("gpu01", check=f"gpu.{name}", action=action) for name, action in checks.items()]
    results[0] = failing("gpu01", check="gpu.d", outcome="error")
    results.append(failing("gpu02", check="gpu.z", action="reboot"))
    found = [group.check.removeprefix("gpu.") for group in ordered(read_run(a_run(results)))]
    assert "".join(found) == "ezabcd"


def test_sections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MAX_GROUPS", 2)
    monkeypatch.setattr(html, "MAX_LINES", 2)
    for groups, brief, dropped in ((2, 0, False), (3, 1, False), (5, 2, True)):
        page = page_of(a_run([failing("gpu01", check=f"gpu.c{n}") for n in range(groups)]))
        assert len(page.of("article", "fail")) == 2
        assert page.text.partition("Further failures")[2].count("failed gpu01") == brief
        assert ("1 more kinds of failure are in the event log." in page.text) is dropped


def test_the_logs_of_a_failure_are_its_own_or_its_checks_or_its_suites() -> None:
    logs = {"gpu.a": "steps/1.log", "gpu.b": "steps/2.log"}
    ran = [passing("gpu01", check=check, logs=[log]) for check, log in logs.items()]
    for red, expected in (
        (failing("gpu02", check="gpu.a", logs=["steps/3.log"]), ["steps/3.log"]),
        (failing("gpu02", check="gpu.a"), ["steps/1.log"]),
        (failing("gpu02", check="gpu.c"), ["steps/1.log", "steps/2.log"]),
        (failing("gpu02", check="os.c"), []),
    ):
        page = page_of(a_run([*ran, red]))
        assert [it["href"] for it in page.of("a") if it["href"].startswith("steps/")] == expected


# --- the map


def test_small_fleets_have_a_row_for_each_node() -> None:
    for count, small in ((40, True), (41, False)):
        results = [passing(node) for node in names(count)]
        found = html_map.fleet_map(run_with(results, count), {})
        assert (found["small"], len(found["patterns"])) == (small, 40 if small else 1)
        assert [title for title, *_ in found["tiles"]] == [""]
        assert len(patterns(run_with([*results, passing("")], count))) == (41 if small else 1)


def test_a_row_of_nodes_merges_no_different_causes_and_links_to_its_own() -> None:
    nodes = names(45)
    bad = [failing(nodes[0], check="gpu.a"), failing(nodes[1], check="gpu.b")]
    rows = patterns(run_with([*bad, *map(passing, nodes[2:])], 45))
    cells = [(row["nodes"][:2], row["state"], *map(row["cells"][0].get, ("text", "link"))) for row in rows]
    assert cells == [
        (nodes[:1], "failed", ["1 failed"], "#g1"),
        (nodes[1:2], "failed", ["1 failed"], "#g2"),
        (nodes[2:4], "passed", ["43 passed"], ""),
    ]


def test_a_lost_node_is_not_drawn_as_one_that_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    events = a_run([*map(passing, names(45))], nodes=names(45))
    for most in (80, 2):  # by counts or by states
        monkeypatch.setattr(html_map, "MAX_PATTERNS", most)
        found = patterns(read_run([*events, event("lost", node="gpu07", why="gone")]))
        assert [(row["state"], len(row["nodes"])) for row in found] == [("not proved", 1), ("passed", 44)]


def test_a_suite_without_a_result_is_no_column_but_named_with_its_reason() -> None:
    whys = {"mpi": "no section mpi", "ray": "no section ray", "ddp": "no section ray"}
    results = [unjudged("gpu00", "not applicable", check=f"{suite}.x", reason=why) for suite, why in whys.items()]
    found = html_map.fleet_map(run_with([passing("gpu00"), *results], 1), {})
    assert found["suites"] == ["gpu"]
    assert found["idle"] == [("ddp, ray", "no section ray"), ("mpi", "no section mpi")]
    (row,) = patterns(run_with([passing("gpu00"), result("gpu00", "not applicable")], 1))
    assert row["cells"][0]["text"] == ["1 passed"]  # what does not apply is no text of a cell


# --- numbers


def powers(values: list[float]) -> list[dict[str, Any]]:
    power = {"name": "power", "unit": "W", "part": {}}
    return [passing(f"gpu{n:02}", metrics=[{**power, "value": value}]) for n, value in enumerate(values)]


def numbers(*results: dict[str, Any]) -> dict[str, Any]:
    return html_figures.numbers(read_run(a_run(results)))


def test_what_stands_apart_is_named_up_to_eight() -> None:
    values = [*(100.0 + n / 10 for n in range(40)), *(200.0 + n for n in range(9))]
    (row,) = numbers(*powers(values))["rows"]
    assert row["apart"] == [f"gpu{40 + n} ({200 + n})" for n in range(8)]
    assert (row["apart_more"], row["median"]) == (1, "102.4")


def test_the_whole_cluster_is_kept_apart_from_nodes() -> None:
    whole = passing("", metrics=[{"name": "power", "value": 9.0, "unit": "W"}])
    found = numbers(*powers([1.0, 2.0]), whole)
    assert [(row["name"], row["n"], row["high"]) for row in found["rows"]] == [("power", 2, ("2", "gpu01"))]
    assert found["single"] == [("gpu: power, whole cluster", "9 W", proof.CLUSTER)]


# --- curves


def curves(*results: dict[str, Any]) -> dict[str, Any]:
    """Return the only chart of a run."""
    (chart,) = html_figures.bandwidth(read_run(a_run(results)))
    return chart


def busbw(nodes: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Return the results of nodes, given the bandwidth of each by size."""
    return [
        passing(
            f"gpu{n:02}",
            metrics=[
                {"name": "busbw", "value": value, "unit": "GB/s", "part": part_of(f"all_reduce {size}")}
                for size, value in values.items()
            ],
        )
        for n, values in enumerate(nodes)
    ]


def test_a_slow_node_is_apart_at_large_sizes_only() -> None:
    usual = {"1 KiB": 9.0, "1 MiB": 100.0, "1 GiB": 400.0}
    slow = {"1 KiB": 1.0, "1 MiB": 80.0, "1 GiB": 320.0}
    assert curves(*busbw([slow, *[usual] * 11]))["apart"] == [("gpu00", "80% of the median")]
    few = curves(*busbw([slow, usual]))
    assert (few["apart"], few["note"]) == ([], "Too few nodes to name one that stands apart from the others.")


# --- the history, acts, gaps, warnings


def test_remarks_stand_below_the_warnings() -> None:
    noted = [{"outcome": "passed", "remarks": [{"text": "odd <a>", "count": 2}]}]
    text = page_of(a_run([passing("gpu01", check="controller.errors", verdicts=noted)])).text
    assert "controller.errors on gpu01: 2 lines: odd <a>" in text
    assert "gpu02 the run ended before any check of them" in text
    assert 'id="warnings"' not in html.render(read_run(a_run([passing("gpu01")])))


def test_the_page_of_an_empty_run() -> None:
    text = page_of([]).text
    assert all(words in text for words in ("unknown cluster", "not known", "exit status the run did not end"))
    for seconds, shown in ((0.9, "under 1 s"), (1.0, " 1 s"), (61.0, "1 min 1 s")):
        assert shown in page_of([{"time": 5.0}, {"time": 5.0 + seconds}]).text
    for length, left_out in ((600, ""), (601, " [... 1 characters left out ...] ")):
        host = "x" * 300 + left_out + "x" * 300
        assert f"started on {host} " in page_of([event("start", host="x" * length)]).text
