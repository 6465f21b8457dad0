"""The fabric probes and checks: a host with InfiniBand, its faults, and the names that libraries accept."""

from __future__ import annotations

import functools
import ipaddress
import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import CONFIGURE, DRAIN, MONITOR, NOT_CHECKED, PASSED, WARNING, CounterExample, result
from fabric_helpers import CONTENT, GOOD_GIDS, IB, NONE, ROCE, THERE, ZEROS, answer, gid_table, gids, host, listing
from framework_helpers import told
from judged import figures, judged, parts
from suite_helpers import considered

from pytest_gpucluster.config.models import EnvironmentConfig, FabricProfile, GpuProfile, Profile
from pytest_gpucluster.core.check import Action, Metric, Outcome, Verdict
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.majority import Norm
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.fabric import facts as infiniband
from pytest_gpucluster.kit.fabric.facts import Adapters, Iommu, Location, PeerMemory
from pytest_gpucluster.kit.fabric.rails import usable
from pytest_gpucluster.kit.gpu.fabric_manager import FabricManager
from pytest_gpucluster.kit.gpu.nvidia_smi import Gpu, Gpus, Topology
from pytest_gpucluster.kit.node.port_errors import USUAL
from pytest_gpucluster.suites.fabric import checks as fabric

if TYPE_CHECKING:
    from pathlib import Path

GOOD: dict[str, Any] = {}
FULL = {"counters": {"symbol_error": 65535}}
DOWN = {"state": "DOWN", "phys_state": "Polling"}
BOTH_BOARDS = ["mlx5_0 (MT_0000000838)", "mlx5_1"]


def ports(*changes: dict[str, Any]) -> Adapters:
    """Return ports mlx5_0, mlx5_1, ... of a good host, changed so."""
    first = host().ports[0]
    return Adapters(tuple(replace(first, device=f"mlx5_{at}", **one) for at, one in enumerate(changes)), 9.0)


def other(**changes: Any) -> infiniband.Port:
    """Return a port that is there beside those for GPUs."""
    return replace(host().ports[0], device="mlx5_8", **changes)


def beside(*more: infiniband.Port) -> Adapters:
    return replace(host(), ports=(*host().ports, *more))


def judge(adapters: Adapters, profile: Profile = IB) -> dict[str, Verdict]:
    fleet = fabric.firmware_majority({"a": host(), "b": host(), "c": adapters})
    found = [
        *(
            check(profile, adapters)
            for check in (fabric.hca_count, fabric.link_layer, fabric.port_state, fabric.rate, fabric.mtu)
        ),
        fabric.counters(profile, adapters, adapters),
        fabric.firmware(profile, adapters, fleet),
    ]
    return {verdict.check.removeprefix("fabric."): verdict for verdict in found}


def test_a_good_host_passes_and_one_without_a_network_is_not_applicable() -> None:
    for good in (host(), host(rate=49.5), host(phys_state=None), host(phys_state="<unknown>")):
        assert {verdict.outcome for verdict in judge(good).values()} == {Outcome.PASSED}
    assert {told(verdict) for verdict in judge(host(), NONE).values()} == {"not applicable"}
    bare = IB.model_copy(update={"fabric": FabricProfile(hcas=2, link_layer="InfiniBand")})
    assert [told(judge(host(), bare)[check]) for check in ("rate", "mtu")] == ["not applicable"] * 2


@pytest.mark.parametrize(
    ("check", "changes", "end"),
    [
        ("port_state", {**DOWN, "phys_state": "Disabled", "rate": 1.25}, "monitor: mlx5_1 port 1 [1]"),
        ("port_state", {"state": "INIT"}, "configure: mlx5_1 port 1 [1]"),
        ("port_state", {"state": None, "phys_state": None}, "configure: mlx5_1 port 1 [1]"),
        ("rate", {"rate": 49.4}, "monitor: mlx5_1 port 1 [395.2, 400]"),
        ("rate", {"rate": None}, "configure: mlx5_1 port 1 [400]"),
        ("link_layer", {"link_layer": "Ethernet"}, "configure: mlx5_1 port 1"),
        ("link_layer", {"link_layer": None}, "configure: mlx5_1 port 1"),
        ("hca_count", {"virtual": True}, "configure: adapters; mlx5_1 port 1 [1, 2, 1, 1]"),
        ("firmware", {"firmware": "28.37.1700"}, f"configure: {BOTH_BOARDS[1]} [28.37, 28.39, 5, 6]"),
        ("counters", FULL, "monitor: mlx5_1 port 1; mlx5_1 port 1 [65535, 0, 65535]"),
        ("mtu", {"mtu": 2048}, "configure: mlx5_1 port 1 [2048, 4096]"),
    ],
)
def test_each_fault_fails_its_own_check_alone(check: str, changes: dict[str, Any], end: str) -> None:
    verdicts = judge(host(**changes))
    assert [name for name, it in verdicts.items() if it.outcome is Outcome.FAILED] == [check]
    assert told(verdicts[check]) == end


@pytest.mark.parametrize(
    ("check", "changes"),
    [
        ("counters", {"counters": {}}),
        ("counters", {"garbled": {"symbol_error": "N/A (no PMA)"}}),
        ("mtu", {"mtu": None}),
        ("firmware", {"firmware": None}),
    ],
)
def test_what_cannot_be_read_is_not_checked(check: str, changes: dict[str, Any]) -> None:
    assert judged(judge(host(**changes))[check]) == (NOT_CHECKED, [])


def test_a_node_without_a_port_passes_nothing() -> None:
    verdicts = judge(Adapters((), 12.0))
    assert told(verdicts.pop("hca_count")) == "configure: adapters [0, 2, 0]"
    assert {verdict.outcome for verdict in verdicts.values()} == {Outcome.NOT_CHECKED}


FEWER = replace(host(), ports=host().ports[:1])
SLOW = replace(host(), ports=tuple(replace(port, rate=25.0) for port in host().ports))


@pytest.mark.parametrize(
    ("check", "majority", "sick", "alone", "all_nodes"),
    [
        (fabric.port_state, fabric.active_majority, host(**DOWN), Action.DRAIN, Action.MONITOR),
        # a link without its subnet manager is up
        (fabric.port_state, fabric.active_majority, host(state="INIT"), Action.CONFIGURE, Action.CONFIGURE),
        (fabric.hca_count, fabric.active_majority, FEWER, Action.DRAIN, Action.CONFIGURE),
        (fabric.rate, fabric.rate_majority, SLOW, Action.DRAIN, Action.CONFIGURE),
    ],
)
def test_only_a_port_that_works_on_most_other_nodes_takes_its_node_out_of_service(
    check: Any, majority: Any, sick: Adapters, alone: Action, all_nodes: Action
) -> None:
    assert check(IB, sick, majority({"a": host(), "b": host(), "c": sick})).action is alone
    assert check(IB, sick, majority(dict.fromkeys("abc", sick))).action is all_nodes, "cables, or the profile"


def test_a_port_that_hides_behind_one_for_storage_is_a_warning() -> None:
    whole, down = beside(other()), host(**DOWN)
    hidden = replace(whole, ports=(*down.ports, other()))
    usual = fabric.active_majority({"a": whole, "b": whole, "c": hidden})
    assert usual[Location("mlx5_1", 1)] == Norm(((True, ("a", "b")), (False, ("c",))))
    assert judged(fabric.port_state(IB, hidden, usual)) == (WARNING, ["mlx5_1 port 1"])
    unused = fabric.active_majority({"a": whole, "b": hidden, "c": hidden})
    assert judged(fabric.port_state(IB, hidden, unused)) == (PASSED, [])
    short = fabric.port_state(IB, down, usual)
    assert (len(short.findings), short.advisories) == (1, ())
    assert fabric.active_majority({"a": replace(whole, ports=(other(virtual=True),))}) == {}


def test_the_planes_of_an_xdr_adapter_are_no_adapters() -> None:
    planes = (replace(host().ports[0], device="smi1", firmware=None, counters={}),) * 4
    named = replace(host().ports[1], device="smith0")
    for more, end in (((), (CONFIGURE, ["adapters"])), ((named,), (PASSED, []))):
        assert judged(judge(Adapters((host().ports[0], *planes, *more), 1.0))["hca_count"]) == end
    assert judge(beside(*planes))["firmware"].outcome is Outcome.PASSED
    alike = [replace(planes[0], device=device) for device in ("smi0", "xsmi0", "smi")]
    assert [port.device for port in usable(Adapters(tuple(alike), 1.0))] == ["xsmi0", "smi"]


def test_enough_ports_of_each_kind() -> None:
    wants = IB.model_copy(update={"fabric": IB.fabric.model_copy(update={"hcas": 3})})
    assert told(fabric.hca_count(IB, ports(GOOD))) == "configure: adapters [1, 2, 1]"
    assert told(fabric.hca_count(wants, ports(GOOD, GOOD))) == "configure: adapters [2, 3, 2]"
    assert told(fabric.hca_count(IB, ports(GOOD, GOOD, GOOD))) == "passed [3]"
    layer = {"link_layer": "Ethernet"}
    assert parts(fabric.link_layer(IB, ports(layer, layer))) == ["mlx5_0 port 1", "mlx5_1 port 1"]
    assert parts(fabric.link_layer(IB, ports(layer, GOOD, layer))) == ["adapters"]
    assert fabric.link_layer(IB, ports(layer, GOOD, GOOD)).outcome is Outcome.PASSED
    assert parts(fabric.link_layer(IB, ports(layer))) == ["mlx5_0 port 1"]
    for one, active in ((layer, 0), ({"virtual": True}, 0), ({"link_layer": None}, 1)):
        assert fabric.port_state(IB, ports(one)).metrics[0].value == active
    storage = ports(GOOD, layer, {"link_layer": None})
    assert told(fabric.link_layer(IB, storage)) == "configure: adapters [1, 1, 1, 2]"


@pytest.mark.parametrize(
    ("check", "bad"), [(fabric.port_state, DOWN), (fabric.rate, {"rate": 25.0}), (fabric.mtu, {"mtu": 2048})]
)
def test_as_many_good_ports_as_the_profile_has_are_enough(check: Any, bad: dict[str, Any]) -> None:
    assert check(IB, ports(bad, GOOD, GOOD)).outcome is Outcome.PASSED
    assert parts(check(IB, ports(bad, GOOD, bad))) == ["mlx5_0 port 1", "mlx5_2 port 1"]
    assert parts(check(IB, ports(bad, GOOD))) == ["mlx5_0 port 1"]
    assert check(IB, ports(GOOD)).outcome is Outcome.PASSED, "the other one is missed by fabric.hca_count"


def test_the_mtu_of_roce_is_that_of_its_interfaces() -> None:
    roce = IB.model_copy(update={"fabric": FabricProfile(hcas=2, link_layer="Ethernet", mtu=9000)})
    for interfaces, end in (
        ({"eth0": 9000}, "passed"),
        ({"eth1": 9000, "eth2": 1500}, "configure: mlx5_1 port 1 [1500, 9000]"),
        ({}, "not checked [1]"),
    ):
        two = [{"link_layer": "Ethernet", "interfaces": it} for it in ({"eth0": 9000}, interfaces)]
        assert told(fabric.mtu(roce, ports(*two))) == end


def test_firmware_is_compared_among_adapters_of_one_board_and_counts_once_an_adapter() -> None:
    alone = host(board=None, firmware="20.41.1000")
    assert judge(alone)["firmware"].outcome is Outcome.PASSED
    assert fabric.firmware_majority({"a": alone}) == {
        "MT_0000000838": Norm((("28.39.1002", ("a",)),), "adapters of this board"),
        "MT4129": Norm((("20.41.1000", ("a",)),), "adapters of this board"),
    }
    two = replace(host().ports[0], number=2)
    both = Adapters((host().ports[0], two, replace(two, device="mlx5_9", firmware=None)), 1.0)
    assert [votes.total for votes in fabric.firmware_majority({"a": both}).values()] == [1]
    nameless = replace(two, board=None, hca_type=None, firmware="2")
    fleet = fabric.firmware_majority({name: Adapters((nameless,), 1.0) for name in "abc"})
    verdict = fabric.firmware(IB, Adapters((replace(nameless, firmware="1"),), 1.0), fleet)
    assert told(verdict) == "configure: mlx5_0 [1, 2, 3, 3]"


# --- error counters ----------------------------------------------------------------------------------------------


def counted(
    before: dict[str, int], after: dict[str, int] | None = None, seconds: float | None = 60.0, **changes: Any
) -> Verdict:
    """Judge the counters of mlx5_1 at two readings; seconds: between them, None if the node's uptime is unknown later."""
    first = host(counters=ZEROS | before, **changes)
    uptime = None if seconds is None else 864000.0 + seconds
    later = replace(host(counters=ZEROS | (before if after is None else after)), uptime=uptime)
    return fabric.counters(IB, first, later)


def risen(verdict: Verdict) -> list[list[float]]:
    """Return of each finding: the rise, the value, the seconds, the allowed rise."""
    return [figures(f"{one.measured} {one.expected}") for one in verdict.findings]


def test_a_saturated_counter_fails_and_drains_nobody() -> None:
    of_symbols = (65535, 2**32 - 1, 2**64 - 1)
    for counter, full in (
        *(("symbol_error", full) for full in of_symbols),
        ("link_error_recovery", 255),
        ("link_downed", 255),
        ("port_rcv_errors", 65535),
        ("local_link_integrity_errors", 15),
        ("excessive_buffer_overrun_errors", 15),
    ):
        verdict = counted({counter: full})
        assert (judged(verdict), verdict.advisories) == ((MONITOR, ["mlx5_1 port 1"]), ())
        assert counted({counter: full - 1}).outcome is Outcome.PASSED


def test_an_old_count_above_that_of_ibqueryerrors_is_a_warning() -> None:
    hundred = ("port_rcv_remote_physical_errors", "port_xmit_discards", "VL15_dropped")
    assert {name: 100 if name in hundred else 10 for name in infiniband.COUNTERS} == USUAL
    for counter, usual in USUAL.items():
        assert judged(counted({counter: usual})) == (PASSED, [])
        assert judged(counted({counter: usual + 1})) == (WARNING, ["mlx5_1 port 1"])


def test_a_counter_that_rises_during_the_run_fails() -> None:
    for counter, rise, action in (
        ("symbol_error", 59, DRAIN),  # 10, and 16e-3 errors per GB of 50 GB/s for 60 s
        ("port_rcv_errors", 59, MONITOR),
        ("excessive_buffer_overrun_errors", 59, MONITOR),
        ("local_link_integrity_errors", 59, DRAIN),
        ("link_error_recovery", 1, MONITOR),
        ("link_downed", 1, MONITOR),
    ):
        assert counted({counter: 7}, {counter: 7 + rise - 1}).outcome is Outcome.PASSED
        verdict = counted({counter: 7}, {counter: 7 + rise})
        assert judged(verdict) == (action, ["mlx5_1 port 1"])
        assert risen(verdict) == [[rise, 7 + rise, 60, rise - 1]]


def test_a_rise_in_unknown_time_or_at_unknown_rate_may_be_the_usual_few() -> None:
    later = host(counters=ZEROS | {"symbol_error": 11})
    for verdict, seconds in (
        (counted({}, {"symbol_error": 11}, seconds=None), 0),
        (counted({}, {"symbol_error": 11}, seconds=0), 0),
        (counted({}, {"symbol_error": 11}, rate=None), 60),
        (fabric.counters(IB, replace(host(), uptime=None), later), 0),
    ):
        assert (risen(verdict), verdict.action) == ([[11, 11, seconds, 10]], Action.MONITOR)
        assert verdict.metrics[0] == Metric("counters_observed", seconds, "s", better="neither")
    assert counted({}, {"symbol_error": 10}, seconds=None).outcome is Outcome.PASSED
    assert risen(counted({"link_downed": 3}, {"link_downed": 4}, seconds=0)) == [[1, 4, 0, 0]]


def test_a_port_that_is_down_is_not_judged_by_its_counters() -> None:
    assert judge(host(**DOWN, **FULL))["counters"].outcome is Outcome.PASSED


# --- the probe ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "field", "value"),
    [
        ("net ib0 4092", "net ib0", "interfaces", {"ib0": None}),
        ("port mlx5_0 1", "port mlx5_0 1 virtual", "virtual", True),
        ("4096 (5)", "invalid MTU (0)", "mtu", None),
        ("\t\tport:\t1", "\t\tport:\tN/A", "mtu", None),  # a port of ibv_devinfo without a number
    ],
)
def test_a_line_changes_one_value_of_its_port(old: str, new: str, field: str, value: Any) -> None:
    first, second = infiniband.parse_adapters(answer(listing().replace(old, new, 1))).ports
    assert (getattr(first, field), second) == (value, host().ports[1])
    assert ("symbol_error" in first.counters) is (field != "garbled")


def in_a_shell(command: str, folder: Path, **env: str) -> Answer:
    command = command.replace("/sys/class/infiniband", str(folder))
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False, env=os.environ | env)
    return Answer("gpu01", done.returncode, done.stdout, done.stderr)


def test_the_command_in_a_real_shell(tmp_path: Path) -> None:
    for device in ("mlx5_0", "mlx5_1"):
        for path, text in CONTENT.items():
            file = tmp_path / device / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")
    for absent in ("mlx5_0/ports/1/counters/VL15_dropped", "mlx5_1/ports/1/rate"):
        (tmp_path / absent).unlink()
    (tmp_path / "mlx5_0/board_id").write_text("")
    (tmp_path / "mlx5_0/device/net/eth0").mkdir(parents=True)
    (tmp_path / "mlx5_0/device/net/eth0/mtu").write_text("9000\n")
    (tmp_path / "mlx5_1/device").mkdir()
    (tmp_path / "mlx5_1/device/physfn").symlink_to("..")
    for probe in (infiniband.ADAPTERS, infiniband.ADAPTERS_LATER):
        port, virtual = probe.parse(in_a_shell(probe.command, tmp_path)).ports
        assert (port.state, port.rate, port.firmware, port.board) == ("ACTIVE", 50.0, "28.39.1002", None)
        assert (port.interfaces, port.virtual) == ({"eth0": 9000}, False)
        assert (virtual.rate, virtual.virtual) == (None, True)
        assert len(port.counters) == len(infiniband.COUNTERS) - 1
    assert infiniband.ADAPTERS.command != infiniband.ADAPTERS_LATER.command


# --- GPUDirect RDMA ----------------------------------------------------------------------------------------------

OPEN = "NVIDIA UNIX Open Kernel Module for x86_64  555.42.02  Release Build"
CLOSED = "NVIDIA UNIX x86_64 Kernel Module  535.129.03"


def gpu_direct(
    *modules: str, driver: str | None = OPEN, kernel: str | None = "6.8.0-45-generic", profile: Profile = IB
) -> Verdict:
    return fabric.peer_memory(PeerMemory(frozenset({"nvidia", *modules}), driver, kernel), profile)


def test_gpu_memory_is_registered_by_a_module_or_by_dma_buf() -> None:
    for verdict, by in (
        (gpu_direct("nvidia_peermem", driver=CLOSED, kernel="5.4.0-187-generic"), "nvidia_peermem"),
        (gpu_direct("nvidia_peermem", "nv_peer_mem", "x", driver=None, kernel=None), "nv_peer_mem"),
        (gpu_direct(), "DMA-BUF"),
    ):
        assert verdict.outcome is Outcome.PASSED
        assert verdict.metrics == (Metric("gpudirect_rdma", 1, by, better="neither"),)
    # what CUDA deprecates is a warning where nothing stands beside it; a site may accept or refuse it
    for stated, words in ((True, "warning"), ("any", PASSED), ("dma_buf", CONFIGURE)):
        ours = IB.model_copy(update={"fabric": IB.fabric.model_copy(update={"peer_memory": stated})})
        assert result(gpu_direct("nvidia_peermem", driver=CLOSED, profile=ours)) == words
        assert result(gpu_direct("nvidia_peermem", profile=ours)) == PASSED, "DMA-BUF is there too"
    assert told(gpu_direct(driver=CLOSED)) == "configure: GPUDirect RDMA"
    assert judged(gpu_direct(driver=None)) == (NOT_CHECKED, []), "it is left to nccl"
    assert told(gpu_direct(driver=CLOSED, profile=NONE)) == "not applicable"


def test_a_kernel_has_dma_buf_since_5_12_and_an_older_or_unknown_one_may_lack_it() -> None:
    for kernel in ("5.12.0", "5.14.0-427.13.1.el9_4.x86_64", "6.12rc2", "6.0"):
        assert gpu_direct(kernel=kernel).outcome is Outcome.PASSED
    for unsure in ("5.11.22", "4.99", "v6.1", "5.", ".12", "6", "", None):
        assert judged(gpu_direct(kernel=unsure)) == (NOT_CHECKED, [])


def test_modules_driver_and_kernel_are_read() -> None:
    text = "nvidia-peermem 16384 0 - Live 0x0\nnvidia 1 0\nlisted\nkernel 5.15.0\nNVRM version: " + CLOSED
    found = infiniband.parse_peer_memory(answer(text + "\nGCC version: gcc version 12.3.0\n"))
    assert found == PeerMemory(frozenset({"nvidia_peermem", "nvidia"}), CLOSED, "5.15.0")
    assert found.open_modules is False
    for silent in ("", "kernel 6.8.0\n", "listed\nkernel 6.8.0\n"):
        with pytest.raises(NotAvailable, match=r"^cat /proc/modules: no module is listed$"):
            infiniband.parse_peer_memory(answer(silent))


# --- GIDs --------------------------------------------------------------------------------------------------------


def test_roce_needs_a_gid_of_version_2_on_each_port() -> None:
    first = gid_table("IB/RoCE v1", device="mlx5_1")
    both = (GOOD_GIDS, GOOD_GIDS.replace("mlx5_0", "mlx5_1"))
    assert told(fabric.gid(ROCE, gids(*both))) == "passed [2]"
    for lacking in (first, gid_table(device="mlx5_1")):
        assert judged(fabric.gid(ROCE, gids(GOOD_GIDS, lacking))) == (CONFIGURE, ["mlx5_1 port 1"])


def test_roce_asks_ports_that_speak_ethernet_and_no_others() -> None:
    table = gids(gid_table("IB/RoCE v1", layer="InfiniBand"))
    ends = [told(fabric.gid(profile, table)) for profile in (IB, ROCE, NONE)]
    assert ends == ["not applicable", "not checked [0]", "not applicable"]


def test_an_exported_gid_index_names_a_gid_of_version_2() -> None:
    for index, said in (("3", None), ("-1", None), ("0", "IB/RoCE v1"), ("2", "no GID"), ("x", "no index")):
        verdict = fabric.gid(ROCE, gids(GOOD_GIDS), [("environment nccl", index)])
        assert judged(verdict) == ((MONITOR, ["mlx5_0 port 1"]) if said else (PASSED, []))
        measured = f"{said} at NCCL_IB_GID_INDEX={index} (environment nccl)"
        shown = [(it.measured, it.expected) for it in verdict.findings]
        assert shown == ([(measured, "RoCE v2: index 1, 3")] if said else [])


def test_gids_of_two_ports() -> None:
    second = GOOD_GIDS.replace("mlx5_0", "mlx5_1").replace("1:RoCE", "4:RoCE").replace("3:RoCE", "5:RoCE")
    found = fabric.gid(ROCE, gids(GOOD_GIDS, second), [("environment a", "3"), ("environment b", "4")])
    assert risen(found) == [[3, 4, 5], [4, 1, 3]]
    assert parts(found) == ["mlx5_1 port 1", "mlx5_0 port 1"]
    mixed = gid_table("RoCE v1", "IB/RoCE v1", "IB/RoCE v1", device="mlx5_1")
    found = fabric.gid(ROCE, gids(GOOD_GIDS, mixed), [("x", "0")])
    measured = [str(it.measured).partition(" at ")[0] for it in found.findings]
    assert measured == ["IB/RoCE v1, RoCE v1", "IB/RoCE v1"]


def test_the_gid_probe_reads_a_tree_of_sysfs(tmp_path: Path) -> None:
    types = tmp_path / "mlx5_0/ports/1/gid_attrs/types"
    types.mkdir(parents=True)
    (types.parents[1] / "link_layer").write_text("Ethernet\n")
    for index, text in enumerate(("IB/RoCE v1\n", "RoCE v2\n", "")):  # the last one is an unused index
        (types / str(index)).write_text(text)
    found = infiniband.parse_gids(in_a_shell(infiniband.GIDS.command, tmp_path))
    assert found == (infiniband.GidPort("mlx5_0", 1, "Ethernet", {0: "IB/RoCE v1", 1: "RoCE v2"}),)
    assert str(found[0]) == "mlx5_0 port 1"
    nothing = infiniband.parse_gids(answer("gids mlx5_0 1\nend\n"))
    assert nothing == (infiniband.GidPort("mlx5_0", 1, None, {}),)


# --- from GPU to adapter -----------------------------------------------------------------------------------------

NEAR = {0: {"a": "PIX", "b": "SYS"}, 1: {"a": "SYS", "b": "NODE"}}


@pytest.mark.parametrize(
    ("nics", "memory", "end"),
    [
        ({0: {"a": "PIX", "b": "SYS"}, 1: {"a": "SYS", "b": "PXB"}}, {}, "passed"),
        ({0: {"a": "PHB", "b": "NODE"}, 1: {"a": "SYS", "b": "SYS"}}, {}, "not applicable"),  # a guest
        (NEAR, {}, "configure: GPU 1"),
        ({0: NEAR[1], 1: NEAR[0]}, {}, "configure: GPU 0"),
        (NEAR, {0: "2"}, "not applicable"),  # Grace
        ({**NEAR, 2: NEAR[0]}, {}, "not applicable [2, 3]"),
        ({0: {"mlx5_0": "PIX"}, 1: {"mlx5_0": "PXB"}}, {}, "not checked [1, 2]"),
    ],
)
def test_affinity_is_judged_where_the_machine_has_pcie_switches(
    nics: dict[int, dict[str, str]], memory: dict[int, str], end: str
) -> None:
    assert told(fabric.gpu_nic_affinity(IB, Topology({}, nics, memory=memory))) == end


def test_words_that_pass_an_iommu_through() -> None:
    through = ("iommu=pt", "intel_iommu=on iommu=pt", "iommu=off", "intel_iommu=off", "amd_iommu=off")
    passes = [(words, "dmar0") for words in (*through, "iommu.passthrough=1")]
    passes += [("quiet", ""), ("iommu=soft", "")]
    fails = [("iommu.passthrough=0", "dmar0"), ("quiet", "dmar0 dmar1")]
    fails += [("amd_iommu=on", ""), ("iommu=on iommu=soft", "x")]
    for rows, end in ((passes, (PASSED, [])), (fails, (CONFIGURE, ["kernel command line"]))):
        for words, units in rows:
            assert judged(fabric.iommu(IB, Iommu((*words.split(),), (*units.split(),), {}))) == end, words


def test_domains_of_an_iommu_are_the_kernels_own_word() -> None:
    domains = {"b": "DMA", "c": "identity", "a": "DMA-FQ"}
    assert judged(fabric.iommu(IB, Iommu(("iommu=pt",), ("dmar0",), domains))) == (CONFIGURE, ["a", "b"])
    assert judged(fabric.iommu(IB, Iommu(("quiet",), ("dmar0",), {"c": "identity"}))) == (PASSED, [])


def test_iommu_facts() -> None:
    groups = (
        "/sys/class/infiniband/mlx5_0/device/iommu_group/type:identity\n"
        "/sys/bus/pci/drivers/nvidia/0000:1b:00.0/iommu_group/type:DMA-FQ\n"
    )
    found = infiniband.parse_iommu(answer(f"ro  iommu=pt\ndmar0\n\n dmar1 \n{groups}end\n"))
    domains = {"mlx5_0": "identity", "0000:1b:00.0": "DMA-FQ"}
    assert found == Iommu(("ro", "iommu=pt"), ("dmar0", "dmar1"), domains)
    for cut in ("", "ro quiet\n", "\nend\n"):
        with pytest.raises(NotAvailable, match=r"^cat /proc/cmdline: no answer$"):
            infiniband.parse_iommu(answer(cut))


LSPCI = """\
16:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)
\tCapabilities: [68] Express (v2) {0} Port (Slot+), MSI 00
\tCapabilities: [170 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl+ DirectTrans+
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{1} CmpltRedir{1} UpstreamFwd{1} EgressCtrl- DirectTrans{2}
"""


@pytest.mark.parametrize(
    ("shown", "acs"),
    [
        (("Downstream", "+", "-"), infiniband.Acs(1, ("16:00.0",))),
        (("Downstream", "-", "-"), infiniband.Acs(1)),
        (("Downstream", "+", "+"), infiniband.Acs(1, (), ("16:00.0",))),
        (("Root", "+", "-"), infiniband.Acs(1, (), ("16:00.0",))),
    ],
)
def test_acs_of_a_switch_redirects(tmp_path: Path, shown: tuple[str, ...], acs: infiniband.Acs) -> None:
    (tmp_path / "said").write_text(LSPCI.format(*shown))
    tool = tmp_path / "lspci"
    tool.write_text(f"#!/bin/sh\ncat {tmp_path}/said\n")
    tool.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert infiniband.ACS.parse(in_a_shell(infiniband.ACS.command, tmp_path, PATH=path)) == acs


def test_acs_of_a_switch_fails_and_of_a_root_port_warns() -> None:
    verdict = fabric.acs(IB, infiniband.Acs(5, ("16:00.0", "17:00.0"), ("00:01.0", "00:02.0")))
    assert told(verdict) == "configure: PCIe switch 16:00.0; PCIe switch 17:00.0 [5]"
    assert [str(it.part) for it in verdict.advisories] == ["PCIe ports outside of switches"]
    assert judged(fabric.acs(IB, infiniband.Acs(5))) == (PASSED, [])


SWITCHED = Profile(name="hgx", description="", source="", gpu=GpuProfile(count=8, name="H100", nvswitch=True))
UNSTATED = SWITCHED.model_copy(update={"gpu": GpuProfile(count=8, name="H100")})


@pytest.mark.parametrize(
    ("version", "driver", "profile", "end"),
    [
        ("580.82.07", "580.82.07", SWITCHED, "passed"),
        (None, "580.82.07", SWITCHED, "not checked"),
        ("580.82.07", None, SWITCHED, "not checked"),
        ("580.82.07", "580.82.07", NONE, "not applicable"),
        ("575.57.08", "580.82.07", UNSTATED, "not applicable"),
        ("575.57.08", "580.82.07", SWITCHED, "configure: nvidia-fabricmanager [575.57, 580.82]"),
    ],
)
def test_fabric_manager_is_of_the_drivers_version(
    version: str | None, driver: str | None, profile: Profile, end: str
) -> None:
    gpus = Gpus((Gpu(), Gpu(driver=driver)))
    assert told(fabric.fabric_manager(FabricManager("active", version), gpus, profile)) == end


def test_fabric_manager_of_another_place_as_in_a_container_set_nvlink_up() -> None:
    joined = Gpu(driver="580.82.07", fabric_state="Completed", fabric_status="Success")
    verdict = fabric.fabric_manager(FabricManager("active", "575.57.08"), Gpus((joined,)), SWITCHED)
    assert judged(verdict) == (WARNING, ["nvidia-fabricmanager"])


# --- names of interfaces -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", []),
        ("NCCL_SOCKET_IFNAME", "=eth9, ib0,ib9", ["no eth9", "no ib9"]),
        ("NCCL_SOCKET_IFNAME", "ens5", ["no name has this prefix"]),
        ("NCCL_SOCKET_IFNAME", "", ["has no name"]),
        ("NCCL_SOCKET_IFNAME", "^lo,docker", []),
        ("NCCL_SOCKET_IFNAME", "^eth,ib", ["excludes all of eth0, eth1, ib0"]),
        ("NCCL_IB_HCA", "=mlx5_1:1", []),
        ("NCCL_IB_HCA", "^mlx5", ["excludes all of mlx5_0, mlx5_1, mlx5_10"]),
        ("GLOO_SOCKET_IFNAME", "eth0,eth, eth9", ["no eth", "no eth9"]),
        ("UCX_NET_DEVICES", " all ", []),
        ("UCX_NET_DEVICES", "mlx5_10:2,eth0", []),
        ("UCX_NET_DEVICES", "mlx5_0:", ["mlx5_0:: UCX needs also the port, like mlx5_0:1"]),
        ("UCX_NET_DEVICES", "eth0:1,mlx5_0", ["no eth0:1", "mlx5_0: UCX needs also the port, like mlx5_0:1"]),
        ("OMPI_MCA_btl_tcp_if_include", "eth0,10.1.0.0/16", []),
        (
            "OMPI_MCA_btl_tcp_if_include",
            "x/y,10.9.0.0/16,eth9",
            ["x/y is not a subnet", "no address in 10.9.0.0/16", "no eth9"],
        ),
    ],
)
def test_each_library_reads_names_its_own_way(variable: str, value: str, said: list[str]) -> None:
    environment = EnvironmentConfig(exports={variable: value, "OTHER": "x"})
    verdict = fabric.nic_names(THERE, {"pytorch": environment})
    part = f"{variable}={value} (environment pytorch)"
    assert judged(verdict) == ((CONFIGURE, [part] * len(said)) if said else (PASSED, []))
    assert [str(it.measured).partition(";")[0] for it in verdict.findings] == said


def exported(interfaces: infiniband.Interfaces, **exports: str) -> str:
    return told(fabric.nic_names(interfaces, {"x": EnvironmentConfig(exports=exports)}))


def test_a_subnet_needs_the_addresses_of_the_node() -> None:
    unknown = exported(replace(THERE, addresses=None), OMPI_MCA_btl_tcp_if_include="10.1.0.0/16")
    assert unknown == "not checked [10.1, 16]"
    nowhere = replace(THERE, names=frozenset(), addresses={})
    found = exported(nowhere, GLOO_SOCKET_IFNAME="eth0")
    assert found == "configure: GLOO_SOCKET_IFNAME=eth0 (environment x)"
    assert exported(THERE, PATH="eth0") == "not applicable"


def test_interfaces_and_their_addresses_are_read() -> None:
    text = (
        "net lo\nnet eth0\nhca mlx5_0\n2: eth0    inet 10.1.2.3/16 brd 10.1.255.255 scope global eth0\n"
        "2: eth0    inet 10.9.0.1/24 scope global eth0\n3: ib0    inet6 fe80::1/64 scope link\nend\n"
    )
    addresses = tuple(ipaddress.IPv4Interface(each) for each in ("10.1.2.3/16", "10.9.0.1/24"))
    assert infiniband.parse_interfaces(answer(text)) == infiniband.Interfaces(
        frozenset({"lo", "eth0"}), frozenset({"mlx5_0"}), {"eth0": addresses}
    )
    assert infiniband.parse_interfaces(answer("net lo\nend\n")).addresses is None
    for cut in ("net lo\n", "hca mlx5_0\nend\n"):
        with pytest.raises(NotAvailable, match=r"^ls /sys/class/net: no answer$"):
            infiniband.parse_interfaces(answer(cut))


# --- machines that were considered -------------------------------------------------------------------------------

BIT, DISCARDS = "symbol_error", "port_xmit_discards"
IBTA = "IBTA: bit error ratio 1e-12"
# machine, source, expected, module, driver, kernel
PEER_MEMORY: list[tuple[Any, ...]] = [
    ("AWS P5, proprietary driver", "openucx/ucx#10704", PASSED, "efa_nv_peermem", CLOSED, "6.1.166"),
    ("open kernel modules on Linux 6.8", "GPU operator: DMA-BUF", PASSED, "x", OPEN, "6.8.0"),
    ("open kernel modules on RHEL 8", "backported DMA-BUF", NOT_CHECKED, "x", OPEN, "4.18.0"),
    ("proprietary driver without a peer module", "README of the driver", CONFIGURE, "x", CLOSED, "6.8.0"),
]
# machine, source, expected, counters at the first reading, those that had changed a minute later
PORT_COUNTS: list[tuple[Any, ...]] = [
    ("58,000 symbol errors of a year, none now", "ibqueryerrors", WARNING, {BIT: 58_000}, {}),
    ("24 symbol errors in a minute at 400 Gb/s", IBTA, WARNING, {}, {BIT: 24}),
    ("a congested port", "tests/corpus/fabric", WARNING, {DISCARDS: 14_000}, {DISCARDS: 14_176}),
    ("errors of a path's other end", "ibqueryerrors", PASSED, {}, {"port_rcv_remote_physical_errors": 90}),
    ("a switch that restarts during the run", "both ends count", MONITOR, {}, {"link_downed": 1, BIT: 9_000}),
    ("a link that retrained during the run", IBTA, MONITOR, {}, {"link_error_recovery": 1, BIT: 900}),
    ("counters that were cleared during the run", "perfquery -R", PASSED, {BIT: 60_000}, {BIT: 3}),
    ("bit errors of a dirty connector, the link stays up", IBTA, DRAIN, {}, {BIT: 5_000}),
]
COUNTER_EXAMPLES = [
    CounterExample(f"fabric.{check}", machine, source, expected, judge_it, expected in (DRAIN, CONFIGURE))
    for check, machine, source, expected, judge_it in (
        *(
            ("peer_memory", *row, functools.partial(gpu_direct, module, driver=driver, kernel=kernel))
            for *row, module, driver, kernel in PEER_MEMORY
        ),
        *(
            ("counters", *row, functools.partial(counted, before, before | after))
            for *row, before, after in PORT_COUNTS
        ),
    )
]
test_machines_get_the_verdict_that_a_person_gives_them = considered(COUNTER_EXAMPLES)
