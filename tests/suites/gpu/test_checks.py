"""The gpu checks: the recorded host passes; each deviation fails its own check on its own part, and no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gpu_helpers import FAULTS, MIB, PROFILE, Host, failing, judge, logged, uuid

from pytest_gpucluster.config.models import GpuProfile
from pytest_gpucluster.core.check import Action, Outcome
from pytest_gpucluster.core.majority import Norm, norm
from pytest_gpucluster.kit.gpu import nvidia_smi
from pytest_gpucluster.kit.gpu.fabric_manager import FabricManager
from pytest_gpucluster.suites.gpu.checks import health, inventory, links, memory


def test_the_recorded_host_passes_everything() -> None:
    verdicts = judge(Host())
    assert {v.check: v.reason for v in verdicts.values() if v.outcome is not Outcome.PASSED} == {
        "gpu.retired_pages": "GPUs since Ampere remap rows (see gpu.remapped_rows)"
    }


CONFIGURED = (
    *("model", "cuda", "vbios", "uuid twice", "uvm", "persistence", "compute mode", "mig", "ecc off"),
    *("manager", "capped", "clocks"),
)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_fails_its_own_check_on_its_own_part(name: str) -> None:
    check, part, put = FAULTS[name]
    host = Host()
    put(host)
    assert failing(host) == [check]
    verdict = judge(host)[check]
    assert verdict.findings[0].part.startswith(part)
    expected = [action for action, names in REPAIRS.items() if name in names]
    assert expected in ([], [verdict.action])
    if name in CONFIGURED:
        assert verdict.action is Action.CONFIGURE


@pytest.mark.parametrize("number", [13, 31, 43, 45, 63, 68, 94])
def test_an_xid_of_an_application_is_measured_and_does_not_fail(number: int) -> None:
    host = Host()
    logged(f"NVRM: Xid (PCI:0000:00:0b): {number}, pid=1")(host)
    verdict = judge(host)["gpu.xid"]
    assert verdict.outcome is Outcome.PASSED
    assert (f"xid_{number}", 2) in {(metric.name, metric.value) for metric in verdict.metrics}


def test_without_a_driver_one_check_fails_and_none_passes() -> None:
    host = Host(gpus=nvidia_smi.Gpus(driver_problem="NVIDIA-SMI has failed"))
    verdicts = judge(host)
    assert failing(host) == ["gpu.driver"]
    passed = {name for name, verdict in verdicts.items() if verdict.outcome is Outcome.PASSED}
    assert passed == {"gpu.device_files", "gpu.fabric_manager", "gpu.libraries", "gpu.xid"}


# fault of FAULTS: the part ("GPU N": its full name), measured, expected, the finding's own action, the verdict's
# what to do about the faults of FAULTS
REPAIRS = {
    Action.DRAIN: ("lost", "link down", "link slow", "replays", "lanes", "slot", "hop", "no peer", "hot"),
    Action.VENDOR: ("memory", "inforom", "sram", "remap failed"),
    Action.RESET_GPU: ("volatile", "pending", "page", "recovery"),
    Action.MONITOR: ("volatile n/a", "trained down", "fabric", "leak", "stray"),
}


# check: (name, value, unit) of the metrics of GPU 0 in the recording
METRICS = {
    "gpu.memory": [("gpu_memory", 143771.0, "MiB")],
    "gpu.ecc_volatile": [("ecc_volatile_corrected", 0, "errors"), ("ecc_volatile_uncorrected", 0, "errors")],
    "gpu.ecc_aggregate": [
        ("ecc_aggregate_uncorrected", 0, "errors"),
        ("ecc_aggregate_sram_uncorrected", 0, "errors"),
    ],
    "gpu.pcie_width": [("pcie_width", 16, "lanes")],
    "gpu.pcie_gen": [("pcie_gen", 5, "generation")],
    "gpu.temperature": [("temperature", 38.0, "C")],
    "gpu.power_limit": [("power", 78.54, "W")],
    "gpu.clocks": [("clock_sm", 345.0, "MHz")],
    "gpu.remapped_rows": [
        ("remapped_rows_correctable", 0, "rows"),
        ("remapped_rows_uncorrectable", 0, "rows"),
    ],
    "gpu.nvlink_state": [("nvlinks_active", 18, "links")],
    "gpu.nvlink_errors": [("nvlink_errors", 0, "errors")],
    "gpu.idle_memory": [("memory_used", 0.0, "MiB")],
}


def test_what_a_healthy_gpu_is_measured_by() -> None:
    host = Host()
    verdicts = judge(host)
    first = str(host.gpus.devices[0])
    found = {
        name: [(it.name, it.value, it.unit) for it in verdict.metrics if it.device == first]
        for name, verdict in verdicts.items()
    }
    assert {name: metrics for name, metrics in found.items() if metrics} == METRICS
    (count,) = verdicts["gpu.count"].metrics
    assert (count.name, count.value, count.unit, count.device) == ("gpu_count", 8, "GPUs", "")
    assert {len(verdict.metrics) % 8 for name, verdict in verdicts.items() if name in METRICS} == {0}


def outcome(check: str, index: int = 2, profile: GpuProfile = PROFILE, **values: Any) -> Outcome:
    host = Host()
    host.change(index, **values)
    return judge(host, profile)[check].outcome


@pytest.mark.parametrize(
    ("check", "name", "good", "bad"),
    [
        ("gpu.memory", "memory", 142333 * MIB + MIB // 2, 142333 * MIB),  # 1% below: 142333.29 MiB
        ("gpu.memory", "memory", 145208 * MIB, 145209 * MIB),
        ("gpu.temperature", "temperature", 85.0, 85.1),
        ("gpu.power_limit", "power_limit", 699.0, 698.9),
        ("gpu.power_limit", "power_limit", 701.0, 701.1),
        ("gpu.idle_memory", "memory_used", 1024 * MIB, 1024 * MIB + 1),
        ("gpu.clocks", "clock_application", 1980, 1979),
        ("gpu.clocks", "clock_application", 1981, 1979),
        ("gpu.clocks", "clock_application_default", None, 1981),
        ("gpu.clocks", "clock_application", None, 1),
        ("gpu.pcie_gen", "pcie_gen", 6, 4),
        ("gpu.pcie_gen", "pcie_gen_max", 6, 4),
        ("gpu.ecc_volatile", "ecc_volatile_uncorrected", 0, 1),
        ("gpu.throttle", "throttle", 0x117, 0x118),
        ("gpu.compute_mode", "compute_mode", "Default", "Prohibited"),
    ],
)
def test_a_value_at_its_limit_passes_and_one_beyond_fails(check: str, name: str, good: Any, bad: Any) -> None:
    assert outcome(check, **{name: good}) is Outcome.PASSED
    assert outcome(check, **{name: bad}) is Outcome.FAILED


UNSTATED = [
    ("gpu.memory", "memory", None, "the profile states no GPU memory"),
    ("gpu.cuda", "cuda", None, "the profile states no CUDA version"),
    (
        "gpu.persistence",
        "persistence",
        None,
        "the profile does not state whether persistence mode must be on",
    ),
    ("gpu.compute_mode", "compute_mode", None, "the profile states no compute mode"),
    ("gpu.mig", "mig", None, "the profile does not state whether MIG mode must be on"),
    ("gpu.ecc_mode", "ecc", None, "the profile does not state whether ECC must be on"),
    ("gpu.ecc_volatile", "ecc", False, "the profile has no ECC"),
    ("gpu.ecc_aggregate", "ecc", False, "the profile has no ECC"),
    ("gpu.remapped_rows", "ecc", False, "the profile has no ECC"),
    ("gpu.remapped_pending", "ecc", False, "the profile has no ECC"),
    ("gpu.nvlink_state", "nvlinks", 0, "the profile states no NVLinks"),
    ("gpu.nvlink_errors", "nvlinks", 0, "the profile states no NVLinks"),
    ("gpu.pcie_width", "pcie_width", None, "the profile states no PCIe width"),
    ("gpu.pcie_gen", "pcie_gen", None, "the profile states no PCIe generation"),
    ("gpu.topology", "topology", None, "the profile states no topology"),
    ("gpu.topology", "count", 1, "one GPU has no other GPU to connect to"),
    ("gpu.p2p", "nvlinks", None, "the profile states no NVLinks"),
    ("gpu.p2p", "count", 1, "one GPU has no peer"),
    ("gpu.fabric_manager", "nvswitch", False, "the profile states no NVSwitch"),
    ("gpu.fabric_state", "fabric_state", False, "the profile states no fabric state"),
    ("gpu.power_limit", "power_limit", None, "the profile states no power limit"),
]


@pytest.mark.parametrize(("check", "key", "value", "reason"), UNSTATED)
def test_what_the_profile_does_not_state_is_not_judged(check: str, key: str, value: Any, reason: str) -> None:
    host = Host(service=FabricManager("failed", None))
    host.change(0, memory=1, compute_mode="x", ecc_volatile_uncorrected=9, pcie_width=1, power_limit=1.0)
    verdict = judge(host, PROFILE.model_copy(update={key: value}))[check]
    assert (verdict.outcome, verdict.reason, verdict.findings) == (Outcome.NOT_APPLICABLE, reason, ())


def test_a_gpu_that_the_tables_of_nvidia_smi_lack_is_not_checked() -> None:
    host = Host()
    fifth = host.gpus.devices[5]
    del host.rows[uuid(host, 5)], host.links[uuid(host, 5)], host.errors[uuid(host, 5)]
    del host.topology.links[5], host.p2p[5]
    verdicts = judge(host)
    reasons = {
        "gpu.remapped_rows": f"{fifth}: nvidia-smi --query-remapped-rows does not list it",
        "gpu.remapped_pending": f"{fifth}: nvidia-smi --query-remapped-rows does not list it",
        "gpu.nvlink_state": f"{fifth}: nvidia-smi nvlink -s does not list it",
        "gpu.nvlink_errors": f"{fifth}: nvidia-smi nvlink -e shows no counter",
        "gpu.p2p": "nvidia-smi topo -p2p n has no row for GPU 5",
        "gpu.topology": "nvidia-smi topo -m has no row for GPU 5",
    }
    assert {name: verdicts[name].reason for name in reasons} == reasons
    assert {verdicts[name].outcome for name in reasons} == {Outcome.NOT_CHECKED}
    del host.topology.links[6]
    assert judge(host)["gpu.topology"].reason == "nvidia-smi topo -m has no row for GPU 5, 6"


def test_a_single_gpu_without_nvswitch_has_no_peer_over_nvlink() -> None:
    """One H200 of eight, passed through to a virtual machine: nvidia-smi nvlink prints no link of it."""
    alone = nvidia_smi.Gpus((Host().gpus.devices[0],))
    outcomes = {}
    for count, nvswitch in ((1, False), (1, True), (8, False)):
        profile = PROFILE.model_copy(update={"count": count, "nvswitch": nvswitch})
        state, errors = links.nvlink_state(alone, {}, profile), links.nvlink_errors(alone, {}, profile)
        outcomes[count, nvswitch] = (state.outcome, errors.outcome)
    assert outcomes[1, False] == (Outcome.NOT_APPLICABLE, Outcome.NOT_APPLICABLE)
    assert outcomes[1, True] == outcomes[8, False] == (Outcome.NOT_CHECKED, Outcome.NOT_CHECKED)
    down: dict[str, dict[int, float | None]] = {alone.devices[0].uuid or "": dict.fromkeys(range(18), None)}
    single = PROFILE.model_copy(update={"count": 1, "nvswitch": False})
    assert links.nvlink_state(alone, down, single).outcome is Outcome.FAILED, (
        "links that are listed are judged"
    )


def test_a_gpu_that_does_not_tell_who_it_is_is_compared_with_no_other() -> None:
    """Not even with what is called x: an empty name stands for none."""
    host = Host()
    first = replace(host.gpus.devices[0], name=None, uuid=None, index=None)
    odd: dict[str, Norm[str]] = {"x": norm([("a", "1"), ("b", "1"), ("c", "1")])}
    alone = nvidia_smi.Gpus((first,))
    assert inventory.vbios(alone, PROFILE, odd).outcome is Outcome.PASSED
    assert health.clocks(alone, odd).outcome is Outcome.PASSED
    assert inventory.driver(alone, PROFILE, odd).outcome is Outcome.NOT_APPLICABLE
    slow: dict[str, dict[int, float | None]] = {"x": {0: 1.0}}
    assert (
        links.nvlink_state(alone, slow, PROFILE).reason == f"{first}: nvidia-smi nvlink -s does not list it"
    )
    errors = {"x": nvidia_smi.LinkErrors(0, ((0, "Replay Errors", 9),))}
    assert (
        links.nvlink_errors(alone, errors, PROFILE).reason
        == f"{first}: nvidia-smi nvlink -e shows no counter"
    )
    rows = {"x": nvidia_smi.RowRemapping(9, 9, pending=True, failure=True)}
    for check in (memory.remapped_rows, memory.remapped_pending):
        assert (
            check(alone, rows, PROFILE).reason
            == f"{first}: nvidia-smi --query-remapped-rows does not list it"
        )
    numa = replace(host.topology, numa={1: "0"})
    most = links.numa_majority({"a": alone, "b": alone}, {"a": numa, "b": numa})
    assert list(most) == [("", 1, 1)]
    verdict = links.numa_affinity(alone, numa, most)
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_APPLICABLE,
        "there is no other node of this kind to compare with",
    )
