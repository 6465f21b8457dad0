"""The bound of a port by profile, and the facts of a slot whose pair sent none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.config.models import Cluster, Group
from pytest_gpucluster.config.profile_files import load_profile
from pytest_gpucluster.kit.fabric.facts import Port
from pytest_gpucluster.kit.fabric.rails import Rails
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.rdma.config import RdmaConfig
from pytest_gpucluster.suites.rdma.results import Slot
from pytest_gpucluster.suites.rdma.steps import Rdma, bound_of, packet_size

if TYPE_CHECKING:
    from collections.abc import Mapping

PORT = Port("mlx5_0", 1)


@dataclass
class Held:
    """An allocation as far as the runner looks at it."""

    nodes: tuple[str, ...]
    slurm: None = None


@dataclass
class Session:
    """A run of one allocation whose nodes can all be tested."""

    cluster: Cluster
    allocations: tuple[Held, ...]

    def without_problem(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        return nodes


def cluster(**profiles: str) -> Cluster:
    groups = tuple(Group(nodes=node, profile=load_profile(name)) for node, name in profiles.items())
    return Cluster(name="prod", groups=groups)


def runner(rails: Mapping[str, tuple[Port, ...]], profile: str = "dgx-h100") -> Rdma:
    """Return a runner on nodes with these ports, of one profile."""
    nodes: Any = tuple(rails)
    of_nodes = {node: (Rails(1, ports),) for node, ports in rails.items()}
    held: Any = Held(nodes)
    return Rdma(held, cluster(**dict.fromkeys(rails, profile)), {}, RdmaConfig(), nodes, all_rails=of_nodes)


@pytest.mark.parametrize(
    ("profile", "mtu", "gbits", "origin"),
    [
        ("azure-nd96isr-h100-v5", 4096, 375, "check_ib_bw_gdr 375"),
        ("azure-nd96amsr-a100-v4", 4096, 185, "check_ib_bw_gdr 185"),
        ("dgx-h100", 4096, 360, "90% of the port's 400 Gb/s"),
        ("dgx-b300", 4096, 720, "90% of the port's 800 Gb/s"),
        # smaller packets of RoCE carry less: 178 to 185 of 200 Gb/s in https://github.com/NVIDIA/nccl/issues/700
        ("gcp-a3-ultra", 1024, 340, "85% of the port's 400 Gb/s, MTU 1024"),
        ("gcp-a3-ultra", 4096, 360, "90% of the port's 400 Gb/s"),
        ("dgx-h100", 2048, 360, "90% of the port's 400 Gb/s"),
    ],
)
def test_a_profiles_row_or_the_rates_share_decides(profile: str, mtu: int, gbits: float, origin: str) -> None:
    bound = bound_of(load_profile(profile), mtu)
    assert bound is not None
    assert bound.value == pytest.approx(gbits / 8, rel=0.002)
    assert bound.origin.endswith(origin) or origin in bound.origin.partition(": ")[2]


def test_a_profile_without_a_rate_has_no_bound() -> None:
    assert bound_of(load_profile("h200-vm")) is None


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


def test_ports_of_different_rates_in_one_partition_are_measured_apart() -> None:
    """Otherwise every HDR port is slow beside NDR ports."""
    profiles = {"a": "dgx-h100", "b": "dgx-a100", "c": "dgx-h100", "d": "dgx-a100"}
    held: Any = Held(tuple(profiles))
    session: Any = Session(cluster(**profiles), (held,))
    assert Rdma.groups(session) == [(held, ("a", "c")), (held, ("b", "d"))]


@pytest.mark.parametrize(
    ("ports", "found", "why"),
    [
        ((PORT,), {"version": "6.20", "absent": []}, None),
        ((), {"version": "6.20", "absent": []}, "no adapter for the traffic of GPUs is known"),
        ((PORT,), {"version": "", "absent": ["ib_read_lat"]}, "not installed: ib_read_lat"),
        ((PORT,), {"version": "", "absent": []}, "prints no version"),
        ((PORT,), None, "no task started there"),
    ],
)
def test_a_node_without_adapters_or_perftest_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, ports: tuple[Port, ...], found: dict[str, Any] | None, why: str | None
) -> None:
    made = runner({"a": ports})
    facts = ({"rdma": "found", "rank": 0, "node": "a", **found},) if found else ()
    tasks = (PayloadTask(0, "a", 0, None, facts),) if facts else ()
    monkeypatch.setattr(made, "attempt", lambda _: PayloadResult("rdma", ("a",), 1, tasks))
    vars(made)["_leaves"] = {}
    assert [it for it in made.result.absent.values() if why and why in it] == [*made.result.absent.values()]
    assert len(made.result.absent) == (why is not None)


def test_a_pair_that_sent_nothing_has_the_reason_of_both_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    fact = {"rdma": "result", "rank": 0, "node": "a", "slot": 0, "rail": "r", "test": "write"}
    tasks = (
        PayloadTask(0, "a", 0, None, ({**fact, "client": "a", "server": "b", "bandwidth": 49.0},)),
        PayloadTask(1, "b", 0, None, ()),
        PayloadTask(2, "c", 1, None, (), "python3: not found"),
    )
    made = runner(dict.fromkeys("abcd", (PORT,)))
    monkeypatch.setattr(made, "attempt", lambda _: PayloadResult("rdma", tuple("abcd"), 4, tasks))
    ((sent, silent),) = made.run_slots([Slot(("r",), (("a", "b"), ("c", "d")))])
    assert sent["bandwidth"] == 49.0
    assert silent["pair"] == ("c", "d")
    assert silent["problem"].startswith("c: task 2: exit status 1: python3: not found; d: ")
