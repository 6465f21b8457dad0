"""What the error of a node that a suite has not proved says, and which nodes that were not tested are an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.plan import Kind, Problem
from pytest_gpucluster.plugin import reporting
from pytest_gpucluster.plugin.run_end import MAX_REASONS, Completeness, unproved_message

if TYPE_CHECKING:
    import pytest

WAY_OUT = "neither all_reduce_perf nor torch: install nccl-tests, or name an environment: nccl.environment"


def test_the_error_of_a_node_names_suite_nodes_reason_and_way_out() -> None:
    nodes = [f"gpu0{number}" for number in range(1, 5)]
    message = unproved_message("nccl", nodes, ["nccl.alone", "nccl.pairs"], [WAY_OUT], nothing=True)
    assert message == f"nccl measured nothing on gpu[01-04]: {WAY_OUT}"


def test_a_node_that_is_proved_in_part_has_the_checks_without_a_result() -> None:
    message = unproved_message("nccl", ["gpu01"], ["nccl.pairs"], ["it hung"], nothing=False)
    assert message == "nccl has not proved gpu01: nccl.pairs: it hung"
    assert unproved_message("controller", [""], ["controller.ping"], ["down"], nothing=True) == (
        "controller measured nothing on the cluster: down"
    )


def test_many_reasons_are_counted() -> None:
    reasons = [f"why {number}" for number in range(MAX_REASONS + 2)]
    assert unproved_message("a", ["n"], [], reasons, nothing=True).endswith("; 2 more reasons")


# --- nodes that were not tested

PROBLEMS = {
    "gpu02": Problem(Kind.BUSY, "ALLOCATED"),
    "gpu03": Problem(Kind.UNAVAILABLE, 'DRAINED: "bad cable"'),
    "gpu04": Problem(Kind.LOST, "does not answer"),
}
STATES = {"gpu01": "fit", "gpu02": "not tested", "gpu03": "not tested", "gpu04": "not proved"}


def completeness(min_nodes: int | str | None = None) -> Completeness:
    session: Any = SimpleNamespace(problem=PROBLEMS.get, cluster=SimpleNamespace(min_nodes=min_nodes))
    model = SimpleNamespace(selected=[*STATES], proofs=SimpleNamespace(nodes=STATES))
    log: Any = SimpleNamespace(model=model)
    config: Any = SimpleNamespace()
    return Completeness(config, session, log)


def test_a_selected_node_that_is_drained_down_or_lost_is_an_error_and_a_busy_one_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = completeness()
    reported: list[str] = []
    monkeypatch.setattr(reporting, "untested", lambda node, *_: [node])

    def log(reports: list[str]) -> bool:
        reported.extend(reports)
        return True

    monkeypatch.setattr(found, "_log", log)
    run: Any = SimpleNamespace(shouldfail=False)
    assert found.report_untested(run)
    assert reported == ["gpu03", "gpu04"]
    assert not found.report_untested(run), "once"


def test_busy_nodes_count_with_min_nodes_only() -> None:
    assert completeness().too_few() == []
    assert completeness(1).too_few() == []
    (line,) = completeness("75%").too_few()
    assert line.startswith(
        "1 of 4 nodes were tested; min_nodes requires 75%; not tested: gpu02: ALLOCATED; gpu03: DRAINED"
    )
