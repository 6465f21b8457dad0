"""What differs between a plan and what was found, and how names are compared. A cable is written as a row of a sheet."""

from __future__ import annotations

from typing import Any

import pytest
from paths import DATA

from pytest_gpucluster.suites.ibfabric.lldp import Neighbour, Neighbours, of_neighbours
from pytest_gpucluster.suites.ibfabric.plan import Cable, parse_plan
from pytest_gpucluster.suites.ibfabric.subnet import read_ibnetdiscover
from pytest_gpucluster.suites.ibfabric.wiring import Wiring, WiringDiff, compare, is_ethernet, of_subnet

TEXT = (DATA / "ibfabric/ibnetdiscover-ibsim.txt").read_text()
RAILS = ("gpu01,mlx5_0,leaf01,1", "gpu01,mlx5_1,leaf02,1", "gpu02,mlx5_0,leaf01,2", "gpu02,mlx5_1,leaf02,2")
UPLINKS = ("leaf01,33,spine01,1", "leaf02,33,spine01,2")


def found_as(text: str = TEXT, *names: dict[str, str], **more: Any) -> Wiring:
    return of_subnet(read_ibnetdiscover(text), *(names or ({},)), **more)


FOUND = found_as()


def compared(*rows: str, found: Wiring = FOUND) -> WiringDiff:
    cables = [tuple(row.split(",")) for row in rows]
    named = [Cable(a, port, z, other, f"p:{n}") for n, (a, port, z, other) in enumerate(cables, 2)]
    return compare(named, found)


def renamed(**names: str) -> str:
    """Return what ibnetdiscover prints with other names of devices; '_0' of a keyword stands for ' mlx5_0'."""
    text = TEXT
    for number, old in enumerate(names):
        text = text.replace(f'"{old.replace("_", " mlx5_")}"', f'"@{number}"')
    for number, new in enumerate(names.values()):
        text = text.replace(f'"@{number}"', f'"{new}"')
    return text


NO_NUMBERS = found_as(renamed(gpu01_0="gpu01 ibp3s0", gpu02_0="gpu02"))  # gpu02 has one adapter
# openibd: mlx5_10, mlx5_2
HCAS = renamed(gpu01_0="gpu01 HCA-3", gpu01_1="gpu01 HCA-5")
OPENIBD = found_as(HCAS, {"0000000000100000": "gpu01 mlx5_10", "0000000000100002": "gpu01 mlx5_2"})
SHEET = "port,hca-name\n1, mlx5_1\n2,mlx5_0\nOSFP-1-1,mlx5_0\n"
MAPPED = found_as(adapters=parse_plan("m", SHEET).adapters)
# described as mlx5_0 and mlx5_1
EXCHANGED = found_as(TEXT, {"0000000000100000": "gpu01 mlx5_1", "0000000000100002": "gpu01 mlx5_0"})
# the name in Slurm, and udev's of the adapters
IN_SLURM = found_as(TEXT, {"0000000000100000": "n1 ibp3s0", "0000000000100002": "n1 ibp4s0"})


def neighbours(*found: tuple[Any, ...], **states: str) -> Neighbours:
    return Neighbours(tuple(Neighbour(*one) for one in found), states, {"ens1": "mlx5_0"})


OF_GPU01 = (
    ("ens1", "leaf01.example.com", ("Ethernet1/1", "gpu01"), "44:38:39:ff:00:01"),
    ("ens2", "leaf02", ("swp1s0",)),
)
OF_GPU02 = ("ens1", "leaf01", ("Eth1/2",)), ("ens1", "dsl-router", ("7",))
OF_BOTH = {"gpu01": neighbours(*OF_GPU01, ens3="down", ens4="up"), "gpu02": neighbours(*OF_GPU02)}
ETHERNET = of_neighbours(OF_BOTH)


def vendor(sent: str) -> Wiring:
    return of_neighbours({"gpu01": neighbours(("ens1", "leaf01", (sent,)))})


@pytest.mark.parametrize(
    ("found", "row"),
    [
        (FOUND, "GPU01.example.com,HCA-1,LEAF01,P1"),
        (FOUND, "leaf01,IB1/1/1,gpu01,mlx5_0/P1"),
        (FOUND, "gpu01,mlx5_0,MF0;Leaf01:MQM9700/U1,1"),
        (FOUND, "gpu01 HCA-1,P1,0X200000,1"),
        (FOUND, "leaf01,17/1,spine01,1/1"),  # 2 * 17 - 1 = 33
        (FOUND, "leaf01,1/33,spine01,IB1/1"),  # MLNX-OS: slot and port
        (FOUND, "gpu01,,leaf02,"),  # Slurm names the leaf alone
        (NO_NUMBERS, "gpu01,IBP3s0,leaf01,1"),
        *((OPENIBD, f"gpu01,{adapter},leaf01,1") for adapter in ("HCA-3", "HCA-3/P1", "mlx5_10", "11")),
        (MAPPED, "gpu01,1,leaf02,1"),
        (MAPPED, "gpu01,osfp-1-1,leaf01,1"),
        (EXCHANGED, "gpu01,mlx5_1,leaf01,1"),
        (IN_SLURM, "n1,ibp3s0,leaf01,1"),
        (ETHERNET, "gpu01,ens1,leaf01,1/1"),
        (ETHERNET, "gpu01,mlx5_0,leaf01,Eth1/1"),
        (ETHERNET, "LEAF02,SWP1s0,gpu01,ens2"),
        (ETHERNET, "gpu02,ens1,dsl-router,7"),
        (ETHERNET, "gpu01,ens1,4438.39FF.0001,Eth1/1"),
        (vendor("ethernet1/1/3:1"), "gpu01,ens1,leaf01,Eth 1/1/3:1"),  # Dell OS10
        (vendor("et-0/0/29:1"), "gpu01,ens1,leaf01,0/0/29:1"),  # Junos
        (vendor("Ethernet48"), "gpu01,ens1,leaf01,Et48"),  # Arista
    ],
)
def test_port_is_known_by_each_of_its_names(found: Wiring, row: str) -> None:
    assert compared(row, found=found).right[""] == 1


def test_number_of_an_adapter_is_that_of_the_device_before_that_of_its_description() -> None:
    assert len(compared(RAILS[0], found=EXCHANGED).wrong) == 1


def test_node_is_known_by_its_node_description_and_by_the_name_in_slurm() -> None:
    result = compared(*RAILS, "n1,ibp3s0,leaf01,1", found=IN_SLURM)
    assert (result.right[""], result.right["n1"], result.unknown) == (5, 3, {})
    (wrong,) = compared("gpu01,mlx5_0,leaf02,1", found=IN_SLURM).wrong
    assert wrong.nodes == {"n1", "leaf02"}


@pytest.mark.parametrize(
    ("rows", "measured"),
    [
        (
            ["gpu01,mlx5_0,leaf01,9", "gpu03,mlx5_0,leaf01,1"],
            [
                "gpu01 mlx5_0 is connected to leaf01 port 1, leaf01 port 9 has no link",
                "gpu03 mlx5_0 has no link, leaf01 port 1 is connected to gpu01 mlx5_0",
            ],
        ),
        (["gpu01,mlx5_2,leaf01,3", *RAILS], ["neither end has a link"]),
        (["gpu02,,spine01,"], ["gpu02 has links to: leaf01, leaf02"]),
        (["gpu03,,leaf01,"], ["gpu03 has links to: none"]),
    ],
)
def test_cable_at_another_port_is_no_swapped_pair(rows: list[str], measured: list[str]) -> None:
    assert [it.measured for it in compared(*rows).wrong] == measured


def test_swapped_cables_are_one_deviation_named_by_both_ends() -> None:
    (wrong,) = compared("gpu01,mlx5_0,leaf01,2", "leaf01,1,gpu02,mlx5_0", *UPLINKS).wrong
    assert wrong.nodes == {"gpu01", "gpu02", "leaf01"}
    assert wrong.cable == "gpu01 mlx5_0 - leaf01 port 2, leaf01 port 1 - gpu02 mlx5_0"
    assert (wrong.code, wrong.planned) == ("swapped", (("gpu01", "leaf01"), ("leaf01", "gpu02")))
    circle = ("gpu01,mlx5_0,leaf01,2", "gpu02,mlx5_0,leaf02,1", "gpu01,mlx5_1,leaf01,1")
    assert [it.cable.count(" - ") for it in compared(*circle).wrong] == [1, 1, 1]


def test_node_name_map_names_the_devices() -> None:
    text = renamed(leaf01="Quantum Mellanox Technologies", leaf02="Quantum Mellanox Technologies")
    names = {"0000000000200000": "leaf01", "0000000000200001": "leaf02"}
    assert compared(*RAILS, *UPLINKS, found=found_as(text, names)).right[""] == 6


def test_record_of_adapters_without_a_description_is_compared_by_guid() -> None:
    hcas = ("gpu01_0", "gpu01_1", "gpu02_0", "gpu02_1")
    nameless = renamed(**dict.fromkeys(hcas, "MT4129 ConnectX7   Mellanox Technologies"))
    record = parse_plan("net", nameless).cables
    assert record[0].a_node.startswith("0x")
    own = {"0000000000100000": "gpu01 mlx5_0", "0000000000100002": "gpu01 mlx5_1"}  # as the nodes show it
    result = compare(record, found_as(nameless, own))
    assert (result.right[""], result.right["gpu01"]) == (6, 2)
    assert compare(parse_plan("net", HCAS).cables, OPENIBD).right[""] == 6


def test_devices_renamed_since_the_record_are_known_by_their_guids() -> None:
    plan = parse_plan("net", TEXT)
    now = renamed(leaf01="MF0;r1-sw1:MQM9700/U1", gpu01_0="n1 mlx5_0", gpu01_1="n1 mlx5_1")
    result = compare(plan.cables, found_as(now, recorded=plan.recorded))
    assert (result.right[""], result.right["n1"], result.unknown) == (6, 2, {})
    exchanged = renamed(leaf01="leaf02", leaf02="leaf01")  # the name of another device is no further name
    assert compare(plan.cables, found_as(exchanged, recorded=plan.recorded)).right[""] == 0


OF_SONIC = ("ens1", "leaf01", ("etp13a", "Ethernet96")), ("ens1", "leaf02", ("etp1a",))
SONIC = of_neighbours({f"gpu0{n}": neighbours(one) for n, one in enumerate(OF_SONIC, 1)})


@pytest.mark.parametrize(
    ("found", "row", "name"),
    [
        (FOUND, "gpu01,mlx5_0,rack1-sw1,1", "rack1-sw1"),  # another name than the subnet has
        (FOUND, "rack1-sw1,33,rack2-sw1,1", "rack1-sw1"),
        (FOUND, "gpu01,mlx5_7,leaf09,1", "leaf09"),  # a leaf that is off: not the node's fault
        (FOUND, "gpu01,rail5,leaf01,3", "gpu01 rail5"),
        (FOUND, "gpu01,mlx5_0,leaf01,31/2/1", "leaf01 port 31/2/1"),
        (FOUND, "gpu01,,s0,", "s0"),  # a switch that only Slurm has
        (SONIC, "gpu01,ens1,leaf01,13", "leaf01 port 13"),  # of a kind that its switch does not send
        (ETHERNET, "gpu01,ens4,leaf01,1/9", "gpu01 ens4"),  # it is up, without a neighbour
        (ETHERNET, "gpu01,rail9,leaf01,1/8", "gpu01 rail9"),
    ],
)
def test_name_that_was_not_found_is_no_deviation(found: Wiring, row: str, name: str) -> None:
    result = compared(row, found=found)
    assert (result.wrong, list(result.unknown)) == ([], [name])


@pytest.mark.parametrize("row", ["gpu01,ens1,leaf01,etp14a", "gpu01,ens1,leaf02,13"])
def test_another_port_or_switch_is_wrong_whatever_the_kind_of_its_name(row: str) -> None:
    assert len(compared(row, found=SONIC).wrong) == 1


def test_swapped_neighbours_are_one_deviation_and_a_cable_is_missing_where_no_node_finds_the_switch() -> None:
    cables = ("gpu01,ens1,leaf02,swp1s0", "gpu01,ens2,leaf01,1/1", "gpu01,ens3,leaf09,swp1")
    swapped, missing = compared(*cables, found=ETHERNET).wrong
    one = "gpu01 ens1 is connected to leaf01.example.com Ethernet1/1"
    other = "gpu01 ens2 is connected to leaf02 swp1s0"
    assert (swapped.measured, missing.measured) == (f"swapped: {one}, {other}", "no link at this end")
    # cables of which no end was found are not compared
    assert compared("leaf01,swp51,spine01,swp1", "gpu09,ens1,leaf01,1/9", found=ETHERNET).planned[""] == 0


@pytest.mark.parametrize(
    ("port", "other", "usual", "expected"),
    [
        ("rail5", "swp1s0", False, True),
        ("ens1", "Ethernet1/1", False, True),
        ("rail5", "sw1p1", True, False),
        ("mlx5_0", "1/1", True, False),
        ("1", "HCA-1", True, False),
        ("rail5", "1/1", True, True),
        ("1", "Et12/1", False, True),
    ],
)
def test_ports_show_the_network_of_a_cable(port: str, other: str, usual: bool, expected: bool) -> None:
    assert is_ethernet(Cable("gpu01", port, "leaf01", other), usual=usual) is expected
