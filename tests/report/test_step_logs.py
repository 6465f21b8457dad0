"""--report-dir holds everything of a run; `gpucluster report` makes HTML and JUnit again from the log alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from plugin_helpers import on, run_pytest
from report.test_html import Page
from report_helpers import a_run, failing, passing

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.cli.signed_folder import manifest_of
from pytest_gpucluster.report.machine.events import strict_json

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

STEPS = """
import pytest
from pytest_gpucluster.kit.gpu import nvidia_smi

@pytest.fixture
def gpus(gpucluster_node):
    return gpucluster_node.facts(nvidia_smi.GPUS)

def test_echo(gpucluster_node, gpucluster_srun):
    assert gpucluster_srun(["sh", "-c", "echo said on $SLURMD_NODENAME; echo beside >&2"]).ok

def test_steps_end(gpucluster_node, gpucluster_srun):
    assert gpucluster_srun(["sh", "-c", "exit 7"]).ok, "the step did not end well"

def test_gpus(gpus):
    print("captured words")
    assert len(gpus) == 9
"""


@pytest.mark.thorough
def test_a_run_leaves_everything_in_one_folder(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_pytest(tmp_path, on(sandbox), "--nodes=gpu[01-02]", "-n", "2", files={"test_mine.py": STEPS})
    assert run.rc == 1, run.out + run.err
    reports = tmp_path / "reports" / "latest"
    files = "events.jsonl, junit.xml, metrics.prom, record.json, report.html"
    assert f"reports: reports/{run.event('start')['run']}: {files}" in run.out
    logs = {path.name: path.read_text() for path in (reports / "steps").iterdir()}
    assert len(logs) == 4
    manifest, found = manifest_of(reports.resolve(), None)  # reports of a real run state what its log does
    assert len(manifest.splitlines()) == 9
    assert (
        found.verdict
        == "Not accepted, 2 of 2 nodes failed, judged by mine, narrowed by --nodes gpu[01-02], SIMULATED hardware"
    )
    (echo,) = (text for name, text in logs.items() if "mine.echo" in name and "said on gpu02" in text)
    assert "--- task 0 on gpu02: exit 0\nsaid on gpu02\n--- its stderr\nbeside" in echo
    text = (reports / "report.html").read_text()
    page = Page(text)
    assert page.verdict == "rejected"
    for words in (
        *("mine.gpus failed on 2 nodes: gpu[01-02]", "the step did not end well", "captured words", "SIMULATED"),
        "NVIDIA driver 580.159.04 VBIOS",
    ):
        assert words in page.text
    linked = {one["href"] for one in page.of("a") if one.get("href", "").startswith("steps/")}
    failed = {link for link in linked if "exit 7" in (reports / link).read_text()}
    assert len(failed) == 2
    sections = text[text.index("<h3>", text.index('id="failures"')) :].split("<article")
    section = next(one for one in sections if "mine.steps_end</h3>" in one)
    assert set(re.findall(r'href="(steps/[^"]+)"', section)) == failed


# --- the command


def write_log(folder: Path, *, finish: int | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    events = a_run([passing("gpu01"), failing("gpu02")], finish=finish)
    (folder / "events.jsonl").write_text("".join(strict_json(one) + "\n" for one in events))
    return folder


def test_report_leaves_an_ended_runs_junit_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_log(tmp_path / "r", finish=1)
    (folder / "junit.xml").write_text("pytest's own")
    assert cli.main(["report", str(folder)]) == 0
    assert (folder / "junit.xml").read_text() == "pytest's own"
    assert "not changed: the run wrote it" in capsys.readouterr().out
    assert cli.main(["report", str(folder), "--force"]) == 0
    assert "<failure" in (folder / "junit.xml").read_text()


def test_report_writes_elsewhere_and_takes_a_file(tmp_path: Path) -> None:
    folder = write_log(tmp_path / "r", finish=None)
    assert cli.main(["report", str(folder / "events.jsonl"), "--output", str(tmp_path / "new" / "here")]) == 0
    assert {path.name for path in (tmp_path / "new" / "here").iterdir()} == {"report.html", "record.json", "junit.xml"}
    assert [path.name for path in folder.iterdir()] == ["events.jsonl"]


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "does not exist"), ("", "is no event log"), ('{"event": "other"}\n', "is no event log")],
)
def test_report_refuses_what_is_no_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "events.jsonl").write_text(text)
    assert cli.main(["report", str(tmp_path / "events.jsonl")]) == 1
    error = capsys.readouterr().err
    assert (message in error, error.count("\n")) == (True, 1)
    assert not (tmp_path / "report.html").exists()
