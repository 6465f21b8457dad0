"""NVLink, NVSwitch, PCIe, peer access and NUMA nodes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from gpu_helpers import (
    DAYS,
    Host,
    cell,
    changed,
    considered_hosts,
    examples,
    failing,
    gpus,
    judge,
    link,
    listed,
    peer,
    put,
    said,
    states,
    told,
    unread,
    uuid,
    verdict,
)
from judged import figures

from pytest_gpucluster.core.check import Action, Outcome
from pytest_gpucluster.core.part import nvlink
from pytest_gpucluster.kit.gpu.nvidia_smi import LinkErrors, Topology
from pytest_gpucluster.suites.gpu.checks import links as checks

if TYPE_CHECKING:
    from collections.abc import Callable

UNSTATED = states(nvlinks=None, nvlink_speed=None)
CARDS = states(nvlinks=None, nvlink_speed=None, nvswitch=False, topology=None)  # their NVLinks are bridges
NO_TOPOLOGY = put(connections=Topology({}, {}))


def without_links(*indices: int) -> Callable[[Host], None]:
    """Return a change: these GPUs have no active link, and no other GPU reaches them over NVLink."""

    def change(host: Host) -> None:
        cells = host.connections.links
        for index in indices:
            host.nvlinks[uuid(host, index)] = {}
            for other in set(range(len(host.gpus))) - {index}:
                cells[index][other] = cells[other][index] = "SYS"

    return change


def bridged(*groups: str) -> Callable[[Host], None]:
    """Return a change: cards whose NVLinks connect only these groups of GPUs, like '01' and '23'."""

    def change(host: Host) -> None:
        for one, other in itertools.permutations(range(len(host.gpus)), 2):
            linked = any(str(one) in group and str(other) in group for group in groups)
            host.connections.links[one][other] = "NV12" if linked else "SYS"
        for one in range(len(host.gpus)):
            if not any(str(one) in group for group in groups):
                host.nvlinks[uuid(host, one)] = {}

    return change


# --- the state of NVLinks


def test_where_the_profile_states_no_nvlinks_the_other_gpus_of_the_node_tell() -> None:
    assert said("gpu.nvlink_state", UNSTATED) == "passed"
    dark = [link(4, number, None) for number in (7, 9)]
    found = verdict("gpu.nvlink_state", UNSTATED, *dark).findings
    gpu = Host().gpus.devices[4].part
    down = [(nvlink(number, gpu), "inactive", [18]) for number in (7, 9)]
    assert [(it.part, it.code, figures(it.expected)) for it in found] == down
    assert gpu.serial
    # more are inactive than the profile misses: which of them is not known
    found = verdict("gpu.nvlink_state", states(nvlinks=17), *dark).findings
    (few,) = [it for it in found if it.part == gpu]
    assert (few.code, few.relation, figures(few.measured)) == ("link_count", "<", [16, 7, 9])
    (more,) = verdict("gpu.nvlink_state", CARDS, link(4, 18, 26.0)).findings
    assert (more.code, more.relation, figures(more.measured)) == (few.code, ">", [19])


def test_a_link_is_at_its_speed_within_one_percent() -> None:
    for speed, end in ((26.297, "passed"), (26.296, "drain"), (26.827, "passed"), (26.828, "configure")):
        assert said("gpu.nvlink_state", link(4, 7, speed)).partition(":")[0] == end
        assert verdict("gpu.nvlink_state", link(4, 7, speed), states(nvlink_speed=None)).findings == ()


def test_only_a_gpu_with_fewer_links_than_its_siblings_drains() -> None:
    assert said("gpu.nvlink_state", link(4, 7, None), states(nvlinks=None)) == "drain: GPU 4 NVLink 7"
    # alike on all, as in a virtual machine: the profile is of another machine
    alike = verdict("gpu.nvlink_state", *(link(index, 7, None) for index in range(8)))
    assert told(alike).startswith("configure: GPU 0 NVLink 7; ")
    dark = [link(4, number, None) for number in range(18)]  # no bridge at all
    assert said("gpu.nvlink_state", *dark, NO_TOPOLOGY, CARDS) == "passed"
    assert said("gpu.nvlink_state", *dark, NO_TOPOLOGY, states(nvswitch=False)) == "configure: GPU 4"


@pytest.mark.parametrize("stated", [True, False])
def test_a_gpu_in_mig_mode_has_no_nvlink(*, stated: bool) -> None:
    host = changed(gpus(mig=True), states(mig=stated))
    for index in range(8):
        host.nvlinks[uuid(host, index)] = {}
        host.errors[uuid(host, index)] = LinkErrors(0, ())
    verdicts = judge(host)
    for check in ("gpu.nvlink_state", "gpu.nvlink_errors", "gpu.topology"):
        assert told(verdicts[check]) == "not applicable", check
        assert "MIG mode" in verdicts[check].reason
    assert (told(verdicts["gpu.mig"]) == "passed") is stated
    # with links and counters, whatever the reason: they are judged
    assert failing(changed(gpus(1, mig=True))) == ["gpu.mig"]


# --- error counters


def counted_on(
    index: int,
    *rows: tuple[int, str, float],
    later: tuple[tuple[int, str, float], ...] | None = None,
    uptime: float | None = 22 * DAYS,
) -> Callable[[Host], None]:
    """Return a change: counters of a GPU, and those of the second reading, 30 s later; the same without `later`."""

    def change(host: Host) -> None:
        host.errors[uuid(host, index)] = LinkErrors(50, rows)
        second = LinkErrors(50, rows if later is None else later)
        host.later = {**host.errors, uuid(host, index): second}
        host.uptime = uptime

    return change


def test_each_total_fails_from_its_limit_on_without_a_repair() -> None:
    for counter, limit in checks.NVLINK_TOTALS.items():
        assert verdict("gpu.nvlink_errors", counted_on(4, (7, counter.title(), limit - 1))).findings == ()
        found = verdict("gpu.nvlink_errors", counted_on(4, (7, counter.title(), limit)))
        assert (told(found), found.advisories) == ("monitor: GPU 4 NVLink 7", ())
        assert figures(found.findings[0].measured) == [limit]
    every = verdict("gpu.nvlink_errors", counted_on(4, *((0, it, 1.0) for it in checks.NVLINK_TOTALS)))
    assert (len(every.findings), len(every.advisories)) == (5, 1)
    assert 6 in [it.value for it in every.metrics if it.name == "nvlink_errors"]


def test_a_counter_that_proves_no_fault_warns_once_a_gpu_as_an_unknown_one_does() -> None:
    for counter in (*checks.NVLINK_WARNINGS, "PLR Xmit Retry Blocks"):
        found = verdict("gpu.nvlink_errors", counted_on(4, (1, counter, 5), (2, counter, 6)))
        assert told(found) == "warning: GPU 4"
        assert figures(found.advisories[0].measured) == [5, 1, 6, 2]
        assert said("gpu.nvlink_errors", counted_on(4, (7, counter, 0))) == "passed"


def test_the_bit_error_rate_after_correction_is_at_most_1e_12() -> None:
    for rates, end in (((15e-255, 1e-12), "passed"), ((2e-12, 15e-3), "monitor: GPU 4 NVLink 7")):
        for rate in rates:
            assert said("gpu.nvlink_errors", counted_on(4, (7, "Effective BER", rate))) == end
    for errors, action in ((9, "monitor"), (10, "drain")):  # fewer measure no rate
        measured = ((7, "Effective Errors", errors), (7, "Effective BER", 1e-9))
        assert said("gpu.nvlink_errors", counted_on(4, *measured)) == f"{action}: GPU 4 NVLink 7"


def test_counters_that_cannot_be_read() -> None:
    for counters, links, end in (
        (LinkErrors(0, (), ((7, "Replay Errors", "N/A"),)), 18, "passed"),
        (LinkErrors(0, (), ((7, "Replay Errors", "Unknown Error"),)), 18, "not checked"),
        (LinkErrors(0, ()), 18, "not checked"),
        (LinkErrors(0, ()), None, "not applicable"),
    ):
        host = changed(states(nvlinks=links))
        host.errors[uuid(host, 4)] = counters
        assert told(judge(host)["gpu.nvlink_errors"]) == end


# --- PCIe


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ((gpus(pcie_gen=1, pstate="P8"),), "passed"),  # asleep
        ((gpus(6, pcie_gen=3, pstate=None),), "not checked"),
        ((gpus(pcie_gen_max=4), gpus(3, pcie_gen_max=3)), "drain"),
    ],
)
def test_the_generation_of_a_link_that_is_slow(changes: tuple[Any, ...], end: str) -> None:
    found = verdict("gpu.pcie_gen", *changes)
    assert told(found).partition(":")[0] == end
    assert [it.action for it in found.findings].count(Action.DRAIN) == (end == "drain")


# --- pairs of GPUs


def test_most_pairs_are_counted_once_each() -> None:
    pairs = list(itertools.combinations(range(8), 2))  # 28
    for bad, end in ((9, "drain"), (10, "configure")):
        found = verdict("gpu.p2p", *(peer(*pair, "NS") for pair in pairs[:bad]))
        assert (len(found.findings), told(found).partition(":")[0]) == (bad, end)


def test_peer_access_is_for_pairs_that_nvlink_connects() -> None:
    apart = [change for at in range(2, 8) for change in (cell(0, at, "SYS"), cell(at, 0, "SYS"), peer(0, at, "NS"))]
    assert said("gpu.p2p", *apart) == "passed"
    assert said("gpu.p2p", *apart, peer(0, 1, "NS")) == "drain: GPU 0 to GPU 1"
    assert said("gpu.p2p", *apart, bridged()) == "not applicable"
    for check in ("gpu.p2p", "gpu.topology"):
        assert said(check, states(count=2)) == "passed", "two GPUs are a pair"


def test_an_edge_of_the_topology_is_judged_once_and_not_where_a_link_is_down() -> None:
    lower_half = (cell(7, 0, "SYS"), cell(0, 0, "X"))
    assert said("gpu.topology", *lower_half) == "passed"
    wrong = (*lower_half, cell(3, 4, "PIX"), cell(4, 3, "PIX"), cell(2, 4, "PHB"))
    assert said("gpu.topology", *wrong) == "drain: GPU 2 to GPU 4; GPU 3 to GPU 4"
    assert said("gpu.topology", *wrong, link(4, 0, None)) == "passed"


def test_the_topology_is_judged_where_the_state_of_the_links_cannot_be_read() -> None:
    wrong, unknown = cell(0, 1, "SYS"), put(nvlinks=None)

    def end(*changes: Callable[[Host], None]) -> str:
        host = changed(wrong, *changes)
        return told(checks.topology(host.gpus, host.connections, host.nvlinks, host.gpu_profile))

    assert end(unknown) == "drain: GPU 0 to GPU 1"
    assert end(put(nvlinks={})) == "passed"  # all links are down
    assert end(unknown, gpus(1, mig=True)) == "not applicable"
    no_links = (lambda host: host.nvlinks.update({uuid(host, 1): {}}), states(nvlinks=None))
    assert end(*no_links, gpus(1, mig=True)) == "not applicable"
    assert end(*no_links) == "drain: GPU 0 to GPU 1"


# --- NUMA nodes


def test_a_gpu_near_another_numa_node_than_in_the_fleet_is_watched() -> None:
    host = Host()
    host.connections = replace(host.connections, numa=host.connections.numa | {5: "1"})
    assert failing(host) == ["gpu.numa_affinity"]
    found = judge(host, "gpu.numa_affinity")["gpu.numa_affinity"]
    assert told(found) == "configure: GPU 5"
    assert figures(f"{found.findings[0].measured} {found.findings[0].expected}") == [1, 0, 4, 4]
    del host.connections.numa[5]
    assert str(judge(host)["gpu.numa_affinity"].findings[0].measured) == "NUMA node unknown"


def test_the_numa_nodes_of_guests_and_of_single_nodes_are_not_judged() -> None:
    host = Host()
    alone = checks.numa_majority({"gpu01": host.gpus}, {"gpu01": host.connections})
    found = checks.numa_affinity(host.gpus, host.connections, alone)
    assert (found.outcome, "no other node" in found.reason) == (Outcome.NOT_APPLICABLE, True)
    found = verdict("gpu.numa_affinity", NO_TOPOLOGY)
    assert (found.outcome, "no NUMA affinity" in found.reason) == (Outcome.NOT_APPLICABLE, True)


# --- the fabric


@pytest.mark.parametrize(
    ("reported", "end", "measured"),
    [
        ({"fabric_state": "In Progress", "fabric_status": "Success"}, "monitor", "In Progress, Success"),
        ({"fabric_health": "Unhealthy"}, "reboot", "fabric health Unhealthy"),
        ({"fabric_health": "something new"}, "monitor", "fabric health something new"),
        ({"fabric_health": None}, "passed", None),
    ],
)
def test_a_gpu_outside_the_fabric(reported: dict[str, str | None], end: str, measured: str | None) -> None:
    lacking = {"fabric_status": "[N/A]", "fabric_health": "[N/A]"}
    found = verdict("gpu.fabric_state", gpus(0, unread=lacking, **reported))
    assert told(found) == (f"{end}: GPU 0" if measured else end)
    assert [str(it.measured) for it in found.findings] == ([measured] if measured else [])


def test_a_gpu_is_at_fault_for_its_fabric_only_where_another_one_joined_it() -> None:
    failed = gpus(fabric_state="Completed", fabric_status="Error")
    for change, end in (((), "monitor"), ((gpus(0, fabric_status="Success"),), "reboot")):
        assert said("gpu.fabric_state", failed, *change).startswith(f"{end}: ")


@pytest.mark.parametrize(
    ("reported", "measured"),
    [
        ({"fabric_status": "Insufficient Resources"}, "Completed, Insufficient Resources"),
        ({"fabric_health": "Unhealthy"}, "fabric health Unhealthy"),
        ({"fabric_state": "Not Supported", "fabric_status": None}, None),  # a PCIe card
        ({"fabric_state": "Not Started", "fabric_status": None}, None),
    ],
)
def test_a_fabric_of_no_profile_is_no_repair(reported: dict[str, str | None], measured: str | None) -> None:
    found = verdict("gpu.fabric_state", gpus(0, **reported), states(fabric_state=False))
    assert told(found) == ("monitor: GPU 0" if measured else "not applicable")
    assert [str(one.measured) for one in found.findings] == ([measured] if measured else [])


@pytest.mark.parametrize("profile", [states(fabric_state=False), states(fabric_state=True)])
@pytest.mark.parametrize("attribute", ["fabric_state", "fabric_status", "fabric_health"])
def test_an_error_in_place_of_a_word_of_the_fabric_is_shown(attribute: str, profile: Callable[[Host], None]) -> None:
    for shown in ("[Unknown Error]", "ERR!", "[Timeout]"):
        found = verdict("gpu.fabric_state", unread(attribute, shown, 4), profile)
        assert told(found) == "monitor: GPU 4"
        assert shown in str(found.findings[0].measured)


@pytest.mark.parametrize("stated", [False, True])
def test_a_fabric_of_limited_capacity_is_watched(stated: bool) -> None:
    limited = gpus(0, fabric_health="Limited Capacity")
    found = verdict("gpu.fabric_state", limited, states(fabric_state=stated))
    assert (told(found), found.findings[0].code) == ("monitor: GPU 0", "limited_capacity")


# --- machines that were considered

MAN = "nvidia-smi(1)"
CRC = "DcgmGPUHardwareLimits.h: from 100 per second on"
DCGM = "DCGM watches the rise in a minute"
GPUD, SENTINEL = "leptonai/gpud#1085", "NVIDIA/NVSentinel#883"
DESIGNED = put(nvlinks=lambda host: {key: dict.fromkeys(range(12), 26.562) for key in host.nvlinks})
NO_LINK = put(nvlinks=lambda host: {key: {} for key in host.nvlinks})
ONE_OF_EIGHT = (listed(1), put(nvlinks={}), states(count=1, nvswitch=False))
FOUR_SXM = (listed(4), without_links(1), states(count=4), CARDS)
T1000 = (gpus(7, name="NVIDIA T1000"), without_links(7), CARDS)
WEAK = ((7, "Effective Errors", 90000), (7, "Effective BER", 3e-10))
BOOTED = ((7, "Effective Errors", 1), (7, "Effective BER", 3e-11))
CORRECTED = ((7, "Tx discards", 12), (7, "Effective BER", 15e-255))
NO_GENERATION = (unread("pcie_gen", "[N/A]"), unread("pcie_gen_max", "[N/A]"))
MESH = (bridged("0123", "4567"), states(topology="NV2", nvlinks=6))
PAIRS = (bridged("01", "23", "45", "67"), states(topology="NV12"))
IN_MIG = [peer(min(3, other), max(3, other), "NS") for other in range(8) if other != 3]
NO_PEERS = put(peer_access=lambda host: {n: dict.fromkeys(row, "DR") for n, row in host.peer_access.items()})
JOINING = {"fabric_state": "In Progress", "fabric_status": "N/A"}
COUNTER_EXAMPLES = [
    *examples(
        "gpu.nvlink_state",
        ("passed", "A100 PCIe: six of eight bridged", "bridge guide", bridged("01", "23", "45"), CARDS),
        ("not applicable", "H200 NVL: a bridge of four", "product brief", bridged("0123"), CARDS),
        ("passed", "H200 NVL: four of six", "product brief", bridged("0123"), listed(6), CARDS),
        ("passed", "H100 NVL: 12 of 18 links", "Azure/azurehpc-health-checks#162", DESIGNED, CARDS),
        ("not applicable", "one H200 in a virtual machine", "healthy-h200-vm-one-of-eight", *ONE_OF_EIGHT),
        ("passed", "a card for a display beside seven GPUs", "T1000 in a server with HGX", *T1000),
        ("not applicable", "L40S without NVLink", "L40S data sheet", NO_LINK, CARDS),
        ("not applicable", "one GPU in MIG mode", "nvlink -s", gpus(3, mig=True), without_links(3)),
        ("configure", "booting: no GPU has its links yet", SENTINEL, without_links(*range(8))),
        ("drain", "B200: all links of one GPU inactive", GPUD, without_links(2)),
        ("drain", "the profile is silent", GPUD, without_links(2), CARDS),
        ("drain", "four SXM GPUs without NVSwitch", "HGX A100 4-GPU", *FOUR_SXM),
    ),
    *examples(
        "gpu.nvlink_errors",
        ("warning", "143 CRC errors in 22 days", CRC, counted_on(4, (7, "CRC Errors", 143))),
        ("warning", "3 replays, 200 days", DCGM, counted_on(4, (7, "Replay Errors", 3), uptime=200 * DAYS)),
        (
            "warning",
            "40 CRC errors in the run",
            CRC,
            counted_on(4, (7, "CRC Errors", 100), later=((7, "CRC Errors", 140),)),
        ),
        ("monitor", "a link that retrained once, weeks ago", DCGM, counted_on(4, (7, "Recovery Errors", 1))),
        ("warning", "GB200: corrected errors", "marin-community/marin#8934", counted_on(4, *CORRECTED)),
        ("monitor", "B200 just booted: one symbol", "a rate needs its errors", counted_on(4, *BOOTED)),
        ("warning", "without /proc/uptime", CRC, counted_on(4, (7, "CRC Errors", 9000), uptime=None)),
        (
            "drain",
            "300 CRC errors per second",
            CRC,
            counted_on(4, (7, "CRC Errors", 10), later=((7, "CRC Errors", 9010),)),
        ),
        ("drain", "first errors of a link", DCGM, counted_on(4, later=((7, "Recovery Errors", 2),))),
        ("drain", "GB200: errors after the correction", "DCGM_FR_NVLINK_EFFECTIVE_BER", counted_on(4, *WEAK)),
    ),
    *examples(
        "gpu.pcie_width",
        ("passed", "GB200: one lane", "C2C", gpus(pcie_width=1, pcie_width_max=16), states(pcie_width=1)),
        ("passed", "T4 on AWS", "eight lanes", gpus(pcie_width=8, pcie_width_max=8), states(pcie_width=8)),
        ("configure", "an idle RTX card beside seven at work", MAN, gpus(6, pcie_width=8, pstate="P8")),
        ("configure", "a slot of eight lanes by design", MAN, gpus(6, pcie_width=8, pcie_width_max=8)),
        ("drain", "H200 with eight of sixteen lanes", MAN, gpus(6, pcie_width=8)),
        ("drain", "idle L40S with eight lanes", MAN, gpus(pstate="P8"), gpus(6, pcie_width=8)),
    ),
    *examples(
        "gpu.pcie_gen",
        ("configure", "an older slot", MAN, gpus(6, pcie_gen=4, pcie_gen_max=4), states(nvswitch=False)),
        ("drain", "H200 board: one GPU at generation 4", MAN, gpus(6, pcie_gen=4, pcie_gen_max=4)),
        ("configure", "a board of an older generation", MAN, gpus(pcie_gen=4, pcie_gen_max=4)),
        ("monitor", "V100 that lowers its link in P0 without load", MAN, gpus(6, pcie_gen=1)),
        ("not checked", "all eight idle in P0 at generation 1", MAN, gpus(pcie_gen=1, throttle=0x1)),
        ("not checked", "guest without the generation", "nvidia-smi: [N/A]", *NO_GENERATION),
    ),
    *examples(
        "gpu.topology",
        ("configure", "DGX-1: a mesh of NV1 and NV2", "DGX-1 system architecture", *MESH),
        ("configure", "H100 NVL bridged in pairs", "H100 NVL product brief", *PAIRS),
        ("not applicable", "one GPU in MIG mode", "topo -m", gpus(3, mig=True), without_links(3)),
        ("passed", "a GPU without links, which nvlink_state judges", GPUD, without_links(2)),
        ("drain", "two GPUs that cannot reach each other", "nvidia-smi topo -m", cell(0, 1, "SYS")),
    ),
    *examples(
        "gpu.p2p",
        ("not applicable", "RTX 4090: no peer access", "open kernel modules", bridged(), states(nvlinks=0)),
        ("not applicable", "one GPU in MIG mode", "CUDA: no peer access", bridged(), gpus(3, mig=True)),
        ("configure", "switched off by a parameter of the driver", "topo -p2p: DR", NO_PEERS),
        ("not applicable", "MIG mode, links still shown", "topo -p2p: NS", gpus(3, mig=True), *IN_MIG),
        ("drain", "two GPUs without it beside 27 pairs with it", "topo -p2p", peer(0, 1, "NS")),
    ),
    *examples(
        "gpu.fabric_state",
        ("monitor", "just after boot, one GPU still registers", SENTINEL, gpus(7, **JOINING)),
        ("monitor", "GPUs of no partition", "NVIDIA/gpu-driver-container#909", gpus(4, 5, 6, 7, **JOINING)),
        ("passed", "GB200: no health in this driver", "gpud#1106", unread("fabric_health", "Not Supported")),
        ("monitor", "NVL72 with a tray in service", "nvml.h", gpus(fabric_health="Limited Capacity")),
        ("reboot", "an H100 failed", "NVSentinel#1382", gpus(7, fabric_status="Insufficient Resources")),
    ),
]
test_machines_get_the_verdict_that_a_person_gives_them = considered_hosts(COUNTER_EXAMPLES)
