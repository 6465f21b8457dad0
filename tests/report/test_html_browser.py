"""The HTML report in a real browser: Debian's Chromium, headless. Skipped where it is not installed (make packages)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import escape, unescape
from typing import TYPE_CHECKING, Any

import pytest
from report.test_html import full_run, hostile_run
from report.test_html_fleet import a_fleet
from report_helpers import a_run, failing

from pytest_gpucluster.report.history.fleet_runs import Act, LastVerdict, Worst
from pytest_gpucluster.report.machine.events import read_run
from pytest_gpucluster.report.page import html, html_fleet

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: `make packages` installs it"),
]
SWITCHES = (
    "headless=new no-sandbox disable-gpu disable-dev-shm-usage no-first-run disable-background-networking "
    "disable-component-update disable-sync disable-extensions enable-logging=stderr"
)
QUIET = [f"--{switch}" for switch in SWITCHES.split()]
# what a person does, and what the page looks like then; added to a copy of the page whose policy is taken out
ACTS = """
<script>
const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", {key: key, bubbles: true}));
const shown = () => document.querySelectorAll(".fail:not(.none)").length;
const state = {all: shown()};
press("/");
state.focused = document.activeElement.id;
const field = document.getElementById("filter");
field.value = "gpu0002 NVLink";
field.dispatchEvent(new Event("input"));
state.filtered = shown();
state.found = document.getElementById("found").textContent;
field.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape", bubbles: true}));
state.cleared = shown();
press("j"); press("j"); press("k"); press("j");
state.here = document.querySelector(".fail.here").id;
press("o");
state.open = document.querySelectorAll("details:not([open])").length;
state.paper = getComputedStyle(document.body).backgroundColor;
const top_of = (choice) => document.querySelector(choice).getBoundingClientRect().top;
state.workFirst = top_of("#work") < top_of("#record dl");
state.wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
const out = document.createElement("pre");
out.id = "state";
out.textContent = JSON.stringify(state);
document.body.append(out);
</script>
"""


Browse = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    def run(page: str, *options: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "page.html"
        path.write_text(page, encoding="utf-8")
        argv = [str(CHROMIUM), *QUIET, f"--user-data-dir={tmp_path / 'profile'}", *options, path.as_uri()]
        return subprocess.run(argv, capture_output=True, text=True, timeout=600, check=True, errors="replace")

    return run


def test_a_hostile_page_makes_no_complaint_and_no_request(browse: Browse) -> None:
    done = browse(html.render(read_run(hostile_run())), "--dump-dom")
    # a request would be refused by the page's policy, and state here
    assert "CONSOLE" not in done.stderr, done.stderr
    # it was "tools none" until the page's own script ran, under its policy
    for part in ('class="tools"', 'id="verdict"', 'id="map"', 'id="failures"', 'id="gaps"', 'id="environment"'):
        assert part in done.stdout


@pytest.mark.parametrize(("scheme", "paper"), [("1", "rgb(255, 255, 255)"), ("0", "rgb(20, 23, 27)")])
def test_keys_filter_and_colours(scheme: str, paper: str, browse: Browse) -> None:
    results = [failing("gpu0002"), failing("gpu0003", check="gpu.count"), failing("gpu0004", check="gpu.ecc")]
    page = html.render(read_run(a_run(results, nodes=[f"gpu{n:04}" for n in range(1, 1001)])))
    page = re.sub(r'<meta http-equiv="Content-Security-Policy".*?>', "", page)
    options = (f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1000,800")
    done = browse(page.replace("</body>", ACTS + "</body>"), "--dump-dom", *options)
    state = re.search(r'<pre id="state">(.*?)</pre>', done.stdout)
    assert state, done.stderr
    assert json.loads(state[1]) == {
        "all": 3,
        "focused": "filter",
        "filtered": 1,
        "found": "1 of 3 failures",
        "cleared": 3,
        "here": "g2",
        "open": 0,
        "paper": paper,
        "workFirst": True,
        "wide": False,
    }


SUITES = ("os", "slurm", "gpu", "fabric", "nccl", "container", "mpi", "ddp", "ray", "burnin")
PAPER = 695  # CSS pixels of A4 between its margins
# the elements that are seen, in a frame of a given width; media "all" shows what is printed on a screen
SEEN = """
<!DOCTYPE html>
<iframe id="frame" width="WIDTH" height="800" srcdoc="PAGE"></iframe>
<pre id="seen"></pre>
<script>
const frame = document.getElementById("frame");
frame.addEventListener("load", () => {
  const page = frame.contentDocument, wide = page.documentElement.clientWidth, seen = {};
  const style = (part) => frame.contentWindow.getComputedStyle(part);
  for (const choice of CHOICES) seen[choice] = [...page.querySelectorAll(choice)].some((part) => part.checkVisibility());
  const hint = (part) => style(part).overflowX === "auto" && style(part).backgroundImage.includes("svg");
  const all = [...page.querySelectorAll("body *")].filter((part) => !part.closest(".skip") && part.checkVisibility());
  const boxes = all.filter((part) => part.scrollWidth > part.clientWidth + 1 && style(part).overflowX === "auto");
  seen.scrolled = boxes.length;
  seen.cut = boxes.filter((part) => !hint(part)).map((part) => part.className);
  seen.outside = all.filter((part) => part.getBoundingClientRect().right > wide + 1 && !boxes.some((box) => box.contains(part)))
    .map((part) => part.tagName);
  // a word of letters and digits whose boxes stand on two lines was cut in its middle
  const walk = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT), range = page.createRange();
  seen.split = [];
  for (let text = walk.nextNode(); text; text = walk.nextNode()) {
    if (!text.parentElement.checkVisibility() || text.parentElement.closest("svg, script, style, pre, code")) continue;
    for (const word of text.data.matchAll(/[\\p{L}\\p{N}]{2,39}/gu)) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) seen.split.push(word[0]);
    }
  }
  seen.stacked = page.querySelector(".fail td") && style(page.querySelector(".fail td")).display;
  document.getElementById("seen").textContent = JSON.stringify(seen);
});
</script>
"""


def faulty() -> str:
    """Return the page of a run in which everything has happened that a card can have."""
    cards = (it for it in full_run() if it["event"] not in ("error", "rerun", "finish"))
    return html.render(read_run(cards))


def seen(
    page: str, browse: Browse, *, width: int, printed: bool = False, choices: Sequence[str] = ()
) -> dict[str, Any]:
    """Return which of the selectors have a visible element in a frame of this width, and what does not fit in."""
    if printed:
        page = page.replace("@media print", "@media all").replace("@media screen", "@media speech")
    outer = SEEN.replace("WIDTH", str(width)).replace("CHOICES", json.dumps(choices))
    done = browse(outer.replace("PAGE", escape(page, quote=True)), "--dump-dom", "--window-size=1400,900")
    state = re.search(r'<pre id="seen">(.+?)</pre>', done.stdout)
    assert state, done.stderr
    found: dict[str, Any] = json.loads(unescape(state[1]))
    return found


def pages(path: Path, page: str, browse: Browse) -> int:
    browse(page, f"--print-to-pdf={path}", "--no-pdf-header-footer")
    pdf = path.read_bytes()
    assert pdf.startswith(b"%PDF")
    return len(re.findall(rb"/Type\s*/Page\b", pdf))


@pytest.mark.parametrize(("width", "cell"), [(360, "block"), (800, ""), (1300, "table-cell")])
def test_nothing_is_wider_than_the_window(width: int, cell: str, browse: Browse) -> None:
    shown = seen(faulty(), browse, width=width)
    assert (shown["outside"], shown["cut"]) == ([], [])
    assert shown["stacked"] == (cell or shown["stacked"])
    if width == 360:
        assert shown["scrolled"] > 1  # with a hint, or it would be cut
    else:
        assert shown["split"] == []


def test_what_is_signed_is_printed_on_four_pages(tmp_path: Path, browse: Browse) -> None:
    left_out = "#map table, #failures, #numbers tr.unjudged, #warnings table, details.log, .fail .command"
    signed = (
        "#record .sign, #work, #map svg, .card li, #bandwidth svg, #numbers td, #warnings summary, #gaps td, .paper"
    )
    choices, page = [*left_out.split(", "), *signed.split(", ")], faulty()
    printed = seen(page, browse, width=PAPER, printed=True, choices=choices)
    assert [choice for choice in choices if printed[choice]] == signed.split(", ")
    assert printed["outside"] == []  # what is wider than A4 less its margins would be cut off
    on_screen = seen(page, browse, width=1200, choices=choices)
    assert [choice for choice in choices if not on_screen[choice]] == ["#warnings table", ".paper"]
    assert pages(tmp_path / "page.pdf", page, browse) <= 4


def a_year() -> str:
    """Return the page of the history of 60 nodes in 365 runs."""
    nodes = [f"gpu{n:03}" for n in range(60)]
    states = {node: "".join("f" if night % 97 == n else "p" for night in range(365)) for n, node in enumerate(nodes)}
    verdicts = {
        node: {suite: LastVerdict(1.7e9 + n * 9e4, "passed") for suite in SUITES} for n, node in enumerate(nodes)
    }
    acts = tuple(Act(1.7e9, node, "drained", "ops", "night001", "a reason " * 9) for node in nodes)
    worst = (Worst("gpu001", 3, 365, 1.7e9, (("gpu.a_check_with_a_long_name", 3),)),)
    return html_fleet.render(a_fleet(states, verdicts=verdicts, worst=worst, acts=acts))


def test_the_page_of_a_history_makes_no_request_and_is_printed_whole(tmp_path: Path, browse: Browse) -> None:
    assert "CONSOLE" not in browse(a_year(), "--dump-dom").stderr
    assert seen(a_year(), browse, width=PAPER, printed=True)["outside"] == []
    for width in (400, 1300):
        shown = seen(a_year(), browse, width=width)
        assert (shown["outside"], shown["cut"], shown["split"]) == ([], [], [])
    assert pages(tmp_path / "page.pdf", a_year(), browse) <= 8
