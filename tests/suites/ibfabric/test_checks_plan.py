"""Whose finding a cable is that is not where the plan has it."""

from __future__ import annotations

from pathlib import Path

from paths import DATA

from pytest_gpucluster.core.check import Action, Outcome, Verdict
from pytest_gpucluster.suites.ibfabric import checks_plan
from pytest_gpucluster.suites.ibfabric.plan import Cable
from pytest_gpucluster.suites.ibfabric.subnet import read_ibnetdiscover
from pytest_gpucluster.suites.ibfabric.wiring import Comparison, compare, of_subnet

FOUND = of_subnet(read_ibnetdiscover(Path(DATA / "ibfabric/ibnetdiscover-ibsim.txt").read_text()), {})
RAILS = (
    ("gpu01", "mlx5_0", "leaf01", "1"),
    ("gpu01", "mlx5_1", "leaf02", "1"),
    ("gpu02", "mlx5_0", "leaf01", "2"),
    ("gpu02", "mlx5_1", "leaf02", "2"),
)
UPLINKS = (("leaf01", "33", "spine01", "1"), ("leaf02", "33", "spine01", "2"))
NODES = ("gpu01", "gpu02", "gpu09")


def planned(*cables: tuple[str, str, str, str]) -> Comparison:
    return compare([Cable(*cable, "p:1") for cable in cables], FOUND)


def parts(verdict: Verdict) -> list[str]:
    return [finding.part for finding in verdict.findings]


def test_cables_as_planned_pass() -> None:
    result = planned(*RAILS, *UPLINKS)
    verdict = checks_plan.cabling("gpu01", result)
    assert (verdict.outcome, verdict.metrics[0].value) == (Outcome.PASSED, 2)
    assert checks_plan.switch_cabling(result, NODES).outcome is Outcome.PASSED


def test_swapped_cable_is_a_finding_of_both_nodes_and_of_no_other() -> None:
    result = planned(("gpu01", "mlx5_0", "leaf01", "2"), ("gpu02", "mlx5_0", "leaf01", "1"), *UPLINKS)
    for node in ("gpu01", "gpu02.example.com"):
        verdict = checks_plan.cabling(node, result)
        assert parts(verdict) == ["gpu01 mlx5_0 - leaf01 port 2, gpu02 mlx5_0 - leaf01 port 1"]
        assert (verdict.action, verdict.setting) == (Action.CONFIGURE, "ibfabric.plan")
    assert checks_plan.switch_cabling(result, NODES).outcome is Outcome.PASSED


def test_cable_between_switches_is_a_finding_of_the_cluster_alone() -> None:
    result = planned(*RAILS, ("leaf01", "33", "spine01", "2"), ("leaf02", "33", "spine01", "1"))
    assert parts(checks_plan.switch_cabling(result, NODES)) == [
        "leaf01 port 33 - spine01 port 2, leaf02 port 33 - spine01 port 1"
    ]
    assert checks_plan.cabling("gpu01", result).outcome is Outcome.PASSED


def test_cable_of_a_host_outside_of_slurm_is_a_finding_of_the_cluster() -> None:
    assert parts(checks_plan.switch_cabling(planned(("storage1", "mlx5_0", "leaf01", "3")), NODES)) == [
        "storage1 mlx5_0 - leaf01 port 3"
    ]


def test_cable_of_a_node_that_is_off_is_nobody_elses_finding() -> None:
    result = planned(*RAILS, ("gpu09", "mlx5_0", "leaf01", "9"))
    assert checks_plan.switch_cabling(result, NODES).outcome is Outcome.PASSED
    assert checks_plan.cabling("gpu01", result).outcome is Outcome.PASSED


def test_switch_with_another_name_is_one_finding_of_the_cluster_and_fails_no_node() -> None:
    result = planned(*(cable for cable in RAILS if cable[2] == "leaf02"), ("gpu01", "mlx5_0", "rack1", "1"))
    verdict = checks_plan.cabling("gpu01", result)
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert verdict.reason.startswith("rack1 of the plan is not in the subnet by this name")
    assert checks_plan.cabling("gpu02", result).outcome is Outcome.PASSED
    assert parts(checks_plan.switch_cabling(result, NODES)) == ["rack1 of the plan"]


def test_node_with_another_name_is_not_checked_and_no_finding_of_the_cluster() -> None:
    result = planned(("gpu09", "mlx5_0", "leaf01", "1"), *UPLINKS)
    assert checks_plan.cabling("gpu09", result).outcome is Outcome.NOT_CHECKED
    assert checks_plan.switch_cabling(result, NODES).outcome is Outcome.PASSED


def test_node_without_a_planned_cable_is_not_judged() -> None:
    assert checks_plan.cabling("gpu07", planned(*RAILS)).outcome is Outcome.NOT_APPLICABLE
    assert checks_plan.neighbours("gpu07", planned(*RAILS)).outcome is Outcome.NOT_APPLICABLE


def test_link_that_the_plan_lacks_is_a_warning() -> None:
    verdict = checks_plan.switch_cabling(planned(*RAILS, UPLINKS[0]), NODES)
    assert verdict.outcome is Outcome.PASSED
    assert verdict.advisories[0].measured == "leaf02 port 33 - spine01 port 2"


def test_neighbour_that_differs_is_a_finding() -> None:
    verdict = checks_plan.neighbours("gpu01", planned(("gpu01", "mlx5_0", "leaf01", "7")))
    assert parts(verdict) == ["gpu01 mlx5_0 - leaf01 port 7"]
