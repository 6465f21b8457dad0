"""The floor of a bus bandwidth: below every recorded and published figure, above what a wrong route gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from links_helpers import h200, network
from paths import TESTS

from pytest_gpucluster.kit.gpu.node_links import Adapter, NodeLinks, pcie_rate, read_links
from pytest_gpucluster.kit.nccl.nccl_floor import TCP, UNKNOWN_INTERFACE, Floor, Route, floor
from pytest_gpucluster.kit.nccl.nccl_rows import COLLECTIVES
from pytest_gpucluster.kit.nccl.nccl_tests import read

GIB = 2**30
DATA = TESTS / "data" / "nccl"
H200 = read_links(h200(), network("end\n"))  # the recorded virtual machine: no adapter


def switched(gpus: int, links: int, speed: float, **more: Any) -> NodeLinks:
    pairs = {gpu: {other: links for other in range(gpus) if other != gpu} for gpu in range(gpus)}
    return NodeLinks(gpus, ((links, speed),) * gpus, pairs, **more)


def meshed(*rows: str, speed: float, gen: int, **more: Any) -> NodeLinks:
    """One word per GPU with the NVLinks to each GPU, like '0122': GPU 0 has 1 to GPU 1, 2 to GPU 2."""
    pairs = {gpu: {at: int(n) for at, n in enumerate(row) if at != gpu} for gpu, row in enumerate(rows)}
    counts = tuple((sum(others.values()), speed) for others in pairs.values())
    slots = (pcie_rate(gen, 16) or 0.0,) * len(rows)
    return NodeLinks(len(rows), counts if all(count for count, _ in counts) else (), pairs, slots, **more)


def ports(count: int, rate: float, layer: str = "InfiniBand") -> tuple[Adapter, ...]:
    return tuple(Adapter(f"mlx5_{n}", 1, rate, layer) for n in range(count))


def bound(collective: str, size: int, node: NodeLinks, nodes: int, gpus: int, **route: Any) -> float:
    found = floor(collective, size, [node] * nodes, gpus=gpus, route=Route(**route))
    assert isinstance(found, Floor), found
    return found.bound


CUBE = "01212000 10120200 21010020 12100002 20000121 02001012 00202101 00021210"
DGX_1 = meshed(*CUBE.split(), speed=25, gen=3)
PAIRS = meshed("0900", "9000", "0009", "0090", speed=25, gen=4)
A100 = switched(8, 12, 25.0, pcie=(pcie_rate(4, 16) or 0,) * 8, adapters=ports(8, 25.0))
H100 = switched(8, 18, 26.562, pcie=(63.0,) * 8, adapters=ports(8, 50.0))
PUBLISHED: tuple[tuple[str, str, int, NodeLinks, int, int, float], ...] = (
    # azurehpc-health-checks: minimum of healthy nodes
    ("V100 hybrid cube mesh", "all_reduce", 8 * GIB, DGX_1, 1, 8, 110),
    ("8 A100", "all_reduce", 16 * GIB, A100, 1, 8, 228),
    ("8 H100", "all_reduce", 16 * GIB, H100, 1, 8, 460),
    ("2 A100 with bridge", "all_reduce", 16 * GIB, switched(2, 12, 25.0), 1, 2, 193),
    ("2 H100 NVL", "all_reduce", 16 * GIB, switched(2, 12, 25.0), 1, 2, 208),
    ("4 A100, two pairs", "all_reduce", 8 * GIB, PAIRS, 1, 4, 25),
    # DeepOps: measured; cluster-health-scanner: minimum
    ("4 DGX A100", "all_reduce", 4 * GIB, A100, 4, 8, 191.05),
    ("4 DGX A100, 256 MiB", "all_reduce", GIB // 4, A100, 4, 8, 168.69),
    ("4 DGX A100, 1 MiB", "all_reduce", 2**20, A100, 4, 8, 15.02),
    ("2 A3-ultra", "all_gather", 8 * GIB, replace(H100, adapters=ports(8, 50.0, "Ethernet")), 2, 8, 250),
    ("2 A4X", "all_gather", 8 * GIB, switched(4, 18, 53.125, adapters=ports(4, 50.0, "Ethernet")), 2, 4, 160),
)


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row[0])
def test_published_figures_of_healthy_hardware_are_well_above(row: tuple[Any, ...]) -> None:
    _, collective, size, node, nodes, gpus, figure = row
    lowest = bound(collective, size, node, nodes, gpus)
    assert lowest < 0.8 * figure
    assert lowest > 0.2 * figure or figure < 30, "a floor near 0 finds nothing"


@pytest.mark.parametrize(
    ("file", "collective", "gpus"),
    [
        ("nccl-allreduce-g8.txt", "all_reduce", 8),
        ("nccl-allgather.txt", "all_gather", 8),
        ("nccl-reducescatter.txt", "reduce_scatter", 8),
    ],
)
def test_recorded_figures_are_well_above_at_every_size(file: str, collective: str, gpus: int) -> None:
    (run,) = read((DATA / file).read_text()).runs
    for row in run.rows:
        value, lowest = row.out_of_place.busbw or 0, bound(collective, row.size, H200, 1, gpus)
        assert lowest < 0.85 * value, row.size
    assert 0.5 * value < lowest < 0.75 * value


def test_recorded_pairs_and_sockets_of_virtual_nodes_are_well_above() -> None:
    pair = switched(2, 18, 26.562)
    assert bound("all_reduce", GIB, pair, 1, 2) < 0.75 * 327
    # 8 H200 dealt to 4 virtual nodes: 1.9 GB/s at 1 MiB, 3.8 at 256 MiB over sockets
    for interfaces in ({"eth0": None}, {"eth0": 12.5}):
        sockets = replace(pair, interfaces=interfaces)
        for size, value in ((2**20, 1.87), (2**28, 3.81)):
            assert bound("all_reduce", size, sockets, 4, 2, ran=("NET/Socket",)) < 0.6 * value
    # without NCCL_HOSTID NVLink joins the virtual nodes, which NCCL counts as one
    assert bound("all_reduce", GIB, pair, 4, 2, joined=1) == pytest.approx(239, rel=0.02)


def test_a_wrong_route_is_below() -> None:
    assert bound("all_reduce", 4 * GIB, H100, 1, 8) > 63  # PCIe instead of NVLink
    assert bound("all_reduce", 4 * GIB, H100, 6, 8) > 3.1  # sockets instead of InfiniBand
    assert bound("all_reduce", 4 * GIB, H100, 6, 8) > 3 * 50  # 5 of 8 adapters do not work
    assert bound("all_reduce", 4 * GIB, H100, 2, 1) == pytest.approx(25, rel=0.01)  # one GPU: one adapter


def test_the_slowest_part_of_the_route_counts() -> None:
    half = replace(H100, adapters=(*ports(7, 50.0), Adapter("mlx5_7", 1, 50.0, "InfiniBand", pcie=15.752)))
    found = floor("all_reduce", 4 * GIB, [H100, half], gpus=8)
    assert isinstance(found, Floor)
    assert (found.rate, found.why) == (8 * 15.752, "8 adapters x 15.752 GB/s")
    assert str(found) == "half of 126 GB/s: 8 adapters x 15.752 GB/s"
    slots = replace(H100, pcie=(7.88,) * 8)
    assert bound("all_reduce", 4 * GIB, slots, 2, 8) == pytest.approx(0.5 * 8 * 7.88, rel=0.01)
    two = ("all_reduce", 4 * GIB, H100, 2, 8)
    assert bound(*two, ran=("NET/IB",)) < bound(*two)
    # storage adapters of another rate are not counted
    mixed = replace(H100, adapters=(*ports(1, 25.0), *ports(2, 3.125)))
    assert bound("all_reduce", 4 * GIB, mixed, 2, 8) == pytest.approx(12.5, rel=0.01)


def test_sockets_only_where_the_site_has_no_other_way() -> None:
    roce = replace(H100, adapters=ports(8, 12.5, "Ethernet"), interfaces={"eno1": 12.5})
    infiniband = bound("all_reduce", 4 * GIB, H100, 2, 8)
    over_tcp = {"ran": ("NET/Socket",)}
    assert bound("all_reduce", 4 * GIB, H100, 2, 8, **over_tcp) == infiniband  # it is there, and unused
    assert bound("all_reduce", 4 * GIB, roce, 2, 8, **over_tcp) < TCP, "Ethernet without RoCE"
    assert bound("all_reduce", 4 * GIB, roce, 2, 8, roce=True, **over_tcp) > 40, "the profile states RoCE"
    for env in ({"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket"}, {"NCCL_IB_HCA": "^mlx5"}):
        assert bound("all_reduce", 4 * GIB, H100, 2, 8, env=env) < UNKNOWN_INTERFACE
    slow = replace(H100, adapters=(), interfaces={"eno1": 1.25, "eno2": 0.125, "docker0": 0.01})
    named = {"env": {"NCCL_SOCKET_IFNAME": "eno1"}}
    cases: Any = ((named, 1.25), ({}, 0.125), ({"interfaces": ("eno1",)}, 1.25))
    for chosen, rate in cases:
        assert bound("all_reduce", 4 * GIB, slow, 2, 8, **chosen) == pytest.approx(rate / 2, rel=0.01)


def test_which_nvlinks_count() -> None:
    found = floor("all_reduce", GIB, [DGX_1], gpus=2)  # which two of them: perhaps two without a link
    assert isinstance(found, Floor)
    assert "PCIe" in found.why
    assert bound("alltoall", GIB, DGX_1, 1, 8) < 4
    triangle = meshed("011", "101", "110", speed=25, gen=3)
    assert bound("all_reduce", GIB, triangle, 1, 3) == pytest.approx(25, rel=0.01)
    assert bound("all_reduce", GIB, triangle, 1, 2) == pytest.approx(12.5, rel=0.01)
    partly = replace(H100, nvlinks=H100.nvlinks[:7])  # one GPU without a link
    assert bound("all_reduce", GIB, partly, 1, 8) == pytest.approx(63 / 4, rel=0.01)


def test_nvlink_across_nodes() -> None:
    rack = switched(4, 18, 53.125, adapters=ports(4, 50.0))
    assert bound("all_reduce", 4 * GIB, rack, 18, 4, joined=1) == pytest.approx(478, rel=0.06)
    assert bound("all_reduce", 4 * GIB, rack, 18, 1, joined=1) == pytest.approx(478, rel=0.06)
    two_racks = bound("all_reduce", 4 * GIB, rack, 36, 4, joined=2)
    assert two_racks == pytest.approx(478, rel=0.1), "18 nodes of a rack have 72 adapters"


def test_no_floor_has_a_reason() -> None:
    assert floor("all_reduce", GIB, [H200], gpus=1) == "one rank sends nothing"
    nothing = "the nodes report neither NVLink nor PCIe of their GPUs"
    assert floor("all_reduce", GIB, [NodeLinks(8)], gpus=8) == nothing
    assert floor("all_reduce", GIB, [NodeLinks(unread={"GPUs": "no driver"})], gpus=8) == "GPUs: no driver"


@given(st.sampled_from(sorted(COLLECTIVES)), *map(st.integers, (3, 1, 1, 0), (36, 64, 8, 8)))
def test_any_collective_on_any_nodes_and_gpus_has_a_floor_below_half_of_the_links(
    collective: str, power: int, nodes: int, gpus: int, adapters: int
) -> None:
    node = replace(H100, adapters=ports(adapters, 50.0))
    found = floor(collective, 2**power, [node] * nodes, gpus=gpus)
    if nodes * gpus == 1:
        assert isinstance(found, str)
        return
    assert isinstance(found, Floor)
    assert 0 < found.bound < found.rate / 2
    assert found.rate <= 18 * 26.562 * (1 if gpus > 1 else 8)
