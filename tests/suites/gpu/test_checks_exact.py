"""Each finding, reason, metric and limit of the gpu checks, word by word; test_checks_gpu.py says who is accused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from gpu_helpers import FAULTS, MIB, PROFILE, Host, devices, judge, remap, uuid

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, Outcome
from pytest_gpucluster.core.majority import Norm, norm
from pytest_gpucluster.kit import nvidia_csv, nvidia_smi
from pytest_gpucluster.kit.fabric_manager import FabricManager
from pytest_gpucluster.suites.gpu import checks as gpu

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import GpuProfile

# fault of FAULTS: the part ("GPU N": its full name), measured, expected, the finding's own action, the verdict's
TOLD: dict[str, tuple[str, str, str, Action | None, Action]] = {
    "lost": ("GPUs", "7", "8", None, Action.DRAIN),
    "model": ("GPU 1", "NVIDIA H100 80GB HBM3", "NVIDIA H200", None, Action.DRAIN),
    "memory": ("GPU 1", "138 GiB", "140.4 GiB (within 1%)", None, Action.VENDOR),
    "cuda": ("driver", "CUDA 11.8", "CUDA 12.2 or later", None, Action.DRAIN),
    "vbios": (
        "GPU 3", "96.00.74.00.0B", "96.00.A5.00.1A, as on 31 of 32 GPUs of this model", Action.MONITOR, Action.MONITOR
    ),
    "uuid twice": ("GPU 2", "the same UUID on gpu02", "a UUID of its own", None, Action.DRAIN),
    "inforom": (
        "GPU 5", "WARNING: infoROM is corrupted at gpu 0000:00:0B.0", "no warning of nvidia-smi", None, Action.VENDOR
    ),
    "uvm": ("/dev/nvidia-uvm", "absent", "present", None, Action.DRAIN),
    "persistence": ("GPU 0", "Disabled", "Enabled", None, Action.MONITOR),
    "compute mode": ("GPU 0", "Exclusive_Process", "Default", None, Action.MONITOR),
    "mig": ("GPU 0", "Enabled", "Disabled", None, Action.RESET_GPU),
    "ecc off": ("GPU 0", "Disabled", "Enabled", None, Action.REBOOT),
    "volatile": ("GPU 2", "1 uncorrectable", "0", None, Action.RESET_GPU),
    "volatile n/a": ("GPU 2", "[N/A]", "0; other GPUs of the node report it", Action.MONITOR, Action.MONITOR),
    "sram": ("GPU 2", "SRAM threshold exceeded (9 uncorrectable)", "not exceeded", None, Action.VENDOR),
    "remap failed": ("GPU 3", "a row remapping failed", "no failure", None, Action.VENDOR),
    "pending": ("GPU 3", "a row remapping is pending", "none pending", None, Action.RESET_GPU),
    "page": ("GPU 3", "a page retirement is pending", "none pending", None, Action.RESET_GPU),
    "link down": ("GPU 4", "17 active links (inactive: link 7)", "18", None, Action.DRAIN),
    "link slow": ("GPU 4 NVLink 7", "19.9 GB/s", "26.562 GB/s", None, Action.DRAIN),
    "replays": ("GPU 4 NVLink 7", "1 Replay Errors", "below 1 since the driver's start", None, Action.DRAIN),
    "lanes": ("GPU 6", "x8", "x16", None, Action.DRAIN),
    "slot": ("GPU 6", "at most generation 4 in this slot", "generation 5", None, Action.DRAIN),
    "trained down": ("GPU 6", "generation 3 in P0", "generation 5", None, Action.DRAIN),
    "hop": ("GPU 0 to GPU 1", "SYS", "NV18", None, Action.DRAIN),
    "no peer": ("GPU 0 to GPU 1", "NS", "OK", None, Action.DRAIN),
    "manager": ("nvidia-fabricmanager", "failed", "active", None, Action.DRAIN),
    "fabric": ("GPU 0", "In Progress, Success", "Completed, Success", None, Action.REBOOT),
    "hot": ("GPU 0", "93 C", "at most 85 C", None, Action.DRAIN),
    "capped": ("GPU 0", "500 W", "700 W", None, Action.MONITOR),
    "clocks": ("GPU 0", "application clock 1200 MHz", "1980 MHz", None, Action.MONITOR),
    "leak": ("GPU 2", "40 GiB that no process holds", "at most 1 GiB", None, Action.RESET_GPU),
    "stray": ("GPU 2", "process 7 python3 (1.953 GiB)", "no process on an idle node", None, Action.MONITOR),
    "recovery": ("GPU 5", "Reset", "None", None, Action.RESET_GPU),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_what_a_fault_is_told_as(name: str) -> None:
    check, _, put = FAULTS[name]
    part, measured, expected, own, action = TOLD[name]
    host = Host()
    put(host)
    if part.startswith("GPU ") and " to " not in part:
        number, _, link = part.removeprefix("GPU ").partition(" ")
        part = f"{host.gpus.devices[int(number)]} {link}".strip()
    verdict = judge(host)[check]
    assert verdict.findings == (Finding(part, measured, expected, own),)
    assert verdict.action is action


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


# --- limits ------------------------------------------------------------------------------------------------------


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
    found = list(gpu._link_errors(first, nvidia_smi.LinkErrors(0, counts)))
    assert found[0] == Metric("nvlink_errors", len(NVLINK_LIMITS), "errors", str(first))
    assert [it.measured for it in found if isinstance(it, Finding)] == [
        f"1.0 {counter}" for counter, limit in NVLINK_LIMITS.items() if limit == 1
    ]
    assert found[-1] == Advisory(
        str(first), "link recovery successful events: 1 on NVLink 0", "0 since the driver's start"
    )
    assert len(found) == 8
    assert gpu.NVLINK_LIMITS == NVLINK_LIMITS
    assert gpu.NVLINK_WARNINGS == (
        "rx errors", "rx remote errors", "rx general errors", "tx discards", "link recovery successful events",
        "total link recovery events", "effective errors", "symbol errors", "symbol ber",
    )  # fmt: skip
    assert math.isclose(gpu.NVLINK_BER, 1e-12)


def test_the_bits_of_clock_reasons_are_those_of_nvml() -> None:
    host = Host()
    host.change(0, throttle=0x1FF)
    verdict = gpu.throttle(host.gpus)
    assert verdict.findings == (
        Finding(
            str(host.gpus.devices[0]),
            "hardware slowdown, software thermal slowdown, hardware thermal slowdown, hardware power brake",
            "no slowdown",
        ),
    )
    assert verdict.advisories == ()
    assert gpu.FINE_REASONS == {
        0x1: "idle", 0x2: "applications clocks setting", 0x4: "software power cap", 0x10: "sync boost",
        0x100: "display clock setting",
    }  # fmt: skip
    assert gpu.SLOW_REASONS == {
        0x8: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
        0x80: "hardware power brake",
    }  # fmt: skip
    assert gpu.RECOVERY == {
        "Reboot": Action.REBOOT, "Drain P2P": Action.DRAIN, "Drain and Reset": Action.RESET_GPU
    }  # fmt: skip


@pytest.mark.parametrize(
    ("found", "needed", "fails"),
    [
        ("12.2", "12.2", False), ("12.1", "12.2", True), ("12.10", "12.2", False), ("13.0", "12.9", False),
        ("11.8", "12", True), ("12", "12", False),
    ],
)  # fmt: skip
def test_versions_of_cuda_are_compared_as_numbers(found: str, needed: str, *, fails: bool) -> None:
    verdict = gpu.cuda(replace(devices(), cuda=found), PROFILE.model_copy(update={"cuda": needed}))
    assert (verdict.outcome is Outcome.FAILED) is fails


@pytest.mark.parametrize(
    ("version", "stated", "fits"),
    [
        ("580.159.04", "580.159.04", True), ("580.159.04", "580.*", True), ("580.159.04", "58*", True),
        ("580.159.04", "580", False), ("580.159.04", "570.*", False), ("96.00.A5.00.1A", "96.00.a5.00.1a", True),
        ("96.00.A5.00.1A", "96.00.a5*", True), ("96.00.a5.00.1a", "96.00.A5*", True),
        ("96.00.a5.00.1a", "96.00.A5.00.1A", True),
    ],
)  # fmt: skip
def test_a_stated_version_is_equal_or_a_prefix(version: str, stated: str, *, fits: bool) -> None:
    gpus = replace(devices(), devices=tuple(replace(one, vbios=version) for one in devices()))
    verdict = gpu.vbios(gpus, PROFILE.model_copy(update={"vbios": stated}), {})
    assert verdict.findings == (() if fits else tuple(Finding(str(one), version, stated) for one in gpus))
    assert verdict.action is Action.MONITOR


# --- why nothing was judged ----------------------------------------------------------------------------------------

UNSTATED = [
    ("gpu.memory", "memory", None, "the profile states no GPU memory"),
    ("gpu.cuda", "cuda", None, "the profile states no CUDA version"),
    ("gpu.persistence", "persistence", None, "the profile does not say whether persistence mode is to be on"),
    ("gpu.compute_mode", "compute_mode", None, "the profile states no compute mode"),
    ("gpu.mig", "mig", None, "the profile does not say whether MIG mode is to be on"),
    ("gpu.ecc_mode", "ecc", None, "the profile does not say whether ECC is to be on"),
    ("gpu.ecc_volatile", "ecc", False, "the profile has no ECC"),
    ("gpu.ecc_aggregate", "ecc", False, "the profile has no ECC"),
    ("gpu.remapped_rows", "ecc", False, "the profile has no ECC"),
    ("gpu.remapped_pending", "ecc", False, "the profile has no ECC"),
    ("gpu.nvlink_state", "nvlinks", 0, "the profile states no NVLinks"),
    ("gpu.nvlink_errors", "nvlinks", 0, "the profile states no NVLinks"),
    ("gpu.pcie_width", "pcie_width", None, "the profile states no PCIe width"),
    ("gpu.pcie_gen", "pcie_gen", None, "the profile states no PCIe generation"),
    ("gpu.topology", "topology", None, "the profile states no topology"),
    ("gpu.topology", "count", 1, "one GPU has nobody to be connected with"),
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


def test_two_gpus_are_a_pair() -> None:
    profile = PROFILE.model_copy(update={"count": 2})
    assert judge(Host(), profile)["gpu.topology"].outcome is Outcome.PASSED
    assert judge(Host(), profile)["gpu.p2p"].outcome is Outcome.PASSED


def lost() -> Host:
    host = Host()
    host.change(4, memory=None, unread={"memory": "[GPU is lost]"})
    return host


def test_a_lost_gpu_is_told_and_not_counted() -> None:
    host = lost()
    verdicts = judge(host)
    part = str(host.gpus.devices[4])
    assert verdicts["gpu.count"].findings == (Finding(part, "[GPU is lost]", "answers"),)
    assert [it.value for it in verdicts["gpu.count"].metrics] == [7]
    for check in ("gpu.names", "gpu.throttle", "gpu.idle_memory"):
        assert verdicts[check].reason == f"{part} is lost (see gpu.count): [GPU is lost]"
        assert verdicts[check].outcome is Outcome.NOT_CHECKED
    assert part not in {it.device for it in verdicts["gpu.temperature"].metrics}


def test_a_node_whose_gpus_are_all_lost_names_each() -> None:
    host = Host()
    for index in range(8):
        host.change(index, memory=None, unread={"memory": "[GPU is lost]"})
    verdict = judge(host)["gpu.names"]
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert verdict.reason == f"{host.gpus.devices[0]} is lost (see gpu.count): [GPU is lost]"


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        (nvidia_smi.Gpus(driver_problem="no driver"), "nvidia-smi does not work (see gpu.driver): no driver"),
        (nvidia_smi.Gpus(), "nvidia-smi lists no GPU (see gpu.count): no message"),
        (
            nvidia_smi.Gpus(messages=("a", "b"), failed="exit 6"),
            "nvidia-smi lists no GPU (see gpu.count): a; b (exit 6)",
        ),
        (nvidia_smi.Gpus(failed="exit 6"), "nvidia-smi lists no GPU (see gpu.count): (exit 6)"),
        (
            nvidia_smi.Gpus(messages=("x" * 300,)),
            f"nvidia-smi lists no GPU (see gpu.count): {'x' * 200}",
        ),
    ],
)
def test_a_node_without_gpus_says_what_nvidia_smi_said(gpus: nvidia_smi.Gpus, reason: str) -> None:
    verdicts = judge(Host(gpus=gpus))
    assert (verdicts["gpu.names"].outcome, verdicts["gpu.names"].reason) == (Outcome.NOT_CHECKED, reason)
    driver = verdicts["gpu.driver"]
    if gpus.driver_problem:
        assert driver.findings == (Finding("driver", "no driver", "nvidia-smi answers"),)
        assert verdicts["gpu.count"].reason == "nvidia-smi does not work (see gpu.driver): no driver"
        assert verdicts["gpu.count"].metrics == ()
    else:
        assert (driver.outcome, driver.reason) == (Outcome.NOT_CHECKED, reason)
        said = gpu._said(gpus) if gpus.messages or gpus.failed else ""
        assert verdicts["gpu.count"].findings == (
            Finding("GPUs", f"0, nvidia-smi: {said}" if said else "0", "8"),
        )


def test_a_cut_off_answer_says_why() -> None:
    late = replace(devices(), cut_off="rows")
    slow = "nvidia-smi had not told all after 90 s: cut off at its query 'rows'"
    verdict = judge(Host(gpus=late))["gpu.driver"]
    assert verdict.findings == (Finding("driver", slow, "nvidia-smi answers"),)
    host = Host(gpus=late)
    host.change(3, persistence=False)
    assert (
        judge(host)["gpu.driver"].reason
        == f"{slow}; persistence mode is off, so each start loads the driver anew (see gpu.persistence)"
    )


def test_a_driver_alone_has_none_to_differ_from() -> None:
    gpus = devices()
    alone = gpu.driver(gpus, PROFILE, gpu.driver_majority({"gpu01": gpus}))
    assert (alone.outcome, alone.reason) == (
        Outcome.NOT_APPLICABLE,
        "the profile states no driver, and there is no other node to compare with",
    )
    two = gpu.driver_majority({"gpu01": gpus, "gpu02": gpus})
    assert gpu.driver(gpus, PROFILE, two).outcome is Outcome.PASSED
    stated = PROFILE.model_copy(update={"driver": "580.*"})
    assert gpu.driver(gpus, stated, gpu.driver_majority({"gpu01": gpus})).outcome is Outcome.PASSED


def test_a_header_without_cuda_is_not_checked() -> None:
    verdict = gpu.cuda(replace(devices(), cuda=None), PROFILE)
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED,
        "nvidia-smi shows no CUDA version in its header",
    )


def test_values_that_a_driver_does_not_report_name_its_version() -> None:
    for driver, shown in (("580.159.04", "580.159.04"), (None, "version unknown")):
        host = Host()
        host.change(
            0, recovery_action=None, driver=driver, unread={"recovery_action": nvidia_csv.NOT_REPORTED}
        )
        assert (
            judge(host)["gpu.recovery_action"].reason
            == f"recovery_action: {nvidia_csv.NOT_REPORTED} ({shown})"
        )


def test_a_value_for_root_alone_says_so() -> None:
    host = Host()
    host.change(1, temperature=None, unread={"temperature": "[Insufficient Permissions]"})
    verdict = judge(host)["gpu.temperature"]
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED,
        f"temperature of {host.gpus.devices[1]}: nvidia-smi shows it to root alone: [Insufficient Permissions]",
    )


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


def test_a_pair_is_told_once_and_not_where_a_link_is_down() -> None:
    host = Host()
    host.topology.links[2][5] = host.topology.links[5][2] = "SYS"
    assert judge(host)["gpu.topology"].findings == (Finding("GPU 2 to GPU 5", "SYS", "NV18"),)
    host.links[uuid(host, 5)][0] = None
    assert judge(host)["gpu.topology"].findings == ()


# --- SRAM ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sram", "said", "total", "limit", "told"),
    [
        (0, "[N/A]", 0, None, None),
        (1, "[N/A]", 9, 1, None),
        (2, "[N/A]", 9, 1, ("2 uncorrectable in SRAM", "at most 1", None)),
        (None, "[Unknown Error]", 9, 1, ("[Unknown Error]", "at most 1 uncorrectable in SRAM", Action.RESET_GPU)),
        (None, "[N/A]", 1, 1, None),
        (
            None, "[N/A]", 2, 1,
            "GPU: 2 uncorrectable errors in all, of SRAM and DRAM; this driver does not count SRAM apart",
        ),
    ],
)  # fmt: skip
def test_errors_of_sram_where_the_driver_knows_no_threshold(
    sram: int | None, said: str, total: int, limit: int | None, told: Any
) -> None:
    gpus = devices()
    one = replace(
        gpus.devices[0], ecc_aggregate_sram=sram, ecc_aggregate_uncorrected=total, sram_threshold_exceeded=None,
        unread={"ecc_aggregate_sram": said},
    )  # fmt: skip
    profile = PROFILE if limit is None else PROFILE.model_copy(
        update={"max_aggregate_sram_uncorrectable": limit}
    )  # fmt: skip
    verdict = gpu.ecc_aggregate(replace(gpus, devices=(one,)), profile)
    if told is None:
        assert verdict.outcome is Outcome.PASSED
    elif isinstance(told, str):
        assert verdict.reason == told.replace("GPU", str(one), 1)
        assert verdict.outcome is Outcome.NOT_CHECKED
    else:
        assert verdict.findings == (Finding(str(one), *told),)


def test_a_threshold_for_root_alone_is_not_checked() -> None:
    host = Host()
    hidden = {"sram_threshold_exceeded": "[Insufficient Permissions]"}
    host.change(0, sram_threshold_exceeded=None, ecc_aggregate_sram=99, unread=hidden)
    verdict = judge(host)["gpu.ecc_aggregate"]
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED,
        f"SRAM threshold of {host.gpus.devices[0]}: nvidia-smi shows it to root alone",
    )
    stated = PROFILE.model_copy(update={"max_aggregate_sram_uncorrectable": 5})
    assert judge(host, stated)["gpu.ecc_aggregate"].outcome is Outcome.FAILED


# --- who is there --------------------------------------------------------------------------------------------------


def test_a_serial_number_on_two_nodes_is_watched() -> None:
    host = Host()
    host.change(2, serial=f"{host.gpus.devices[2].serial}3")
    part, serial = str(host.gpus.devices[2]), host.gpus.devices[2].serial
    verdict = judge(host)["gpu.serials"]
    assert verdict.findings == (Finding(part, f"serial {serial}, also on gpu03", "a serial of its own"),)
    for index in range(8):
        host.change(index, serial=None, unread={"serial": "[N/A]"})
    verdict = judge(host)["gpu.serials"]
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_APPLICABLE,
        "GPUs of this model report no serial number",
    )


def test_device_files() -> None:
    host = Host(
        files=frozenset({"nvidiactl", "nvidia-uvm", *(f"nvidia{n}" for n in range(7)), "nvidia-modeset"})
    )
    assert judge(host)["gpu.device_files"].findings == (Finding("/dev/nvidia[0-9]*", "7 files", "8"),)
    host.files = frozenset()
    verdict = judge(host)["gpu.device_files"]
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED,
        "nvidia-smi works, yet /dev shows no nvidiactl: this is not the /dev that it uses",
    )
    absent = judge(Host(gpus=nvidia_smi.Gpus(), files=frozenset()))["gpu.device_files"].findings
    assert [it.part for it in absent] == ["/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm"]


def test_a_gpu_without_a_performance_state_is_not_checked() -> None:
    host = Host()
    host.change(6, pcie_gen=3, pstate=None)
    verdict = judge(host)["gpu.pcie_gen"]
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED,
        f"{host.gpus.devices[6]}: generation 3 now, and no performance state that would explain it",
    )


@pytest.mark.parametrize(
    ("name", "pid", "memory", "told"),
    [
        ("/usr/bin/nvidia-cuda-mps-server", 7, MIB, None),
        ("nvidia-cuda-mps-server", 7, MIB, None),
        ("/opt/python3", None, None, "process ? /opt/python3 (memory unknown)"),
        ("[Not Found]", 9, 3 * MIB, "process 9 [Not Found] (3 MiB)"),
    ],
)
def test_who_is_a_stray_process(name: str, pid: int | None, memory: int | None, told: str | None) -> None:
    host = Host()
    host.apps = (nvidia_smi.GpuProcess(pid, uuid(host, 2), memory, name),)
    verdict = judge(host)["gpu.stray_processes"]
    assert [it.measured for it in verdict.findings] == ([told] if told else [])
    assert {it.part for it in verdict.findings} <= {str(host.gpus.devices[2])}


def test_memory_that_processes_hold_is_no_leak() -> None:
    host = Host()
    host.change(2, memory_used=3000 * MIB)
    host.apps = tuple(nvidia_smi.GpuProcess(n, uuid(host, 2), 1000 * MIB, "python3") for n in (1, 2))
    assert judge(host)["gpu.idle_memory"].outcome is Outcome.PASSED
    host.change(2, memory_used=3025 * MIB)
    assert [it.measured for it in judge(host)["gpu.idle_memory"].findings] == [
        "1.001 GiB that no process holds"
    ]
    host.apps = (nvidia_smi.GpuProcess(1, uuid(host, 2), None, "python3"),)
    assert judge(host)["gpu.idle_memory"].findings == ()
    host.apps = (nvidia_smi.GpuProcess(1, uuid(host, 3), 4000 * MIB, "python3"),)
    assert len(judge(host)["gpu.idle_memory"].findings) == 1


def test_grace_is_known_by_its_name() -> None:
    for name in ("NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA GB300"):
        host = Host()
        host.change(2, name=name, memory_used=2048 * MIB)
        verdict = judge(host)["gpu.idle_memory"]
        assert verdict.advisories == (
            Advisory(str(host.gpus.devices[2]), "2 GiB that no process holds", "at most 1 GiB"),
        )
    for other in ("NVIDIA GB10", "NVIDIA RTX GX200", "NVIDIA xGH200", "NVIDIA GB2000", "NVIDIA GBX00", None):
        host = Host()
        host.change(2, name=other, memory_used=2048 * MIB)
        assert judge(host)["gpu.idle_memory"].outcome is Outcome.FAILED


def test_highest_clocks_are_compared_by_model() -> None:
    host = Host()
    host.change(3, clock_sm_max=1500.0)
    usual = host.gpus.devices[0]
    (found,) = judge(host)["gpu.clocks"].findings
    assert found.part == str(host.gpus.devices[3])
    assert found.measured == f"SM 1500 MHz, memory {usual.clock_memory_max:g} MHz"
    assert (
        found.expected
        == f"SM {usual.clock_sm_max:g} MHz, memory {usual.clock_memory_max:g} MHz, as on 31 of 32 GPUs of this model"
    )
    host.change(
        3, clock_sm_max=usual.clock_sm_max, clock_memory_max=None, unread={"clock_memory_max": "ERR!"}
    )
    (found,) = judge(host)["gpu.clocks"].findings
    assert (found.measured, found.expected, found.action) == ("ERR!", "a highest clock", Action.MONITOR)
    host.change(4, clock_sm=None)
    assert [it.value for it in judge(host)["gpu.clocks"].metrics][3] == 0


def test_remapped_rows_without_a_count_of_corrected_ones() -> None:
    host = Host()
    remap(host, correctable=None)
    names = [
        it.name for it in judge(host)["gpu.remapped_rows"].metrics if it.device == str(host.gpus.devices[3])
    ]
    assert names == ["remapped_rows_uncorrectable"]


def test_a_gpu_in_mig_mode_is_named() -> None:
    host = Host()
    host.change(1, mig=True)
    host.links[uuid(host, 1)] = {}
    assert (
        judge(host)["gpu.nvlink_state"].reason
        == f"{host.gpus.devices[1]} is in MIG mode (see gpu.mig), which has no NVLink"
    )


@pytest.mark.parametrize("name", ["NVIDIA XRTX 1", "NVIDIA RTXX", "NVIDIA A100", None])
def test_what_only_looks_like_a_graphics_card_has_ecc(name: str | None) -> None:
    gpus = replace(devices(), devices=tuple(replace(one, name=name, ecc=False) for one in devices()))
    assert len(gpu.ecc_mode(gpus, PROFILE).findings) == 8


@pytest.mark.parametrize(
    ("said", "part"),
    [
        ("infoROM is corrupted at gpu 0000:00:0B.0", "GPU 5"), ("INFOROM is corrupted AT GPU 0000:00:0b.0", "GPU 5"),
        ("infoROM is corrupted at gpu that", "GPUs"), ("infoROM, what gpu 0000:00:0B.0", "GPUs"),
    ],
)  # fmt: skip
def test_a_warning_names_its_gpu(said: str, part: str) -> None:
    host = Host()
    host.gpus = replace(host.gpus, messages=("unlike", said))
    (found,) = gpu.inforom(host.gpus).findings
    assert found.part == (str(host.gpus.devices[5]) if part == "GPU 5" else part)


def test_who_owns_what_and_who_votes() -> None:
    one, two, three = devices().devices[:3]
    nameless = replace(three, name=None, vbios="x")
    without = replace(three, vbios=None, driver=None, uuid=None, serial=None, clock_sm_max=None)
    facts = {
        "n1": nvidia_smi.Gpus((one, replace(two, serial=one.serial), nameless, without)),
        "n2": nvidia_smi.Gpus((one, replace(two, uuid=one.uuid, driver="1"))),
    }
    assert gpu.uuid_owners(facts) == {
        one.uuid: ("n1", "n2", "n2"), two.uuid: ("n1",), three.uuid: ("n1",)
    }  # fmt: skip
    assert {serial: nodes for serial, nodes in gpu.serial_owners(facts).items() if serial == one.serial} == {
        one.serial: ("n1", "n2")
    }
    assert gpu.vbios_majority(facts) == {
        one.name: Norm(((one.vbios, ("n1", "n1", "n2", "n2")),), "GPUs of this model")
    }
    assert gpu.driver_majority(facts) == {
        one.name: Norm(((one.driver, ("n1", "n2")), ("1", ("n2",))), "nodes with this model")
    }
    clocks = f"SM {one.clock_sm_max:g} MHz, memory {one.clock_memory_max:g} MHz"
    assert gpu.clock_majority(facts)[str(one.name)].votes == ((clocks, ("n1", "n1", "n2", "n2")),)


def test_a_uuid_may_stand_twice_on_one_node() -> None:
    gpus = devices()
    first, second = gpus.devices[:2]
    twice = replace(gpus, devices=(first, replace(second, uuid=first.uuid)))
    verdict = gpu.uuids(twice, gpu.uuid_owners({"gpu01": twice, "gpu02": nvidia_smi.Gpus((first,))}), "gpu01")
    assert [it.measured for it in verdict.findings] == ["the same UUID on gpu[01-02]"] * 2
    assert gpu.uuids(gpus, {}, "gpu01").outcome is Outcome.PASSED
    assert gpu.serials(gpus, {}, "gpu01").outcome is Outcome.PASSED
    without = replace(first, serial=None, unread={"serial": "[N/A]"})
    one = gpu.serials(replace(gpus, devices=(without, second)), {}, "gpu01")
    assert [it.expected for it in one.findings] == ["a serial number; other GPUs of the node report it"]


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


def test_more_and_fewer_gpus_than_stated() -> None:
    host = Host()
    more = gpu.count(host.gpus, PROFILE.model_copy(update={"count": 7}))
    assert (more.findings, more.action) == ((Finding("GPUs", "8", "7"),), Action.MONITOR)
    assert more.cause == "the node has more GPUs than its profile says: the cluster file names another model"
    assert more.hint == (
        "nvidia-smi -L; gpucluster profiles show; correct the profile of the node, or `gpu: {count: N}`"
    )
    failed = gpu.count(replace(host.gpus, failed="exit 3"), PROFILE.model_copy(update={"count": 7}))
    assert (failed.findings, failed.action) == (
        (Finding("GPUs", "8, nvidia-smi: (exit 3)", "7"),), Action.DRAIN
    )  # fmt: skip
    said = gpu.count(replace(host.gpus, messages=("a",)), PROFILE.model_copy(update={"count": 9}))
    assert said.findings == (Finding("GPUs", "8, nvidia-smi: a", "9"),)
    gone = lost()
    gone.gpus = replace(gone.gpus, failed="exit 3", messages=("a",))
    verdict = gpu.count(gone.gpus, PROFILE)
    assert [(it.part[:5], it.measured) for it in verdict.findings] == [("GPU 4", "[GPU is lost]")]
    assert gpu.count(gone.gpus, PROFILE.model_copy(update={"count": 7})).action is Action.DRAIN
    due = Host()
    due.change(1, memory=None, unread={"memory": "[GPU requires reset]"})
    reset = gpu.count(due.gpus, PROFILE)
    assert (reset.cause, reset.hint, reset.action) == (
        "a GPU met an error that its driver clears by a reset alone",
        "dmesg | grep Xid; end what uses the GPU; nvidia-smi -r -i INDEX (with NVSwitch: of all GPUs), or reboot",
        Action.RESET_GPU,
    )


def test_a_link_counts_only_where_it_differs_from_the_usual() -> None:
    host = Host()
    unstated = PROFILE.model_copy(update={"nvlinks": None, "nvlink_speed": None})
    host.links[uuid(host, 4)] = dict.fromkeys(range(18), 26.0) | {18: 26.0}  # one more than the others
    (found,) = gpu.nvlink_state(host.gpus, host.links, unstated).findings
    assert (found.measured, found.expected) == ("19 active links", "18, as on most GPUs of the node")
    host.links[uuid(host, 4)] = dict.fromkeys(range(18))  # no bridge at all
    assert gpu.nvlink_state(host.gpus, host.links, unstated).findings == ()
    (found,) = gpu.nvlink_state(
        host.gpus, host.links, PROFILE.model_copy(update={"nvlink_speed": None})
    ).findings
    down = ", ".join(map(str, range(18)))
    assert (found.measured, found.expected) == (f"0 active links (inactive: link {down})", "18")


def test_pcie_in_p0_and_without_a_state() -> None:
    def told(**values: Any) -> tuple[list[str], str]:
        host = Host()
        host.change(6, **values)
        verdict = gpu.pcie_gen(host.gpus, PROFILE)
        return [it.measured for it in verdict.findings], verdict.reason

    assert told(pcie_gen=5, pstate=None) == told(pcie_gen=6, pstate=None) == ([], "")
    assert told(pcie_gen=4, pstate="P1") == ([], "")
    assert told(pcie_gen=4, pstate="P0") == (["generation 4 in P0"], "")
    assert told(pcie_gen=4, pcie_gen_max=4) == (["at most generation 4 in this slot"], "")
    assert told(pcie_gen=5, pcie_gen_max=5) == ([], "")


def test_device_files_are_counted_by_their_numbers() -> None:
    gpus = devices()
    names = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia", *(f"nvidia{n}" for n in range(8))}
    assert gpu.device_files(frozenset(names), gpus, PROFILE).outcome is Outcome.PASSED
    more = frozenset({*names, "nvidia8"})
    assert gpu.device_files(more, gpus, PROFILE).outcome is Outcome.PASSED
    assert gpu.device_files(frozenset({"nvidiactl"}), nvidia_smi.Gpus(), PROFILE).findings == (
        Finding("/dev/nvidia[0-9]*", "0 files", "8"), Finding("/dev/nvidia-uvm", "absent", "present")
    )  # fmt: skip


def test_a_gpu_that_does_not_tell_who_it_is_is_compared_with_no_other() -> None:
    """Not even with what is called x: an empty name stands for none."""
    host = Host()
    first = replace(host.gpus.devices[0], name=None, uuid=None, index=None)
    odd: dict[str, Norm[str]] = {"x": norm([("a", "1"), ("b", "1"), ("c", "1")])}
    alone = nvidia_smi.Gpus((first,))
    assert gpu.vbios(alone, PROFILE, odd).outcome is Outcome.PASSED
    assert gpu.clocks(alone, odd).outcome is Outcome.PASSED
    assert gpu.driver(alone, PROFILE, odd).outcome is Outcome.NOT_APPLICABLE
    slow: dict[str, dict[int, float | None]] = {"x": {0: 1.0}}
    assert gpu.nvlink_state(alone, slow, PROFILE).reason == f"{first}: nvidia-smi nvlink -s does not list it"
    errors = {"x": nvidia_smi.LinkErrors(0, ((0, "Replay Errors", 9),))}
    assert (
        gpu.nvlink_errors(alone, errors, PROFILE).reason == f"{first}: nvidia-smi nvlink -e shows no counter"
    )
    rows = {"x": nvidia_smi.RowRemapping(9, 9, pending=True, failure=True)}
    for check in (gpu.remapped_rows, gpu.remapped_pending):
        assert (
            check(alone, rows, PROFILE).reason
            == f"{first}: nvidia-smi --query-remapped-rows does not list it"
        )
    numa = replace(host.topology, numa={1: "0"})
    most = gpu.numa_majority({"a": alone, "b": alone}, {"a": numa, "b": numa})
    assert list(most) == [("", 1, 1)]
    verdict = gpu.numa_affinity(alone, numa, most)
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_APPLICABLE,
        "there is no other node of this kind to compare with",
    )


def test_a_value_without_a_word_of_why_it_is_absent() -> None:
    gpus = devices()
    first = replace(gpus.devices[0], memory=None, unread={})
    alone = nvidia_smi.Gpus((first,))
    assert gpu.memory(alone, PROFILE).findings == (
        Finding(str(first), "no value", "140.4 GiB (within 1%)", Action.RESET_GPU),
    )
    row = nvidia_smi.RowRemapping(0, None, pending=False, failure=False)
    assert gpu.remapped_rows(alone, {str(first.uuid): row}, PROFILE).findings == (
        Finding(str(first), "no value", "at most 8 rows", Action.RESET_GPU),
    )
