"""Cables of InfiniBand that are swapped or missing, found by real opensm and ibnetdiscover on a simulated fabric (ibsim)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ibfabric_helpers import Topology, needs_ibsim, rail_optimised, simulated

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.suites.ibfabric import checks_plan
from pytest_gpucluster.suites.ibfabric.plan import parse_plan
from pytest_gpucluster.suites.ibfabric.subnet import read_ibnetdiscover
from pytest_gpucluster.suites.ibfabric.wiring import compare, of_subnet

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def sheet(topology: Topology) -> str:
    """Return a plan that numbers the adapters of a host, and names halves of a cage of a switch: port 33 is 17/1."""
    rows = ["A-Node Name,A-Type,A-Port,Z-Node Name,Z-Type,Z-Port"]
    for one, other in topology.peers.items():
        words = [
            f"{name.split()[0].upper()},Host,{int(name[-1]) + 1}"
            if " " in name
            else f"{name},Switch,{(port + 1) // 2}/{2 - port % 2}"
            for name, port in (one, other)
        ]
        rows.append(",".join(words))
    return "\n".join(rows)


@needs_ibsim
def test_swapped_and_missing_cables_are_named_by_both_ends(tmp_path: Path) -> None:
    topology = rail_optimised(nodes=4, hcas=4, spines=2, each=1)
    plan = parse_plan("p2p.csv", sheet(topology))
    topology.swap(("gpu02 mlx5_1", 1), ("gpu02 mlx5_2", 1))  # two rails of one node
    topology.swap(("gpu03 mlx5_0", 1), ("gpu04 mlx5_0", 1))  # two nodes at one leaf
    topology.swap(("leaf01", 33), ("leaf02", 33))
    topology.cut(("gpu01 mlx5_3", 1))
    topology.cut(("leaf04", 34))

    with simulated(tmp_path, topology, "gpu01 mlx5_0") as fabric:
        subnet = read_ibnetdiscover(fabric.run("ibnetdiscover", "gpu01 mlx5_0").stdout)
    result = compare(plan.cables, of_subnet(subnet, {}))

    def found(node: str) -> Iterable[tuple[str, str]]:
        return [(it.part, it.measured) for it in checks_plan.cabling(node, result).findings]

    assert found("gpu01") == [("GPU01 port 4 - leaf04 port 1/1", "neither end has a link")]
    assert found("gpu02") == [
        (
            "GPU02 port 2 - leaf02 port 1/2, GPU02 port 3 - leaf03 port 1/2",
            "swapped: GPU02 port 2 is connected to leaf03 port 2, GPU02 port 3 is connected to leaf02 port 2",
        )
    ]
    between_nodes = [
        (
            "GPU03 port 1 - leaf01 port 2/1, GPU04 port 1 - leaf01 port 2/2",
            "swapped: GPU03 port 1 is connected to leaf01 port 4, GPU04 port 1 is connected to leaf01 port 3",
        )
    ]
    assert found("gpu03") == found("gpu04") == between_nodes
    verdict = checks_plan.switch_cabling(result, ["gpu01", "gpu02", "gpu03", "gpu04"])
    assert verdict.outcome is Outcome.FAILED
    assert [it.part for it in verdict.findings] == [
        "leaf01 port 17/1 - spine01 port 1/1, leaf02 port 17/1 - spine01 port 1/2",
        "leaf04 port 17/2 - spine02 port 2/2",
    ]
    assert result.unknown == {}
