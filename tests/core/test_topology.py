"""Leaf switches from Slurm's text."""

from __future__ import annotations

import pytest

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.core.topology import parse_slurm_topology

SLURM = """SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=gpu[01-02]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=gpu[03-04]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=gpu[01-04] Switches=leaf[0-1]
"""


def test_leaves_of_slurm() -> None:
    leaves = {"gpu01": "leaf0", "gpu02": "leaf0", "gpu03": "leaf1", "gpu04": "leaf1"}
    assert parse_slurm_topology(SLURM) == leaves


@pytest.mark.parametrize("text", ["", "slurm_load_topo error: Requested operation not supported\n"])
def test_no_topology_gives_no_leaves(text: str) -> None:
    assert parse_slurm_topology(text) == {}


@pytest.mark.parametrize(
    "empty", ["SwitchName=cloud Level=0 LinkSpeed=1 Nodes=\n", "SwitchName=cloud Level=0 LinkSpeed=1\n"]
)
def test_a_leaf_whose_nodes_are_yet_to_come_has_none(empty: str) -> None:
    assert parse_slurm_topology(empty + SLURM) == parse_slurm_topology(SLURM)


def test_a_leaf_without_readable_nodes_is_an_error() -> None:
    with pytest.raises(ProbeError, match="scontrol show topology"):
        parse_slurm_topology("SwitchName=l Level=0 Nodes=gpu[1-")
