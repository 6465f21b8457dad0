"""The HTML report in a real browser: Debian's Chromium, headless. Skipped where it is not installed (make packages)."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from paths import DATA
from report.test_html import hostile_run
from report_helpers import a_run, failing, passing, unjudged

from pytest_gpucluster.report import html
from pytest_gpucluster.report.events import read_log
from pytest_gpucluster.report.run_model import read_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: `make packages` installs it")
RECORDED = DATA / "h200x4-slurm" / "nccl-hostid-events.jsonl"
QUIET = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-extensions",
    ),
    "--enable-logging=stderr",
)
# what a person does, and what the page looks like then; added to a copy of the page whose policy is taken out
ACTS = """
<script>
const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", {key: key, bubbles: true}));
const shown = () => document.querySelectorAll(".fail:not(.none)").length;
const told = {all: shown()};
press("/");
told.focused = document.activeElement.id;
const field = document.getElementById("filter");
field.value = "gpu0002 NVLink";
field.dispatchEvent(new Event("input"));
told.filtered = shown();
told.found = document.getElementById("found").textContent;
field.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape", bubbles: true}));
told.cleared = shown();
press("j"); press("j"); press("k"); press("j");
told.here = document.querySelector(".fail.here").id;
press("o");
told.open = document.querySelectorAll("details:not([open])").length;
told.paper = getComputedStyle(document.body).backgroundColor;
const top_of = (choice) => document.querySelector(choice).getBoundingClientRect().top;
told.workFirst = top_of("#work") < top_of("#record dl");
told.wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
const out = document.createElement("pre");
out.id = "told";
out.textContent = JSON.stringify(told);
document.body.append(out);
</script>
"""


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(page: str, *options: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "page.html"
        path.write_text(page, encoding="utf-8")
        argv = [str(CHROMIUM), *QUIET, f"--user-data-dir={tmp_path / 'profile'}", *options, path.as_uri()]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True, errors="replace")

    return run


def fleet() -> str:
    nodes = [f"gpu{number:04}" for number in range(1, 1001)]
    drained = {"gpu0900": ["unavailable", "DRAINED"]}
    results = [passing(node) for node in nodes[:899]]
    results += [
        failing("gpu0002"),
        failing("gpu0003", check="gpu.count"),
        failing("gpu0004", check="gpu.ecc_mode"),
    ]
    return html.render(
        read_run(a_run([*results, unjudged("gpu0900", "not tested")], nodes=nodes, not_tested=drained))
    )


def recorded() -> str:
    return html.render(read_log(RECORDED))


def hostile() -> str:
    return html.render(read_run(hostile_run()))


@pytest.mark.parametrize("which", ["recorded", "fleet", "hostile"])
def test_no_complaint_and_no_request(
    which: str, browse: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    page = {"recorded": recorded, "fleet": fleet, "hostile": hostile}[which]()
    done = browse(page, "--dump-dom")
    assert "CONSOLE" not in done.stderr, (
        done.stderr
    )  # a request would be refused by the page's policy, and told here
    assert 'id="verdict"' in done.stdout
    assert (
        'class="tools"' in done.stdout
    )  # it was "tools none" until the page's own script ran, under its policy
    for part in ("record", "map", "failures", "gaps", "environment"):
        assert f'id="{part}"' in done.stdout


def test_a_request_would_be_noticed(browse: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    page = html.render(read_run(a_run([passing("gpu01")]))).replace(
        "</main>", '<img src="http://127.0.0.1:9/x.png"></main>'
    )
    assert "CONSOLE" in browse(page, "--dump-dom").stderr
    page = html.render(read_run(a_run([passing("gpu01")])))
    page = page.replace("</main>", "<script>document.title = 'x'</script></main>")
    assert "CONSOLE" in browse(page, "--dump-dom").stderr


@pytest.mark.parametrize(("scheme", "paper"), [("1", "rgb(255, 255, 255)"), ("0", "rgb(20, 23, 27)")])
def test_keys_filter_and_colours(
    scheme: str, paper: str, browse: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    page = re.sub(r'<meta http-equiv="Content-Security-Policy".*?>', "", fleet()).replace(
        "</body>", ACTS + "</body>"
    )
    done = browse(
        page, "--dump-dom", f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1000,800"
    )
    told = re.search(r'<pre id="told">(.*?)</pre>', done.stdout)
    assert told, done.stderr
    assert told[1] == (
        '{"all":3,"focused":"filter","filtered":1,"found":"1 of 3 failures","cleared":3,"here":"g2","open":0,'
        f'"paper":"{paper}","workFirst":true,"wide":false}}'
    )


def test_it_prints_the_record_on_a_page_of_its_own(
    tmp_path: Path, browse: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    browse(recorded(), f"--print-to-pdf={tmp_path / 'page.pdf'}", "--no-pdf-header-footer")
    pdf = (tmp_path / "page.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 2
