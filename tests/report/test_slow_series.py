"""Parts that are slow at times in stored runs: who is accused, who is not, and what the command prints."""

from __future__ import annotations

import contextlib
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.core.finding import Metric
from pytest_gpucluster.core.intermittent import Decision, SlowCount
from pytest_gpucluster.core.part import gpu, named
from pytest_gpucluster.report.history.run_snapshot import recorded
from pytest_gpucluster.report.history.slow_series import intermittent
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.report.machine.events import read_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NIGHTS, NODES = 40, tuple(f"gpu{number:02}" for number in range(1, 9))
OLD = NODES[4:]  # another kind of hardware, half as fast


def fill(history: History, speed: Callable[[int, str], float]) -> None:
    noise = random.Random(1)

    def metrics_of(night: int, node: str) -> list[Metric]:
        value, peer = speed(night, node) * noise.lognormvariate(0.0, 0.01), NODES[NODES.index(node) ^ 1]
        link = 90.0 * min(speed(night, node), speed(night, peer))
        return [
            Metric("hbm", value * (2000.0 if node in OLD else 4000.0), "GB/s", gpu(3)),
            Metric("start", 1 / value, "s"),
            Metric("pair_busbw", link, "GB/s", named("peer", peer)),
            Metric("gpus", 8 * speed(night, node), "GPUs"),
        ]

    for night in range(NIGHTS):
        events: list[dict[str, Any]] = [{"event": "start", "cluster": "prod", "simulated": False}]
        for node in NODES:
            about = {"nodeid": f"test_gpu.py::test_speed[{node}]", "outcome": "passed", "check": "gpu.speed"}
            metrics = [it.as_dict() for it in metrics_of(night, node)]
            events.append({"event": "result", "node": node, "metrics": metrics, **about})
        events.append({"event": "finish", "exit": 0})
        lines = [{"time": 86_400.0 * (night + 1), "run": f"night{night:03}", **it} for it in events]
        history.add(recorded(read_run(lines)))


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with contextlib.closing(History(tmp_path / "history.sqlite", create=True)) as opened:
        yield opened


def at_times(night: int, node: str) -> float:
    """Return the speed of a fabric that is slow in one night, with a node that is slow every fifth one."""
    return (0.7 if night == 7 else 1.0) * (0.6 if node == "gpu06" and night % 5 == 1 else 1.0)


def test_part_that_is_slow_at_times_is_named_by_each_metric_of_speed(history: History) -> None:
    fill(history, at_times)
    table = intermittent(history, "prod", most=1000)
    assert (table.runs, table.series, table.lasting) == (NIGHTS, 8 + 8 + 4, 4)
    decisions = {it.metric: it.judged.decision for it in table.suspects}
    assert decisions == dict.fromkeys(("hbm", "start", "pair_busbw"), Decision.INTERMITTENT)
    assert {(it.metric, it.node, it.part.place): it.judged.count for it in table.suspects} == {
        ("hbm", "gpu06", "GPU 3"): SlowCount(8, NIGHTS),
        ("start", "gpu06", ""): SlowCount(8, NIGHTS),
        # one part, though both ends have it
        ("pair_busbw", "gpu05", "with gpu06"): SlowCount(8, NIGHTS),
    }
    assert {it.judged.fleet for it in table.suspects} == {SlowCount(0, 7 * NIGHTS), SlowCount(0, 3 * NIGHTS)}
    assert table.free[0.1] == 17


def test_fault_that_lasts_is_not_intermittent(history: History) -> None:
    fill(history, lambda _, node: 0.5 if node == "gpu02" else 1.0)
    table = intermittent(history, "prod", most=1000, pattern="[sp]*")
    assert (table.suspects, table.lasting) == ((), 2)  # its start, and its link


def test_accepted_run_begins_a_new_count(history: History) -> None:
    fill(history, at_times)
    history.accept(history.find("prod", "night037"), "gpu06")
    assert not intermittent(history, "prod", most=1000, pattern="[hs]*").suspects


def test_command_prints_suspects(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    fill(history, at_times)
    call = ["history", "--intermittent", "--metric", "hbm", "--history", str(history.path)]
    assert cli.main(call) == 0
    _, row, _, about, free, _, action = capsys.readouterr().out.splitlines()
    for words in ("gpu.speed", "gpu06", "GPU 3", "8 of 40", "0 of 280", "intermittent"):
        assert words in row
    assert "1 of 8 parts (each by one metric) are intermittent" in about
    assert "7 above 10%" in free
    assert action == "action: monitor; no node is drained for it"
    assert cli.main([*call, "--json"]) == 0
    (suspect,) = json.loads(capsys.readouterr().out)["suspects"]
    assert [suspect[it] for it in ("decision", "slow", "action")] == ["intermittent", 8, "monitor"]
    assert cli.main(["history", "gpu06", "--intermittent", "--history", str(history.path)]) == 4
