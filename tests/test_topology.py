"""Leaf switches from Slurm's and ibnetdiscover's text."""

from __future__ import annotations

import pytest

from pytest_gpucluster.checks.topology import node_leaves, parse_ibnetdiscover, parse_slurm_topology
from pytest_gpucluster.errors import ProbeError

SLURM = """SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=gpu[01-02]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=gpu[03-04]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=gpu[01-04] Switches=leaf[0-1]
"""

# the form of ibnetdiscover (infiniband-diags), shortened to two leaves and one spine
IBNET = """#
# Topology file: generated on Fri Nov 20 10:00:00 2026
#
vendid=0x2c9
devid=0xd2f2
sysimgguid=0x900a84030040c1c0
switchguid=0x900a84030040c1c0(900a84030040c1c0)
Switch	65 "S-900a84030040c1c0"		# "MF0;leaf-a:MQM9700/U1" enhanced port 0 lid 1 lmc 0
[1]	"H-b8cef6030051aa00"[1](b8cef6030051aa00) 		# "gpu01 mlx5_0" lid 11 4xNDR
[2]	"H-b8cef6030051aa10"[1](b8cef6030051aa10) 		# "gpu02 mlx5_0" lid 12 4xNDR
[64]	"S-900a84030040ffff"[1]		# "spine" lid 9 4xNDR

vendid=0x2c9
Switch	65 "S-900a84030040d1c0"		# "leaf-b" enhanced port 0 lid 2 lmc 0
[1]	"H-b8cef6030051aa20"[1](b8cef6030051aa20) 		# "gpu01 mlx5_1" lid 13 4xNDR
[2]	"H-b8cef6030051aa30"[1](b8cef6030051aa30) 		# "gpu03 mlx5_0" lid 14 4xNDR

Ca	1 "H-b8cef6030051aa00"		# "gpu01 mlx5_0"
[1](b8cef6030051aa00) 	"S-900a84030040c1c0"[1]		# lid 11 lmc 0 "leaf-a" lid 1 4xNDR
"""


def test_leaves_of_slurm() -> None:
    assert parse_slurm_topology(SLURM) == {
        "gpu01": "leaf0",
        "gpu02": "leaf0",
        "gpu03": "leaf1",
        "gpu04": "leaf1",
    }


@pytest.mark.parametrize("text", ["", "slurm_load_topo error: Requested operation not supported\n"])
def test_no_topology_gives_no_leaves(text: str) -> None:
    assert parse_slurm_topology(text) == {}


@pytest.mark.parametrize(
    "text", ["SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=", "SwitchName=l Level=0 Nodes=gpu[1-"]
)
def test_a_leaf_without_readable_nodes_is_an_error(text: str) -> None:
    with pytest.raises(ProbeError, match="scontrol show topology"):
        parse_slurm_topology(text)


def test_leaves_of_ibnetdiscover_by_adapter() -> None:
    adapters = parse_ibnetdiscover(IBNET)
    assert adapters == {
        ("gpu01", "mlx5_0"): "MF0;leaf-a:MQM9700/U1",
        ("gpu02", "mlx5_0"): "MF0;leaf-a:MQM9700/U1",
        ("gpu01", "mlx5_1"): "leaf-b",
        ("gpu03", "mlx5_0"): "leaf-b",
    }
    assert node_leaves(adapters) == {"gpu02": "MF0;leaf-a:MQM9700/U1", "gpu03": "leaf-b"}


def test_text_without_a_switch_is_an_error() -> None:
    with pytest.raises(ProbeError, match="no switch"):
        parse_ibnetdiscover("ibwarn: mad_rpc_open_port failed")
