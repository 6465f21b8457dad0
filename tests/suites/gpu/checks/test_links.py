from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import (
    CONFIGURE,
    DRAIN,
    MONITOR,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
    REBOOT,
    WARNING,
    CounterExample,
    assert_as_expected,
    name,
)
from gpu_helpers import PROFILE, Host, devices, example, failing, gpus, judge, put, topology, uuid
from judged import figures, judged

from pytest_gpucluster.core.check import Action, Outcome
from pytest_gpucluster.kit.gpu import nvidia_smi
from pytest_gpucluster.suites.gpu.checks import links as checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict


def test_a_sleeping_gpu_may_run_its_link_slower() -> None:
    host = Host()
    for index in range(8):
        host.change(index, pcie_gen=1, pstate="P8")
    assert failing(host) == []


def test_where_the_profile_states_no_nvlinks_the_other_gpus_of_the_node_tell() -> None:
    unstated = PROFILE.model_copy(update={"nvlinks": None, "nvlink_speed": None})
    host = Host()
    assert judge(host, unstated)["gpu.nvlink_state"].outcome is Outcome.PASSED
    host.links[uuid(host, 4)].update({7: None})
    (finding,) = judge(host, unstated)["gpu.nvlink_state"].findings
    assert (finding.measured, finding.expected) == (
        "17 active links (inactive: link 7)",
        "18, as on most GPUs of the node",
    )


@pytest.mark.parametrize("bridged", [0, 2, 4, 6])
def test_cards_that_are_bridged_in_pairs_are_not_accused(bridged: int) -> None:
    host = Host()
    for index in range(bridged, 8):
        host.links[uuid(host, index)] = dict.fromkeys(host.links[uuid(host, index)])
    host.topology = nvidia_smi.Topology({}, {})
    unstated = PROFILE.model_copy(update={"nvlinks": None, "nvlink_speed": None, "nvswitch": False})
    expected = Outcome.PASSED if bridged > 4 else Outcome.NOT_APPLICABLE
    assert judge(host, unstated)["gpu.nvlink_state"].outcome is expected


def counted(host: Host, counter: str, value: float) -> Verdict:
    host.errors[uuid(host, 4)] = nvidia_smi.LinkErrors(53, ((7, counter, value),))
    return judge(host)["gpu.nvlink_errors"]


@pytest.mark.parametrize(("counter", "limit"), sorted(checks.NVLINK_TOTALS.items()))
def test_each_total_fails_from_its_limit_on_without_a_repair(counter: str, limit: int) -> None:
    host = Host()
    assert counted(host, counter.title(), limit - 1).outcome is Outcome.PASSED
    verdict = counted(host, counter.title(), limit)
    assert judged(verdict) == (MONITOR, [f"{host.gpus.devices[4]} NVLink 7"])
    assert (figures(verdict.findings[0].measured), verdict.advisories) == ([limit], ())


@pytest.mark.parametrize("counter", checks.NVLINK_WARNINGS)
def test_a_counter_that_proves_no_fault_warns(counter: str) -> None:
    host = Host()
    verdict = counted(host, counter, 3)
    assert judged(verdict) == (WARNING, [str(host.gpus.devices[4])])
    assert verdict.advisories[0].measured == f"{counter}: 3 on NVLink 7"
    assert counted(host, counter, 0).advisories == ()


def test_an_unknown_counter_is_reported_once_a_gpu() -> None:
    host = Host()
    counts = ((1, "PLR Xmit Retry Blocks", 5), (2, "PLR Xmit Retry Blocks", 6))
    host.errors[uuid(host, 4)] = nvidia_smi.LinkErrors(0, counts)
    verdict = judge(host)["gpu.nvlink_errors"]
    assert judged(verdict) == (WARNING, [str(host.gpus.devices[4])])
    assert figures(verdict.advisories[0].measured) == [5, 1, 6, 2]


@pytest.mark.parametrize(("rate", "fails"), [(15e-255, False), (1e-12, False), (2e-12, True), (15e-3, True)])
def test_the_bit_error_rate_after_correction_is_at_most_1e_12(rate: float, *, fails: bool) -> None:
    host = Host()
    verdict = counted(host, "Effective BER", rate)
    assert (bool(verdict.findings), verdict.advisories) == (fails, ())
    if fails:
        assert judged(verdict)[1] == [f"{host.gpus.devices[4]} NVLink 7"]


def test_a_counter_that_cannot_be_read_is_not_checked() -> None:
    host = Host()
    host.errors[uuid(host, 4)] = nvidia_smi.LinkErrors(0, (), ((7, "Replay Errors", "N/A"),))
    assert judge(host)["gpu.nvlink_errors"].outcome is Outcome.PASSED
    host.errors[uuid(host, 4)] = nvidia_smi.LinkErrors(0, (), ((7, "Replay Errors", "Unknown Error"),))
    verdict = judge(host)["gpu.nvlink_errors"]
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert verdict.reason == f"Replay Errors of {host.gpus.devices[4]} NVLink 7: Unknown Error"


@pytest.mark.parametrize(("links", "outcome"), [(18, Outcome.NOT_CHECKED), (None, Outcome.NOT_APPLICABLE)])
def test_a_gpu_without_counters(links: int | None, outcome: Outcome) -> None:
    host = Host()
    host.errors[uuid(host, 4)] = nvidia_smi.LinkErrors(0, ())
    verdict = judge(host, PROFILE.model_copy(update={"nvlinks": links}))["gpu.nvlink_errors"]
    assert (verdict.outcome, verdict.reason) == (
        outcome,
        f"{host.gpus.devices[4]}: nvidia-smi nvlink -e shows no counter",
    )
    none = PROFILE.model_copy(update={"nvlinks": 0})
    assert judge(host, none)["gpu.nvlink_errors"].reason == "the profile states no NVLinks"


@pytest.mark.parametrize("stated", [True, False])
def test_a_gpu_in_mig_mode_has_no_nvlink(*, stated: bool) -> None:
    host = Host()
    for index in range(8):
        host.change(index, mig=True)
        host.links[uuid(host, index)] = {}
        host.errors[uuid(host, index)] = nvidia_smi.LinkErrors(0, ())
    verdicts = judge(host, PROFILE.model_copy(update={"mig": stated}))
    for check in ("gpu.nvlink_state", "gpu.nvlink_errors", "gpu.topology"):
        assert verdicts[check].outcome is Outcome.NOT_APPLICABLE, check
        said = f"{host.gpus.devices[7]} is in MIG mode (see gpu.mig), which has no NVLink"
        assert verdicts[check].reason == said
    assert (verdicts["gpu.mig"].outcome is Outcome.PASSED) is stated
    host = Host()
    host.change(1, mig=True)  # with links and counters, whatever the reason: they are judged
    assert failing(host) == ["gpu.mig"]
    assert judge(host)["gpu.nvlink_state"].outcome is Outcome.PASSED


def test_only_a_gpu_with_fewer_links_than_its_siblings_drains() -> None:
    host = Host()
    host.links[uuid(host, 4)].update({7: None})
    assert judge(host)["gpu.nvlink_state"].action is Action.DRAIN
    unstated = PROFILE.model_copy(update={"nvlinks": None})
    assert judge(host, unstated)["gpu.nvlink_state"].action is Action.DRAIN
    for index in range(8):  # alike on all, as in a virtual machine: the profile is of another machine
        host.links[uuid(host, index)].update({7: None})
    assert judge(host)["gpu.nvlink_state"].action is Action.CONFIGURE


def test_most_pairs_are_counted_once_each() -> None:
    for bad, action in ((9, Action.DRAIN), (10, Action.CONFIGURE)):  # of 28
        host = Host()
        for first, second in list(itertools.combinations(range(8), 2))[:bad]:
            host.p2p[first][second] = "NS"
        verdict = judge(host)["gpu.p2p"]
        assert (len(verdict.findings), {it.action or verdict.action for it in verdict.findings}) == (
            bad,
            {action},
        )


def test_peer_access_is_for_pairs_that_nvlink_connects() -> None:
    host = Host()
    for index in range(2, 8):
        host.topology.links[0][index] = host.topology.links[index][0] = "SYS"
        host.p2p[0][index] = host.p2p[index][0] = "NS"
    assert judge(host)["gpu.p2p"].outcome is Outcome.PASSED
    host.p2p[0][1] = "NS"
    (finding,) = judge(host)["gpu.p2p"].findings
    assert (finding.part, finding.measured, finding.expected) == ("GPU 0 to GPU 1", "NS", "OK")
    for row in host.topology.links.values():
        row.update(dict.fromkeys(row, "SYS"))
    verdict = judge(host)["gpu.p2p"]
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_APPLICABLE,
        "nvidia-smi topo -m shows no two GPUs that NVLink connects",
    )


def test_a_gpu_near_another_numa_node_than_in_the_fleet_is_watched() -> None:
    host = Host()
    host.topology = replace(host.topology, numa={**host.topology.numa, 5: "1"})
    verdict = judge(host)["gpu.numa_affinity"]
    assert judged(verdict) == (CONFIGURE, [str(host.gpus.devices[5])])
    assert figures(verdict.findings[0].measured + verdict.findings[0].expected) == [1, 0, 4, 4]
    assert failing(host) == ["gpu.numa_affinity"]
    del host.topology.numa[5]
    assert judge(host)["gpu.numa_affinity"].findings[0].measured == "NUMA node unknown"


def test_the_numa_nodes_of_guests_and_of_single_nodes_are_not_judged() -> None:
    host = Host()
    alone = checks.numa_majority({"gpu01": host.gpus}, {"gpu01": host.topology})
    verdict = checks.numa_affinity(host.gpus, host.topology, alone)
    assert (verdict.outcome, "no other node" in verdict.reason) == (Outcome.NOT_APPLICABLE, True)
    host.topology = replace(host.topology, numa={})
    verdict = judge(host)["gpu.numa_affinity"]
    assert (verdict.outcome, "no NUMA affinity" in verdict.reason) == (Outcome.NOT_APPLICABLE, True)


def test_numa_nodes_are_compared_among_nodes_of_one_kind() -> None:
    gpus, found = devices(), topology()
    other = replace(gpus, devices=tuple(replace(one, name="NVIDIA H100 NVL") for one in gpus))
    facts = {"a": gpus, "b": gpus, "c": other, "d": replace(gpus, devices=gpus.devices[:4]), "e": gpus}
    most = checks.numa_majority(facts, dict.fromkeys("abcd", found))
    assert {key: one.total for key, one in most.items() if key[2] == 0} == {
        ("NVIDIA H200", 8, 0): 2,
        ("NVIDIA H100 NVL", 8, 0): 1,
        ("NVIDIA H200", 4, 0): 1,
    }


@pytest.mark.parametrize(
    ("state", "status", "action"),
    [
        ("In Progress", "Success", MONITOR),
        ("Completed", "Insufficient Resources", REBOOT),
        ("In Progress", None, MONITOR),
        ("Not Started", None, MONITOR),
    ],
)
def test_a_gpu_that_has_not_joined_the_fabric(state: str, status: str | None, action: str) -> None:
    host = Host()
    unread = {} if status else {"fabric_status": "[N/A]"}
    host.change(0, fabric_state=state, fabric_status=status, unread=unread)
    verdict = judge(host)["gpu.fabric_state"]
    assert judged(verdict) == (action, [str(host.gpus.devices[0])])
    assert verdict.findings[0].measured == f"{state}, {status or '[N/A]'}"


@pytest.mark.parametrize(
    ("reported", "measured"),
    [
        ({"fabric_state": "In Progress", "fabric_status": None}, "In Progress, N/A"),
        ({"fabric_status": "Insufficient Resources"}, "Completed, Insufficient Resources"),
        ({"fabric_health": "Unhealthy"}, "fabric health Unhealthy"),
        ({"fabric_health": "Limited Capacity"}, None),
        ({"fabric_state": "Not Supported", "fabric_status": None}, None),  # a PCIe card
        ({"fabric_state": "Not Started", "fabric_status": None}, None),
        ({"fabric_state": None, "fabric_status": None}, None),
        ({"fabric_status": None}, None),
        ({}, None),
    ],
)
def test_a_fabric_that_no_profile_states_is_never_a_repair(
    reported: dict[str, str | None], measured: str | None
) -> None:
    host = Host()
    host.change(0, **reported)
    verdict = judge(host, PROFILE.model_copy(update={"fabric_state": False}))["gpu.fabric_state"]
    assert [one.measured for one in verdict.findings] == ([measured] if measured else [])
    if measured:
        assert verdict.action is Action.MONITOR
    else:
        assert verdict.outcome is Outcome.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("health", "action"), [("Unhealthy", REBOOT), ("Limited Capacity", MONITOR), ("something new", MONITOR)]
)
def test_a_fabric_that_is_not_healthy(health: str, action: str) -> None:
    host = Host()
    host.change(0, fabric_health="Healthy")
    assert failing(host) == []
    host.change(0, fabric_health=health)
    assert judged(judge(host)["gpu.fabric_state"]) == (action, [str(host.gpus.devices[0])])


def test_the_topology_is_judged_where_the_state_of_the_links_cannot_be_read() -> None:
    host = Host()
    host.topology.links[0].update({1: "SYS"})
    host.links = None
    verdict = checks.topology(host.gpus, host.topology, None, PROFILE)
    (finding,) = verdict.findings
    assert (finding.part, finding.measured, finding.expected) == ("GPU 0 to GPU 1", "SYS", "NV18")
    assert (
        checks.topology(host.gpus, host.topology, {}, PROFILE).outcome is Outcome.PASSED
    )  # all links are down
    host.change(1, mig=True)
    assert checks.topology(host.gpus, host.topology, None, PROFILE).outcome is Outcome.NOT_APPLICABLE
    unstated = PROFILE.model_copy(update={"nvlinks": None})
    links: dict[str, dict[int, float | None]] = {uuid(host, 1): {}} | {
        uuid(host, at): {0: 26.6} for at in (0, *range(2, 8))
    }
    assert checks.topology(host.gpus, host.topology, links, unstated).outcome is Outcome.NOT_APPLICABLE
    host.change(1, mig=False)
    assert len(checks.topology(host.gpus, host.topology, links, unstated).findings) == 1


@pytest.mark.parametrize(
    ("speed", "fails"), [(26.297, False), (26.296, True), (26.827, False), (26.828, True)]
)
def test_a_link_is_at_its_speed_within_one_percent(speed: float, *, fails: bool) -> None:
    host = Host()
    host.links[uuid(host, 4)][7] = speed
    verdict = judge(host)["gpu.nvlink_state"]
    assert bool(verdict.findings) is fails
    unstated = PROFILE.model_copy(update={"nvlink_speed": None})
    assert judge(host, unstated)["gpu.nvlink_state"].findings == ()


TOTALS = {
    "recovery errors": 1, "malformed packet errors": 1, "buffer overrun errors": 1, "local link integrity errors": 1,
    "link recovery failed events": 1, "link recovery successful events": 100,
}  # fmt: skip


def test_the_totals_of_nvlink_counters_that_a_person_looks_at() -> None:
    assert checks.NVLINK_TOTALS == TOTALS
    assert set(checks.NVLINK_WARNINGS) == {
        *(f"{what} errors" for what in ("replay", "crc", "crc flit", "crc data", "rx", "rx remote")),
        *(f"{what} errors" for what in ("rx general", "effective", "symbol")),
        *("tx discards", "link recovery successful events", "total link recovery events", "symbol ber"),
    }
    host = Host()
    host.errors[uuid(host, 4)] = nvidia_smi.LinkErrors(0, tuple((0, counter, 1.0) for counter in TOTALS))
    verdict = judge(host)["gpu.nvlink_errors"]
    assert (len(verdict.findings), len(verdict.advisories)) == (5, 1)
    assert len(TOTALS) in [it.value for it in verdict.metrics if it.name == "nvlink_errors"]


def test_the_rates_of_nvlink_counters_are_those_of_dcgm() -> None:
    allowed = {name: rate.within(60) for name, rate in checks.NVLINK_RATES.items()}
    crc = dict.fromkeys(("crc errors", "crc flit errors", "crc data errors"), 6000)
    none = {"replay errors", *TOTALS} - {"link recovery successful events"}
    assert allowed == crc | dict.fromkeys(none, 0)


def test_two_gpus_are_a_pair() -> None:
    profile = PROFILE.model_copy(update={"count": 2})
    assert judge(Host(), profile)["gpu.topology"].outcome is Outcome.PASSED
    assert judge(Host(), profile)["gpu.p2p"].outcome is Outcome.PASSED


def test_a_gpu_without_a_performance_state_is_not_checked() -> None:
    host = Host()
    host.change(6, pcie_gen=3, pstate=None)
    verdict = judge(host)["gpu.pcie_gen"]
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED,
        f"{host.gpus.devices[6]}: generation 3, and its performance state is not known",
    )


def test_an_edge_of_the_topology_is_judged_once_and_not_where_a_link_is_down() -> None:
    host = Host()
    host.topology.links[7][0] = "SYS"  # the lower half repeats the upper one
    host.topology.links[0][0] = "X"
    assert judge(host)["gpu.topology"].outcome is Outcome.PASSED
    host.topology.links[3][4] = host.topology.links[4][3] = "PIX"
    host.topology.links[2][4] = "PHB"
    assert [(it.part, it.measured) for it in judge(host)["gpu.topology"].findings] == [
        ("GPU 2 to GPU 4", "PHB"),
        ("GPU 3 to GPU 4", "PIX"),
    ]
    host.links[uuid(host, 4)][0] = None
    assert judge(host)["gpu.topology"].findings == ()


def test_a_link_counts_only_where_it_differs_from_the_usual() -> None:
    host = Host()
    unstated = PROFILE.model_copy(update={"nvlinks": None, "nvlink_speed": None, "nvswitch": False})
    host.links[uuid(host, 4)] = dict.fromkeys(range(18), 26.0) | {18: 26.0}  # one more than the others
    (found,) = checks.nvlink_state(host.gpus, host.links, unstated).findings
    assert (found.measured, found.expected) == ("19 active links", "18, as on most GPUs of the node")
    host.links[uuid(host, 4)] = dict.fromkeys(range(18))  # no bridge at all
    assert checks.nvlink_state(host.gpus, host.links, unstated, None).findings == ()  # of an unknown topology
    (found,) = checks.nvlink_state(
        host.gpus, host.links, PROFILE.model_copy(update={"nvlink_speed": None})
    ).findings
    down = ", ".join(map(str, range(18)))
    assert (found.measured, found.expected) == (f"0 active links (inactive: link {down})", "18")


MAN = "nvidia-smi(1)"
CRC = "DcgmGPUHardwareLimits.h: CRC errors matter from 100 per second on"
UNSTATED: dict[str, Any] = {"nvlinks": None, "nvlink_speed": None}


def without_links(*indices: int) -> Callable[[Host], None]:
    """Return a change: these GPUs have no active link, and no other GPU reaches them over NVLink."""

    def change(host: Host) -> None:
        cells = host.topology.links
        for index in indices:
            host.links[uuid(host, index)] = {}
            for other in range(len(host.gpus)):
                if other != index:
                    cells[index][other] = cells[other][index] = "SYS"

    return change


def bridged(*groups: str) -> Callable[[Host], None]:
    """Return a change: cards whose NVLinks connect only these groups of GPUs, like '01' and '23'."""

    def change(host: Host) -> None:
        for one in range(len(host.gpus)):
            for other in range(len(host.gpus)):
                if one != other:
                    linked = any(str(one) in group and str(other) in group for group in groups)
                    host.topology.links[one][other] = "NV12" if linked else "SYS"
            if not any(str(one) in group for group in groups):
                host.links[uuid(host, one)] = {}

    return change


def counted_on(index: int, *rows: tuple[int, str, float], later: tuple[tuple[int, str, float], ...] | None = None,
               uptime: float | None = 22 * 86400.0) -> Callable[[Host], None]:  # fmt: skip
    """Return a change: counters of a GPU, and those of the second reading, 30 s later; the same without `later`."""

    def change(host: Host) -> None:
        host.errors[uuid(host, index)] = nvidia_smi.LinkErrors(50, rows)
        host.uptime = uptime
        host.later = {
            **host.errors,
            uuid(host, index): nvidia_smi.LinkErrors(50, rows if later is None else later),
        }
        host.uptime_later = None if uptime is None else uptime + 30

    return change


COUNTER_EXAMPLES = [
    example("gpu.nvlink_state", "A100 PCIe: six of eight bridged in pairs", "NVIDIA NVLink bridge guide", PASSED,
            bridged("01", "23", "45"), nvswitch=False, topology=None, **UNSTATED),
    example("gpu.nvlink_state", "H200 NVL: a bridge of four beside four cards without", "H200 NVL product brief",
            NOT_APPLICABLE, bridged("0123"), nvswitch=False, topology=None, **UNSTATED),
    example("gpu.nvlink_state", "H100 NVL on Azure NCv5: 12 of 18 links by design", "Azure/azurehpc-health-checks#162",
            PASSED, put(links=lambda host: {key: dict.fromkeys(range(12), 26.562) for key in host.links}), nvswitch=False,
            topology=None, **UNSTATED),
    example("gpu.nvlink_state", "one H200 of eight given to a virtual machine", "healthy-h200-vm-one-of-eight", NOT_APPLICABLE,
            put(gpus=lambda host: replace(host.gpus, devices=host.gpus.devices[:1]), links={}), count=1, nvswitch=False),
    example("gpu.nvlink_state", "a card for a display beside seven GPUs of a board", "T1000 in a server with HGX", PASSED,
            gpus(7, name="NVIDIA T1000"), without_links(7), nvswitch=False, **UNSTATED),
    example("gpu.nvlink_state", "L40S without NVLink", "L40S data sheet", NOT_APPLICABLE,
            put(links=lambda host: {key: {} for key in host.links}), nvswitch=False, topology=None, **UNSTATED),
    example("gpu.nvlink_state", "one GPU in MIG mode beside seven", "nvidia-smi nvlink -s: not supported in MIG mode",
            NOT_APPLICABLE, gpus(3, mig=True), without_links(3), nvswitch=True),
    example("gpu.nvlink_state", "booting: no GPU has its links yet", "NVIDIA/NVSentinel#883: fabric manager trains them",
            CONFIGURE, without_links(*range(8))),
    example("gpu.nvlink_state", "B200: all links of one GPU inactive", "leptonai/gpud#1085", DRAIN, without_links(2), sick=True),
    example("gpu.nvlink_state", "the same, and the profile is silent", "leptonai/gpud#1085", DRAIN, without_links(2),
            nvswitch=False, sick=True, **UNSTATED),
    example("gpu.nvlink_state", "four SXM GPUs without NVSwitch, one of them without a link", "HGX A100 4-GPU", DRAIN,
            put(gpus=lambda host: replace(host.gpus, devices=host.gpus.devices[:4])), without_links(1), count=4,
            nvswitch=False, sick=True, **UNSTATED),
    example("gpu.nvlink_errors", "143 CRC errors in 22 days", CRC, WARNING, counted_on(4, (7, "CRC Errors", 143))),
    example("gpu.nvlink_errors", "three replays in 200 days of service", "DCGM watches the rise in a minute", WARNING,
            counted_on(4, (7, "Replay Errors", 3), uptime=200 * 86400.0)),
    example("gpu.nvlink_errors", "40 CRC errors while the check runs", CRC, WARNING,
            counted_on(4, (7, "CRC Errors", 100), later=((7, "CRC Errors", 140),))),
    example("gpu.nvlink_errors", "a link that retrained once, weeks ago", "DCGM watches the rise in a minute", MONITOR,
            counted_on(4, (7, "Recovery Errors", 1))),
    example("gpu.nvlink_errors", "GB200: corrected errors, discards, and 15e-255", "nvml.h; marin-community/marin#8934", WARNING,
            counted_on(4, (7, "Tx discards", 12), (7, "Effective BER", 15e-255))),
    example("gpu.nvlink_errors", "B200 just booted: one symbol in few bits sent", "a rate needs its errors: Effective Errors 1",
            MONITOR, counted_on(4, (7, "Effective Errors", 1), (7, "Effective BER", 3e-11))),
    example("gpu.nvlink_errors", "a container without /proc/uptime", CRC, WARNING,
            counted_on(4, (7, "CRC Errors", 9000), uptime=None)),
    example("gpu.nvlink_errors", "CRC errors rise by 300 per second", CRC, DRAIN,
            counted_on(4, (7, "CRC Errors", 10), later=((7, "CRC Errors", 9010),)), sick=True),
    example("gpu.nvlink_errors", "first errors of a link while the check runs", "DCGM_FR_NVLINK_ERROR_CRITICAL", DRAIN,
            counted_on(4, later=((7, "Recovery Errors", 2),)), sick=True),
    example("gpu.nvlink_errors", "GB200: bit errors after the correction", "DCGM_FR_NVLINK_EFFECTIVE_BER_THRESHOLD", DRAIN,
            counted_on(4, (7, "Effective Errors", 90000), (7, "Effective BER", 3e-10)), sick=True),
    example("gpu.pcie_width", "GB200: one lane beside the C2C link", "healthy-gh200-one-pcie-lane", PASSED,
            gpus(pcie_width=1, pcie_width_max=16), pcie_width=1),
    example("gpu.pcie_width", "T4 on AWS in slots of eight lanes", "healthy-t4-aws-eight-lanes", PASSED,
            gpus(pcie_width=8, pcie_width_max=8), pcie_width=8),
    example("gpu.pcie_width", "an idle RTX card that lowers its lanes beside seven at work", f"{MAN}: may be reduced when idle",
            CONFIGURE, gpus(6, pcie_width=8, pstate="P8")),
    example("gpu.pcie_width", "a slot of eight lanes by design", f"{MAN}: width.max", CONFIGURE,
            gpus(6, pcie_width=8, pcie_width_max=8)),
    example("gpu.pcie_width", "H200 with eight of sixteen lanes", f"{MAN}: width.current", DRAIN, gpus(6, pcie_width=8),
            sick=True),
    example("gpu.pcie_width", "idle L40S with eight lanes beside seven idle ones with sixteen", MAN, DRAIN,
            gpus(pstate="P8"), gpus(6, pcie_width=8), sick=True),
    example("gpu.pcie_gen", "A40 asleep at generation 1", "healthy-a40-pcie-generation-1-when-asleep", PASSED,
            gpus(pcie_gen=1, pstate="P8")),
    example("gpu.pcie_gen", "a card in the slot of an older generation", f"{MAN}: gen.max is of GPU and system", CONFIGURE,
            gpus(6, pcie_gen=4, pcie_gen_max=4), nvswitch=False),
    example("gpu.pcie_gen", "H200 board: one GPU of eight at generation 4", f"{MAN}: gen.max", DRAIN, gpus(6, pcie_gen=4, pcie_gen_max=4),
            sick=True),
    example("gpu.pcie_gen", "V100 that lowers its link in P0 without load", f"{MAN}: may be reduced when idle", MONITOR,
            gpus(6, pcie_gen=1)),
    example("gpu.pcie_gen", "all eight idle in P0 at generation 1", f"{MAN}: may be reduced when idle", NOT_CHECKED,
            gpus(pcie_gen=1, throttle=0x1)),
    example("gpu.pcie_gen", "guest without the generation", "nvidia-smi: [N/A]", NOT_CHECKED,
            gpus(pcie_gen=None, pcie_gen_max=None, unread={"pcie_gen": "[N/A]", "pcie_gen_max": "[N/A]"})),
    example("gpu.topology", "DGX-1: a mesh of NV1 and NV2", "DGX-1 system architecture", CONFIGURE,
            bridged("0123", "4567"), topology="NV2", nvlinks=6),
    example("gpu.topology", "H100 NVL bridged in pairs", "H100 NVL product brief", CONFIGURE, bridged("01", "23", "45", "67"),
            topology="NV12"),
    example("gpu.topology", "one GPU in MIG mode", "nvidia-smi topo -m", NOT_APPLICABLE, gpus(3, mig=True), without_links(3)),
    example("gpu.topology", "a GPU without links, which nvlink_state judges", "leptonai/gpud#1085", PASSED, without_links(2)),
    example("gpu.topology", "two GPUs that cannot reach each other", "nvidia-smi topo -m", DRAIN,
            put(topology=lambda host: (host.topology.links[0].update({1: "SYS"}), host.topology)[1]), sick=True),
    example("gpu.p2p", "RTX 4090: the driver has no peer access", "NVIDIA/open-gpu-kernel-modules discussions", NOT_APPLICABLE,
            bridged(), nvlinks=0),
    example("gpu.p2p", "one GPU in MIG mode", "CUDA: MIG devices have no peer access", NOT_APPLICABLE, bridged(),
            gpus(3, mig=True)),
    example("gpu.p2p", "peer access is switched off by a parameter of the driver", "nvidia-smi topo -p2p: DR", CONFIGURE,
            put(p2p=lambda host: {one: dict.fromkeys(cells, "DR") for one, cells in host.p2p.items()})),
    example("gpu.p2p", "one GPU in MIG mode whose links are still shown", "nvidia-smi topo -p2p: NS", NOT_APPLICABLE,
            gpus(3, mig=True), put(p2p=lambda host: {
                one: {other: "NS" if 3 in (one, other) else cell for other, cell in cells.items()}
                for one, cells in host.p2p.items()})),
    example("gpu.p2p", "two GPUs without peer access beside 27 pairs with it", "nvidia-smi topo -p2p", DRAIN,
            put(p2p=lambda host: (host.p2p[0].update({1: "NS"}), host.p2p)[1]), sick=True),
    example("gpu.fabric_state", "just after boot, one GPU still registers", "NVIDIA/NVSentinel#883: In Progress", MONITOR,
            gpus(7, fabric_state="In Progress", fabric_status="N/A")),
    example("gpu.fabric_state", "shared NVSwitches: GPUs of no partition", "NVIDIA/gpu-driver-container#909", MONITOR,
            gpus(4, 5, 6, 7, fabric_state="In Progress", fabric_status="N/A")),
    example("gpu.fabric_state", "GB200: fabric of the rack, no health in this driver", "leptonai/gpud#1106", PASSED,
            gpus(fabric_health=None, unread={"fabric_health": "Not Supported"})),
    example("gpu.fabric_state", "NVL72 with a switch tray in service", "nvml.h: NVML_GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY",
            MONITOR, gpus(fabric_health="Limited Capacity")),
    example("gpu.fabric_state", "one H100 beside seven failed to join", "NVIDIA/NVSentinel#1382: Completed without Success",
            REBOOT, gpus(7, fabric_state="Completed", fabric_status="Insufficient Resources"), sick=True),
]  # fmt: skip


@pytest.mark.parametrize("machine", COUNTER_EXAMPLES, ids=name)
def test_machines_get_the_verdict_that_a_person_gives_them(machine: CounterExample) -> None:
    assert_as_expected(machine)


def test_the_bounds_of_links() -> None:
    """A GPU is at fault for a slow slot only beside faster ones, and for its fabric only where another one joined it."""
    host = Host()
    for index in range(8):
        host.change(index, pcie_gen=4, pcie_gen_max=4)
    verdict = judge(host)["gpu.pcie_gen"]
    assert (len(verdict.findings), verdict.action.is_repair) == (8, False)
    host.change(3, pcie_gen_max=3)
    verdict = judge(host)["gpu.pcie_gen"]
    assert [one.action for one in verdict.findings].count(Action.DRAIN) == 1
    host = Host()
    for index in range(8):
        host.change(index, fabric_state="Completed", fabric_status="Error")
    assert judge(host)["gpu.fabric_state"].action is Action.MONITOR
    host.change(0, fabric_state="Completed", fabric_status="Success")
    assert judge(host)["gpu.fabric_state"].action is Action.REBOOT
