"""Whose finding a cable is that is not where the plan has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from counter_examples import CONFIGURE, NOT_APPLICABLE, NOT_CHECKED, PASSED, WARNING
from judged import judged
from paths import DATA

from pytest_gpucluster.suites.ibfabric import checks_plan
from pytest_gpucluster.suites.ibfabric.plan import Cable
from pytest_gpucluster.suites.ibfabric.subnet import read_ibnetdiscover
from pytest_gpucluster.suites.ibfabric.wiring import WiringDiff, compare, of_subnet

if TYPE_CHECKING:
    from collections.abc import Sequence
FOUND = of_subnet(read_ibnetdiscover((DATA / "ibfabric/ibnetdiscover-ibsim.txt").read_text()), {})
RAILS = (
    ("gpu01", "mlx5_0", "leaf01", "1"),
    ("gpu01", "mlx5_1", "leaf02", "1"),
    ("gpu02", "mlx5_0", "leaf01", "2"),
    ("gpu02", "mlx5_1", "leaf02", "2"),
)
UPLINKS = (("leaf01", "33", "spine01", "1"), ("leaf02", "33", "spine01", "2"))
NODES = ("gpu01", "gpu02", "gpu09")


def planned(*cables: tuple[str, str, str, str]) -> WiringDiff:
    return compare([Cable(*cable, "p:1") for cable in cables], FOUND)


SWAPPED = (("leaf01", "33", "spine01", "2"), ("leaf02", "33", "spine01", "1"))
SWAPPED_PART = "leaf01 port 33 - spine01 port 2, leaf02 port 33 - spine01 port 1"
UNKNOWN_LEAF = (*(cable for cable in RAILS if cable[2] == "leaf02"), ("gpu01", "mlx5_0", "rack1", "1"))
OF_NAS, OFF = ("nas1", "mlx5_0", "leaf01", "3"), ("gpu09", "mlx5_0", "leaf01", "9")


@pytest.mark.parametrize(
    ("cables", "node", "of_node", "of_cluster"),
    [
        ((*RAILS, *UPLINKS), "gpu01", PASSED, []),
        ((*RAILS, *SWAPPED), "gpu01", PASSED, [SWAPPED_PART]),
        ((OF_NAS,), "gpu01", NOT_APPLICABLE, ["nas1 mlx5_0 - leaf01 port 3"]),
        ((*RAILS, *UPLINKS, OFF), "gpu01", PASSED, []),  # a node that is off is nobody else's finding
        (UNKNOWN_LEAF, "gpu01", NOT_CHECKED, ["rack1 of the plan"]),
        (UNKNOWN_LEAF, "gpu02", PASSED, ["rack1 of the plan"]),
        ((("gpu09", "mlx5_0", "leaf01", "1"), *UPLINKS), "gpu09", NOT_CHECKED, []),
    ],
)
def test_whose_finding_a_cable_is(
    cables: Sequence[tuple[str, str, str, str]], node: str, of_node: str, of_cluster: list[str]
) -> None:
    result = planned(*cables)
    for check in (checks_plan.cabling, checks_plan.neighbours):
        assert judged(check(node, result)) == (of_node, [])
    found = judged(checks_plan.switch_cabling(result, NODES))
    assert found == (CONFIGURE if of_cluster else PASSED, of_cluster)


def test_cables_as_planned_are_counted_and_links_that_the_plan_lacks_are_named() -> None:
    assert checks_plan.cabling("gpu01", planned(*RAILS, *UPLINKS)).metrics[0].value == 2
    extra = checks_plan.switch_cabling(planned(*RAILS, UPLINKS[0]), NODES).advisories[0]
    assert extra.measured == "leaf02 port 33 - spine01 port 2"


def test_swapped_cable_is_a_finding_of_both_nodes_and_of_no_other() -> None:
    result = planned(("gpu01", "mlx5_0", "leaf01", "2"), ("gpu02", "mlx5_0", "leaf01", "1"), *UPLINKS)
    for node in ("gpu01", "gpu02.example.com"):
        verdict = checks_plan.cabling(node, result)
        assert judged(verdict) == (CONFIGURE, ["gpu01 mlx5_0 - leaf01 port 2, gpu02 mlx5_0 - leaf01 port 1"])
        assert verdict.setting == "ibfabric.plan"
    assert judged(checks_plan.switch_cabling(result, NODES)) == (WARNING, ["links that the plan lacks"])
