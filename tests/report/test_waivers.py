"""What waivers cover in a run, which of them are errors, and which are warnings."""

from __future__ import annotations

from typing import Any

from report_helpers import a_run, failing, junit_tree, passing, result

from pytest_gpucluster.core.part import gpu
from pytest_gpucluster.report.machine.events import read_run
from pytest_gpucluster.report.run_model import Run
from pytest_gpucluster.report.waivers import expired, unused, uses


def waiver(at: str, *checks: str, nodes: str = "", **keys: Any) -> dict[str, Any]:
    plain = {"reason": "slow <riser>", "ticket": "OPS-1", "until": "2027-01-31", "expired": False}
    return {"at": at, "checks": list(checks), "nodes": nodes, **plain, **keys}


def waived(node: str, at: str) -> dict[str, Any]:
    message = f"gpu.pcie on {node}: GPU 3: measured 8 lanes, expected 16"
    words = "OPS-1, until 2027-01-31: slow <riser>"
    of = {"at": [at], "words": words, "outcome": "failed", "message": message, "text": "all\nof it"}
    found = failing(node, part=gpu(3), measured="8 lanes", expected="16")["verdicts"]
    message = f"waived: {words}; {message}"
    return result(node, "waived", check="gpu.pcie", message=message, waiver=of, verdicts=found)


def run(*waivers: dict[str, Any], full: bool = True) -> Run:
    results = [waived("gpu01", "a:1"), waived("gpu02", "a:1"), passing("gpu02", check="gpu.ecc")]
    return read_run(a_run(results, start={"waivers": list(waivers), "full": full}))


def test_nodes_that_deviate_alike_are_one_line_with_the_waiver_s_words() -> None:
    (use,) = uses(run(waiver("a:1", "gpu.pcie"), waiver("a:2", "os.*")))
    assert list(use.lines()) == [
        "gpu.pcie on gpu[01-02]: GPU 3: measured 8 lanes, expected 16 (OPS-1, until 2027-01-31: slow <riser>)"
    ]


def test_a_waiver_that_covers_nothing_is_a_warning_of_a_full_run_only() -> None:
    idle = waiver("a:2", "os.*", nodes="gpu01")
    (line,) = unused(run(waiver("a:1", "gpu.pcie"), idle))
    assert line.startswith("a:2: the waiver of os.* on gpu01 (OPS-1) matches nothing")
    assert not unused(run(waiver("a:1", "gpu.pcie"), idle, full=False))


def test_an_expired_waiver_is_an_error_of_each_run_that_it_concerns() -> None:
    old = waiver("a:2", "gpu.ecc", nodes="gpu[02-03]", expired=True)
    for full in (True, False):
        (line,) = expired(run(old, full=full))
        assert line.startswith("a:2: the waiver of gpu.ecc on gpu[02-03] (OPS-1) expired on 2027-01-31")
    assert expired(run(waiver("a:2", "gpu.ecc/GPU 3", expired=True), full=False))
    other = waiver("a:2", "gpu.ecc", nodes="gpu01", expired=True)
    assert expired(run(other))
    assert expired(run(other, full=False)) == unused(run(other)) == []


def test_junit_has_the_waiver_the_finding_and_the_text_of_the_failure() -> None:
    root = junit_tree(a_run([waived("gpu01", "a:1")]))
    case = next(one for one in root.iter("testcase"))
    (skipped,) = case.iter("skipped")
    assert skipped.get("type") == "gpucluster.waived"
    assert "measured 8 lanes" in (skipped.get("message") or "")
    assert skipped.text == "all\nof it"
    properties = {one.get("name"): one.get("value") for one in case.iter("property")}
    assert properties["waiver"] == "OPS-1, until 2027-01-31: slow <riser>"
