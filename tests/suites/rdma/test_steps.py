"""The bound of a port by profile, and the facts of a slot whose pair sent none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpucluster.config.profile_files import load_profile
from pytest_gpucluster.kit.fabric.facts import Port
from pytest_gpucluster.kit.fabric.rails import Rails
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.rdma.results import Slot
from pytest_gpucluster.suites.rdma.steps import Rdma, _of_slot, bound_of, packet_size

PORT = Port("mlx5_0", 1)


def cluster(**profiles: str) -> Any:
    return SimpleNamespace(group_of=lambda node: SimpleNamespace(profile=load_profile(profiles[node])))


@pytest.mark.parametrize(
    ("profile", "gbits", "origin"),
    [
        ("azure-nd96isr-h100-v5", 375, "check_ib_bw_gdr 375"),
        ("azure-nd96amsr-a100-v4", 185, "check_ib_bw_gdr 185"),
        ("dgx-h100", 360, "90% of the port's 400 Gb/s"),
        ("dgx-b300", 720, "90% of the port's 800 Gb/s"),
    ],
)
def test_the_row_of_a_profile_decides_and_else_the_share_of_the_rate(
    profile: str, gbits: float, origin: str
) -> None:
    bound = bound_of(load_profile(profile))
    assert bound is not None
    assert bound.value == pytest.approx(gbits / 8)
    assert origin in bound.origin


@pytest.mark.parametrize(
    ("profile", "mtu", "gbits"),
    [("gcp-a3-ultra", 1024, 340), ("gcp-a3-ultra", 4096, 360), ("dgx-h100", 2048, 360)],
)
def test_smaller_packets_of_roce_carry_less(profile: str, mtu: int, gbits: float) -> None:
    """RoCE of 200 Gb/s with an MTU of 1024 moves 178 to 185: A100 in https://github.com/NVIDIA/nccl/issues/700."""
    bound = bound_of(load_profile(profile), mtu)
    assert bound is not None
    assert bound.value == pytest.approx(gbits / 8, rel=0.002)
    assert ("MTU" in bound.origin) == (gbits == 340)


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        (PORT, None),
        (Port("mlx5_0", 1, mtu=4096, interfaces={"eth0": 1500}), 4096),
        (Port("mlx5_0", 1, interfaces={"eth0": 1500}), 1024),
        (Port("mlx5_0", 1, interfaces={"eth0": 4220}), 4096),
        (Port("mlx5_0", 1, interfaces={"eth0": 9000}), 4096),
    ],
)
def test_the_packets_of_roce_fit_into_those_of_the_interface(port: Port, expected: int | None) -> None:
    assert packet_size(port) == expected


def test_the_limit_is_that_of_the_smallest_packets() -> None:
    runner = object.__new__(Rdma)
    runner.nodes, runner.cluster = ("a", "b"), cluster(a="gcp-a3-ultra", b="gcp-a3-ultra")
    up: dict[str, Any] = {"state": "ACTIVE", "link_layer": "Ethernet", "rate": 50.0}
    runner.all_rails = {
        node: (Rails(1, (Port("mlx5_0", 1, mtu=mtu, **up), Port("mlx5_1", 1, mtu=256, state="DOWN"))),)
        for node, mtu in (("a", 1024), ("b", 4096))
    }
    assert runner.bound is not None
    assert runner.bound.origin == "85% of the port's 400 Gb/s, MTU 1024"


def test_ports_of_different_rates_in_one_partition_are_measured_apart() -> None:
    """Otherwise every HDR port is slow beside NDR ports."""
    held: Any = SimpleNamespace(nodes=("a", "b", "c", "d"))
    session: Any = SimpleNamespace(
        cluster=cluster(a="dgx-h100", b="dgx-a100", c="dgx-h100", d="dgx-a100"),
        allocations=(held,),
        without_problem=lambda nodes: nodes,
    )
    assert Rdma.groups(session) == [(held, ("a", "c")), (held, ("b", "d"))]


def test_a_profile_without_a_rate_has_no_bound() -> None:
    assert bound_of(load_profile("h200-vm")) is None


@pytest.mark.parametrize(
    ("ports", "found", "expected"),
    [
        ((PORT,), {"version": "6.20", "absent": []}, ""),
        (
            (),
            {"version": "6.20", "absent": []},
            "no adapter for the traffic of GPUs is known: see fabric.hca_count",
        ),
        ((PORT,), {"version": "", "absent": ["ib_read_lat"]}, "not installed: ib_read_lat; install perftest"),
        (
            (PORT,),
            {"version": "", "absent": []},
            "ib_write_bw --version prints no version: reinstall perftest",
        ),
        ((PORT,), None, "no task started there"),
    ],
)
def test_a_node_without_adapters_or_perftest_is_left_out_with_the_reason(
    ports: tuple[Port, ...], found: dict[str, Any] | None, expected: str
) -> None:
    runner = object.__new__(Rdma)
    runner.all_rails = {"a": (Rails(1, ports),)}
    runner.cluster = cluster(a="dgx-h100")
    facts = ({"rdma": "found", "rank": 0, "node": "a", **found},) if found else None
    tasks = (PayloadTask(0, "a", 0, None, facts),) if facts else ()
    runner.found = PayloadResult("rdma", ("a",), 1, tasks)
    assert runner._why_not("a") == expected


def test_a_pair_that_sent_nothing_has_the_reason_of_both_nodes() -> None:
    fact = {
        "rdma": "result",
        "rank": 0,
        "node": "a",
        "slot": 0,
        "rail": "r",
        "test": "write",
        "client": "a",
        "server": "b",
    }
    tasks = (
        PayloadTask(0, "a", 0, None, ({**fact, "bandwidth": 49.0},)),
        PayloadTask(1, "b", 0, None, ()),
        PayloadTask(2, "c", 1, None, (), "python3: not found"),
    )
    result = PayloadResult("rdma", ("a", "b", "c", "d"), 4, tasks)
    found = list(_of_slot(result, 0, Slot(("r",), (("a", "b"), ("c", "d")))))
    assert found[0]["bandwidth"] == 49.0
    assert found[1]["pair"] == ("c", "d")
    assert found[1]["problem"].startswith("c: task 2: exit status 1: python3: not found; d: ")
