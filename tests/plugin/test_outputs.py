"""A run that changed something sends one message, by a command and to a URL; what prevents it is one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from paths import ROOT
from plugin_helpers import Run, run_pytest

from pytest_gpucluster.core.check import conclude
from pytest_gpucluster.core.errors import NOT_STATED, NotApplicable
from pytest_gpucluster.core.finding import Action
from pytest_gpucluster.plugin import run_outputs as outputs
from pytest_gpucluster.plugin.reporting import classify
from pytest_gpucluster.report import run_model
from pytest_gpucluster.report.describe import remark_lines
from pytest_gpucluster.report.proof import NOT_PROVED

if TYPE_CHECKING:
    from pathlib import Path

TEST = "def test_fit(host):\n    assert host.run('test -e {}').rc == 0, 'no licence file'\n"
SITE = """\
name: site
slurm: {{scheduler: none}}
nodes: localhost
profile: generic
notify: {}
"""


def run_with(folder: Path, notify: dict[str, Any]) -> Run:
    (folder / "site.yaml").write_text(SITE.format(json.dumps(notify)))
    return run_pytest(folder, "--cluster=site.yaml", files={"test_own.py": TEST.format(folder / "licence")})


@pytest.mark.thorough
def test_each_change_is_one_message(tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    code = f"import sys; open({str(kept)!r}, 'a').write(sys.stdin.read() + '\\n')"
    notify = {"command": [sys.executable, "-c", code]}
    (tmp_path / "licence").touch()
    assert run_with(tmp_path, notify).rc == 0
    assert run_with(tmp_path, notify).rc == 0  # as before: no message
    (tmp_path / "licence").unlink()
    assert run_with(tmp_path, notify).rc == 1
    (tmp_path / "licence").touch()
    assert run_with(tmp_path, notify).rc == 0
    sent = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [message["verdict"] for message in sent] == ["accepted", "not accepted", "accepted"]
    assert "no licence file" in sent[1]["new"][0]
    assert sent[2]["healed"]
    assert sent[1]["text"].startswith("site: Not accepted: 1 of 1 node")


@pytest.mark.parametrize(
    ("notify", "line"),
    [
        ({"command": ["/nonexistent/to-slack"]}, "WARNING: notify: /nonexistent/to-slack: not found"),
        ({"command": ["sh", "-c", "echo no >&2; exit 3"]}, "WARNING: notify: sh ended with exit status 3: no"),
    ],
)
def test_what_prevents_it_is_a_line_and_no_failure(tmp_path: Path, notify: dict[str, Any], line: str) -> None:
    (tmp_path / "licence").touch()
    run = run_with(tmp_path, notify)
    assert run.rc == 0
    assert line in run.out


@pytest.mark.parametrize(
    ("script", "program", "kept"),
    [
        ("notify-slack.sh", "curl", ['url = "https://hooks.example/T/secret"', '"prod: Accepted\\nall \\u00fc"}']),
        ("notify-mail.sh", "sendmail", ["To: ops@example.org", "Subject: prod: Accepted", "all ü"]),
    ],
)
def test_the_examples_send_the_text(tmp_path: Path, script: str, program: str, kept: list[str]) -> None:
    stub = tmp_path / program
    stub.write_text(f'#!/bin/sh\ncat > {tmp_path}/got; printf "%s\\n" "$@" >> {tmp_path}/got\n')
    stub.chmod(0o755)
    (tmp_path / "webhook").write_text("https://hooks.example/T/secret\n")
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SENDMAIL": str(stub)}
    env["SLACK_WEBHOOK_FILE"] = str(tmp_path / "webhook")
    text, argv = (json.dumps({"text": "prod: Accepted\nall ü"}), [str(ROOT / "examples" / script), "ops@example.org"])
    subprocess.run(argv, input=text, text=True, env=env, check=True)
    got = (tmp_path / "got").read_text()
    assert [line for line in kept if line not in got] == []
    assert "secret" not in got.partition("--config")[2]  # of the command line


# --- counts and tables


def add(run: run_model.Run, record: dict[str, Any], outcome: str, reason: str) -> None:
    run.take({"event": "result", "outcome": outcome, "reason": reason, **record})


def _record(node: str, suite: str = "gpu", **fields: Any) -> dict[str, Any]:
    return {"suite": suite, "check": f"{suite}.count", "node": node, "verdicts": [], "metrics": [], **fields}


@pytest.mark.parametrize(
    ("when", "outcome", "record", "expected"),
    [
        ("call", "passed", {}, "passed"),
        ("setup", "passed", {}, None),
        ("call", "failed", {}, "failed"),
        ("setup", "failed", {}, "error"),
        ("setup", "skipped", {"ended": "not checked"}, "not checked"),
        ("call", "skipped", {"ended": "not applicable"}, "not applicable"),
        ("call", "skipped", {"waiver": {}}, "waived"),
        ("setup", "skipped", {}, "skipped"),
    ],
)
def test_the_outcome_distinguishes_a_bad_node_from_broken_infrastructure(
    when: Any, outcome: Any, record: dict[str, Any], expected: str | None
) -> None:
    report = pytest.TestReport("id", ("file", 1, "test"), {}, outcome, None, when, gpucluster=record)
    assert classify(report) == expected


# --- exactly


def _of_every_end() -> run_model.Run:
    run = run_model.Run()
    for node, outcome, why in (
        *[("gpu02", "passed", "")] * 2,
        ("gpu04", "failed", ""),
        ("gpu03", "error", ""),
        ("gpu05", "not checked", "x"),
        ("gpu06", "not tested", "DOWN"),
        ("gpu07", "not applicable", "y"),
        ("gpu09", "skipped", "z"),
    ):
        add(run, _record(node), outcome, why)
    add(run, _record("gpu01", "os"), "passed", "")
    add(run, _record("gpu08", "ray"), "not applicable", "y")
    add(run, _record("", "run"), "error", "")
    return run


def test_the_table_of_nodes_has_the_worst_at_its_end_and_a_bound() -> None:
    run = run_model.Run()
    for place in range(1, 41):
        for _ in range(place):
            add(run, _record(f"gpu{place:02}"), "failed" if place == 7 else "passed", "")
    lines = outputs.node_table(run, 80)
    assert len(lines) == 2 + outputs.MAX_ROWS + 1
    assert lines[-2].split() == ["gpu07", "7", "FAILED"]
    assert lines[-1] == "and 25 more kinds of nodes: see report.html"


def test_the_table_of_nodes() -> None:
    assert outputs.node_table(_of_every_end(), 80) == [
        "nodes       gpu            os    run",
        "----------  -------------  ----  -------",
        "gpu02       2 ok           -     -",
        "gpu05       1 not checked  -     -",
        "gpu06       1 not tested   -     -",
        "gpu[07,09]  -              -     -",
        "gpu01       -              1 ok  -",
        "gpu04       1 FAILED       -     -",
        "gpu03       1 ERROR        -     -",
        "(cluster)   -              -     1 ERROR",
        "not applicable here: ray (-v says why)",
    ]
    assert outputs.node_table(run_model.Run(), 80) == []
    run = run_model.Run()
    for outcome in ("passed", "failed", "error", "not checked", "not tested", "not applicable"):
        add(run, _record("gpu01"), outcome, "y")
    assert outputs.node_table(run, 80)[2].endswith("1 ok, 1 FAILED, 1 ERROR, 1 not checked, 1 not tested")
    run = run_model.Run()
    add(run, _record("gpu01", "ray"), "not applicable", "y")
    add(run, _record("gpu01", "mpi"), "not applicable", "y")
    assert outputs.node_table(run, 80) == ["not applicable here: mpi, ray (-v says why)"]


def test_coverage_of_every_end() -> None:
    """An entry of a node that was not available is no check, nor is a suite without proof: the numbers add up."""
    run = _of_every_end()
    add(run, _record("gpu03", check="gpu.proved"), "error", "gpu has not proved gpu03")
    assert outputs.coverage(run) == (
        "coverage: 4 of 10 checks judged, 2 not applicable, 1 not checked, 1 not tested, 1 error, 1 skipped"
    )
    run.counts["gpu04"]["gpu"][NOT_PROVED] = run.counts["gpu04"]["gpu"].pop("failed")  # all nodes fail alike
    assert outputs.coverage(run).startswith("coverage: 4 of 10 checks judged")
    assert outputs.coverage(run_model.Run()) == "coverage: 0 of 0 checks judged"


def test_the_one_reason_of_all_that_was_not_judged() -> None:
    run = run_model.Run()
    assert outputs.only_reason(run) == ""
    add(run, _record("gpu01"), "not checked", "no right")
    add(run, _record("gpu02"), "not applicable", "no right")
    add(run, _record("gpu02"), "not tested", "DOWN")
    add(run, _record("gpu02"), "failed", "7")
    assert outputs.only_reason(run) == "no right"
    add(run, _record("gpu02"), "not checked", "another")
    assert outputs.only_reason(run) == ""


def test_a_check_without_an_expectation_is_known_by_its_code() -> None:
    run = run_model.Run()
    for name, code in (("gpu", ""), ("os", NOT_STATED)):
        why = [NotApplicable("the cluster file states no limits", code)]
        ended = conclude(name, why, cause="", hint="", action=Action.MONITOR).as_dict()
        add(run, _record("gpu01", name, verdicts=[ended]), "not applicable", ended["reason"])
    assert outputs.without_expectation(run, {"os"}) == ["no expectation in the cluster file: os.count"]
    assert "gpucluster init --from-nodes" in outputs.without_expectation(run)[0]


def test_remarks_are_one_line_per_kind_the_most_frequent_first() -> None:
    run = run_model.Run()
    for node, text, times in (("gpu02", "odd b", 3), ("gpu01", "odd a", 2), ("gpu02", "odd a", 2)):
        found = [{"outcome": "passed", "remarks": [{"text": text, "count": times}]}]
        add(run, _record(node, verdicts=found), "passed", "")
    shown = ["note: gpu.count on gpu[01-02]: 4 lines: odd a", "note: gpu.count on gpu02: 3 lines: odd b"]
    assert remark_lines(run) == shown
    many = [{"outcome": "passed", "remarks": [{"text": f"kind {n}", "count": 1} for n in range(50)]}]
    add(run, _record("gpu01", verdicts=many), "passed", "")
    assert len(remark_lines(run)) == 51
    assert remark_lines(run)[-1] == "note: gpu.count: 2 more kinds: see events.jsonl"
    assert outputs.advisory_lines(run) == []
