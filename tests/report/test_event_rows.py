"""Short rows of the event log: the same events as whole lines, and a count of bytes that does not grow."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from report_helpers import a_run, failing, passing, unjudged

from pytest_gpucluster.core.finding import Metric
from pytest_gpucluster.core.part import gpu, named, nvlink
from pytest_gpucluster.report.cluster_findings import settle
from pytest_gpucluster.report.machine import junit
from pytest_gpucluster.report.machine.event_rows import RowReader
from pytest_gpucluster.report.machine.events import EventLog, GrowingLog, events_of, read_events, read_run

if TYPE_CHECKING:
    from pathlib import Path

NODES = [f"gpu{number:03}" for number in range(100)]


def measured(node: str, **more: Any) -> dict[str, Any]:
    """Return a result with a metric of each of eight GPUs, which are the node's own."""
    parts = [gpu(index, uuid=f"GPU-{node}-{index}", address=f"0000:{index}b:00.0") for index in range(8)]
    metrics = [Metric("temperature", 40.5 + index, "C", part).as_dict() for index, part in enumerate(parts)]
    about = {"check": "gpu.temperature", "nodeid": f"test_gpu.py::test_temperature[{node}]", "metrics": metrics}
    return passing(node, **about, **more)


def write(path: Path, events: list[dict[str, Any]]) -> EventLog:
    with contextlib.closing(EventLog(path, "r")) as log:
        for event in events:
            log.write(event["event"], clean={key: value for key, value in event.items() if key != "event"})
    return log


def test_rows_are_read_as_the_events_that_were_written(tmp_path: Path) -> None:
    odd = [
        passing("", nodeid="test_x.py::test_all", seconds=0.5),
        passing("a", nodeid="test_aa.py::test_a[a-aa]"),  # the name is in other words too
        passing("b", nodeid="test_bb.py::test_b[b-bb]"),
        passing("c", metrics=[Metric("x", float("inf"), "s", nvlink(3, gpu(1))).as_dict()]),
        passing("d", metrics=[Metric("x", float("nan"), "s", named("mount", "/")).as_dict()]),
        unjudged("e", "not checked"),
        passing("f", metrics=7),
        {"event": "result", "node": "g"},
    ]
    results = [*map(measured, NODES), failing("gpu003"), *odd, *odd, *odd, measured("gpu003", versions={"driver": "1"})]
    events = a_run(results, nodes=NODES)
    log = write(tmp_path / "events.jsonl", events)
    found = list(read_events(log.path))
    plain = [json.loads(json.dumps(event), parse_constant=str) for event in events]
    assert [it | {"time": 0, "run": ""} for it in found] == [it | {"time": 0, "run": ""} for it in plain]
    assert [list(it) for it in found[-9:-1]] == [["time", "run", "event", *list(it)[3:]] for it in found[-9:-1]]
    run = read_run(found)
    settle(log.model)
    assert (str(run.results), run.counts) == (str(log.model.results), log.model.counts)  # NaN is not equal to itself


def test_a_log_of_results_that_all_differ_has_no_rows(tmp_path: Path) -> None:
    log = write(tmp_path / "events.jsonl", [passing(node, message=f"of {node}") for node in NODES])
    assert all(line.startswith("{") for line in log.path.read_text().splitlines())
    assert len(log.path.read_text().splitlines()) == len(NODES)


def test_a_log_that_was_cut_is_read_to_its_last_row(tmp_path: Path) -> None:
    log = write(tmp_path / "events.jsonl", [measured(node) for node in NODES])
    whole = log.path.read_text()
    events = list(read_events(log.path))
    log.path.write_text(whole[:-3])
    assert list(read_events(log.path)) == events[:-1]
    growing = GrowingLog(log.path)
    with contextlib.closing(growing), log.path.open("a") as file:
        assert list(growing.new()) == events[:-1]
        file.write(whole[-3:])
        file.flush()
        assert list(growing.new()) == events[-1:]


def test_another_process_that_continues_a_log_states_its_own_shapes(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, [measured(node) for node in NODES[:3]])
    write(path, [measured(node, phase="setup") for node in NODES[:3]])
    assert [(it["node"], it["phase"]) for it in read_events(path)] == [
        (node, phase) for phase in ("call", "setup") for node in NODES[:3]
    ]


def test_after_a_full_disk_rows_state_again_what_they_refer_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    with contextlib.closing(EventLog(path, "r")) as log:

        def full(_text: str) -> None:
            raise OSError(28, "No space left on device")

        log.write("result", clean=measured("gpu001"))
        with monkeypatch.context() as patch:
            patch.setattr(log, "_append", full)
            log.write("result", clean=measured("gpu002"))  # with shape and parts
        for node in NODES[3:6]:
            log.write("result", clean=measured(node))
    assert [it["node"] for it in read_events(path)] == ["gpu001", "gpu003", "gpu004", "gpu005"]


SHAPE = (
    '{"time": 1, "run": "r", "event": "shape", "name": "c", "of": {"nodeid": ["a[", "]"], "metrics": [{"part": 0}]}}'
)
PARTS = '{"event": "parts", "number": 0, "of": [{"kind": "gpu"}]}'


@pytest.mark.parametrize(
    "row",
    ['["d","n",0,0,0,1]', '["c","n",0,0,1,1]', '["c","n",0,0,0]', '["c","n",0,0,0,1,1]', '["c",[],0,0,0,1]', '["c","n","x",0,0,1]',
     '[["c"],"n",0,0,0,1]', '["c","n",0,0,[],1]', "[]", "7", '"c"', "null", '["c","n",1e999,0,0,1]["']
)  # fmt: skip
def test_a_row_that_fits_no_shape_is_no_event(row: str) -> None:
    broken: list[int] = []
    good = '["c","n",0.5,0.1,0,7]'
    (event,) = events_of([SHAPE, PARTS, row, good], broken)
    assert broken == [3]
    assert event == {
        "time": 1.5,
        "run": "r",
        "event": "result",
        "nodeid": "a[n]",
        "node": "n",
        "seconds": 0.1,
        "metrics": [{"part": {"kind": "gpu"}, "value": 7}],
    }


@pytest.mark.parametrize(
    "line", [{"event": "shape"}, {"event": "shape", "of": 7, "name": []}, {"event": "parts", "number": "x"}]
)
def test_a_foreign_shape_yields_nothing(line: Any) -> None:
    assert RowReader().event(line) is None


def test_a_passed_result_costs_a_few_dozen_bytes_in_log_and_junit(tmp_path: Path) -> None:
    """The growth guard: counts of bytes, for each result and for each value of a metric."""

    def sizes(nodes: list[str]) -> tuple[int, int]:
        events = a_run([*map(passing, nodes), *map(measured, nodes)], nodes=nodes)
        log = write(tmp_path / f"{len(nodes)}.jsonl", events)
        # what has one line for all nodes is not counted
        rows = [line for line in log.path.read_text().splitlines() if line.startswith("[")]
        assert len(rows) == 2 * len(nodes) - 2
        cases = [line for line in b"".join(junit.pieces(log.model)).splitlines() if line.startswith(b"<testcase")]
        return sum(map(len, rows)), sum(map(len, cases))

    (few_rows, few_cases), (rows, cases) = sizes(NODES[:50]), sizes(NODES)
    results, values = 2 * 50, 8 * 50
    assert rows - few_rows <= 40 * results + 6 * values
    assert cases - few_cases <= 90 * results
