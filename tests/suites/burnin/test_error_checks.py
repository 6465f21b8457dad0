"""Each finding of the checks of counters, Xids and sensors."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from burnin_helpers import (
    CONFIG,
    GPU_1,
    UUID,
    example,
    fleet,
    gpu_of,
    hello,
    load,
    one_node,
    reason,
    risen,
)
from constants import with_constants
from counter_examples import (
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
    result,
)
from judged import figures, judged

from pytest_gpucluster.core.check import Action, Metric, Outcome
from pytest_gpucluster.suites.burnin import error_checks, removal
from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals, Peaks

if TYPE_CHECKING:
    from collections.abc import Callable


def with_rose(counter: str, count: int, load_: str = "matmul", part: str = "") -> BurninResult:
    part = part or gpu_of("a", 1)
    return fleet(1, a=[load("a", load_, deltas={part: {counter: count}})])


def test_a_counter_may_rise_by_its_limit_and_no_further() -> None:
    assert set(error_checks.LIMITS) == {
        "gone",
        "ecc_uncorrected_volatile",
        "ecc_uncorrected_aggregate",
        *(f"remapped_{what}" for what in ("uncorrectable", "pending", "failure")),
        *(f"nvlink_{what}_errors" for what in ("replay", "recovery", "malformed_packet", "buffer_overrun")),
        "nvlink_local_link_integrity_errors",
        "nvlink_link_recovery_failed_events",
    }
    for counter, limit in error_checks.LIMITS.items():
        if counter != "gone":
            assert error_checks.counters(with_rose(counter, limit), "a", CONFIG).outcome is Outcome.PASSED
        verdict = error_checks.counters(with_rose(counter, limit + 1), "a", CONFIG)
        assert (judged(verdict), limit) == ((DRAIN, [GPU_1]), 0)
        assert verdict.findings[0].measured.endswith("during matmul")


def test_rates_of_counters_are_those_of_dcgm_and_infiniband() -> None:
    per_hour = {name: rate.within(3600) for name, rate in error_checks.RATES.items()}
    crc = dict.fromkeys(("nvlink_crc_errors", "nvlink_crc_flit_errors", "nvlink_crc_data_errors"), 360_000)
    assert per_hour == {"pcie_replay": 480, **crc}
    totals = NodeTotals("a", hello=hello("a", port_rates={"hdr/1": 25.0}))
    totals.rose = {"hdr/1": {"symbol_error": 1}, "mlx5_0/1": {"symbol_error": 1, "link_downed": 1}}
    limits = {
        (part, name): limit for part, name, _, limit in error_checks.risen_counters(totals, 3600, CONFIG)
    }
    assert limits == {
        ("hdr/1", "symbol_error"): pytest.approx(10 + 1440),  # twice 1e-12 of 200 Gb/s for an hour
        ("mlx5_0/1", "symbol_error"): pytest.approx(10 + 2880),
        ("mlx5_0/1", "link_downed"): 0,
    }


def test_why_nothing_was_judged() -> None:
    silent = BurninResult({"a": NodeTotals("a")}, 60)
    for judge in (error_checks.counters, error_checks.temperature):
        reason(judge(silent, "a", CONFIG), NOT_CHECKED, "its agent sent nothing")
    reason(error_checks.xid(silent, "a"), NOT_CHECKED, "its agent sent nothing")
    reason(error_checks.temperature(fleet(1), "a", CONFIG), NOT_CHECKED, "no temperature")
    whole, totals = one_node()
    unread = {"gpu": "no nvidia-smi", "xid": "dmesg: denied"}
    for told, outcome, words in (
        (hello("a", counted=[], unread=unread), NOT_CHECKED, "gpu: no nvidia-smi; xid: dmesg: denied"),
        (hello("a", gpus=0, counted=[]), NOT_APPLICABLE, "neither GPUs nor InfiniBand ports"),
        (
            hello("a", counted=["symbol_error"], unread={"gpu": "denied"}),
            NOT_CHECKED,
            "GPUs could not be read: denied",
        ),
    ):
        totals.hello = told
        reason(error_checks.counters(whole, "a", CONFIG), outcome, words)
    for told, outcome, words in (
        (hello("a", gpus=0), NOT_APPLICABLE, "no GPU in this step"),
        (hello("a", kernel=False), NOT_CHECKED, "cannot be read: no message"),
        (hello("a", kernel=False, unread=unread), NOT_CHECKED, "cannot be read: dmesg: denied"),
    ):
        totals.hello = told
        reason(error_checks.xid(whole, "a"), outcome, words)
    totals.hello, totals.unread["xid"] = hello("a"), "dmesg: gone"
    reason(error_checks.xid(whole, "a"), NOT_CHECKED, "cannot be read: dmesg: gone")
    bare = BurninResult({"a": NodeTotals("a", hello=hello("a"))}, 60, 4)
    reason(error_checks.counters(bare, "a", CONFIG), NOT_CHECKED, "no load was finished")
    reason(error_checks.xid(bare, "a"), NOT_CHECKED, "no load was finished")


def peaked(**fields: Any) -> BurninResult:
    whole = fleet(1)
    whole.nodes["a"].peaks[gpu_of("a", 1)] = Peaks(samples=10, **fields)
    return whole


def test_a_gpu_that_is_too_hot() -> None:
    strict = BurninConfig(max_temperature=80)
    hot = error_checks.temperature(peaked(celsius=80.5), "a", strict)
    assert (judged(hot), figures(hot.findings[0].measured)) == ((MONITOR, [GPU_1]), [80.5])
    assert error_checks.temperature(peaked(celsius=80), "a", strict).outcome is Outcome.PASSED
    for celsius, expected in ((91, (DRAIN, [GPU_1])), (90, (PASSED, []))):
        own = peaked(celsius=celsius)
        assert own.nodes["a"].hello
        own.nodes["a"].hello["gpus"][1]["slow_celsius"] = 90.0
        assert judged(error_checks.temperature(own, "a", CONFIG)) == expected
    unlimited = error_checks.temperature(peaked(celsius=200), "a", CONFIG)
    assert unlimited.outcome is Outcome.PASSED, "no limit is known"


def test_a_gpu_that_is_slowed_for_long() -> None:
    slowed = error_checks.temperature(peaked(celsius=70.0, slow={"hw_power_brake": 3}), "a", CONFIG)
    assert (judged(slowed), figures(slowed.findings[0].measured)) == ((DRAIN, [GPU_1]), [3, 10, 70])
    assert error_checks.temperature(peaked(slow={"hw_power_brake": 2}), "a", CONFIG).outcome is Outcome.PASSED


def test_what_the_sensors_showed_is_reported() -> None:
    verdict = error_checks.temperature(
        peaked(celsius=61.0, watts=690.0, sm_mhz=[1500.0, 1600.0, 1700.0]), "a", CONFIG
    )
    assert verdict.metrics == (
        Metric("burnin_celsius", 61.0, "C", GPU_1),
        Metric("burnin_watts", 690.0, "W", GPU_1),
        Metric("burnin_sm_mhz", 1600.0, "MHz", GPU_1),
    )


@pytest.mark.parametrize(
    ("seconds", "limit"), [(0.0, 8.0), (59.0, 8.0), (60.0, 8.0), (90.0, 12.0), (120.0, 16.0)]
)
def test_replays_are_counted_by_the_minute_and_at_least_for_one(seconds: float, limit: float) -> None:
    rose = {
        "b": {"x": 1, "pcie_replay": 3},
        "a": {"symbol_error": 1, "ecc_corrected_volatile": 2, "xid_79": 1},
    }
    assert list(error_checks.risen_counters(NodeTotals("a", rose=rose), seconds, with_constants(BurninConfig, {"max_corrected": 5}))) == [
        ("a", "ecc_corrected_volatile", 2, 5), ("a", "symbol_error", 1, 10 + 0.8 * seconds), ("b", "pcie_replay", 3, limit)
    ]  # fmt: skip


def test_counters_of_several_parts() -> None:
    first = load("a", "matmul", deltas={UUID: {"link_downed": 1, "symbol_error": 9}})
    second = load("a", "hbm", deltas={UUID: {"link_downed": 1}, "mlx5_0/1": {"gone": 1}})
    whole, totals = one_node(a=[first, second])
    verdict = error_checks.counters(whole, "a", CONFIG)
    assert [(it.name, it.value, it.device) for it in verdict.metrics] == [
        ("burnin_rose_link_downed", 2, GPU_1),
        ("burnin_rose_symbol_error", 9, GPU_1),
        ("burnin_rose_gone", 1, "mlx5_0/1"),
        ("burnin_counters_read", 1, ""),
    ]
    assert [(it.part, it.action) for it in verdict.findings] == [(GPU_1, Action.MONITOR), ("mlx5_0/1", None)]
    assert verdict.findings[0].measured.endswith("rose by 2 during matmul, hbm")
    totals.unread["gpu"] = "Failed"
    both = error_checks.counters(whole, "a", CONFIG)
    assert (both.findings[0].part, both.cause) == ("nvidia-smi", verdict.cause)
    totals.rose.clear()
    alone = error_checks.counters(whole, "a", CONFIG)
    assert (judged(alone), alone.cause != verdict.cause) == ((DRAIN, ["nvidia-smi"]), True)


def test_how_nvidia_smi_fails() -> None:
    def mute(later: str = "", first: str = "", **more: Any) -> str:
        unread = {"gpu": later} if later else {}
        return error_checks.smi_failure(
            NodeTotals("a", hello("a", unread={"gpu": first} if first else {}, **more), unread=unread)
        )

    assert mute() == mute(first="Failed") == mute("Failed", gpus=0) == ""
    assert mute("Failed") == "Failed"
    assert mute(first="no end after 60 s") == "no end after 60 s"
    assert mute("no answer for 9 s", gpus=0) == "no answer for 9 s"
    assert mute("Failed", "no end after 60 s") == "Failed"
    assert error_checks.smi_failure(NodeTotals("a")) == ""


def test_xids_are_counted_over_the_loads() -> None:
    first = load("a", "matmul", deltas={UUID: {"xid_79": 2, "xid_31": 1, "pcie_replay": 1}})
    second = load("a", "hbm", deltas={UUID: {"xid_79": 1}, "": {"sxid_7": 3}})
    whole, totals = one_node(a=[first, second])
    verdict = error_checks.xid(whole, "a")
    assert judged(verdict) == (REBOOT, [GPU_1])
    assert verdict.findings[0].measured.endswith("3 times during matmul, hbm")
    assert verdict.metrics == (
        Metric("burnin_sxid", 3, "", "node"),
        Metric("burnin_xid", 1, "", GPU_1),
        Metric("burnin_xid", 3, "", GPU_1),
    )
    assert [(it.part, figures(it.measured)) for it in verdict.advisories] == [("node", [7, 3])]
    totals.rose = {UUID: {"xid_31": 1}}
    assert error_checks.xid(whole, "a").outcome is Outcome.PASSED


def test_each_gpu_and_reason_is_reported() -> None:
    whole, totals = one_node()
    totals.peaks = {
        UUID: Peaks(10, 91.0, slow=Counter({"power": 3, "heat": 4, "x": 2})),
        gpu_of("a", 0): Peaks(10, 91.5, watts=5.0),
        "gone": Peaks(0, None, slow=Counter({"heat": 4})),
        "hidden": Peaks(1, None, slow=Counter({"heat": 1})),
    }
    verdict = error_checks.temperature(whole, "a", BurninConfig(max_temperature=90))
    assert [(it.part, it.measured) for it in verdict.findings] == [
        ("GPU 0 (GPU-a-0, 0000:00:00.0)", "91.5 C under load"),
        (GPU_1, "91 C under load"),
        (GPU_1, "heat in 4 of 10 samples, up to 91 C"),
        (GPU_1, "power in 3 of 10 samples, up to 91 C"),
        ("hidden", "heat in 1 of 1 samples, up to 0 C"),
    ]
    assert [(it.name, it.value) for it in verdict.metrics] == [
        ("burnin_celsius", 91.5), ("burnin_watts", 5.0), ("burnin_celsius", 91.0)
    ]  # fmt: skip
    idle = BurninResult({"a": NodeTotals("a", hello("a"))}, 60)
    assert error_checks.temperature(idle, "a", CONFIG).reason == "matmul was not run in the available time"


@pytest.mark.parametrize(
    ("counter", "most"),
    [("ecc_corrected_volatile", 100), ("pcie_replay", 480), ("nvlink_crc_errors", 360_000)],
)
def test_counters_are_judged_by_how_much_they_rose_in_an_hour(counter: str, most: int) -> None:
    assert judged(error_checks.counters(with_rose(counter, most), "a", CONFIG)) == (PASSED, [])
    assert judged(error_checks.counters(with_rose(counter, most + 1), "a", CONFIG))[1] == [GPU_1]
    assert error_checks.counters(with_rose("throttled_hw_power_us", 999), "a", CONFIG).findings == ()


NETIR = "NETIR_LINK_EVT_Fatal_(0x021005c6_0x00000000"


@pytest.mark.parametrize(
    ("counter", "action"),
    [
        ("xid_48", "reset gpu"),
        ("xid_79", REBOOT),
        ("xid_142", MONITOR),
        ("xid_54", DRAIN),
        ("xid_154:to_0x2_(Node_Reboot_Required)", REBOOT),
        (f"xid_149:{NETIR}", "reset gpu"),
        ("xid_149:Fatal", ""),
        ("xid_149:NETIR_BER_EVENT_Nonfatal_(0x00000226_0x00000001", ""),
        ("xid_74:fatal_(0x10000,_0x0,_0x0)", "reset gpu"),
        ("xid_74:fatal_(0x1,_0x0,_0x0)", ""),
        ("xid_94", ""),
        ("xid_94:RST:_Yes", "reset gpu"),
        ("xid_31", ""),
        ("xid_99999", ""),
        ("sxid_20034:Fatal", "reset gpu"),
        ("sxid_12028:Non-fatal", ""),
    ],
)
def test_xids_that_ask_for_a_repair_fail_the_gpu(counter: str, action: str) -> None:
    whole = with_rose(counter, 2)
    verdict = error_checks.xid(whole, "a")
    assert (result(verdict) if verdict.findings else "") == action
    assert len(verdict.findings) == bool(action)
    assert bool(removal.fatal(whole.nodes["a"])) is bool(action)
    assert [(it.name, it.value) for it in verdict.metrics] == [(f"burnin_{counter.partition('_')[0]}", 2)]


@pytest.mark.parametrize(
    ("counter", "said"),
    [
        ("xid_79", "Xid 79: GPU has fallen off the bus (restart the node)"),
        ("xid_145:RLW_RXPIPE_Nonfatal_(0x040000c2_0x00000008",
         "Xid 145: NVLink 5 error of the retry layer (RLW): RLW_RXPIPE; contact support if it recurs (nothing to do)"),
        ("xid_94:RST:_Yes", "Xid 94: contained memory error (reset the GPU)"),
        ("sxid_20034:Fatal", "SXid 20034: Fatal (reset the GPU)"), ("sxid_7", "SXid 7:  (no action known)"),
        ("xid_", "None"), ("axid_7", "None"), ("pcie_replay", "None"), ("xid_7x", "None"),
    ],
)  # fmt: skip
def test_what_a_counter_of_xids_counts(counter: str, said: str) -> None:
    assert str(error_checks.xid_of(counter)) == said


HOURS = 8 * 3600.0
PORT = "mlx5_0/1"
IBTA = "IBTA: bit error ratio 1e-12, 11,520 errors in 8 h at 400 Gb/s"
DCGM = "DcgmGPUHardwareLimits.h"


def sensed(
    *parts: str, node: str = "a", own: float | None = None, **peaks: Any
) -> Callable[[BurninResult], None]:
    """Return a change: what the sensors of GPUs showed, and their own slowdown temperature."""

    def change(whole: BurninResult) -> None:
        for part in parts:
            whole.nodes[node].peaks[part] = Peaks(samples=10, **peaks)
        for gpu in (whole.nodes[node].hello or {})["gpus"]:
            gpu["slow_celsius"] = own

    return change


ALL_A = [gpu_of("a", n) for n in range(4)]
COOL = [sensed(*(gpu_of(node, n) for n in range(4)), node=node, celsius=60.0) for node in "bc"]
COUNTER_EXAMPLES = [
    example(error_checks.counters, "400 symbol errors in 8 hours", IBTA, PASSED, risen(HOURS, PORT, symbol_error=400)),
    example(error_checks.counters, "9,000 NVLink CRC errors in 8 hours", f"{DCGM}: 100 per second", PASSED,
            risen(HOURS, nvlink_crc_errors=9000)),
    example(error_checks.counters, "40 PCIe replays in an hour", f"{DCGM}: 8 per minute", PASSED, risen(3600, pcie_replay=40)),
    example(error_checks.counters, "errors that another port sent", "ibqueryerrors: port_rcv_remote_physical_errors", PASSED,
            risen(HOURS, PORT, port_rcv_remote_physical_errors=500)),
    example(error_checks.counters, "the leaf switch was restarted once", "link_downed counts both ends", MONITOR,
            risen(HOURS, PORT, link_downed=1, symbol_error=60_000)),
    example(error_checks.counters, "rows remapped for corrected errors", "NVIDIA RMA policy: no criterion", PASSED,
            risen(HOURS, remapped_correctable=2)),
    example(error_checks.counters, "150 corrected ECC errors", "NVIDIA RMA policy: no criterion", MONITOR,
            risen(HOURS, ecc_corrected_volatile=150)),
    example(error_checks.counters, "60,000 symbol errors in 8 hours, the link stayed up", IBTA, DRAIN,
            risen(HOURS, PORT, symbol_error=60_000), sick=True),
    example(error_checks.counters, "an uncorrectable error under load", "DCGM_FR_VOLATILE_DBE_DETECTED", DRAIN,
            risen(HOURS, ecc_uncorrected_volatile=1), sick=True),
    example(error_checks.counters, "NVLink CRC errors of Hopper by their other name", f"{DCGM}: 100 per second", DRAIN,
            risen(600, nvlink_crc_flit_errors=100_000), sick=True),
    example(error_checks.xid, "an application that was killed", "Xid 45: preemptive cleanup", PASSED, risen(3600, xid_45=4)),
    example(error_checks.xid, "an illegal address of another program", "Xid 31 catalogue: restart the application", PASSED,
            risen(3600, xid_31=1)),
    example(error_checks.xid, "a row remapping that was recorded", "Xid 63 catalogue", PASSED, risen(3600, xid_63=1)),
    example(error_checks.xid, "a number that NVIDIA does not know", "Xid catalogue", WARNING, risen(3600, xid_9999=1)),
    example(error_checks.xid, "a GPU that fell off the bus", "Xid 79 catalogue: restart", REBOOT, risen(3600, xid_79=1), sick=True),
    example(error_checks.temperature, "L40S at 85 C, slows down at 95 C", "nvidia-smi -q: GPU Slowdown Temp", PASSED,
            sensed(UUID, own=95.0, celsius=85.0)),
    example(error_checks.temperature, "a site that wants 80 C, and a GPU at 84 C", "the limit of the site, not of the GPU", MONITOR,
            sensed(UUID, own=95.0, celsius=84.0), config=BurninConfig(max_temperature=80)),
    example(error_checks.temperature, "a hot room: the driver slows all GPUs", "nvml.h: SW thermal slowdown", MONITOR,
            *(sensed(*(gpu_of(node, n) for n in range(4)), node=node, celsius=86.0, slow=Counter(sw_thermal_slowdown=6))
              for node in "abc")),
    example(error_checks.temperature, "fast power trigger under matrix products", "nvml.h: HW slowdown without heat or brake", MONITOR,
            sensed(UUID, celsius=60.0, slow=Counter(hw_slowdown=5)), *COOL),
    example(error_checks.temperature, "the power brake in one of ten samples", "a supply that switches over", PASSED,
            sensed(UUID, celsius=60.0, slow=Counter(hw_power_brake=1))),
    example(error_checks.temperature, "one node whose driver slows its GPUs in a cool room", "a fan tray that failed", DRAIN,
            sensed(*ALL_A, celsius=86.0, slow=Counter(sw_thermal_slowdown=6)), *COOL, sick=True),
    example(error_checks.temperature, "above its own slowdown temperature", "nvidia-smi -q: GPU Slowdown Temp", DRAIN,
            sensed(UUID, own=90.0, celsius=93.0), sick=True),
    example(error_checks.temperature, "GB200 under an asserted power brake", "NVIDIA/NVSentinel#1666", DRAIN,
            sensed(UUID, celsius=50.0, slow=Counter(hw_slowdown=9, hw_power_brake=9)), *COOL, sick=True),
]  # fmt: skip


@pytest.mark.parametrize("machine", COUNTER_EXAMPLES, ids=name)
def test_machines_get_the_verdict_that_a_person_gives_them(machine: CounterExample) -> None:
    assert_as_expected(machine)
