"""What a run will cost, by the runs that a history has."""

from __future__ import annotations

import contextlib
import doctest
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from report.test_ledger import card, night

from pytest_gpucluster.report.history import cost
from pytest_gpucluster.report.history.cost import EarlierRun, earlier_runs, estimate
from pytest_gpucluster.report.history.run_snapshot import RecordedItem
from pytest_gpucluster.report.history.store import History

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KNOWN = ("gpu", "os")


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with contextlib.closing(History(tmp_path / "h.sqlite", create=True)) as opened:
        yield opened


def runs(history: History, *words: str, names: tuple[str, ...] = ("gpu",)) -> list[EarlierRun]:
    return earlier_runs(history, ("prod", False), names, KNOWN, words)


def test_runs_of_the_same_suites_count_and_no_others(history: History) -> None:
    nodes = {"a": [card("1")], "b": [card("2")]}
    of_site = RecordedItem("", "site.own", "passed")
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"finished": 2 * 86_400 + 100.0},
        {"simulated": True},
        {"exit": 2},
        {"arguments": "-m gpu -k ecc"},
        {"arguments": "suites/gpu/test_gpu.py::test_ecc"},
        {"arguments": "-m gpu --slow"},
        {"items": (RecordedItem("a", "os.drift", "passed"),)},
    )
    for day, change in enumerate(changes, start=1):
        run = night(day, nodes)
        history.add(replace(run, **{"items": (*run.items, of_site), **change}))
    assert runs(history) == [EarlierRun(100, 2), EarlierRun(60, 2)]
    assert runs(history, "--slow") == [EarlierRun(60, 2)]
    assert runs(history, names=("os",)) == [EarlierRun(60, 1)]
    assert not runs(history, names=KNOWN)
    assert not runs(history, "-k", "ecc")


def test_a_run_of_few_checks_is_no_measure(history: History) -> None:
    many = tuple(RecordedItem("a", f"gpu.c{number}", "passed") for number in range(10))
    history.add(night(1, {"a": [card("1")]}))
    history.add(replace(night(2, {"a": [card("1")]}), items=many, finished=2 * 86_400 + 500.0))
    assert runs(history) == [EarlierRun(500, 1)]


def test_the_median_counts_else_the_plan_else_only_the_bound_is_known() -> None:
    earlier = [EarlierRun(60, 2), EarlierRun(90, 4), EarlierRun(600, 4)]
    known = estimate(earlier, 40, 3600)
    assert (known.nodes, known.seconds) == (40, 90)
    assert (
        "1 node-hours: 40 nodes for 1 min 30 s (median of 3 earlier runs of the same suites on 2 to 4 nodes"
        in known.text
    )
    assert estimate(earlier, 40, 3600, planned=7200).seconds == 7200
    for partial in (True, False):
        unknown = estimate([], 8, 3600, partial=partial)
        assert unknown.seconds is None
        assert "at most 8 node-hours" in unknown.text


def test_examples_of_the_docstrings() -> None:
    assert doctest.testmod(cost) == (0, 1)
