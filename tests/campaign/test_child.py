"""What the event log of a run says about the nodes of its group."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.campaign.child import OUTPUT, Child, arguments_of, outcome_of, was_refused
from pytest_gpucluster.campaign.model import Kind, RunGroup
from pytest_gpucluster.core.run_mark import is_running
from pytest_gpucluster.report.machine.events import EventLog
from pytest_gpucluster.report.proof import FAILED, FIT, NOT_PROVED, NOT_TESTED
from pytest_gpucluster.report.run_model import NO_NODES, REFUSED, TAKEN_BACK, WAITED

if TYPE_CHECKING:
    from pathlib import Path

ALONE = Kind("alone", "gpu", ("gpu",))
PAIRS = Kind("nccl", "nccl", ("nccl",), size=2, partners=3)


def outcome(
    folder: Path, kind: Kind, nodes: str, *events: tuple[str, dict[str, Any]], ended: int | None = 0, end: str = ""
) -> Any:
    log = EventLog(folder / "events.jsonl", "r1")
    with contextlib.closing(log):
        log.write("start", cluster="prod", simulated=True)
        log.write("nodes", selected=nodes.split(), not_tested={})
        for event, fields in events:
            log.write(event, **fields)
        if ended is not None:
            log.write("finish", exit=ended, end=end)
    return outcome_of(group(folder, kind, nodes), kind, {})


def group(folder: Path, kind: Kind, nodes: str) -> RunGroup:
    return RunGroup(1, 1, kind.name, tuple(nodes.split()), False, str(folder), "", "", 0.0, 1.0)


def item(node: str, ended: str, check: str = "gpu.count", message: str = "") -> tuple[str, dict[str, Any]]:
    suite, _, what = check.partition(".")
    name = f"test_{what}[{node}]" if node else f"test_{what}"
    fields = {"nodeid": f"{suite}/test_{suite}.py::{name}", "node": node, "suite": suite, "check": check}
    return "result", {**fields, "outcome": ended, "message": message, "when": "call", "duration": 0.1}


def test_a_judged_node_has_its_verdict_and_the_first_failure_as_reason(tmp_path: Path) -> None:
    found = outcome(tmp_path, ALONE, "n1", item("n1", "passed"))
    assert (found.nodes["n1"], found.run, len(found.sha256)) == ((FIT, ""), "r1", 64)
    red = (item("n1", "error", "gpu.a", "x"), item("n1", "failed", "gpu.b", "7"))
    assert outcome(tmp_path / "b", ALONE, "n1", *red, ended=1).nodes["n1"] == (FAILED, "gpu.b: 7")


def test_a_run_that_was_killed_has_judged_nothing(tmp_path: Path) -> None:
    for number, ended in enumerate((None, 2)):
        found = outcome(tmp_path / str(number), ALONE, "n1", item("n1", "failed"), ended=ended)
        assert found.nodes == {"n1": (NOT_TESTED, "the run was stopped")}


WORDS = "CANCELLED PREEMPTED no nodes within 8 s, did not answer for 9 s, Unable to contact"


@pytest.mark.parametrize(
    ("end", "state", "refused"),
    [
        (WAITED, NOT_TESTED, False),
        (TAKEN_BACK, NOT_TESTED, True),
        (NO_NODES, NOT_PROVED, False),
        (REFUSED, NOT_PROVED, True),
        ("", NOT_PROVED, True),
    ],
)
@pytest.mark.parametrize("words", [WORDS, "it is red"])
def test_a_run_without_a_test_is_judged_by_the_end_of_its_log_and_by_no_word(
    tmp_path: Path, end: str, state: str, refused: bool, words: str
) -> None:
    (tmp_path / OUTPUT).write_text(f"ERROR: {words}\n")
    found = outcome(tmp_path, ALONE, "n1", ("error", {"message": words}), ended=4, end=end)
    assert found.nodes["n1"] == (state, words)
    assert was_refused(tmp_path) is refused


def test_a_run_without_a_log_was_killed_or_python_could_not_start_it(tmp_path: Path) -> None:
    killed = (NOT_TESTED, "the run was killed before its first test")
    assert outcome_of(group(tmp_path, ALONE, "n1"), ALONE, {}).nodes["n1"] == killed
    (tmp_path / OUTPUT).write_text(f"ImportError: {WORDS}\n")
    broken = outcome_of(group(tmp_path, ALONE, "n1"), ALONE, {}).nodes["n1"]
    assert broken == (NOT_PROVED, f"ImportError: {WORDS}")


def test_a_node_whose_job_was_taken_back_is_tested_later(tmp_path: Path) -> None:
    for number, (why, end, state) in enumerate(
        (
            ("slurmd does not answer", TAKEN_BACK, NOT_TESTED),
            ("slurmd does not answer", "", NOT_PROVED),
            (WORDS, "", NOT_PROVED),  # a node may write what it likes
        )
    ):
        ends = (item("n1", "error"), ("lost", {"node": "n1", "why": why}))
        found = outcome(tmp_path / str(number), ALONE, "n1", *ends, ended=1, end=end)
        assert found.nodes["n1"][0] == state


def test_what_two_nodes_do_together_fails_both_and_is_a_pair_with_a_problem(tmp_path: Path) -> None:
    good = [item(node, "passed", "nccl.alone") for node in ("n1", "n2")]
    whole = item("", "failed", "nccl.whole", "rank 3 ended")
    found = outcome(tmp_path, PAIRS, "n1 n2", *good, whole, ended=1)
    assert {state for state, _ in found.nodes.values()} == {FAILED}
    (pair,) = found.pairs["nccl"]
    assert (pair.nodes, pair.value, pair.problem) == (("n1", "n2"), None, "nccl.whole: rank 3 ended")
    alike = outcome(tmp_path / "c", PAIRS, "n1 n2", *good, item("", "passed", "nccl.whole"))
    assert (set(alike.nodes.values()), alike.pairs["nccl"]) == ({(FIT, "")}, [])
    ping = (item("n1", "passed"), item("", "failed", "slurm.ping", "x"))
    cluster = outcome(tmp_path / "b", ALONE, "n1", *ping, ended=1)
    assert cluster.nodes == {"n1": (FIT, ""), "": (FAILED, "slurm.ping: x")}


def test_the_last_word_of_the_command_line_is_that_of_the_campaign(tmp_path: Path) -> None:
    given = ["--cluster=prod", "-m", "gpu or nccl", "--report-dir=x"]
    found = arguments_of(given, PAIRS, ("n1", "n2"), tmp_path, ["slurm.queue_wait=60s"])
    own = ["-m", "nccl", "--nodes=n[1-2]", f"--report-dir={tmp_path}", "--set=slurm.queue_wait=60s"]
    assert found == [*given, *own]


def test_a_run_starts_only_after_its_process_is_stored(tmp_path: Path) -> None:
    """A campaign that is killed before leaves no run that no lease names."""
    orphan = Child(["--version"], tmp_path / "orphan")
    assert orphan.mark.split("-")[1] == str(orphan.process.pid)
    assert is_running(orphan.mark)
    orphan.process.communicate()  # its stdin closes, as at the death of the campaign
    assert orphan.process.returncode != 0
    assert (tmp_path / "orphan" / OUTPUT).read_text() == ""
    child = Child(["--version"], tmp_path / "child")
    child.go()
    assert child.process.wait(60) == 0
    assert "pytest" in (tmp_path / "child" / OUTPUT).read_text()
