"""All nodes over all runs, as a history has them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from report.test_history import DAY, FIRST, result, store
from report_helpers import event

from pytest_gpucluster.report.history.fleet_runs import Act, LastVerdict, read_fleet
from pytest_gpucluster.report.history.store import History

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = FIRST + 10 * DAY


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[History]:
    with contextlib.closing(History(tmp_path / "h.sqlite", create=True)) as found:
        yield found


def fill(kept: History) -> None:
    fine = [result(node, check) for node in ("gpu01", "gpu02") for check in ("gpu.a", "os.b")]
    store(kept, 1, fine)
    store(kept, 2, [*fine[:2], result("gpu02", "gpu.a", "failed"), result("gpu02", "os.b", "error")], end=1)
    third = [fine[0], result("gpu02", "gpu.a", "not tested"), result("gpu03", "gpu.a", "failed")]
    store(kept, 3, third, end=1)


def test_states_are_those_of_each_run_oldest_first(kept: History) -> None:
    fill(kept)
    found = read_fleet(kept, "prod", now=NOW)
    assert [run.run for run in found.runs] == ["night001", "night002", "night003"]
    assert found.states == {
        "gpu01": ["passed", "passed", "passed"],
        "gpu02": ["passed", "failed", "not tested"],
        "gpu03": ["", "", "failed"],
    }
    assert (found.more_runs, found.simulated) == (0, False)
    store(kept, 4, [result("gpu02", "gpu.a"), result("gpu02", "os.b", "error")], end=1)
    store(kept, 5, [result("gpu02", "gpu.a")], end=None)
    assert read_fleet(kept, "prod", now=NOW).states["gpu02"][3:] == ["error", "not proved"]


def test_a_verdict_is_the_newest_of_its_suite_and_failed_counts(kept: History) -> None:
    fill(kept)
    fleet = read_fleet(kept, "prod", now=NOW)
    first, second, third = (run.started for run in fleet.runs)
    assert fleet.verdicts["gpu01"] == {"gpu": LastVerdict(third, "passed"), "os": LastVerdict(second, "passed")}
    # an error and "not tested" are no verdicts
    assert fleet.verdicts["gpu02"] == {"gpu": LastVerdict(second, "failed"), "os": LastVerdict(first, "passed")}
    ends = {"gpu.a": "passed", "gpu.b": "failed", "gpu.c": "passed"}
    store(kept, 4, [result("gpu01", check, end) for check, end in ends.items()], end=1)
    assert read_fleet(kept, "prod", now=NOW).verdicts["gpu01"]["gpu"].outcome == "failed"


def test_older_runs_are_counted_and_simulated_ones_are_apart(kept: History) -> None:
    fill(kept)
    found = read_fleet(kept, "prod", now=NOW, most=2)
    assert ([run.run for run in found.runs], found.more_runs) == (["night002", "night003"], 1)
    assert found.states["gpu01"] == ["passed", "passed"]
    store(kept, 9, [result("gpu01", "gpu.a", "failed")], real=False, end=1)
    found = read_fleet(kept, "prod", now=NOW)
    assert (found.simulated, list(found.states), found.states["gpu01"]) == (True, ["gpu01"], ["failed"])
    assert read_fleet(kept, "other", now=NOW).runs == ()


def test_acts_come_newest_first(kept: History) -> None:
    for number, node in ((1, "gpu01"), (2, "gpu02")):
        act = event("node_result", node=node, result="drained", reason="bad")
        store(kept, number, [result(node, "gpu.a"), act | {"time": FIRST + number * DAY}])
    assert read_fleet(kept, "prod", now=NOW).acts == tuple(
        Act(FIRST + number * DAY, f"gpu0{number}", "drained", "", f"night00{number}", "bad") for number in (2, 1)
    )
