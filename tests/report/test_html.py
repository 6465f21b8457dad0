"""The HTML report: what it says of a run, and that nothing which a node sends can change the page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import DATA
from report_helpers import a_run, event, failing, passing, result, unjudged

from pytest_gpucluster.core.finding import Metric
from pytest_gpucluster.report import html
from pytest_gpucluster.report.events import read_events
from pytest_gpucluster.report.regression import Compared, ShownComparison
from pytest_gpucluster.report.run_model import read_run

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


def page_of(events: Iterable[dict[str, Any]], **options: Any) -> Page:
    return Page(html.render(read_run(events), **options))


def test_complaints_of_a_run_without_failures_are_shown() -> None:
    end = event("finish", exit=1, complaints=["gpu02 was lost"])
    page = page_of([*a_run([passing("gpu01"), passing("gpu02")], finish=None), end])
    assert page.verdict == "unproved"
    assert "Failures and errors gpu02 was lost" in page.text


def test_many_nodes_that_fail_alike_are_one_group() -> None:
    nodes = [f"gpu{number:04}" for number in range(1, 101)]
    results = [failing(node, part=f"GPU 4 (GPU-{node}, 0000:9d:00.0)") for node in nodes]
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

    busbw = {"name": "busbw", "value": 9.0, "unit": "GB/s", "device": "all_reduce 1 GiB"}
    red = failing(
        text,
        findings=[filled("part", "measured", "expected")],
        annotation=[f"Slurm state: {text}", f"by hand: {text}", f"again: {text}", text],
        logs=["javascript:alert(1)", "steps/../../etc/passwd", 'steps/x" onclick="a.log', text],
        metrics=[{"value": 1.0, **filled("name", "unit", "device")}, busbw],
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
    return html.render(read_run(hostile_run()), comparison=ShownComparison(HOSTILE, (row,), **words))


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
    endless: dict[str, Any] = {
        "text": "x" * 5_000_000,
        "message": "y" * 5_000_000,
        "measured": "z" * 5_000_000,
    }
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


EVENTS = st.tuples(
    st.sampled_from(KINDS.split()), st.dictionaries(st.sampled_from(FIELDS.split()), JSON, max_size=8)
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(EVENTS, max_size=5))
def test_whatever_a_log_holds_a_page_comes_out(events: list[tuple[str, dict[str, Any]]]) -> None:
    page = page_of([fields | {"event": kind} for kind, fields in events])
    assert page.verdict in ("unproved", "rejected", "accepted", "waived")
