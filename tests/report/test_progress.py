"""How far a run is, and the line that says so once a minute."""

from __future__ import annotations

import os
import threading
from typing import Any

from pytest_gpucluster.report.machine.events import read_run
from pytest_gpucluster.report.terminal.progress import Reminder, progress

START = 1_000.0


def event(name: str, **fields: Any) -> dict[str, Any]:
    return {"time": START, "run": "20261127T020000-1", "event": name, **fields}


def result(node: str, outcome: str = "passed", check: str = "gpu.count") -> dict[str, Any]:
    finding = {"part": {"name": "GPUs"}, "measured": "7", "expected": "8"}
    verdict = {"check": check, "outcome": "failed", "action": "configure", "findings": [finding]}
    about = {"nodeid": f"test_gpu.py::test_count[{node}]", "suite": "gpu", "check": check, "node": node}
    return event("result", outcome=outcome, verdicts=[verdict] if outcome == "failed" else [], **about)


NODES = [f"gpu0{n}" for n in range(1, 9)]


BEGUN = [
    event("start", cluster="prod"),
    event("nodes", selected=NODES),
    event("selection", nodes=NODES, items=8, required=[]),
]


def test_the_line_has_items_time_left_and_what_failed() -> None:
    run = read_run([*BEGUN, *map(result, NODES[:5]), result("gpu06", "failed")])
    assert progress(run, START + 60) == (
        "20261127T020000-1: 8 nodes, for 1 min, 6 of 8 items (75%), about 20 s left, failed: gpu.count on gpu06"
    )
    begun = progress(read_run(BEGUN), START)
    assert begun == "20261127T020000-1: 8 nodes, for 0 s, 0 of 8 items (0%), no failure"
    assert progress(read_run(BEGUN[:2]), START).endswith("for 0 s, 0 items, no failure")
    burns = [event("burnin", what="begin", requested=3600, seconds=0, rounds=0)]
    burns.append(event("burnin", what="totals", totals={}, seconds=150.2, rounds=7))
    assert ", burn-in 2 min 30 s of 1 h, 7 rounds, no" in progress(read_run([*BEGUN, *burns]), START + 160)
    assert "1 of 8 items" in progress(read_run([*BEGUN, *burns, result("gpu01")]), START + 3700)
    failed = [result(node, "failed", f"gpu.check{node}") for node in NODES[:5]]
    assert progress(read_run([*BEGUN, *failed]), START).endswith(" and 2 more")


def test_the_line_comes_again_and_again_and_an_empty_one_never() -> None:
    reader, writer = os.pipe()
    texts = iter(("first", "", "second"))
    over = threading.Event()

    def line() -> str:
        text = next(texts, None)
        if text is None:
            over.set()
        return text or ""

    reminder = Reminder(line, writer, every=0.01)
    os.close(writer)  # its own duplicate is left
    assert over.wait(30)
    reminder.close()
    with os.fdopen(reader) as read:
        assert read.read() == "\nfirst\n\nsecond\n"


def test_a_reader_that_is_gone_ends_it() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    reminder = Reminder(lambda: "text", writer, every=0.01)
    os.close(writer)
    reminder.close()
