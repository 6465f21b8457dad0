"""One message about a run that changed something, and none about a run like the one before."""

from __future__ import annotations

from typing import Any

from report_helpers import a_run, failing, result

from pytest_gpucluster.core.part import GPUS
from pytest_gpucluster.report.machine.events import read_run
from pytest_gpucluster.report.run_model import Run
from pytest_gpucluster.report.terminal.notice import MAX_LINES, notice


def run_of(outcomes: dict[tuple[str, str], str], *more: dict[str, Any], exit: int = 1) -> Run:
    results = [
        result(node, end, check=check) if end == "passed" else failing(node, check=check, part=GPUS)
        for (node, check), end in outcomes.items()
    ]
    nodes = sorted({node for node, _ in outcomes})
    return read_run(a_run([*results, *more], nodes=nodes, finish=exit))


GOOD = {("gpu01", "gpu.count"): "passed", ("gpu02", "gpu.count"): "passed", ("gpu02", "gpu.ecc"): "passed"}
BAD = {**GOOD, ("gpu02", "gpu.count"): "failed"}
REASON = "gpucluster:gpu.count 7!=8"
ACT = {"event": "node_result", "node": "gpu02", "result": "drained", "problem": "", "reason": REASON}


def test_new_and_healed_failures_and_acts_are_named() -> None:
    message = notice(run_of(BAD, ACT), run_of(GOOD), "/reports/r1")
    assert message is not None
    about = {"cluster": "prod", "run": "20261121T020000-1", "verdict": "not accepted", "simulated": False}
    assert message.items() >= about.items()
    assert message["new"] == ["gpu.count on gpu02: GPUs: measured 17 active links, expected 18"]
    assert message["text"].splitlines() == [
        "prod: Not accepted: 1 of 2 nodes failed",
        "2 nodes: 1 fit, 1 failed, 0 not proved, 0 not tested",
        "new: gpu.count on gpu02: GPUs: measured 17 active links, expected 18",
        f"gpu02 drained: {REASON}",
        "report: /reports/r1",
    ]
    healed = notice(run_of(GOOD, exit=0), run_of(BAD), "/reports/r2")
    assert healed is not None
    assert (healed["new"], healed["healed"], healed["verdict"]) == ([], ["gpu.count on gpu02"], "accepted")


def test_a_run_like_the_one_before_sends_nothing() -> None:
    for outcomes in (GOOD, BAD):
        assert notice(run_of(outcomes), run_of(outcomes), "/r") is None
        assert notice(run_of(outcomes), None, "/r") is not None
    # a rerun heals only what it judged
    assert notice(run_of({("gpu02", "gpu.ecc"): "passed"}, exit=0), run_of(BAD), "/r") is None


def test_the_message_is_bounded() -> None:
    many = {("gpu01", f"gpu.check{number:03}"): "failed" for number in range(200)}
    message = notice(run_of(many), None, "/r")
    assert message is not None
    assert len(message["text"].splitlines()) == MAX_LINES + 4
    assert "and 180 more: see the report" in message["text"]
    assert len(message["new"]) == MAX_LINES
