"""One message about a run that changed something, and none about a run like the one before."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucluster.report.notice import MAX_LINES, notice
from pytest_gpucluster.report.run_model import Run, read_run


def run_of(outcomes: dict[tuple[str, str], str], *more: dict[str, Any], exit: int = 1) -> Run:
    names = sorted({node for node, _ in outcomes})
    results = [
        {
            "event": "result", "nodeid": f"t.py::t_{check}[{node}]", "outcome": outcome, "phase": "call", "suite": "gpu",
            "check": check, "node": node, "message": "" if outcome == "passed" else f"{check} on {node}: 7 GPUs\nmore", "verdicts": [],
        }
        for (node, check), outcome in outcomes.items()
    ]  # fmt: skip
    start = {"event": "start", "cluster": "prod", "run": "r1", "simulated": False}
    return read_run(
        [start, {"event": "nodes", "selected": names}, *results, *more, {"event": "finish", "exit": exit}]
    )


GOOD = {("gpu01", "gpu.count"): "passed", ("gpu02", "gpu.count"): "passed", ("gpu02", "gpu.ecc"): "passed"}
BAD = {**GOOD, ("gpu02", "gpu.count"): "failed"}
ACT = {
    "event": "node_result",
    "node": "gpu02",
    "result": "drained",
    "problem": "",
    "reason": "gpucluster:gpu.count 7!=8",
}


def test_new_and_healed_failures_and_acts_are_named() -> None:
    message = notice(run_of(BAD, ACT), run_of(GOOD), "/reports/r1")
    assert message is not None
    assert (message["cluster"], message["run"], message["verdict"], message["simulated"]) == (
        "prod",
        "r1",
        "not accepted",
        False,
    )
    assert message["new"] == ["gpu.count on gpu02: 7 GPUs"]
    assert message["text"].splitlines() == [
        "prod: Not accepted: 1 of 2 nodes (1 failed)",
        "2 nodes: 1 fit, 1 failed, 0 not proved, 0 not tested",
        "new: gpu.count on gpu02: 7 GPUs",
        "gpu02 drained: gpucluster:gpu.count 7!=8",
        "report: /reports/r1",
    ]
    healed = notice(run_of(GOOD, exit=0), run_of(BAD), "/reports/r2")
    assert healed is not None
    assert (healed["new"], healed["healed"], healed["verdict"]) == ([], ["gpu.count on gpu02"], "accepted")


@pytest.mark.parametrize("outcomes", [GOOD, BAD])
def test_a_run_like_the_one_before_sends_nothing(outcomes: dict[tuple[str, str], str]) -> None:
    assert notice(run_of(outcomes), run_of(outcomes), "/r") is None
    assert notice(run_of(outcomes), None, "/r") is not None


def test_a_rerun_heals_only_what_it_judged() -> None:
    rerun = {("gpu02", "gpu.ecc"): "passed"}
    assert notice(run_of(rerun, exit=0), run_of(BAD), "/r") is None


def test_the_message_is_bounded() -> None:
    many = {("gpu01", f"gpu.check{number:03}"): "failed" for number in range(200)}
    message = notice(run_of(many), None, "/r")
    assert message is not None
    assert len(message["text"].splitlines()) == MAX_LINES + 4
    assert "and 180 more: see the report" in message["text"]
    assert len(message["new"]) == MAX_LINES
