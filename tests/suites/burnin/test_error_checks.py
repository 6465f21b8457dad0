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
    failed,
    fleet,
    gpu_of,
    hello,
    judged,
    load,
    one_node,
    reason,
    risen,
)
from constants import with_constants
from counter_examples import (
    DRAIN,
    MONITOR,
    PASSED,
    REBOOT,
    WARNING,
    CounterExample,
    assert_as_expected,
    name,
)

from pytest_gpucluster.core.check import Action, Finding, Metric, Outcome
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.suites.burnin import error_checks, removal
from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals, Peaks

if TYPE_CHECKING:
    from collections.abc import Callable


def with_rose(counter: str, count: int, load_: str = "matmul", part: str = "") -> BurninResult:
    part = part or gpu_of("a", 1)
    return fleet(1, a=[load("a", load_, deltas={part: {counter: count}})])


@pytest.mark.parametrize(
    ("counter", "limit"),
    [(counter, limit) for counter, limit in error_checks.LIMITS.items() if counter != "gone"],
)
def test_a_counter_may_rise_by_its_limit_and_no_further(counter: str, limit: int) -> None:
    assert error_checks.counters(with_rose(counter, limit), "a", CONFIG).outcome is Outcome.PASSED
    found = Finding(GPU_1, f"{counter} rose by {limit + 1} during matmul", f"by at most {limit}")
    judged(error_checks.counters(with_rose(counter, limit + 1), "a", CONFIG), found, action=Action.DRAIN)


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


def test_a_gpu_that_vanished() -> None:
    found = Finding(GPU_1, "vanished from nvidia-smi during hbm", "by at most 0")
    judged(error_checks.counters(with_rose("gone", 1, "hbm"), "a", CONFIG), found, action=Action.DRAIN)


def test_why_counters_were_not_judged() -> None:
    silent = BurninResult({"a": NodeTotals("a")}, 60)
    reason(
        error_checks.counters(silent, "a", CONFIG),
        NotAvailable("the node never took part: its agent sent nothing"),
    )
    whole = fleet(1)
    whole.nodes["a"].hello = hello("a", counted=[], unread={"gpu": "no nvidia-smi", "xid": "dmesg: denied"})
    reason(error_checks.counters(whole, "a", CONFIG),
           NotAvailable("no counter could be read: gpu: no nvidia-smi; xid: dmesg: denied"))  # fmt: skip
    whole.nodes["a"].hello = hello("a", gpus=0, counted=[])
    words = "the node has neither GPUs nor InfiniBand ports with counters"
    reason(error_checks.counters(whole, "a", CONFIG), NotApplicable(words))
    whole.nodes["a"].hello = hello("a", counted=["symbol_error"], unread={"gpu": "no permission"})
    words = "the counters of the GPUs could not be read: no permission"
    reason(error_checks.counters(whole, "a", CONFIG), NotAvailable(words))
    bare = BurninResult({"a": NodeTotals("a", hello=hello("a"))}, 60, 4)
    words = "no load was finished, so no counters can be compared"
    reason(error_checks.counters(bare, "a", CONFIG), NotAvailable(words))
    reason(error_checks.xid(bare, "a"), NotAvailable(words))


def test_why_xids_were_not_judged() -> None:
    reason(
        error_checks.xid(BurninResult({"a": NodeTotals("a")}, 60), "a"),
        NotAvailable("the node never took part: its agent sent nothing"),
    )
    without = BurninResult({"a": NodeTotals("a", hello=hello("a", gpus=0))}, 60)
    reason(error_checks.xid(without, "a"), NotApplicable("the node has no GPU in this step"))
    whole = fleet(1)
    whole.nodes["a"].hello = hello("a", kernel=False)
    reason(error_checks.xid(whole, "a"), NotAvailable("the kernel log cannot be read: no message"))
    whole.nodes["a"].hello = hello("a", kernel=False, unread={"xid": "dmesg: denied"})
    reason(error_checks.xid(whole, "a"), NotAvailable("the kernel log cannot be read: dmesg: denied"))
    whole.nodes["a"].hello = hello("a")
    whole.nodes["a"].unread["xid"] = "dmesg: gone"
    reason(error_checks.xid(whole, "a"), NotAvailable("the kernel log cannot be read: dmesg: gone"))


def peaked(**fields: Any) -> BurninResult:
    whole = fleet(1)
    whole.nodes["a"].peaks[gpu_of("a", 1)] = Peaks(samples=10, **fields)
    return whole


def test_a_gpu_that_is_too_hot() -> None:
    strict = BurninConfig(max_temperature=80)
    judged(error_checks.temperature(peaked(celsius=80.5), "a", strict), Finding(GPU_1, "80.5 C under load", "at most 80 C", Action.MONITOR),
           action=Action.MONITOR)  # fmt: skip
    assert error_checks.temperature(peaked(celsius=80), "a", strict).outcome is Outcome.PASSED
    own = peaked(celsius=91)
    said = own.nodes["a"].hello
    assert said is not None
    said["gpus"][1]["slow_celsius"] = 90.0
    judged(
        error_checks.temperature(own, "a", CONFIG),
        Finding(GPU_1, "91 C under load", "at most 90 C"),
        action=Action.DRAIN,
    )
    assert error_checks.temperature(peaked(celsius=200), "a", CONFIG).outcome is Outcome.PASSED, (
        "no limit is known"
    )


def test_a_gpu_that_is_slowed_for_long() -> None:
    slowed = peaked(celsius=70.0, slow={"hw_power_brake": 3})
    found = Finding(GPU_1, "hw_power_brake in 3 of 10 samples, up to 70 C", "in at most 20% of them")
    judged(error_checks.temperature(slowed, "a", CONFIG), found, action=Action.DRAIN)
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


def test_why_temperatures_were_not_judged() -> None:
    reason(
        error_checks.temperature(fleet(1), "a", CONFIG),
        NotAvailable("nvidia-smi reported no temperature while the loads ran"),
    )
    silent = BurninResult({"a": NodeTotals("a")}, 60)
    reason(
        error_checks.temperature(silent, "a", CONFIG),
        NotAvailable("the node never took part: its agent sent nothing"),
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
    whole, totals = one_node(a=[load("a", "matmul", deltas={UUID: {"link_downed": 1, "symbol_error": 9}}),
                         load("a", "hbm", deltas={UUID: {"link_downed": 1}, "mlx5_0/1": {"gone": 1}})])  # fmt: skip
    verdict = error_checks.counters(whole, "a", CONFIG)
    assert verdict.metrics == (
        Metric("burnin_rose_link_downed", 2, "", GPU_1), Metric("burnin_rose_symbol_error", 9, "", GPU_1),
        Metric("burnin_rose_gone", 1, "", "mlx5_0/1"), Metric("burnin_counters_read", 1, "counters"),
    )  # fmt: skip
    assert verdict.findings == (
        Finding(GPU_1, "link_downed rose by 2 during matmul, hbm", "by at most 0", Action.MONITOR),
        Finding("mlx5_0/1", "vanished from nvidia-smi during hbm", "by at most 0"),
    )
    totals.unread["gpu"] = "Failed"
    both = error_checks.counters(whole, "a", CONFIG)
    assert both.findings[0] == Finding("nvidia-smi", "Failed", "answers, also under load")
    assert both.cause == verdict.cause
    assert verdict.cause == (
        "errors that only show under load: failing memory, a link that replays, a port that loses symbols"
    )
    totals.rose.clear()
    alone = error_checks.counters(whole, "a", CONFIG)
    assert (alone.cause, alone.hint, alone.action) == (
        "the driver does not answer: a GPU hangs or fell off the bus, or its device files are gone",
        (
            "nvidia-smi on the node; dmesg | grep -i -e xid -e nvrm; ps -eo pid,stat,wchan:30,args | grep nvidia; "
            "reset the GPU or reboot"
        ),
        Action.DRAIN,
    )


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


def test_xids_in_words() -> None:
    whole, totals = one_node(a=[load("a", "matmul", deltas={UUID: {"xid_79": 2, "xid_31": 1, "pcie_replay": 1}}),
                         load("a", "hbm", deltas={UUID: {"xid_79": 1}, "": {"sxid_7": 3}})])  # fmt: skip
    verdict = error_checks.xid(whole, "a")
    assert verdict.findings == (
        Finding(
            GPU_1, "Xid 79: GPU has fallen off the bus (restart the node) 3 times during matmul, hbm", "none",
            Action.REBOOT,
        ),
    )  # fmt: skip
    assert verdict.metrics == (
        Metric("burnin_sxid", 3, "", "node"), Metric("burnin_xid", 1, "", GPU_1), Metric("burnin_xid", 3, "", GPU_1)
    )  # fmt: skip
    assert [(it.part, it.measured) for it in verdict.advisories] == [
        ("node", "SXid 7:  (no action known) 3 times during hbm")
    ]
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
    ("counter", "count", "bad"),
    [
        ("ecc_uncorrected_volatile", 1, True),
        ("ecc_corrected_volatile", 100, False),
        ("ecc_corrected_volatile", 101, True),
        ("pcie_replay", 480, False),  # an hour
        ("pcie_replay", 481, True),
        ("nvlink_replay_errors", 1, True),
        ("nvlink_crc_errors", 360_000, False),
        ("nvlink_crc_errors", 360_001, True),
        ("remapped_pending", 1, True),
        ("gone", 1, True),
        ("link_downed", 1, True),
        ("throttled_hw_power_us", 999, False),
    ],
)
def test_counters_are_judged_by_how_much_they_rose(counter: str, count: int, bad: bool) -> None:
    whole = fleet(1, a=[load("a", "hbm", deltas={gpu_of("a", 2): {counter: count}})])
    found = failed(error_checks.counters(whole, "a", CONFIG))
    assert bool(found) is bad
    assert all(text.startswith("GPU 2 ") and text.endswith("during hbm") for text in found)


def test_no_counter_that_could_be_read_is_never_a_pass() -> None:
    whole = fleet(1)
    whole.nodes["a"].hello = hello("a", counted=[], unread={"gpu": "exit 9"})
    assert error_checks.counters(whole, "a", CONFIG).reason == "no counter could be read: gpu: exit 9"
    whole.nodes["a"].hello = hello("a", kernel=False, unread={"xid": "dmesg: Operation not permitted"})
    assert "Operation not permitted" in error_checks.xid(whole, "a").reason


@pytest.mark.parametrize(
    ("counter", "says", "action"),
    [
        ("xid_48", "Xid 48: double-bit ECC error (reset the GPU)", Action.RESET_GPU),
        ("xid_79", "Xid 79: GPU has fallen off the bus (restart the node)", Action.REBOOT),
        ("xid_142", "Xid 142: video encoder error (contact support)", Action.MONITOR),
        ("xid_54", "Xid 54: auxiliary power is not connected (inspect the node)", Action.DRAIN),
        (
            "xid_154:to_0x2_(Node_Reboot_Required)",
            "Xid 154: the recovery action of the GPU changed to Node Reboot Required (restart the node)",
            Action.REBOOT,
        ),
        (
            "xid_149:NETIR_LINK_EVT_Fatal_(0x021005c6_0x00000000",
            "Xid 149: NVLink 5 error of the network port (NETIR): NETIR_LINK_EVT; the peer at the other end of the "
            "link caused it: examine that GPU or switch (reset the GPU)",
            Action.RESET_GPU,
        ),
        ("xid_149:Fatal", "", Action.MONITOR),
        ("xid_149:NETIR_BER_EVENT_Nonfatal_(0x00000226_0x00000001", "", Action.MONITOR),
        ("xid_74:fatal_(0x10000,_0x0,_0x0)", "Xid 74: NVLink error (reset the GPU)", Action.RESET_GPU),
        ("xid_74:fatal_(0x1,_0x0,_0x0)", "", Action.MONITOR),
        ("xid_94", "", Action.MONITOR),
        ("xid_94:RST:_Yes", "Xid 94: contained memory error (reset the GPU)", Action.RESET_GPU),
        ("xid_31", "", Action.MONITOR),
        ("xid_99999", "", Action.MONITOR),
        ("sxid_20034:Fatal", "SXid 20034: Fatal (reset the GPU)", Action.RESET_GPU),
        ("sxid_12028:Non-fatal", "", Action.MONITOR),
    ],
)
def test_xids_that_ask_for_a_repair_fail_the_gpu(counter: str, says: str, action: Action) -> None:
    whole = fleet(1, a=[load("a", "matmul", deltas={gpu_of("a", 1): {counter: 2}})])
    verdict = error_checks.xid(whole, "a")
    assert [found.measured for found in verdict.findings] == (
        [f"{says} 2 times during matmul"] if says else []
    )
    assert [found.expected for found in verdict.findings] == (["none"] if says else [])
    assert not says or verdict.action is action
    assert bool(removal.fatal(whole.nodes["a"])) is bool(says)
    assert [(metric.name, metric.value) for metric in verdict.metrics] == [
        ("burnin_sxid" if counter[0] == "s" else "burnin_xid", 2)
    ]


def test_an_xid_that_nobody_knows_warns() -> None:
    whole = fleet(1, a=[load("a", "matmul", deltas={gpu_of("a", 1): {"xid_99999": 2}})])
    (warning,) = error_checks.xid(whole, "a").advisories
    assert (warning.measured, warning.expected) == (
        "Xid 99999: not in the table of this release (no action known) 2 times during matmul",
        "none",
    )


def test_heat_is_judged_by_limit_and_by_what_it_slows() -> None:
    seen = {"samples": 10, "celsius": 91.0, "slow": {"sw_thermal_slowdown": 0.5}}
    whole = fleet(1, a=[load("a", "matmul", sensors={gpu_of("a", 0): seen})])
    assert failed(error_checks.temperature(whole, "a", CONFIG)) == [
        "GPU 0 (GPU-a-0, 0000:00:00.0): sw_thermal_slowdown in 5 of 10 samples, up to 91 C"
    ]
    limit = with_constants(BurninConfig, {"max_throttled": 0.5}, max_temperature=90)
    assert failed(error_checks.temperature(whole, "a", limit)) == [
        "GPU 0 (GPU-a-0, 0000:00:00.0): 91 C under load"
    ]


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


def test_each_counter_has_its_limit() -> None:
    assert set(error_checks.LIMITS) == {
        "gone", "ecc_uncorrected_volatile", "ecc_uncorrected_aggregate", "remapped_uncorrectable", "remapped_pending",
        "remapped_failure", "nvlink_replay_errors", "nvlink_recovery_errors", "nvlink_link_recovery_failed_events",
        "nvlink_malformed_packet_errors", "nvlink_buffer_overrun_errors", "nvlink_local_link_integrity_errors",
    }  # fmt: skip
    assert set(error_checks.LIMITS.values()) == {0}
    config = with_constants(BurninConfig, {"max_corrected": 7})
    names = ("ecc_corrected_volatile", "pcie_replay", "xid_79", "port_xmit_discards", "remapped_correctable")
    assert [error_checks._limit(name, 150.0, config, 50.0) for name in names] == [7, 20, None, None, None]


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
