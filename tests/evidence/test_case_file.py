"""The case of a failed part, made from the events of a run."""

from __future__ import annotations

from typing import Any

from report_helpers import GPU_4, a_run, event, failing, passing, unjudged

from pytest_gpucluster.core.finding import Metric, Quantity
from pytest_gpucluster.core.part import InstalledPart, gpu, nvlink
from pytest_gpucluster.core.registry import import_checks
from pytest_gpucluster.evidence import case_file
from pytest_gpucluster.report.machine.events import read_run

SERIAL = "1652823012345"
OWN = InstalledPart(
    gpu(4, uuid="GPU-c12b", address="0000:9d:00.0", serial=SERIAL), "NVIDIA", "692-2G520-0282-001", "96.00"
)
BOUND = Quantity(4000, "GB/s", "4000 GB/s (profile h200-8)")


def bandwidth(value: float, index: int) -> dict[str, Any]:
    address = "0000:9d:00.0" if index == 4 else f"0000:0{index}:00.0"
    return Metric("memory", value, "GB/s", gpu(index, address=address), bound=BOUND).as_dict()


def the_run(*more: dict[str, Any], finish: int | None = 1) -> Any:
    import_checks()
    found = failing(
        "gpu02",
        check="burnin.memory_bandwidth",
        part=GPU_4,
        action="reset gpu",
        metrics=[bandwidth(3100, 4), bandwidth(4400, 3), bandwidth(4420, 2)],
        logs=["steps/0001-burnin.log"],
    )
    peer = passing("gpu01", check="burnin.memory_bandwidth", metrics=[bandwidth(4390, 4)])
    return read_run(a_run([found, peer, *more], finish=finish))


READ = event(
    "evidence",
    node="gpu02",
    folder="evidence/gpu02",
    files=[{"name": "kernel-log.txt", "bytes": 9, "sha256": "ab", "end": "0", "seconds": 0.1}],
    missing={"bmc-events": "not installed"},
    problem="",
    owner="",
    parts=[OWN.as_dict()],
)


def test_a_case_has_finding_repeat_control_exclusions_numbers_and_files() -> None:
    confirmed = {"attempts": 1, "confirmed": True, "why": "", "check": "burnin.memory_bandwidth"}
    cool = passing("gpu02", check="gpu.temperature")
    braked = failing("gpu02", check="gpu.throttle", part=GPU_4)
    run = the_run(cool, unjudged("gpu02", "not checked", check="gpu.driver"), braked, READ,
                  event("drain_confirm", node="gpu02", **confirmed))  # fmt: skip
    (case,) = case_file.cases_of(run)
    assert (case.node, case.name, case.checks) == (
        "gpu02",
        "GPU 0000:9d:00.0",
        ["burnin.memory_bandwidth", "gpu.throttle"],
    )
    found = case_file.record_of(run, case)
    assert found["installed"] == [OWN.as_dict()]
    assert found["findings"][0]["bound"] == [str(BOUND)]
    assert found["repeated"] == [confirmed]
    assert found["control"] == [
        {
            "check": "burnin.memory_bandwidth",
            "where": "gpu02, other parts",
            "figures": ["memory: 4400 to 4420 GB/s, median 4410, n=2"],
        },
        {
            "check": "burnin.memory_bandwidth",
            "where": "passed on gpu01 (1 node)",
            "figures": ["memory: 4390 to 4390 GB/s, median 4390, n=1"],
        },
    ]
    assert found["excluded"] == [{"cause": "heat", "by": "gpu.temperature passed"}]
    assert {"power brake and heat", "a driver that differs from most nodes"} <= {*found["not_excluded"]}
    assert (found["files"], found["missing"]) == (READ["files"], READ["missing"])
    assert found["steps"] == ["steps/0001-burnin.log"]
    text = case_file.text_of(found)
    for words in (
        SERIAL,
        "692-2G520-0282-001",
        "failed again in 1 new attempt",
        "4400 to 4420 GB/s",
        "sha256 ab",
        "not installed",
    ):
        assert words in text


def test_a_link_is_of_the_gpu_that_is_exchanged_and_mild_or_common_failures_are_no_case() -> None:
    link = failing("gpu02", check="gpu.nvlink_errors", part=nvlink(7, GPU_4), action="return to vendor")
    mild = failing("gpu01", check="gpu.clocks", part=GPU_4, action="monitor")
    run = the_run(link, mild)
    assert [(it.node, it.name, len(it.failures)) for it in case_file.cases_of(run)] == [
        ("gpu02", "GPU 0000:9d:00.0", 2)
    ]
    assert [it.node for it in case_file.cases_of(run, every=True)] == ["gpu01", "gpu02"]
    for result in run.results:
        object.__setattr__(result, "common", result.outcome == "failed")
    assert case_file.cases_of(run) == []


def test_what_was_not_read_is_said_with_its_reason() -> None:
    def problem(run: Any) -> str:
        return str(case_file.record_of(run, case_file.cases_of(run)[0])["problem"])

    assert "was killed" in problem(the_run(finish=None))
    assert (
        problem(the_run(event("lost", node="gpu02", why="node lost: no answer")))
        == "the node was lost: node lost: no answer"
    )
    assert "--evidence=off" in problem(the_run())
    assert problem(the_run(READ)) == ""


def test_the_form_of_dcgm_has_the_gpu_and_the_finding() -> None:
    run = the_run(READ)
    found = case_file.dcgm_of(case_file.record_of(run, case_file.cases_of(run)[0]))
    (test,) = found["DCGM Diagnostic"]["test_categories"][0]["tests"]
    (result,) = test["results"]
    assert (test["name"], result["entity_group"], result["entity_id"], result["status"]) == (
        "burnin.memory_bandwidth", "GPU", 4, "Fail")  # fmt: skip
    assert found["metadata"]["gpu_serials"] == {"4": SERIAL}
