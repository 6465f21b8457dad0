"""A slow leaf of nccl and a bad uplink of it are one finding, under the check that found the uplink."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ibfabric_helpers import Topology, rail_optimised

from pytest_gpucluster.core.check import CHECKS, Action, Finding, Outcome, Verdict
from pytest_gpucluster.core.part import Part, pair
from pytest_gpucluster.suites.ibfabric import test_ibfabric
from pytest_gpucluster.suites.ibfabric.judge import owned
from pytest_gpucluster.suites.ibfabric.known_cause import with_known_cause

SW1 = Part("leaf", name="sw1")
LEAVES = {f"gpu{n:02}": f"sw{(n - 1) // 4}" for n in range(1, 9)}


def two_groups() -> Topology:
    """Four nodes on leaf01 and leaf02, four on leaf03 and leaf04."""
    topology = rail_optimised(nodes=4, hcas=4)
    for node in range(4):
        for hca in range(2):
            far = topology.peers[f"gpu{node + 1:02} mlx5_{hca + 2}", 1]
            topology.cut((f"gpu{node + 1:02} mlx5_{hca + 2}", 1))
            topology.connect((f"gpu{node + 5:02} mlx5_{hca}", 1), far)
    return topology


class Session:
    """A session that has made the facts of a fabric, or none."""

    def __init__(self, topology: Topology | None) -> None:
        self.made, self._known = self, dict[Any, object]()
        if topology is not None:
            facts = topology.facts()
            links = owned(facts, topology.ports())
            self._known = {test_ibfabric.fabric: facts, test_ibfabric.links: links}
            self._known |= {test_ibfabric.slurm_leaves: LEAVES}

    def known(self, fixture: Any) -> object:
        return self._known.get(fixture)


def explained(verdict: Verdict, topology: Topology | None) -> Verdict:
    session: Any = Session(topology)
    return with_known_cause(verdict, session, "")


def slow(*parts: Part, check: str = "nccl.links") -> Verdict:
    findings = tuple(Finding(part, "90 GB/s", "as fast as the others") for part in parts)
    return Verdict(check, Outcome.FAILED, findings, cause="a link", action=Action.MONITOR)


def bad_uplink() -> Topology:
    topology = two_groups()
    topology.slow(("leaf03", 33))
    return topology


@pytest.mark.parametrize(
    "part", [SW1, Part("leaf", name="leaf03"), pair("gpu02", "gpu07"), Part("group", nodes=("sw0", "sw1"))]
)
def test_a_bad_uplink_explains_a_slow_leaf_by_slurms_name_or_its_own(part: Part) -> None:
    found, like = explained(slow(part), bad_uplink()), CHECKS["ibfabric.switch_links"]
    assert (found.cause, found.hint, found.action) == (like.cause, like.hint, like.action)
    assert found.explained_by == "ibfabric.switch_links"
    assert found.findings[0].measured == "90 GB/s; leaf03 port 33 - spine01 port 5: 4x EDR (100 Gb/s)"


def test_a_missing_uplink_explains_it_too() -> None:
    topology = two_groups()
    topology.cut(("leaf04", 35))
    found = explained(slow(SW1), topology)
    assert found.explained_by == "ibfabric.balance"
    assert "switch leaf04 has 7 uplinks" in str(found.findings[0].measured)


@pytest.mark.parametrize(
    ("verdict", "topology"),
    [
        (slow(Part("leaf", name="sw0")), bad_uplink()),  # another leaf
        (slow(SW1, pair("gpu01", "gpu02")), bad_uplink()),  # it does not explain all
        (slow(Part("gpu", name="sw1")), bad_uplink()),
        (slow(SW1), two_groups()),  # a healthy fabric
        (slow(SW1), None),  # the suite did not run
        (slow(SW1, check="nccl.pairs"), bad_uplink()),
        (replace(slow(), outcome=Outcome.NOT_CHECKED), bad_uplink()),
    ],
)
def test_what_is_not_explained_is_left_as_it_is(verdict: Verdict, topology: Topology | None) -> None:
    assert explained(verdict, topology) is verdict
