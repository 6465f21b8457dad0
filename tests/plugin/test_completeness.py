"""What the error of a node that a suite has not proved says."""

from __future__ import annotations

from pytest_gpucluster.plugin.completeness import MAX_REASONS, unproved_message

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
