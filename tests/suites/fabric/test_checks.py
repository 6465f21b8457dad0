"""The fabric probes and checks: a host with InfiniBand, its faults, and the names that libraries accept."""

from __future__ import annotations

import functools
import ipaddress
import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import pytest
from counter_examples import (
    CONFIGURE,
    DRAIN,
    MONITOR,
    NOT_CHECKED,
    PASSED,
    WARNING,
    CounterExample,
    assert_as_expected,
    name,
)
from fabric_helpers import (
    CONTENT,
    GOOD_GIDS,
    IB,
    NONE,
    ROCE,
    THERE,
    ZEROS,
    answer,
    gid_table,
    gids,
    host,
    listing,
)
from framework_helpers import told
from hypothesis import given
from hypothesis import strategies as st
from judged import figures, judged, parts
from pydantic import ValidationError

from pytest_gpucluster.config.models import EnvironmentConfig, FabricProfile, GpuProfile, Profile
from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, Outcome, Verdict
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.majority import Norm
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.fabric import facts as infiniband
from pytest_gpucluster.kit.fabric.facts import Adapters, Iommu, PeerMemory
from pytest_gpucluster.kit.fabric.rails import usable
from pytest_gpucluster.kit.gpu.fabric_manager import FabricManager
from pytest_gpucluster.kit.gpu.nvidia_smi import Gpu, Gpus, Topology
from pytest_gpucluster.kit.node.port_errors import USUAL
from pytest_gpucluster.suites.fabric import checks as fabric
from pytest_gpucluster.suites.fabric.config import Counter, FabricConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpucluster.core.check import Verdict


def judge(adapters: infiniband.Adapters, profile: Profile = IB) -> dict[str, Verdict]:
    fleet = fabric.firmware_majority({"a": host(), "b": host(), "c": adapters})
    found = [
        *(
            check(profile, adapters)
            for check in (fabric.hca_count, fabric.link_layer, fabric.port_state, fabric.rate, fabric.mtu)
        ),
        fabric.counters(profile, adapters, adapters, FabricConfig()),
        fabric.firmware(profile, adapters, fleet),
    ]
    return {verdict.check: verdict for verdict in found}


def test_a_good_host_passes() -> None:
    assert {verdict.outcome for verdict in judge(host()).values()} == {Outcome.PASSED}
    assert host() == infiniband.Adapters(
        tuple(
            infiniband.Port(
                device, 1, "28.39.1002", "MT4129", "MT_0000000838", "ACTIVE", "LinkUp", 50.0, "InfiniBand",
                ZEROS, {f"ib{device[-1]}": 4092}, 4096,
            )
            for device in ("mlx5_0", "mlx5_1")
        ),
        864000.0,
    )  # fmt: skip


def test_firmware_in_halves_drains_nobody_and_names_both() -> None:
    old = replace(host(), ports=tuple(replace(port, firmware="28.37.1700") for port in host().ports))
    for fleet in ({"gpu01": host(), "gpu02": old}, {"gpu01": host(), "gpu02": host(), "gpu03": old}):
        verdict = fabric.firmware(IB, old, fabric.firmware_majority(fleet))
        assert judged(verdict) == (CONFIGURE, ["mlx5_0 (MT_0000000838)", "mlx5_1 (MT_0000000838)"])
        assert "28.39.1002" in verdict.findings[0].expected


def test_a_host_without_a_network_is_not_applicable() -> None:
    assert {told(verdict) for verdict in judge(host(), NONE).values()} == {"not applicable"}


@pytest.mark.parametrize(
    ("check", "changes", "part", "numbers"),
    [
        ("port_state", {"state": "DOWN", "phys_state": "Disabled", "rate": 1.25}, "mlx5_1 port 1", []),
        ("port_state", {"state": "INIT"}, "mlx5_1 port 1", []),
        ("port_state", {"state": None, "phys_state": None}, "mlx5_1 port 1", []),
        ("port_state", {"phys_state": "Polling"}, "mlx5_1 port 1", []),
        ("rate", {"rate": 25.0}, "mlx5_1 port 1", [200, 400]),
        ("rate", {"rate": 49.4}, "mlx5_1 port 1", [395.2, 400]),
        ("rate", {"rate": None}, "mlx5_1 port 1", [400]),
        ("link_layer", {"link_layer": "Ethernet"}, "mlx5_1 port 1", []),
        ("link_layer", {"link_layer": None}, "mlx5_1 port 1", []),
        ("hca_count", {"virtual": True}, "adapters", [1, 2]),
        ("firmware", {"firmware": "28.37.1700"}, "mlx5_1 (MT_0000000838)", [28.37, 28.39, 5, 6]),
        ("counters", {"counters": {"symbol_error": 65535}}, "mlx5_1 port 1", [65535]),
        ("mtu", {"mtu": 2048}, "mlx5_1 port 1", [2048, 4096]),
    ],
)
def test_each_fault_fails_its_own_check_on_its_own_port(
    check: str, changes: dict[str, Any], part: str, numbers: list[float]
) -> None:
    verdicts = judge(host(**changes))
    assert [name for name, it in verdicts.items() if it.outcome is Outcome.FAILED] == [f"fabric.{check}"]
    verdict = verdicts[f"fabric.{check}"]
    (found,) = verdict.findings
    assert (found.part, figures(f"{found.measured} / {found.expected}")) == (part, numbers)
    assert not verdict.action.is_repair  # one node alone


def test_what_monitors_and_what_drains() -> None:
    actions = {check: verdict.action for check, verdict in judge(host()).items()}
    assert actions == {**dict.fromkeys(actions, Action.CONFIGURE), "fabric.counters": Action.MONITOR}


def test_only_a_port_that_works_on_most_other_nodes_takes_its_node_out_of_service() -> None:
    down, idle = host(state="DOWN", phys_state="Polling"), host(state="INIT", phys_state="LinkUp")
    fewer = replace(host(), ports=host().ports[:1])
    most = {"a": host(), "b": host()}
    for sick, drains in ((down, True), (idle, False)):  # a link without its subnet manager is up
        usual = fabric.active_majority({**most, "c": sick})
        assert fabric.port_state(IB, sick, usual).action is (Action.DRAIN if drains else Action.CONFIGURE)
        alike = fabric.active_majority(dict.fromkeys("abc", sick))  # the cables or the profile of all
        mild = Action.MONITOR if drains else Action.CONFIGURE
        assert fabric.port_state(IB, sick, alike).action is mild
    assert fabric.hca_count(IB, fewer, fabric.active_majority({**most, "c": fewer})).action is Action.DRAIN
    assert (
        fabric.hca_count(IB, fewer, fabric.active_majority(dict.fromkeys("abc", fewer))).action
        is Action.CONFIGURE
    )
    slow = replace(host(), ports=tuple(replace(port, rate=(port.rate or 0) / 2) for port in host().ports))
    assert fabric.rate(IB, slow, fabric.rate_majority({**most, "c": slow})).action is Action.DRAIN
    assert fabric.rate(IB, slow, fabric.rate_majority(dict.fromkeys("abc", slow))).action is Action.CONFIGURE


def test_active_ports_are_a_metric() -> None:
    for verdict, active in ((judge(host()), 2), (judge(host(state="DOWN")), 1)):
        assert verdict["fabric.port_state"].metrics == (Metric("hca_ports_active", active, "ports"),)


def test_a_port_that_hides_behind_one_for_storage_is_a_warning() -> None:
    whole = replace(host(), ports=(*host().ports, other()))
    down = host(state="DOWN", phys_state="Polling")
    hidden = replace(whole, ports=(*down.ports, other()))
    usual = fabric.active_majority({"a": whole, "b": whole, "c": hidden})
    assert usual["mlx5_1 port 1"] == Norm(((True, ("a", "b")), (False, ("c",))))
    verdict = fabric.port_state(IB, hidden, usual)
    expected = Advisory("mlx5_1 port 1", "DOWN, Polling", "ACTIVE, as on 2 of 3 nodes")
    assert (verdict.outcome, verdict.advisories) == (Outcome.PASSED, (expected,))
    unused = fabric.active_majority({"a": whole, "b": hidden, "c": hidden})
    assert fabric.port_state(IB, hidden, unused).advisories == ()
    short = fabric.port_state(IB, down, usual)
    assert (len(short.findings), short.advisories) == (1, ())
    planes = replace(whole, ports=(other(virtual=True),))
    assert fabric.active_majority({"a": planes}) == {}


def test_an_active_port_need_not_tell_of_its_link() -> None:
    for phys_state in ("<unknown>", None):
        assert judge(host(phys_state=phys_state))["fabric.port_state"].outcome is Outcome.PASSED


def test_a_node_without_a_port_passes_nothing() -> None:
    verdicts = judge(infiniband.Adapters((), 12.0))
    assert told(verdicts.pop("fabric.hca_count")) == "configure: adapters [0, 2, 0]"
    assert {verdict.outcome for verdict in verdicts.values()} == {Outcome.NOT_CHECKED}


def other(**changes: Any) -> infiniband.Port:
    """Return a port that is there beside those for GPUs."""
    return replace(host().ports[0], device="mlx5_8", **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "DOWN", "phys_state": "Polling", "rate": 0.3125, "mtu": None},
        {"rate": 12.5},
        {"mtu": 2048},
        {"mtu": None},
        {"link_layer": "Ethernet", "mtu": 1024},
        {"link_layer": "Ethernet", "state": "DOWN", "phys_state": "Disabled"},
        {"virtual": True, "state": "DOWN", "counters": {}, "firmware": None},
    ],
)
def test_a_port_beside_those_for_gpus_may_be_as_it_likes(changes: dict[str, Any]) -> None:
    more = replace(host(), ports=(*host().ports, other(**changes)))
    assert {verdict.outcome for verdict in judge(more).values()} == {Outcome.PASSED}


def test_the_planes_of_an_xdr_adapter_are_no_adapters() -> None:
    planes = (replace(host().ports[0], device="smi1", firmware=None, counters={}),) * 4
    named = replace(host().ports[1], device="smith0")
    for ports, end in (((), (CONFIGURE, ["adapters"])), ((named,), (PASSED, []))):
        few = infiniband.Adapters((host().ports[0], *planes, *ports), 1.0)
        assert judged(judge(few)["fabric.hca_count"]) == end
    assert judge(replace(host(), ports=(*host().ports, *planes)))["fabric.firmware"].outcome is Outcome.PASSED


def test_a_port_for_storage_does_not_stand_in_for_one_that_speaks_otherwise() -> None:
    ports = (host().ports[0], other(link_layer="Ethernet"), other(link_layer=None))
    assert (
        told(judge(infiniband.Adapters(ports, 1.0))["fabric.link_layer"])
        == "configure: adapters [1, 1, 1, 2]"
    )


@pytest.mark.parametrize("check", ["fabric.rate", "fabric.mtu"])
def test_a_profile_that_states_nothing_is_not_applicable(check: str) -> None:
    bare = IB.model_copy(update={"fabric": FabricProfile(hcas=2, link_layer="InfiniBand")})
    assert told(judge(host(), bare)[check]) == "not applicable"


def test_a_rate_a_hundredth_below_is_the_rate() -> None:
    assert judge(host(rate=49.5))["fabric.rate"].outcome is Outcome.PASSED


def test_the_mtu_of_roce_is_that_of_its_interfaces() -> None:
    roce = IB.model_copy(update={"fabric": FabricProfile(hcas=2, link_layer="Ethernet", mtu=9000)})
    ports = tuple(replace(port, link_layer="Ethernet", interfaces={"eth0": 9000}) for port in host().ports)
    assert fabric.mtu(roce, infiniband.Adapters(ports, 1.0)).outcome is Outcome.PASSED
    bond = replace(ports[1], interfaces={"eth1": 9000, "eth2": 1500})
    found = fabric.mtu(roce, infiniband.Adapters((ports[0], bond), 1.0)).findings
    assert found == (Finding("mlx5_1 port 1", "1500", "9000"),)
    silent = fabric.mtu(roce, infiniband.Adapters((ports[0], replace(bond, interfaces={})), 1.0))
    assert silent.reason == "mlx5_1 port 1: its MTU cannot be read (ibv_devinfo absent, or no interface)"


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
    assert judged(judge(host(**changes))[f"fabric.{check}"]) == (NOT_CHECKED, [])


def test_firmware_is_compared_among_adapters_of_one_board() -> None:
    alone = host(board=None, firmware="20.41.1000")
    assert judge(alone)["fabric.firmware"].outcome is Outcome.PASSED
    assert fabric.firmware_majority({"a": alone}) == {
        "MT_0000000838": Norm((("28.39.1002", ("a",)),), "adapters of this board"),
        "MT4129": Norm((("20.41.1000", ("a",)),), "adapters of this board"),
    }


# --- error counters ----------------------------------------------------------------------------------------------


def counted(
    before: dict[str, int],
    after: dict[str, int] | None = None,
    seconds: float | None = 60.0,
    limits: dict[str, int] | None = None,
    **changes: Any,
) -> Verdict:
    first = host(counters=ZEROS | before, **changes)
    uptime = None if seconds is None else 864000.0 + seconds
    later = replace(host(counters=ZEROS | (before if after is None else after)), uptime=uptime)
    config = FabricConfig.model_validate({"counters": limits or {}})
    return fabric.counters(IB, first, later, config)


@pytest.mark.parametrize(
    ("counter", "full"),
    [
        ("symbol_error", 65535),
        ("link_error_recovery", 255),
        ("link_downed", 255),
        ("port_rcv_errors", 65535),
        ("local_link_integrity_errors", 15),
        ("excessive_buffer_overrun_errors", 15),
        ("symbol_error", 2**32 - 1),
        ("symbol_error", 2**64 - 1),
    ],
)
def test_a_saturated_counter_fails_and_drains_nobody(counter: str, full: int) -> None:
    verdict = counted({counter: full})
    assert judged(verdict) == (MONITOR, ["mlx5_1 port 1"])
    assert not verdict.advisories
    assert counted({counter: full - 1}).outcome is Outcome.PASSED


@pytest.mark.parametrize("counter", ["port_rcv_remote_physical_errors", "port_xmit_discards", "VL15_dropped"])
def test_what_healthy_ports_count_never_fails_by_itself(counter: str) -> None:
    assert judged(counted({counter: 65535})) == (WARNING, ["mlx5_1 port 1"])
    assert counted({}, {counter: 5000}).outcome is Outcome.PASSED


@pytest.mark.parametrize(("counter", "usual"), sorted(USUAL.items()))
def test_an_old_count_is_a_warning(counter: str, usual: int) -> None:
    assert counted({counter: usual}).advisories == ()
    assert judged(counted({counter: usual + 1})) == (WARNING, ["mlx5_1 port 1"])


def test_the_usual_counts_are_those_of_ibqueryerrors() -> None:
    hundred = ("port_rcv_remote_physical_errors", "port_xmit_discards", "VL15_dropped")
    assert {name: 100 if name in hundred else 10 for name in infiniband.COUNTERS} == USUAL


def test_a_limit_of_the_cluster_file_fails_in_place_of_the_warning() -> None:
    verdict = counted({"link_downed": 9}, limits={"link_downed": 8})
    expected = "at most 8 (fabric.counters of the cluster file)"
    assert verdict.findings == (Finding("mlx5_1 port 1", "link_downed 9", expected),)
    assert (verdict.action, verdict.advisories) == (Action.MONITOR, ())
    held = counted({"link_downed": 200}, limits={"link_downed": 200})
    assert (held.outcome, held.advisories) == (Outcome.PASSED, ())
    assert counted({"link_downed": 255}, limits={"link_downed": 300}).outcome is Outcome.FAILED
    zero = counted({"VL15_dropped": 1}, limits={"VL15_dropped": 0})
    assert zero.findings[0].measured == "VL15_dropped 1"


@pytest.mark.parametrize(
    ("counter", "rise", "action"),
    [
        ("symbol_error", 59, DRAIN),  # 10, and 16e-3 errors per GB of 50 GB/s for 60 s
        ("port_rcv_errors", 59, MONITOR),
        ("excessive_buffer_overrun_errors", 59, MONITOR),
        ("local_link_integrity_errors", 59, DRAIN),
        ("link_error_recovery", 1, MONITOR),
        ("link_downed", 1, MONITOR),
    ],
)
def test_a_counter_that_rises_during_the_run_fails(counter: str, rise: int, action: str) -> None:
    assert counted({counter: 7}, {counter: 7 + rise - 1}).outcome is Outcome.PASSED
    verdict = counted({counter: 7}, {counter: 7 + rise})
    assert judged(verdict) == (action, ["mlx5_1 port 1"])
    (finding,) = verdict.findings
    assert figures(f"{finding.measured} / {finding.expected}") == [rise, 7 + rise, 60, rise - 1]


def test_bit_errors_of_a_link_that_went_down_meanwhile_drain_nobody() -> None:
    for lost in ("link_downed", "link_error_recovery"):
        verdict = counted({}, {"symbol_error": 900, lost: 1})
        assert len(verdict.findings) == 2
        assert verdict.action is Action.MONITOR


def test_a_counter_that_rises_into_saturation_drains() -> None:
    verdict = counted({"symbol_error": 7}, {"symbol_error": 65535})
    assert [finding.measured for finding in verdict.findings] == [
        "symbol_error rose by 65528 to 65535 in 60 s of the run"
    ]


def test_a_counter_that_was_cleared_in_between_began_at_0() -> None:
    assert counted({"symbol_error": 60000}, {"symbol_error": 58}).outcome is Outcome.PASSED
    (finding,) = counted({"symbol_error": 60000}, {"symbol_error": 59}).findings
    assert finding.measured == "symbol_error rose by 59 to 59 in 60 s of the run"


def test_a_rise_in_unknown_time_or_at_unknown_rate_may_be_the_usual_few() -> None:
    for verdict in (
        counted({}, {"symbol_error": 11}, seconds=None),
        counted({}, {"symbol_error": 11}, rate=None),
        fabric.counters(
            IB, replace(host(), uptime=None), host(counters=ZEROS | {"symbol_error": 11}), FabricConfig()
        ),
    ):
        assert verdict.findings[0].expected == "by at most 10"
    assert counted({}, {"symbol_error": 10}, seconds=None).outcome is Outcome.PASSED


def test_the_counts_and_the_time_between_both_readings_are_metrics() -> None:
    verdict = counted({"symbol_error": 1}, {"symbol_error": 3})
    assert verdict.metrics == (
        Metric("counters_observed", 60.0, "s", better="neither"),
        Metric("symbol_error", 3, "events", "mlx5_1 port 1"),
    )


def test_a_port_that_is_gone_later_is_judged_by_its_first_reading() -> None:
    gone = replace(host(), ports=host().ports[:1])
    verdict = fabric.counters(IB, host(counters={"link_downed": 255}), gone, FabricConfig())
    assert [finding.part for finding in verdict.findings] == ["mlx5_1 port 1"]


def test_a_port_that_is_down_is_not_judged_by_its_counters() -> None:
    down = host(state="DOWN", phys_state="Polling", counters={"symbol_error": 65535})
    assert judge(down)["fabric.counters"].outcome is Outcome.PASSED


# --- the probe ---------------------------------------------------------------------------------------------------


def test_a_file_that_is_absent_shifts_no_other() -> None:
    port = infiniband.parse_adapters(answer(listing(absent="ports/1/counters/link_downed"))).ports[1]
    assert port.counters == {name: 0 for name in infiniband.COUNTERS if name != "link_downed"}
    assert (port.rate, port.link_layer) == (50.0, "InfiniBand")


@pytest.mark.parametrize(
    ("absent", "field"),
    [("fw_ver", "firmware"), ("hca_type", "hca_type"), ("board_id", "board"), ("ports/1/rate", "rate")],
)
def test_a_port_lacks_what_cannot_be_read(absent: str, field: str) -> None:
    port = infiniband.parse_adapters(answer(listing(absent=absent))).ports[1]
    missing: dict[str, Any] = {field: None}
    assert port == replace(host().ports[1], **missing)


def test_what_is_no_number_is_kept_as_text() -> None:
    text = listing().replace("counters/symbol_error:0", "counters/symbol_error:N/A (no PMA)", 1)
    port = infiniband.parse_adapters(answer(text)).ports[0]
    assert (port.garbled, "symbol_error" in port.counters) == ({"symbol_error": "N/A (no PMA)"}, False)
    blank = infiniband.parse_adapters(answer(listing().replace("fw_ver:28.39.1002", "fw_ver: "))).ports[0]
    assert blank.firmware is None


def test_an_interface_without_an_mtu_is_there() -> None:
    ports = infiniband.parse_adapters(answer(listing().replace("net ib0 4092", "net ib0"))).ports
    assert ports[0].interfaces == {"ib0": None}


def test_a_virtual_function_is_marked() -> None:
    ports = infiniband.parse_adapters(
        answer(listing().replace("port mlx5_1 1", "port mlx5_1 1 virtual"))
    ).ports
    assert [port.virtual for port in ports] == [False, True]


def test_an_answer_without_uptime_or_mtus_is_read() -> None:
    text = listing().replace("uptime 864000.00 1.0\n", "uptime\n").replace("4096 (5)", "invalid MTU (0)")
    found = infiniband.parse_adapters(answer(text))
    assert (found.uptime, {port.mtu for port in found.ports}) == (None, {None})


def test_a_port_of_ibv_devinfo_without_a_number_is_passed_over() -> None:
    found = infiniband.parse_adapters(answer(listing().replace("\t\tport:\t1", "\t\tport:\tN/A", 1)))
    assert [port.mtu for port in found.ports] == [None, 4096]


def test_a_cut_listing_is_an_error() -> None:
    for cut in (answer(listing(end=False)), replace(answer(listing()), truncated=True)):
        with pytest.raises(ProbeError, match=r"^/sys/class/infiniband: the answer ended early$"):
            infiniband.parse_adapters(cut)


def test_the_command_in_a_real_shell(tmp_path: Path) -> None:
    for device in ("mlx5_0", "mlx5_1"):
        for path, text in CONTENT.items():
            file = tmp_path / device / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")
    (tmp_path / "mlx5_0/ports/1/counters/VL15_dropped").unlink()
    (tmp_path / "mlx5_0/board_id").write_text("")
    (tmp_path / "mlx5_0/device/net/eth0").mkdir(parents=True)
    (tmp_path / "mlx5_0/device/net/eth0/mtu").write_text("9000\n")
    (tmp_path / "mlx5_1/device").mkdir()
    (tmp_path / "mlx5_1/device/physfn").symlink_to("..")
    for probe in (infiniband.ADAPTERS, infiniband.ADAPTERS_LATER):
        command = probe.command.replace("/sys/class/infiniband", str(tmp_path))
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, timeout=60, check=False, env=os.environ
        )
        port, virtual = probe.parse(Answer("gpu01", done.returncode, done.stdout, done.stderr)).ports
        assert (port.state, port.rate, port.firmware, port.board) == ("ACTIVE", 50.0, "28.39.1002", None)
        assert (port.interfaces, port.virtual, virtual.virtual) == ({"eth0": 9000}, False, True)
        assert len(port.counters) == len(infiniband.COUNTERS) - 1
    assert infiniband.ADAPTERS.command != infiniband.ADAPTERS_LATER.command


@pytest.mark.parametrize(
    "parse",
    [
        infiniband.parse_adapters,
        infiniband.parse_interfaces,
        infiniband.parse_gids,
        infiniband.parse_iommu,
        infiniband.parse_acs,
        infiniband.parse_peer_memory,
    ],
)
@given(junk=st.binary(max_size=120))
def test_rubbish_gives_a_reason(parse: Any, junk: bytes) -> None:
    with pytest.raises(ProbeError):
        parse(Answer("gpu01", 0, junk))


# --- GPUDirect RDMA ----------------------------------------------------------------------------------------------

OPEN = "NVIDIA UNIX Open Kernel Module for x86_64  555.42.02  Release Build"
CLOSED = "NVIDIA UNIX x86_64 Kernel Module  535.129.03"


def gpu_direct(
    *modules: str, driver: str | None = OPEN, kernel: str | None = "6.8.0-45-generic"
) -> infiniband.PeerMemory:
    return infiniband.PeerMemory(frozenset({"nvidia", *modules}), driver, kernel)


@pytest.mark.parametrize(
    ("found", "by"),
    [
        (gpu_direct("nvidia_peermem", driver=CLOSED, kernel="5.4.0-187-generic"), "nvidia_peermem"),
        (gpu_direct("nv_peer_mem", driver=None, kernel=None), "nv_peer_mem"),
        (gpu_direct(), "DMA-BUF"),
        (gpu_direct(kernel="5.12.0"), "DMA-BUF"),
        (gpu_direct(kernel="5.14.0-427.13.1.el9_4.x86_64"), "DMA-BUF"),
    ],
)
def test_gpu_memory_is_registered_by_the_module_or_by_dma_buf(found: infiniband.PeerMemory, by: str) -> None:
    verdict = fabric.peer_memory(found, IB)
    assert verdict.outcome is Outcome.PASSED
    assert verdict.metrics == (Metric("gpudirect_rdma", 1, by, better="neither"),)


def test_proprietary_modules_without_peermem_fail() -> None:
    assert told(fabric.peer_memory(gpu_direct(driver=CLOSED), IB)) == "configure: GPUDirect RDMA"


@pytest.mark.parametrize(
    "found",
    [
        gpu_direct(driver=None),
        gpu_direct(kernel="5.11.22"),
        gpu_direct(kernel="4.18.0-372.el8"),
        gpu_direct(kernel=None),
    ],
)
def test_what_is_not_sure_is_left_to_nccl(found: infiniband.PeerMemory) -> None:
    assert told(fabric.peer_memory(found, IB)).startswith("not checked")


def test_gpudirect_rdma_that_nobody_needs_is_not_applicable() -> None:
    assert told(fabric.peer_memory(gpu_direct(driver=CLOSED), NONE)) == "not applicable"


def test_modules_driver_and_kernel_are_read() -> None:
    text = "nvidia-peermem 16384 0 - Live 0x0\nnvidia 1 0\nlisted\nkernel 5.15.0\nNVRM version: " + CLOSED
    found = infiniband.parse_peer_memory(answer(text + "\nGCC version: gcc version 12.3.0\n"))
    modules = frozenset({"nvidia_peermem", "nvidia"})
    assert found == infiniband.PeerMemory(modules, CLOSED, "5.15.0")
    assert found.open_modules is False
    lsmod = infiniband.parse_peer_memory(answer("Module Size Used by\nnvidia 1 0\nlisted\nkernel\n"))
    assert lsmod == infiniband.PeerMemory(frozenset({"nvidia"}), None, None)
    assert lsmod.open_modules is None


@pytest.mark.parametrize("text", ["", "kernel 6.8.0\n", "listed\nkernel 6.8.0\n"])
def test_modules_that_cannot_be_listed_are_not_available(text: str) -> None:
    with pytest.raises(NotAvailable, match=r"^cat /proc/modules: no module is listed$"):
        infiniband.parse_peer_memory(answer(text))


def test_roce_needs_a_gid_of_version_2_on_each_port() -> None:
    first = gid_table("IB/RoCE v1", device="mlx5_1")
    both = (GOOD_GIDS, GOOD_GIDS.replace("mlx5_0", "mlx5_1"))
    assert gids(GOOD_GIDS)[0].types == {0: "IB/RoCE v1", 1: "RoCE v2", 3: "RoCE v2"}
    assert told(fabric.gid(ROCE, gids(*both))) == "passed [2]"
    assert told(fabric.gid(ROCE, gids(*both, gid_table("IB/RoCE v1", device="mlx5_2")))) == "passed [2]"
    for lacking in (first, gid_table(device="mlx5_1")):
        assert judged(fabric.gid(ROCE, gids(GOOD_GIDS, lacking))) == (CONFIGURE, ["mlx5_1 port 1"])


def test_roce_asks_ports_that_speak_ethernet_and_no_others() -> None:
    table = gids(gid_table("IB/RoCE v1", layer="InfiniBand"))
    ends = [told(fabric.gid(profile, table)) for profile in (IB, ROCE, NONE)]
    assert ends == ["not applicable", "not checked [0]", "not applicable"]


@pytest.mark.parametrize(
    ("index", "said"), [("3", None), ("-1", None), ("0", "IB/RoCE v1"), ("2", "no GID"), ("x", "no index")]
)
def test_an_exported_gid_index_names_a_gid_of_version_2(index: str, said: str | None) -> None:
    verdict = fabric.gid(ROCE, gids(GOOD_GIDS), [("environment nccl", index)])
    part = f"mlx5_0 port 1, NCCL_IB_GID_INDEX={index} (environment nccl)"
    assert verdict.findings == ((Finding(part, said, "RoCE v2: index 1, 3", Action.MONITOR),) if said else ())
    assert not said or verdict.action is Action.MONITOR


@pytest.mark.parametrize(
    "text", ["port mlx5_0 1 Ethernet\n", "rubbish\nend\n", "port mlx5_0 1\n/x/y:RoCE v2\nend\n"]
)
def test_a_table_of_gids_that_is_not_understood_is_an_error(text: str) -> None:
    with pytest.raises(ProbeError, match=r"^/sys/class/infiniband/\*/ports/\*/gid_attrs"):
        infiniband.parse_gids(answer(text))


def test_the_gid_probe_reads_a_tree_of_sysfs(tmp_path: Path) -> None:
    types = tmp_path / "mlx5_0/ports/1/gid_attrs/types"
    types.mkdir(parents=True)
    (types.parents[1] / "link_layer").write_text("Ethernet\n")
    (types / "0").write_text("IB/RoCE v1\n")
    (types / "1").write_text("RoCE v2\n")
    (types / "2").write_text("")  # an unused index: nothing to read
    command = infiniband.GIDS.command.replace("/sys/class/infiniband", str(tmp_path))
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    (port,) = infiniband.parse_gids(Answer("gpu01", done.returncode, done.stdout, done.stderr))
    assert (str(port), port.link_layer) == ("mlx5_0 port 1", "Ethernet")
    assert port.types == {0: "IB/RoCE v1", 1: "RoCE v2"}


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
        (dict.fromkeys(range(4), NEAR[0]), {}, "passed"),
        ({0: {}}, {}, "not checked [0, 2]"),
        ({0: {"mlx5_0": "PIX"}, 1: {"mlx5_0": "PXB"}}, {}, "not checked [1, 2]"),
    ],
)
def test_affinity_is_judged_where_the_machine_has_pcie_switches(
    nics: dict[int, dict[str, str]], memory: dict[int, str], end: str
) -> None:
    assert told(fabric.gpu_nic_affinity(IB, Topology({}, nics, memory=memory))) == end


IDENTITY = "/sys/class/infiniband/mlx5_0/device/iommu_group/type:identity\n"
TRANSLATED = "/sys/bus/pci/drivers/nvidia/0000:1b:00.0/iommu_group/type:DMA-FQ\n"


def test_a_domain_that_translates_fails_even_where_the_command_line_passes_through() -> None:
    told_of = answer("ro iommu=pt\ndmar0\n" + IDENTITY + TRANSLATED + "end\n")
    assert judged(fabric.iommu(IB, infiniband.parse_iommu(told_of))) == (CONFIGURE, ["0000:1b:00.0"])
    identical = answer("ro quiet\ndmar0\n" + IDENTITY + "end\n")
    assert fabric.iommu(IB, infiniband.parse_iommu(identical)).outcome is Outcome.PASSED


def test_iommu_facts() -> None:
    found = infiniband.parse_iommu(answer("ro iommu=pt\ndmar0\n" + IDENTITY + TRANSLATED + "end\n"))
    domains = {"mlx5_0": "identity", "0000:1b:00.0": "DMA-FQ"}
    assert found == infiniband.Iommu(("ro", "iommu=pt"), ("dmar0",), domains)
    for cut in ("", "ro quiet\n", "\nend\n"):
        with pytest.raises(NotAvailable, match=r"^cat /proc/cmdline: no answer$"):
            infiniband.parse_iommu(answer(cut))


LSPCI = """\
16:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)
\tCapabilities: [68] Express (v2) Downstream Port (Slot+), MSI 00
\tCapabilities: [170 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl+ DirectTrans+
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir@ CmpltRedir@ UpstreamFwd@ EgressCtrl- DirectTrans#
"""


def lspci(folder: Path, text: str) -> infiniband.Acs:
    (folder / "said").write_text(text)
    tool = folder / "lspci"
    tool.write_text(f"#!/bin/sh\ncat {folder}/said\n")
    tool.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", infiniband.ACS.command], capture_output=True, check=False, env=env)
    return infiniband.ACS.parse(Answer("gpu01", done.returncode, done.stdout, done.stderr))


@pytest.mark.parametrize(
    ("text", "acs"),
    [
        (LSPCI.replace("@", "+").replace("#", "-"), infiniband.Acs(1, ("16:00.0",))),
        (LSPCI.replace("@", "-").replace("#", "-"), infiniband.Acs(1)),
        (LSPCI.replace("@", "+").replace("#", "+"), infiniband.Acs(1, (), ("16:00.0",))),
        (
            LSPCI.replace("Downstream", "Root").replace("@", "+").replace("#", "-"),
            infiniband.Acs(1, (), ("16:00.0",)),
        ),
    ],
)
def test_acs_of_a_switch_redirects(tmp_path: Path, text: str, acs: infiniband.Acs) -> None:
    assert lspci(tmp_path, text) == acs


def test_acs_of_a_switch_fails_and_of_a_root_port_warns() -> None:
    verdict = fabric.acs(IB, infiniband.Acs(5, ("16:00.0", "17:00.0"), ("00:01.0", "00:02.0")))
    assert told(verdict) == "configure: PCIe switch 16:00.0; PCIe switch 17:00.0 [5]"
    assert [it.part for it in verdict.advisories] == ["PCIe ports outside of switches"]
    good = fabric.acs(IB, infiniband.Acs(5))
    assert judged(good) == (PASSED, [])


def test_acs_needs_the_right_to_look() -> None:
    with pytest.raises(NotAvailable, match=r"^lspci -vvv: capabilities are hidden: root is needed$"):
        infiniband.parse_acs(answer("end 80 80\n"))
    assert infiniband.parse_acs(answer("end 80 0\n")) == infiniband.Acs(0)
    for silent in ("end 0 0\n", "end x 0\n", ""):
        with pytest.raises(NotAvailable, match=r"^lspci -vvv: no device$"):
            infiniband.parse_acs(answer(silent))


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


ALL = "eth0, eth1, ib0, lo"
HCAS = "mlx5_0, mlx5_1, mlx5_10"


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", None),
        ("NCCL_SOCKET_IFNAME", "=eth0", None),
        ("NCCL_SOCKET_IFNAME", "=eth", f"no eth; there are {ALL}"),
        ("NCCL_SOCKET_IFNAME", "ens5", f"no name has this prefix; there are {ALL}"),
        ("NCCL_SOCKET_IFNAME", "ens5,eth", None),
        ("NCCL_SOCKET_IFNAME", "", "has no name"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker", None),
        ("NCCL_SOCKET_IFNAME", "^eth,ib", "excludes all of eth0, eth1, ib0"),
        ("NCCL_SOCKET_IFNAME", "^=eth0,eth1", None),
        ("NCCL_IB_HCA", "mlx5", None),
        ("NCCL_IB_HCA", "=mlx5_1:1", None),
        ("NCCL_IB_HCA", "=mlx5_7:1", f"no mlx5_7; there are {HCAS}"),
        ("NCCL_IB_HCA", "^mlx5_0", None),
        ("GLOO_SOCKET_IFNAME", "eth0", None),
        ("GLOO_SOCKET_IFNAME", "eth", f"no eth; there are {ALL}"),
        ("TP_SOCKET_IFNAME", "", f"no name; there are {ALL}"),
        ("UCX_NET_DEVICES", "all", None),
        ("UCX_NET_DEVICES", "^mlx5_9:1", None),
        ("UCX_NET_DEVICES", "mlx5_0:1,eth0", None),
        ("UCX_NET_DEVICES", "mlx5_0", "mlx5_0: UCX needs also the port, like mlx5_0:1"),
        ("UCX_NET_DEVICES", "mlx5_0:x", "mlx5_0:x: UCX needs also the port, like mlx5_0:1"),
        ("UCX_NET_DEVICES", "mlx5_9:1", f"no mlx5_9:1; there are {ALL}, {HCAS}"),
        ("UCX_NET_DEVICES", "", f"no name; there are {ALL}, {HCAS}"),
        ("OMPI_MCA_btl_tcp_if_include", "eth0", None),
        ("OMPI_MCA_btl_tcp_if_include", "10.1.0.0/16", None),
        ("OMPI_MCA_btl_tcp_if_include", "10.2.0.0/16", "no address in 10.2.0.0/16"),
        ("OMPI_MCA_btl_tcp_if_include", "10.2.0.0/99", "10.2.0.0/99 is not a subnet"),
        ("OMPI_MCA_btl_tcp_if_include", "ens5", f"no ens5; there are {ALL}"),
        ("OMPI_MCA_oob_tcp_if_include", "", f"no name; there are {ALL}"),
    ],
)
def test_each_library_reads_names_its_own_way(variable: str, value: str, said: str | None) -> None:
    environment = EnvironmentConfig(exports={variable: value, "OTHER": "x"})
    verdict = fabric.nic_names(THERE, {"pytorch": environment})
    part = f"{variable}={value} (environment pytorch)"
    assert verdict.findings == ((Finding(part, said, "an interface of this node"),) if said else ())
    assert verdict.outcome is (Outcome.FAILED if said else Outcome.PASSED)
    assert verdict.action is Action.CONFIGURE


def test_a_subnet_needs_the_addresses_of_the_node() -> None:
    environment = EnvironmentConfig(exports={"OMPI_MCA_btl_tcp_if_include": "10.1.0.0/16"})
    verdict = fabric.nic_names(replace(THERE, addresses=None), {"mpi": environment})
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED,
        "10.1.0.0/16: the node's addresses cannot be read (ip is absent)",
    )
    nowhere = replace(THERE, names=frozenset(), addresses={})
    wrong = fabric.nic_names(nowhere, {"x": EnvironmentConfig(exports={"GLOO_SOCKET_IFNAME": "eth0"})})
    assert wrong.findings[0].measured == "no eth0; there are none"


def test_interfaces_and_their_addresses_are_read() -> None:
    text = (
        "net lo\nnet eth0\nhca mlx5_0\n2: eth0    inet 10.1.2.3/16 brd 10.1.255.255 scope global eth0\n"
        "2: eth0    inet 10.9.0.1/24 scope global eth0\n3: ib0    inet6 fe80::1/64 scope link\nend\n"
    )
    interfaces = [ipaddress.IPv4Interface(each) for each in ("10.1.2.3/16", "10.9.0.1/24")]
    assert infiniband.parse_interfaces(answer(text)) == infiniband.Interfaces(
        frozenset({"lo", "eth0"}), frozenset({"mlx5_0"}), {"eth0": tuple(interfaces)}
    )
    assert infiniband.parse_interfaces(answer("net lo\nend\n")).addresses is None
    for cut in ("net lo\n", "hca mlx5_0\nend\n"):
        with pytest.raises(NotAvailable, match=r"^ls /sys/class/net: no answer$"):
            infiniband.parse_interfaces(answer(cut))


def test_nothing_exported_is_not_applicable() -> None:
    verdict = fabric.nic_names(THERE, {"x": EnvironmentConfig(exports={"PATH": "eth0"})})
    assert told(verdict) == "not applicable"


def test_limits_of_counters_name_counters_of_ports_and_are_no_negative_numbers() -> None:
    assert set(get_args(Counter)) == set(infiniband.COUNTERS)
    for wrong in ({"symbol_errors": 1}, {"symbol_error": -1}):
        with pytest.raises(ValidationError):
            FabricConfig.model_validate({"counters": wrong})
    assert FabricConfig.model_validate({"counters": {"link_downed": 0}}).counters == {"link_downed": 0}


def test_a_port_may_have_no_link_layer_and_no_gid() -> None:
    assert infiniband.parse_gids(answer("port mlx5_0 1\nend\n")) == (
        infiniband.GidPort("mlx5_0", 1, None, {}),
    )


def peer_memory_of(
    modules: set[str], *, open_modules: bool | None, kernel: str | None
) -> Callable[[], Verdict]:
    return lambda: fabric.peer_memory(
        infiniband.PeerMemory(
            frozenset(modules),
            "NVIDIA UNIX Open Kernel Module" if open_modules else "NVIDIA UNIX x86_64 Kernel Module",
            kernel,
        ),
        IB,
    )


# --- value by value ---


def ports(*changes: dict[str, Any]) -> Adapters:
    """Return ports mlx5_0, mlx5_1, ... of a good host, changed so."""
    first = host().ports[0]
    return Adapters(tuple(replace(first, device=f"mlx5_{at}", **one) for at, one in enumerate(changes)), 9.0)


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
    wants = IB.model_copy(update={"fabric": IB.fabric.model_copy(update={"hcas": 3})})
    assert told(fabric.hca_count(IB, ports(GOOD))) == "configure: adapters [1, 2, 1]"
    assert told(fabric.hca_count(wants, ports(GOOD, GOOD))) == "configure: adapters [2, 3, 2]"
    assert told(fabric.hca_count(IB, ports(GOOD, GOOD, GOOD))) == "passed [3]"
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


def counters_between(
    before: dict[str, int], after: dict[str, int], *, began: float | None = 9.0, ended: float | None = 9.0
) -> Verdict:
    first = Adapters(ports({"counters": before}).ports, began)
    return fabric.counters(IB, first, Adapters(ports({"counters": after}).ports, ended), FabricConfig())


def test_the_time_between_two_readings() -> None:
    for began, ended, seconds in ((9.0, 69.0, 60.0), (None, 69.0, 0.0), (9.0, None, 0.0), (9.0, 9.0, 0.0)):
        assert counters_between(ZEROS, ZEROS, began=began, ended=ended).metrics[0].value == seconds
    assert counters_between({"symbol_error": 10}, {"symbol_error": 20}).outcome is Outcome.PASSED
    (found,) = counters_between({"symbol_error": 5}, {"symbol_error": 16}).findings
    assert (found.measured, found.expected, found.action) == (
        "symbol_error rose by 11 to 16 in 0 s of the run", "by at most 10", None
    )  # fmt: skip
    (lost,) = counters_between({"link_downed": 3}, {"link_downed": 4}).findings
    assert (lost.measured, lost.expected, lost.action) == (
        "link_downed rose by 1 to 4 in 0 s of the run", "by at most 0", None
    )  # fmt: skip
    cleared = {"symbol_error": 0, "link_downed": 7}, {"symbol_error": 99, "link_downed": 2}
    assert [it.action for it in counters_between(*cleared).findings] == [None, None]
    assert counters_between({"link_downed": 7}, {"link_downed": 0}).outcome is Outcome.PASSED
    missing = counters_between({"symbol_error": 12}, {})  # the later reading lacks it
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


@pytest.mark.parametrize(
    ("words", "units", "passes"),
    [
        ("iommu=pt", "dmar0", True),
        ("intel_iommu=on iommu=pt", "dmar0", True),
        ("iommu=off", "dmar0", True),
        ("intel_iommu=off", "dmar0", True),
        ("amd_iommu=off", "dmar0", True),
        ("iommu.passthrough=1", "smmu3.0x1", True),
        ("iommu.passthrough=0", "dmar0", False),
        ("quiet", "", True),
        ("quiet", "dmar0 dmar1", False),
        ("amd_iommu=on", "", False),
        ("intel_iommu=on", "", False),
        ("iommu=on iommu=soft", "x", False),
        ("iommu=soft", "", True),
    ],
)
def test_words_that_pass_an_iommu_through(words: str, units: str, *, passes: bool) -> None:
    verdict = fabric.iommu(IB, Iommu(tuple(words.split()), tuple(units.split()), {}))
    assert judged(verdict) == ((PASSED, []) if passes else (CONFIGURE, ["kernel command line"]))


def test_domains_of_an_iommu_are_the_kernels_own_word() -> None:
    verdict = fabric.iommu(IB, Iommu(("ro",), ("dmar0",), {"b": "DMA", "c": "identity", "a": "DMA-FQ"}))
    assert judged(verdict) == (CONFIGURE, ["a", "b"])


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


IBTA = "IBTA: bit error ratio 1e-12"


def port_counts(machine: str, source: str, expected: str, before: dict[str, int], after: dict[str, int], *, seconds: float | None = 60.0,
                sick: bool = False) -> CounterExample:  # fmt: skip
    """Return a machine whose port showed these counters at two readings."""
    judged = functools.partial(
        counters_between,
        ZEROS | before,
        ZEROS | before | after,
        began=9.0,
        ended=None if seconds is None else 9.0 + seconds,
    )
    return CounterExample("fabric.counters", machine, source, expected, judged, sick)


COUNTER_EXAMPLES = [
    CounterExample("fabric.peer_memory", "AWS P5, proprietary driver", "openucx/ucx#10704: efa_nv_peermem", PASSED,
                   peer_memory_of({"efa_nv_peermem"}, open_modules=False, kernel="6.1.166")),
    CounterExample("fabric.peer_memory", "open kernel modules on Linux 6.8", "GPU operator: DMA-BUF", PASSED,
                   peer_memory_of(set(), open_modules=True, kernel="6.8.0")),
    CounterExample("fabric.peer_memory", "open kernel modules on RHEL 8", "backported DMA-BUF", NOT_CHECKED,
                   peer_memory_of(set(), open_modules=True, kernel="4.18.0")),
    CounterExample("fabric.peer_memory", "proprietary driver without a peer module", "README of the driver", CONFIGURE,
                   peer_memory_of(set(), open_modules=False, kernel="6.8.0"), sick=True),
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
