"""Verdicts on the fabric at each bound: which ports are enough, which words of the kernel and of exports count."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
from counter_examples import (
    DRAIN,
    MONITOR,
    PASSED,
    WARNING,
    CounterExample,
    assert_as_expected,
    name,
)
from fabric_helpers import GOOD_GIDS, IB, NONE, ROCE, THERE, ZEROS, gid_table, gids, host

from pytest_gpucluster.config.models import EnvironmentConfig, FabricProfile
from pytest_gpucluster.core.check import Finding, Outcome, Verdict
from pytest_gpucluster.kit.nvidia_smi import Topology
from pytest_gpucluster.suites.fabric import checks as fabric
from pytest_gpucluster.suites.fabric.config import FabricConfig
from pytest_gpucluster.suites.fabric.facts import Adapters, Iommu, PeerMemory
from pytest_gpucluster.suites.fabric.rails import usable


def ports(*changes: dict[str, Any]) -> Adapters:
    """Return ports mlx5_0, mlx5_1, ... of a good host, changed so."""
    first = host().ports[0]
    return Adapters(tuple(replace(first, device=f"mlx5_{at}", **one) for at, one in enumerate(changes)), 9.0)


def parts(verdict: Verdict) -> list[str]:
    return [it.part for it in verdict.findings]


GOOD: dict[str, Any] = {}
DOWN = {"state": "DOWN", "phys_state": "Polling"}


@pytest.mark.parametrize(
    ("kernel", "sure"),
    [
        ("v6.1", False), ("6.12rc2", True), ("6.1_x", True), ("5.", False), (".12", False), ("6", False), ("", False),
        ("5.12", True), ("4.99", False), ("6.0", True),
    ],
)  # fmt: skip
def test_a_kernel_is_read_as_numbers(kernel: str, *, sure: bool) -> None:
    assert fabric._registers_dmabufs(kernel) is sure


def test_enough_ports_of_each_kind() -> None:
    assert fabric.hca_count(IB, ports(GOOD)).findings == (Finding("adapters", "1 ports (mlx5_0)", "2"),)
    wants = IB.model_copy(update={"fabric": IB.fabric.model_copy(update={"hcas": 3})})
    assert fabric.hca_count(wants, ports(GOOD, GOOD)).findings == (
        Finding("adapters", "2 ports (mlx5_0, mlx5_1)", "3"),
    )
    assert fabric.hca_count(IB, ports(GOOD, GOOD, GOOD)).outcome is Outcome.PASSED
    layer = {"link_layer": "Ethernet"}
    assert parts(fabric.link_layer(IB, ports(layer, layer))) == ["mlx5_0 port 1", "mlx5_1 port 1"]
    assert parts(fabric.link_layer(IB, ports(layer, GOOD, layer))) == ["adapters"]
    assert fabric.link_layer(IB, ports(layer, GOOD, GOOD)).outcome is Outcome.PASSED
    assert parts(fabric.link_layer(IB, ports(layer))) == ["mlx5_0 port 1"]


@pytest.mark.parametrize(
    ("check", "bad"),
    [
        (fabric.port_state, DOWN),
        (fabric.rate, {"rate": 25.0}),
        (fabric.rate, {"rate": None}),
        (fabric.mtu, {"mtu": 2048}),
    ],
)
def test_as_many_good_ports_as_the_profile_has_are_enough(check: Any, bad: dict[str, Any]) -> None:
    assert check(IB, ports(bad, GOOD, GOOD)).outcome is Outcome.PASSED
    assert parts(check(IB, ports(bad, GOOD, bad))) == ["mlx5_0 port 1", "mlx5_2 port 1"]
    assert parts(check(IB, ports(bad, GOOD))) == ["mlx5_0 port 1"]
    assert check(IB, ports(GOOD)).outcome is Outcome.PASSED, "the other one is missed by fabric.hca_count"
    assert check(NONE, ports(GOOD)).outcome is Outcome.NOT_APPLICABLE


def test_which_port_is_active() -> None:
    for one in (
        {"state": "ACTIVE", "phys_state": "LinkUp"},
        {"phys_state": None},
        {"phys_state": "<unknown>"},
    ):
        assert fabric._active(usable(ports(one)), IB) == list(ports(one).ports)
    for bad in (
        DOWN,
        {"state": "INIT"},
        {"phys_state": "Polling"},
        {"link_layer": "Ethernet"},
        {"virtual": True},
    ):
        assert fabric._active(usable(ports(bad)), IB) == []
    assert fabric._active(usable(ports({"link_layer": None})), IB)
    plane = replace(host().ports[0], device="smi0")
    assert usable(Adapters((plane, replace(plane, device="xsmi0"), replace(plane, device="smi")), 1.0)) == [
        replace(plane, device="xsmi0"), replace(plane, device="smi")
    ]  # fmt: skip


def test_firmware_counts_once_an_adapter() -> None:
    two = replace(host().ports[0], number=2)
    both = Adapters((host().ports[0], two, replace(two, device="mlx5_9", firmware=None)), 1.0)
    (votes,) = fabric.firmware_majority({"a": both}).values()
    assert (votes.total, votes.voters) == (1, "adapters of this board")
    nameless = replace(two, board=None, hca_type=None, firmware="2")
    fleet = fabric.firmware_majority({name: Adapters((nameless,), 1.0) for name in "abc"})
    assert list(fleet) == [""]
    assert fabric.firmware(IB, Adapters((replace(nameless, firmware="1"),), 1.0), fleet).findings == (
        Finding("mlx5_0 ()", "1", "2, as on 3 of 3 adapters of this board"),
    )
    order = fabric.firmware(
        IB, ports({"firmware": "1"}, {"firmware": "2"}), fabric.firmware_majority({"a": host()})
    )
    assert parts(order) == ["mlx5_0 (MT_0000000838)", "mlx5_1 (MT_0000000838)"]


# --- counters


def counted(
    before: dict[str, int], after: dict[str, int], *, began: float | None = 9.0, ended: float | None = 9.0
) -> Verdict:
    first = Adapters(ports({"counters": before}).ports, began)
    return fabric.counters(IB, first, Adapters(ports({"counters": after}).ports, ended), FabricConfig())


def test_the_time_between_two_readings() -> None:
    for began, ended, seconds in ((9.0, 69.0, 60.0), (None, 69.0, 0.0), (9.0, None, 0.0), (9.0, 9.0, 0.0)):
        assert counted(ZEROS, ZEROS, began=began, ended=ended).metrics[0].value == seconds
    assert counted({"symbol_error": 10}, {"symbol_error": 20}).outcome is Outcome.PASSED
    (found,) = counted({"symbol_error": 5}, {"symbol_error": 16}).findings
    assert (found.measured, found.expected, found.action) == (
        "symbol_error rose by 11 to 16 in 0 s of the run", "by at most 10", None
    )  # fmt: skip
    (lost,) = counted({"link_downed": 3}, {"link_downed": 4}).findings
    assert (lost.measured, lost.expected, lost.action) == (
        "link_downed rose by 1 to 4 in 0 s of the run", "by at most 0", None
    )  # fmt: skip
    cleared = {"symbol_error": 0, "link_downed": 7}, {"symbol_error": 99, "link_downed": 2}
    assert [it.action for it in counted(*cleared).findings] == [None, None]
    assert counted({"link_downed": 7}, {"link_downed": 0}).outcome is Outcome.PASSED
    missing = counted({"symbol_error": 12}, {})  # the later reading lacks it
    assert [it.measured for it in missing.advisories] == ["symbol_error 12 since the driver's start"]


# --- GIDs, PCIe, names


def test_gids_of_two_ports() -> None:
    second = GOOD_GIDS.replace("mlx5_0", "mlx5_1").replace("1:RoCE", "4:RoCE").replace("3:RoCE", "5:RoCE")
    table = gids(GOOD_GIDS, second)
    found = fabric.gid(ROCE, table, [("environment a", "3"), ("environment b", "4")])
    assert [(it.part, it.measured, it.expected) for it in found.findings] == [
        ("mlx5_1 port 1, NCCL_IB_GID_INDEX=3 (environment a)", "no GID", "RoCE v2: index 4, 5"),
        ("mlx5_0 port 1, NCCL_IB_GID_INDEX=4 (environment b)", "no GID", "RoCE v2: index 1, 3"),
    ]
    mixed = gid_table("RoCE v1", "IB/RoCE v1", "IB/RoCE v1", device="mlx5_1")
    found = fabric.gid(ROCE, gids(GOOD_GIDS, mixed), [("x", "0")])
    assert [(it.part, it.measured) for it in found.findings] == [
        ("mlx5_1 port 1", "IB/RoCE v1, RoCE v1"),
        ("mlx5_0 port 1, NCCL_IB_GID_INDEX=0 (x)", "IB/RoCE v1"),
    ]
    only = ROCE.model_copy(update={"fabric": FabricProfile(hcas=1, link_layer="Ethernet")})
    assert fabric.gid(only, gids(GOOD_GIDS, mixed)).outcome is Outcome.PASSED


def test_adapters_that_topo_does_not_list() -> None:
    verdict = fabric.gpu_nic_affinity(IB, Topology({}, {0: {"mlx5_0": "PIX"}, 1: {"mlx5_0": "PXB"}}))
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED, "nvidia-smi topo -m lists 1 of 2 adapters (see hca_count)"
    )  # fmt: skip
    far = {0: {"a": "SYS", "b": "NODE"}, 1: {"a": "PIX", "b": "SYS"}, 2: {"a": "SYS", "b": "SYS"}}
    wants = IB.model_copy(update={"fabric": IB.fabric.model_copy(update={"hcas": 2})})
    assert fabric.gpu_nic_affinity(wants, Topology({}, far)).reason == (
        "2 adapters for 3 GPUs: not all can have one near"
    )
    del far[2]
    assert fabric.gpu_nic_affinity(wants, Topology({}, far)).findings == (
        Finding("GPU 0", "no near adapter (NODE, SYS)", "an adapter at PIX or PXB"),
    )


@pytest.mark.parametrize(
    ("words", "units", "found"),
    [
        ("iommu=pt", "dmar0", None), ("iommu=off", "dmar0", None), ("intel_iommu=off", "dmar0", None),
        ("amd_iommu=off", "dmar0", None), ("iommu.passthrough=1", "dmar0", None),
        ("iommu.passthrough=0", "dmar0", "iommu.passthrough=0; active: dmar0"), ("quiet", "", None),
        ("amd_iommu=on", "", "amd_iommu=on; active: none"),
        ("iommu=on iommu=soft", "x", "iommu=on iommu=soft; active: x"),
        ("iommu=soft", "", None),
    ],
)  # fmt: skip
def test_words_that_pass_an_iommu_through(words: str, units: str, found: str | None) -> None:
    verdict = fabric.iommu(IB, Iommu(tuple(words.split()), tuple(units.split()), {}))
    assert verdict.findings == ((Finding("kernel command line", found, "iommu=pt"),) if found else ())


def test_domains_of_an_iommu_are_the_kernels_own_word() -> None:
    domains = {"b": "DMA", "c": "identity", "a": "DMA-FQ"}
    verdict = fabric.iommu(IB, Iommu(("ro",), ("dmar0",), domains))
    assert verdict.findings == (
        Finding("a", "IOMMU domain of type DMA-FQ (no iommu parameter)", "identity"),
        Finding("b", "IOMMU domain of type DMA (no iommu parameter)", "identity"),
    )


def said(variable: str, value: str) -> list[str]:
    verdict = fabric.nic_names(THERE, {"e": EnvironmentConfig(exports={variable: value})})
    assert {it.part for it in verdict.findings} <= {f"{variable}={value} (environment e)"}
    return [it.measured for it in verdict.findings]


def test_lists_of_names() -> None:
    every, hcas = "eth0, eth1, ib0, lo", "mlx5_0, mlx5_1, mlx5_10"
    assert said("NCCL_SOCKET_IFNAME", "=eth9, ib0,ib9") == [
        f"no {name}; there are {every}" for name in ("eth9", "ib9")
    ]
    assert said("NCCL_SOCKET_IFNAME", "^=eth0,eth1,ib0") == ["excludes all of eth0, eth1, ib0"]
    assert said("NCCL_SOCKET_IFNAME", "^=eth,ib") == said("NCCL_SOCKET_IFNAME", "lo") == []
    assert said("NCCL_SOCKET_IFNAME", "^") == said("NCCL_SOCKET_IFNAME", "=,") == ["has no name"]
    assert said("NCCL_IB_HCA", "^mlx5") == [f"excludes all of {hcas}"]
    assert said("NCCL_IB_HCA", "^=mlx5_0:1,mlx5_1") == said("NCCL_IB_HCA", "mlx5_1:1") == []
    assert said("NCCL_IB_HCA", "bnxt") == [f"no name has this prefix; there are {hcas}"]
    assert said("GLOO_SOCKET_IFNAME", "eth0,eth8, eth9") == [
        f"no {name}; there are {every}" for name in ("eth8", "eth9")
    ]
    assert said("UCX_NET_DEVICES", " all ") == said("UCX_NET_DEVICES", "mlx5_10:2") == []
    assert said("UCX_NET_DEVICES", "mlx5_0:") == ["mlx5_0:: UCX needs also the port, like mlx5_0:1"]
    assert said("UCX_NET_DEVICES", "eth0:1,mlx5_0") == [
        f"no eth0:1; there are {every}, {hcas}", "mlx5_0: UCX needs also the port, like mlx5_0:1"
    ]  # fmt: skip
    assert said("OMPI_MCA_btl_tcp_if_include", "x/y,10.9.0.0/16,eth9") == [
        "x/y is not a subnet", "no address in 10.9.0.0/16", f"no eth9; there are {every}"
    ]  # fmt: skip
    assert said("OMPI_MCA_oob_tcp_if_include", "10.1.9.9/16,eth0") == []


def test_gpudirect_rdma_names_the_first_module() -> None:
    both = PeerMemory(frozenset({"nvidia_peermem", "nv_peer_mem", "x"}), None, None)
    assert [it.unit for it in fabric.peer_memory(both, IB).metrics] == ["nv_peer_mem"]
    assert fabric.peer_memory(both, NONE).reason == "profile vm needs no GPUDirect RDMA"


IBTA = "IBTA: bit error ratio 1e-12"


def port_counts(machine: str, source: str, expected: str, before: dict[str, int], after: dict[str, int], *, seconds: float | None = 60.0,
                sick: bool = False) -> CounterExample:  # fmt: skip
    """Return a machine whose port showed these counters at two readings."""
    judged = functools.partial(
        counted,
        ZEROS | before,
        ZEROS | before | after,
        began=9.0,
        ended=None if seconds is None else 9.0 + seconds,
    )
    return CounterExample("fabric.counters", machine, source, expected, judged, sick)


COUNTER_EXAMPLES = [
    port_counts("58,000 symbol errors of a year, none now", "ibqueryerrors: the time of a total is unknown", WARNING,
                {"symbol_error": 58_000}, {}),
    port_counts("24 symbol errors in a minute at 400 Gb/s", IBTA, WARNING, {}, {"symbol_error": 24}),
    port_counts("discards of a congested port", "tests/corpus/fabric: discards 14176", WARNING, {"port_xmit_discards": 14_000},
                {"port_xmit_discards": 14_176}),
    port_counts("errors that the other end of a path sent", "ibqueryerrors: port_rcv_remote_physical_errors", PASSED, {},
                {"port_rcv_remote_physical_errors": 90}),
    port_counts("a switch that restarts during the run", "link_downed counts both ends", MONITOR, {},
                {"link_downed": 1, "symbol_error": 9_000}),
    port_counts("counters that were cleared during the run", "perfquery -R", PASSED, {"symbol_error": 60_000}, {"symbol_error": 3}),
    port_counts("a container without /proc/uptime", "no time, no rate", MONITOR, {}, {"symbol_error": 40}, seconds=None),
    port_counts("bit errors of a dirty connector, the link stays up", IBTA, DRAIN, {}, {"symbol_error": 5_000}, sick=True),
]  # fmt: skip


@pytest.mark.parametrize("machine", COUNTER_EXAMPLES, ids=name)
def test_machines_get_the_verdict_that_a_person_gives_them(machine: CounterExample) -> None:
    assert_as_expected(machine)
