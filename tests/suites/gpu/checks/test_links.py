from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from gpu_helpers import PROFILE, Host, devices, failing, judge, topology, uuid

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, Outcome
from pytest_gpucluster.kit import nvidia_smi
from pytest_gpucluster.suites.gpu.checks import links as checks

if TYPE_CHECKING:
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
    unstated = PROFILE.model_copy(update={"nvlinks": None, "nvlink_speed": None})
    expected = Outcome.PASSED if bridged > 4 else Outcome.NOT_APPLICABLE
    assert judge(host, unstated)["gpu.nvlink_state"].outcome is expected


def counted(host: Host, counter: str, value: float) -> Verdict:
    host.errors[uuid(host, 4)] = nvidia_smi.LinkErrors(53, ((7, counter, value),))
    return judge(host)["gpu.nvlink_errors"]


@pytest.mark.parametrize(("counter", "limit"), sorted(checks.NVLINK_LIMITS.items()))
def test_each_counter_fails_from_its_limit_on(counter: str, limit: int) -> None:
    host = Host()
    assert counted(host, counter.title(), limit - 1).outcome is Outcome.PASSED
    verdict = counted(host, counter.title(), limit)
    (finding,) = verdict.findings
    assert finding.part == f"{host.gpus.devices[4]} NVLink 7"
    assert finding.measured == f"{limit} {counter.title()}"
    assert (finding.expected, verdict.action) == (
        f"below {limit} since the driver's start",
        Action.MONITOR if counter in checks.NVLINK_TOTALS else Action.DRAIN,
    )
    assert verdict.advisories == ()


@pytest.mark.parametrize("counter", checks.NVLINK_WARNINGS)
def test_a_counter_that_proves_no_fault_warns(counter: str) -> None:
    host = Host()
    verdict = counted(host, counter, 3)
    assert verdict.outcome is Outcome.PASSED
    (advisory,) = verdict.advisories
    assert advisory.part == str(host.gpus.devices[4])
    assert advisory.measured == f"{counter}: 3 on NVLink 7"
    assert advisory.expected == "0 since the driver's start"
    assert counted(host, counter, 0).advisories == ()


def test_an_unknown_counter_is_reported_once_a_gpu() -> None:
    host = Host()
    counts = ((1, "PLR Xmit Retry Blocks", 5), (2, "PLR Xmit Retry Blocks", 6))
    host.errors[uuid(host, 4)] = nvidia_smi.LinkErrors(0, counts)
    verdict = judge(host)["gpu.nvlink_errors"]
    assert verdict.outcome is Outcome.PASSED
    (advisory,) = verdict.advisories
    assert advisory.measured == "PLR Xmit Retry Blocks: 5 on NVLink 1, 6 on NVLink 2"
    assert advisory.expected == "a counter that this release knows"


@pytest.mark.parametrize(("rate", "fails"), [(15e-255, False), (1e-12, False), (2e-12, True), (15e-3, True)])
def test_the_bit_error_rate_after_correction_is_at_most_1e_12(rate: float, *, fails: bool) -> None:
    host = Host()
    verdict = counted(host, "Effective BER", rate)
    assert verdict.advisories == ()
    if fails:
        (finding,) = verdict.findings
        assert finding.part == f"{host.gpus.devices[4]} NVLink 7"
        assert (finding.measured, finding.expected) == (f"Effective BER {rate:g}", "at most 1e-12")
    else:
        assert verdict.outcome is Outcome.PASSED


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
    (finding,) = verdict.findings
    assert finding.part == str(host.gpus.devices[5])
    assert (finding.measured, finding.expected) == (
        "NUMA node 1",
        "NUMA node 0, as on 4 of 4 nodes of this kind",
    )
    assert verdict.action is Action.CONFIGURE
    assert failing(host) == ["gpu.numa_affinity"]
    del host.topology.numa[5]
    (finding,) = judge(host)["gpu.numa_affinity"].findings
    assert finding.measured == "NUMA node unknown"


def test_the_numa_nodes_of_guests_and_of_single_nodes_are_not_judged() -> None:
    host = Host()
    alone = checks.numa_majority({"gpu01": host.gpus}, {"gpu01": host.topology})
    verdict = checks.numa_affinity(host.gpus, host.topology, alone)
    assert verdict.reason == "there is no other node of this kind to compare with"
    assert verdict.outcome is Outcome.NOT_APPLICABLE
    host.topology = replace(host.topology, numa={})
    verdict = judge(host)["gpu.numa_affinity"]
    assert verdict.reason == "nvidia-smi topo -m shows no NUMA affinity: a guest, or a driver before 450"
    assert verdict.outcome is Outcome.NOT_APPLICABLE


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
    ("state", "status", "measured"),
    [
        ("In Progress", "Success", "In Progress, Success"),
        ("Completed", "Insufficient Resources", "Completed, Insufficient Resources"),
        ("In Progress", None, "In Progress, [N/A]"),
        ("Not Started", None, "Not Started, [N/A]"),
    ],
)
def test_a_gpu_that_has_not_joined_the_fabric(state: str, status: str | None, measured: str) -> None:
    host = Host()
    unread = {} if status else {"fabric_status": "[N/A]"}
    host.change(0, fabric_state=state, fabric_status=status, unread=unread)
    verdict = judge(host)["gpu.fabric_state"]
    (finding,) = verdict.findings
    assert (finding.part, finding.measured) == (str(host.gpus.devices[0]), measured)
    assert (finding.expected, verdict.action) == ("Completed, Success", Action.REBOOT)


@pytest.mark.parametrize(
    ("health", "action"),
    [("Unhealthy", Action.REBOOT), ("Limited Capacity", Action.MONITOR), ("something new", Action.MONITOR)],
)
def test_a_fabric_that_is_not_healthy(health: str, action: Action) -> None:
    host = Host()
    host.change(0, fabric_health="Healthy")
    assert failing(host) == []
    host.change(0, fabric_health=health)
    verdict = judge(host)["gpu.fabric_state"]
    (finding,) = verdict.findings
    assert (finding.part, finding.measured) == (str(host.gpus.devices[0]), f"fabric health {health}")
    assert (finding.expected, verdict.action) == ("Healthy", action)


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


NVLINK_LIMITS = {
    "replay errors": 1, "recovery errors": 1, "crc errors": 100, "crc flit errors": 100, "crc data errors": 100,
    "malformed packet errors": 1, "buffer overrun errors": 1, "local link integrity errors": 1,
    "link recovery failed events": 1, "link recovery successful events": 100,
}  # fmt: skip


def test_the_limits_of_nvlink_counters_are_those_of_dcgm() -> None:
    host = Host()
    first = host.gpus.devices[0]
    counts = tuple((0, counter, 1.0) for counter in NVLINK_LIMITS)
    found = list(checks._link_errors(first, nvidia_smi.LinkErrors(0, counts)))
    assert found[0] == Metric("nvlink_errors", len(NVLINK_LIMITS), "errors", str(first))
    assert [it.measured for it in found if isinstance(it, Finding)] == [
        f"1.0 {counter}" for counter, limit in NVLINK_LIMITS.items() if limit == 1
    ]
    assert found[-1] == Advisory(
        str(first), "link recovery successful events: 1 on NVLink 0", "0 since the driver's start"
    )
    assert len(found) == 8
    assert checks.NVLINK_LIMITS == NVLINK_LIMITS
    assert checks.NVLINK_WARNINGS == (
        "rx errors", "rx remote errors", "rx general errors", "tx discards", "link recovery successful events",
        "total link recovery events", "effective errors", "symbol errors", "symbol ber",
    )  # fmt: skip
    assert math.isclose(checks.NVLINK_BER, 1e-12)


def test_two_gpus_are_a_pair() -> None:
    profile = PROFILE.model_copy(update={"count": 2})
    assert judge(Host(), profile)["gpu.topology"].outcome is Outcome.PASSED
    assert judge(Host(), profile)["gpu.p2p"].outcome is Outcome.PASSED


def test_a_pair_is_told_once_and_not_where_a_link_is_down() -> None:
    host = Host()
    host.topology.links[2][5] = host.topology.links[5][2] = "SYS"
    assert judge(host)["gpu.topology"].findings == (Finding("GPU 2 to GPU 5", "SYS", "NV18", Action.DRAIN),)
    host.links[uuid(host, 5)][0] = None
    assert judge(host)["gpu.topology"].findings == ()


def test_a_gpu_without_a_performance_state_is_not_checked() -> None:
    host = Host()
    host.change(6, pcie_gen=3, pstate=None)
    verdict = judge(host)["gpu.pcie_gen"]
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED,
        f"{host.gpus.devices[6]}: generation 3, and its performance state is not known",
    )


def test_a_gpu_in_mig_mode_is_named() -> None:
    host = Host()
    host.change(1, mig=True)
    host.links[uuid(host, 1)] = {}
    assert (
        judge(host)["gpu.nvlink_state"].reason
        == f"{host.gpus.devices[1]} is in MIG mode (see gpu.mig), which has no NVLink"
    )


def test_an_edge_of_the_topology_is_judged_once_and_the_first_gpu_is_told() -> None:
    host = Host()
    host.topology.links[7][0] = "SYS"  # the lower half repeats the upper one
    host.topology.links[0][0] = "X"
    assert judge(host)["gpu.topology"].outcome is Outcome.PASSED
    host.topology.links[3][4] = "PIX"
    host.topology.links[2][4] = "PHB"
    assert [(it.part, it.measured) for it in judge(host)["gpu.topology"].findings] == [
        ("GPU 2 to GPU 4", "PHB"), ("GPU 3 to GPU 4", "PIX")
    ]  # fmt: skip


def test_a_link_counts_only_where_it_differs_from_the_usual() -> None:
    host = Host()
    unstated = PROFILE.model_copy(update={"nvlinks": None, "nvlink_speed": None})
    host.links[uuid(host, 4)] = dict.fromkeys(range(18), 26.0) | {18: 26.0}  # one more than the others
    (found,) = checks.nvlink_state(host.gpus, host.links, unstated).findings
    assert (found.measured, found.expected) == ("19 active links", "18, as on most GPUs of the node")
    host.links[uuid(host, 4)] = dict.fromkeys(range(18))  # no bridge at all
    assert checks.nvlink_state(host.gpus, host.links, unstated).findings == ()
    (found,) = checks.nvlink_state(
        host.gpus, host.links, PROFILE.model_copy(update={"nvlink_speed": None})
    ).findings
    down = ", ".join(map(str, range(18)))
    assert (found.measured, found.expected) == (f"0 active links (inactive: link {down})", "18")


def test_pcie_in_p0_and_without_a_state() -> None:
    def told(**values: Any) -> tuple[list[str], str]:
        host = Host()
        host.change(6, **values)
        verdict = checks.pcie_gen(host.gpus, PROFILE)
        return [it.measured for it in verdict.findings], verdict.reason

    assert told(pcie_gen=5, pstate=None) == told(pcie_gen=6, pstate=None) == ([], "")
    assert told(pcie_gen=4, pstate="P1") == ([], "")
    assert told(pcie_gen=4, pstate="P0") == (["generation 4 in P0"], "")
    assert told(pcie_gen=4, pcie_gen_max=4) == (["at most generation 4 in this slot"], "")
    assert told(pcie_gen=5, pcie_gen_max=5) == ([], "")
