"""Readers of ibnetdiscover and iblinkinfo, on the forms that versions of infiniband-diags print."""

from __future__ import annotations

import re

import pytest
from ibfabric_helpers import HCA, LEAF, LINKINFO, NETDISCOVER, SPINE

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.suites.ibfabric import subnet


def test_devices_and_each_link_once_with_both_ends() -> None:
    found = subnet.read_ibnetdiscover(NETDISCOVER)
    switches = [(it.node, it.ports, it.lid) for it in found.switches]
    assert switches == [("A09-IBLEAF-04", 65, 73), ("A10-IBSPINE-02", 65, 236)]
    assert [it.node for it in found.hcas] == ["dgx-04-c01"]  # the aggregation node is none
    assert {(link.width, link.speed) for link in found.links} == {("4x", "NDR")}
    assert [link.label for link in found.links] == [
        "dgx-04-c01 mlx5_5 - A09-IBLEAF-04 port 1",
        "A09-IBLEAF-04 port 35 - A10-IBSPINE-02 port 32",
        "Mellanox Technologies Aggregation Node - A09-IBLEAF-04 port 65",
    ]
    assert found.leaves == {LEAF}
    port, link = found.by_port_guid[HCA]
    assert (port.lid, link.z.lid, link.between_switches) == (647, 73, False)
    assert found.peers[LEAF, 35].key == (SPINE, 32)


@pytest.mark.parametrize(
    "line",
    [
        '[1]	"S-08c0eb0300539a5c"[23]		# "MF0;IB-Leaf-101:MQM8700/U1" lid 383 ',  # without a rate, as in 1.6
        '[1][ext 5]	"S-08c0eb0300539a5c"[23][ext 2]		# "MF0;IB-Leaf-101:MQM8700/U1" lid 383 4xQDR',  # grouped
        '[1]	"S-08c0eb0300539a5c"[23]		# "MF0;IB-Leaf-101:MQM8700/U1" lid 383 4xHDR s=4 w=2 v=4',  # --full
    ],
)
def test_lines_of_other_versions_and_options_are_read(line: str) -> None:
    head = 'switchguid=0x8c0eb03008cc87c(8c0eb03008cc87c)\nSwitch	41 "S-08c0eb03008cc87c"		# "spine" base port 0 lid 3 lmc 0\n'
    (link,) = subnet.read_ibnetdiscover(head + line).links
    assert {end.node for end in link.ends} == {"IB-Leaf-101", "spine"}
    assert {end.lid for end in link.ends} == {383, 3}


@pytest.mark.parametrize("text", ["", "ibwarn: [7] mad_rpc_open_port: can't open UMAD port ((null):0)\n"])
def test_output_that_names_no_device_is_not_understood(text: str) -> None:
    with pytest.raises(ProbeError, match="names no switch"):
        subnet.read_ibnetdiscover(text)
    with pytest.raises(ProbeError, match="names no port"):
        subnet.read_iblinkinfo(text)


def test_states_of_all_ports_and_what_they_could_be() -> None:
    found = {(it.description.partition(":")[0], it.number): it for it in subnet.read_iblinkinfo(LINKINFO)}
    ports = [found["MF0;A09-IBLEAF-04", number] for number in (1, 2, 3, 4, 35)]
    assert [port.physical for port in ports] == ["LinkUp", "Polling", "Disabled", "LinkUp", "LinkUp"]
    assert [port.answered for port in ports] == [True, True, True, False, True]
    uplink = ports[-1]
    assert (uplink.state, uplink.width, uplink.speed) == ("Init", "2x", "HDR")
    assert uplink.could_be == "4X 106.25 Gbps"
    assert found["dgx-04-c01 mlx5_5", 1].could_be == ""  # no cable has 12 lanes


def test_links_have_the_state_of_their_worse_end() -> None:
    found = subnet.with_states(subnet.read_ibnetdiscover(NETDISCOVER), subnet.read_iblinkinfo(LINKINFO))
    cable, uplink, sharp = found.links
    assert (cable.state, cable.rate) == ("Active", "4x NDR (400 Gb/s)")
    assert (uplink.state, uplink.rate, uplink.could_be) == ("Init", "2x HDR (100 Gb/s)", "4X 106.25 Gbps")
    assert (sharp.state, sharp.rate) == ("", "4x NDR (400 Gb/s)")  # iblinkinfo did not show it


def test_unmanaged_switches_of_one_name_are_known_by_their_guids() -> None:
    found = subnet.read_ibnetdiscover(re.sub(r"MF0;\S+:MQM9701/U1", "SwitchIB Mellanox", NETDISCOVER))
    assert [it.node for it in found.switches] == [f"0x{LEAF}", f"0x{SPINE}"]
    assert f"0x{LEAF} port 35 - 0x{SPINE} port 32" in [link.label for link in found.links]


@pytest.mark.parametrize(
    ("description", "name"),
    [
        ("MF0;core:MCS8500/S01/U1", "core/S01/U1"),
        ("MF0;leaf.rack-1:MQM9790/U1", "leaf.rack-1"),
        ("SwitchX -  Mellanox", "SwitchX -  Mellanox"),
    ],
)
def test_chips_of_a_chassis_have_names_of_their_own(description: str, name: str) -> None:
    assert subnet.short_name("switch", description) == name
    assert subnet.short_name("HCA", "gpu01.cluster.example mlx5_0") == "gpu01"


def test_two_hosts_without_a_switch_are_both_in_the_subnet() -> None:
    one, other = "a088c20300ab0000", "a088c20300bb0000"
    link = f'[1]({one}) \t"H-{other}"[1]({other})\t\t# lid 1 lmc 0 "node-b mlx5_0" lid 2 4xEDR\n'
    found = subnet.read_ibnetdiscover(f'Ca\t1 "H-{one}"\t\t# "node-a mlx5_0"\n{link}').by_port_guid
    nodes = {guid: (port.node, link.z.node) for guid, (port, link) in found.items()}
    assert nodes == {one: ("node-a", "node-b"), other: ("node-b", "node-a")}
