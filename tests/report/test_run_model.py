"""Events read into values: the model of the HTML report and the run that the history keeps, field by field."""

from __future__ import annotations

from typing import Any

import pytest
from report_helpers import a_run, failing, part_of, passing, result

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.part import Part, gpu, named, nvlink
from pytest_gpucluster.report.history.run_snapshot import Recorded, recorded
from pytest_gpucluster.report.machine.events import read_run
from pytest_gpucluster.report.run_model import FailureGroup

# --- the model of a page


# --- failures


def groups(*failures: dict[str, Any]) -> list[FailureGroup]:
    return [*read_run(a_run(failures)).groups.values()]


NO_LOGS = "steps/.log steps/a/b.log steps/../x.log steps/x.log.txt steps/xlog http://x/steps/x.log"


def test_only_step_logs_are_linked_to() -> None:
    good = ["steps/gw0-0001-gpu.x_y.log", "steps/x.log"]
    run = read_run(a_run([failing("gpu01", logs=[*NO_LOGS.split(), 7, *good])]))
    assert [list(group.logs) for group in run.groups.values()] == [good]
    assert run.logs == {"gpu": dict.fromkeys(good, "gpu.nvlink_state")}


def test_failures_are_grouped_by_what_differs() -> None:
    base = failing("gpu01", part=nvlink(3, gpu(1, uuid="a")))
    alike: dict[str, Any] = {"part": nvlink(5, gpu(2, uuid="b"))}
    assert len(groups(base, failing("gpu02", **alike))) == 1
    for other in (
        *({"cause": "another"}, {"part": gpu(2)}, {"hint": "other"}, {"action": "reboot"}),
        *({"check": "gpu.other"}, {"outcome": "error"}),
    ):
        assert len(groups(base, failing("gpu02", **(alike | other)))) == 2
    # with a verdict its message is no matter; without one it is what tells them apart
    for more, count in (({"cause": ""}, 1), ({"findings": []}, 2)):
        assert len(groups(*(failing("gpu01", message=message, **more) for message in "ab"))) == count
    lost = [failing(node, findings=[], message=f"{node} was lost") for node in ("gpu01", "gpu02")]
    assert len(groups(*lost)) == 1


# --- numbers


def metric(name: str, value: Any, unit: str = "W", device: Any = "", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "part": part_of(device) if isinstance(device, str) else device,
        **more,
    }


@pytest.mark.parametrize("value", ["NaN", None, float("nan"), float("-inf"), [1]])
def test_what_is_no_number_or_a_detail_is_not_drawn(value: Any) -> None:
    metrics = [metric("power", value), metric("busbw", value), metric("x", 1, detail=True)]
    run = read_run(a_run([passing("gpu01", metrics=metrics)]))
    assert (run.spreads, run.node_curves) == ({}, {})


def test_bandwidths_make_curves_and_bounds() -> None:
    label, whole = "busbw all_reduce 4 KiB 2 nodes", named("run", "all_reduce 2 nodes")
    bounded = Part("size", 4096, label, of=whole).as_dict()
    limits = [metric("busbw_bound", it, "GB/s", bounded) for it in (3, 3, 2)]
    measured = {"all_reduce 1 MiB": 5, "all_gather 2 GiB": 6, "odd": 7, "all_reduce 1.2.3 MiB": 7}
    metrics = [metric("busbw", value, "GB/s", what) for what, value in measured.items()]
    run = read_run(a_run([passing("gpu01", metrics=metrics), passing("", metrics=[metrics[0], *limits])]))
    alone, gathered = {"gpu01": {1 << 20: 5.0}}, {"gpu01": {2 << 30: 6.0}}
    assert run.node_curves == {"all_reduce": alone, "all_gather": gathered}
    assert run.bounds == {whole.name: {4096: 2}}
    assert run.spreads == {}


# --- what the history keeps


def start(**more: Any) -> dict[str, Any]:
    return {"event": "start", "time": 5.0, "run": "r1", "cluster": "prod", "simulated": False} | more


def kept(*events: dict[str, Any], **more: Any) -> Recorded:
    return recorded(read_run([start(**more), *events]))


def test_only_a_run_that_came_to_its_end_is_complete() -> None:
    for code, status, complete in (
        *((0, 0, True), (1, 1, True), (2, 2, False), (5, 5, False)),
        *((True, None, False), ("0", None, False), (None, None, False)),
    ):
        found = kept({"event": "finish", "exit": code})
        assert (found.exit, found.complete) == (status, complete)
    assert not kept().complete


def test_a_good_run() -> None:
    for outcomes, code, good in (
        ("passed", 0, True),
        ("passed, not checked", 0, True),
        ("not checked", 0, False),
        ("", 0, False),
        ("passed", 1, False),
        ("passed, failed", 0, False),
        ("passed, error", 0, False),
        ("passed", None, False),
    ):
        ends = [outcome for outcome in outcomes.split(", ") if outcome]
        results = [result("gpu01", outcome, check=f"gpu.c{n}") for n, outcome in enumerate(ends)]
        found = kept(*results, {"event": "finish", "exit": code})
        assert found.good is good
        assert len(found.red) == sum(outcome in ("failed", "error") for outcome in ends)


@pytest.mark.parametrize(
    "wrong", [{"run": ""}, {"cluster": None}, {"time": "5"}, {"time": True}, {"time": float("inf")}, {"event": "x"}]
)
def test_what_is_no_log_of_a_run_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(GpuClusterError, match=r"^here: not the event log of a run: it has no start event"):
        recorded(read_run([start(**wrong)]), "here")
    with pytest.raises(GpuClusterError, match=r"^the event log: not the event log of a run"):
        recorded(read_run([]))


def test_of_several_results_of_an_item_a_red_one_stands() -> None:
    (item,) = kept(*(result("gpu01", end) for end in ("passed", "error", "passed", "failed"))).items
    assert (item.outcome, item.action, item.findings) == ("error", "", ())
    (item,) = kept(result("gpu01", "not checked"), result("gpu01", "passed")).items
    assert item.outcome == "passed"


def measures(*metrics: dict[str, Any]) -> list[tuple[str, str, float | None]]:
    found = kept(passing("gpu01", metrics=list(metrics))).metrics
    return [(one.metric.name, one.metric.device, one.metric.number) for one in found]


def test_what_was_measured_several_times_is_its_median() -> None:
    assert measures(metric("p", 1), metric("p", 9), metric("p", 2)) == [("p", "", 2.0)]
    assert measures(metric("p", 1), metric("p", "NaN")) == [("p", "", None)]
    assert measures(metric("p", 1), metric("p", 2, device="GPU 1")) == [("p", "", 1.0), ("p", "GPU 1", 2.0)]
    for value in (None, True, float("nan"), float("inf"), 10**400, [1]):
        assert measures(metric("p", value)) == [("p", "", None)]
