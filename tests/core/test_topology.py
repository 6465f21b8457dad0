"""Leaf switches from Slurm's text."""

from __future__ import annotations

import pytest

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.core.topology import parse_slurm_topology

SLURM = """SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=gpu[01-02]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=gpu[03-04]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=gpu[01-04] Switches=leaf[0-1]
"""


LEAVES = {"gpu01": "leaf0", "gpu02": "leaf0", "gpu03": "leaf1", "gpu04": "leaf1"}
CLOUD = "SwitchName=cloud Level=0 LinkSpeed=1"  # its nodes are yet to come


@pytest.mark.parametrize(
    ("text", "leaves"),
    [
        *((SLURM, LEAVES), (f"{CLOUD} Nodes=\n{SLURM}", LEAVES), (f"{CLOUD}\n{SLURM}", LEAVES)),
        *(("", {}), ("slurm_load_topo error: Requested operation not supported\n", {})),
    ],
)
def test_leaves_of_slurm(text: str, leaves: dict[str, str]) -> None:
    assert parse_slurm_topology(text) == leaves


def test_a_leaf_without_readable_nodes_is_an_error() -> None:
    with pytest.raises(ProbeError, match="scontrol show topology"):
        parse_slurm_topology("SwitchName=l Level=0 Nodes=gpu[1-")
