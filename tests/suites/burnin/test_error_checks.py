"""Each finding of the checks of counters, Xids and sensors."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from burnin_helpers import CONFIG, GPU_1, UUID, fleet, gpu_of, healthy, hello, load, one_node, reason, risen, sick
from constants import with_constants
from counter_examples import DRAIN, MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED, REBOOT, WARNING
from judged import figures, judged
from suite_helpers import considered

from pytest_gpucluster.core.check import Metric
from pytest_gpucluster.report.machine.convert import measured_part
from pytest_gpucluster.suites.burnin import error_checks, stragglers
from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.error_checks import counters, temperature, xid
from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals, Peaks

if TYPE_CHECKING:
    from collections.abc import Callable


def with_rose(counter: str, count: int) -> BurninResult:
    return fleet(1, a=[load("a", "matmul", deltas={UUID: {counter: count}})])


LIMITED = (
    *("gone", "ecc_uncorrected_volatile", "ecc_uncorrected_aggregate", "nvlink_link_recovery_failed_events"),
    *(f"remapped_{what}" for what in ("uncorrectable", "pending", "failure")),
    *(f"nvlink_{what}_errors" for what in ("replay", "recovery", "malformed_packet", "buffer_overrun")),
    "nvlink_local_link_integrity_errors",
)


def test_a_counter_may_rise_by_its_limit_and_no_further() -> None:
    for counter in LIMITED:
        verdict = counters(with_rose(counter, 1), "a", CONFIG)
        assert (judged(verdict), "driver" in verdict.cause) == ((DRAIN, [GPU_1]), False)
        assert verdict.findings[0].code == counter
        assert str(verdict.findings[0].measured).endswith("during matmul")
        if counter != "gone":
            assert judged(counters(with_rose(counter, 0), "a", CONFIG)) == (PASSED, [])
    crc = dict.fromkeys((f"nvlink_crc{kind}_errors" for kind in ("", "_flit", "_data")), 360_000)
    for counter, most in {"ecc_corrected_volatile": 100, "pcie_replay": 480, **crc}.items():  # in an hour
        assert judged(counters(with_rose(counter, most), "a", CONFIG)) == (PASSED, [])
        assert judged(counters(with_rose(counter, most + 1), "a", CONFIG))[1] == [GPU_1]
    assert counters(with_rose("throttled_hw_power_us", 999), "a", CONFIG).findings == ()


@pytest.mark.parametrize(("seconds", "limit"), [(0.0, 8.0), (60.0, 8.0), (90.0, 12.0)])
def test_replays_count_by_minute_and_symbol_errors_by_the_ports_rate(seconds: float, limit: float) -> None:
    totals = NodeTotals("a", hello=hello("a", port_rates={"hdr/1": 25.0}))
    totals.rose = {
        "hdr/1": {"symbol_error": 1, "ecc_corrected_volatile": 2, "xid_79": 1},
        "b": {"x": 1, "pcie_replay": 3, "symbol_error": 1, "link_downed": 1},
    }
    config = with_constants(BurninConfig, {"max_corrected": 5})
    assert list(error_checks.risen_counters(totals, seconds, config)) == [
        ("b", "link_downed", 1, 0),
        ("b", "pcie_replay", 3, limit),
        ("b", "symbol_error", 1, 10 + 0.8 * seconds),  # twice 1e-12 of 400 Gb/s
        ("hdr/1", "ecc_corrected_volatile", 2, 5),
        ("hdr/1", "symbol_error", 1, 10 + 0.4 * seconds),
    ]


def test_why_nothing_was_judged() -> None:
    silent = BurninResult({"a": NodeTotals("a")}, 60)
    for judge in (counters, temperature):
        reason(judge(silent, "a", CONFIG), NOT_CHECKED, "its agent sent nothing")
    reason(xid(silent, "a"), NOT_CHECKED, "its agent sent nothing")
    reason(temperature(fleet(1), "a", CONFIG), NOT_CHECKED, "no temperature")
    whole, totals = one_node()
    unread, denied = {"gpu": "no nvidia-smi", "xid": "dmesg: denied"}, {"gpu": "denied"}
    for totals.hello, outcome, words in (
        (hello("a", counted=[], unread=unread), NOT_CHECKED, "gpu: no nvidia-smi; xid: dmesg: denied"),
        (hello("a", gpus=0, counted=[]), NOT_APPLICABLE, "neither GPUs nor InfiniBand ports"),
        (hello("a", counted=["symbol_error"], unread=denied), NOT_CHECKED, "GPUs could not be read: denied"),
    ):
        reason(counters(whole, "a", CONFIG), outcome, words)
    for totals.hello, outcome, words in (
        (hello("a", gpus=0), NOT_APPLICABLE, "no GPU in this step"),
        (hello("a", kernel=False), NOT_CHECKED, "cannot be read: no message"),
        (hello("a", kernel=False, unread=unread), NOT_CHECKED, "cannot be read: dmesg: denied"),
    ):
        reason(xid(whole, "a"), outcome, words)
    totals.hello, totals.unread["xid"] = hello("a"), "dmesg: gone"
    reason(xid(whole, "a"), NOT_CHECKED, "cannot be read: dmesg: gone")
    bare = BurninResult({"a": NodeTotals("a", hello=hello("a"))}, 60, 4)
    reason(counters(bare, "a", CONFIG), NOT_CHECKED, "no load was finished")
    reason(xid(bare, "a"), NOT_CHECKED, "no load was finished")


def peaked(own: float | None = None, uuid: str = UUID, **fields: Any) -> BurninResult:
    whole = fleet(1)
    sensed(uuid, own=own, **fields)(whole)
    return whole


def test_a_gpu_that_is_too_hot_or_slowed_for_long() -> None:
    for whole, expected in (
        (peaked(own=90.0, celsius=91), (DRAIN, [GPU_1])),
        (peaked(own=90.0, celsius=90), (PASSED, [])),
        (peaked(celsius=200), (PASSED, [])),  # no limit is known
        (peaked(uuid="GPU-x", celsius=200), (PASSED, [])),  # no GPU of the hello
        (peaked(celsius=70.0, slow={"hw_power_brake": 3}), (DRAIN, [GPU_1])),
        (peaked(slow={"hw_power_brake": 2}), (PASSED, [])),
    ):
        assert judged(temperature(whole, "a", CONFIG)) == expected
    verdict = temperature(peaked(celsius=61.0, sm_mhz=[1500.0, 1600.0, 1700.0]), "a", CONFIG)
    assert verdict.metrics == (
        Metric("burnin_celsius", 61.0, "C", measured_part(GPU_1)),
        Metric("burnin_sm_mhz", 1600.0, "MHz", measured_part(GPU_1)),
    )


def power_of(gpu: str, watts: int) -> dict[str, Any]:
    return {gpu: {"samples": 20, "watts": {str(watts): 19, "100": 1}, "slowed": {"sw_power_cap": 8.0}}}


def test_power_is_recorded_of_hot_loads_and_compared_over_the_fleet() -> None:
    whole = fleet(4)
    for node, totals in whole.nodes.items():
        for gpu in range(4):
            watts = 400 if (node, gpu) == ("b", 2) else 690 + gpu
            totals.add(load(node, "matmul", sensors=power_of(gpu_of(node, gpu), watts)))
            totals.add(load(node, "hbm", sensors=power_of(gpu_of(node, gpu), 200)))
    slow = {name: stragglers.stragglers(whole, name, CONFIG).findings for name in whole.nodes}
    (finding,) = slow.pop("b")
    assert (str(finding.part), figures(finding.measured)) == ("GPU 2 (GPU-b-2, 0000:20:00.0)", [400, 42])
    assert not any(slow.values())
    found = temperature(whole, "a", CONFIG).metrics
    metrics = {it.name: it.value for it in found if it.part == whole.nodes["a"].part(gpu_of("a", 0))}
    assert (metrics["burnin_watts_mean"], metrics["burnin_watts_p95"]) == (660.5, 690)
    assert metrics["burnin_slowed_sw_power_cap"] == 8.0, "not those of hbm"


HANGS, ABSENT = "nvidia-smi: no end after 60 s", "FileNotFoundError: nvidia-smi"
KILLED = "killed by signal 9"


def unread_of(text: str) -> dict[str, str]:
    """What the payload reports for an nvidia-smi that ended so."""
    sources = {HANGS: "hung", "nvidia-smi: no answer for 9 s": "hung", KILLED: "killed"}
    return {sources.get(text, "gpu"): text} if text else {}


def test_counters_of_gpus_that_cannot_be_read_are_no_pass() -> None:
    for at_first, later, gpus, expected in (
        ("", "", 4, PASSED),
        ("Failed", "", 4, PASSED),
        ("", HANGS, 4, DRAIN),
        ("", "nvidia-smi: no answer for 9 s", 0, DRAIN),
        ("", KILLED, 4, NOT_CHECKED),
        (KILLED, "", 4, NOT_CHECKED),
        ("", "Failed to initialize NVML: Unknown Error", 4, DRAIN),  # it had answered before the loads
        ("", "Failed to initialize NVML: Unknown Error", 0, PASSED),
        (HANGS, "", 4, DRAIN),
        (ABSENT, ABSENT, 0, NOT_CHECKED),  # the counters of InfiniBand are read all the same
    ):
        whole, totals = one_node(a=[load("a", "matmul", unread=unread_of(later))])
        totals.hello = hello("a", gpus=gpus, unread=unread_of(at_first))
        unread = NOT_CHECKED if at_first == "Failed" else expected
        assert judged(counters(whole, "a", CONFIG))[0] == unread
        whole.gpus = 0  # nodes without GPUs, which need no nvidia-smi
        assert judged(counters(whole, "a", CONFIG))[0] == (PASSED if expected == NOT_CHECKED else expected)


def test_an_nvidia_smi_that_answers_again_is_no_driver_that_hangs() -> None:
    late = load("a", "matmul", unread={"hung": HANGS, "gpu": "no", "killed": KILLED, "xid": "dmesg: no"})
    whole, totals = one_node(a=[late, load("a", "hbm", unread={})])
    assert (judged(counters(whole, "a", CONFIG)), totals.unread) == ((PASSED, []), {"xid": "dmesg: no"})
    totals.add(late)
    totals.add({"load": "", "results": []})  # says nothing about it
    assert "hung" in totals.unread


@pytest.mark.parametrize(
    ("counter", "expected"),
    [
        ("xid_48", "reset gpu"),
        ("xid_142", MONITOR),
        ("xid_54", DRAIN),
        ("xid_154:to_0x2_(Node_Reboot_Required)", REBOOT),
        ("xid_74:fatal_(0x10000,_0x0,_0x0)", "reset gpu"),
        ("xid_74:fatal_(0x1,_0x0,_0x0)", ""),
        ("sxid_20034:Fatal", "reset gpu"),
        ("sxid_12028:Non-fatal", ""),
    ],
)
def test_xids_that_ask_for_a_repair_fail_the_gpu(counter: str, expected: str) -> None:
    whole = with_rose(counter, 2)
    verdict = xid(whole, "a")
    assert (judged(verdict)[0] if verdict.findings else "") == expected
    assert len(verdict.findings) == bool(expected)
    assert [(it.name, it.value) for it in verdict.metrics] == [(f"burnin_{counter.partition('_')[0]}", 2)]


HOURS = 8 * 3600.0
PORT = "mlx5_0/1"
IBTA = "IBTA: bit error ratio 1e-12, 11,520 errors in 8 h at 400 Gb/s"
RMA, CATALOGUE = "NVIDIA RMA policy: no criterion", "Xid catalogue"


def sensed(*parts: str, node: str = "a", own: float | None = None, **peaks: Any) -> Callable[[BurninResult], None]:
    """Return a change: what the sensors of GPUs showed, and their own slowdown temperature."""

    def change(whole: BurninResult) -> None:
        for part in parts:
            whole.nodes[node].peaks[part] = Peaks(samples=10, **{**peaks, "slow": Counter(peaks.get("slow", {}))})
        for gpu in (whole.nodes[node].hello or {})["gpus"]:
            gpu["slow_celsius"] = own

    return change


def all_of(node: str, celsius: float, **slow: int) -> Callable[[BurninResult], None]:
    return sensed(*(gpu_of(node, n) for n in range(4)), node=node, celsius=celsius, slow=slow)


COOL = [all_of(node, 60.0) for node in "bc"]
HOT_ROOM = [all_of(node, 86.0, sw_thermal_slowdown=6) for node in "abc"]
TRIGGER = sensed(UUID, celsius=60.0, slow={"hw_slowdown": 5})
BRAKE = sensed(UUID, celsius=50.0, slow={"hw_slowdown": 9, "hw_power_brake": 9})
HOT = sensed(UUID, own=95.0, celsius=94.0)
REMOTE = risen(HOURS, PORT, port_rcv_remote_physical_errors=500)
LEAF = risen(HOURS, PORT, link_downed=1, symbol_error=60_000)
SYMBOLS = risen(HOURS, PORT, symbol_error=60_000)
COUNTER_EXAMPLES = [
    healthy(counters, "400 symbol errors in 8 hours", IBTA, PASSED, risen(HOURS, PORT, symbol_error=400)),
    healthy(counters, "errors that another port sent", "ibqueryerrors", PASSED, REMOTE),
    healthy(counters, "the leaf switch was restarted", "link_downed counts both ends", MONITOR, LEAF),
    healthy(counters, "150 corrected ECC errors", RMA, MONITOR, risen(HOURS, ecc_corrected_volatile=150)),
    sick(counters, "60,000 symbol errors, the link stayed up", IBTA, DRAIN, SYMBOLS),
    healthy(xid, "an application that was killed", CATALOGUE, PASSED, risen(3600, xid_45=4)),
    healthy(xid, "an illegal address of another program", CATALOGUE, PASSED, risen(3600, xid_31=1)),
    healthy(xid, "a row remapping that was recorded", CATALOGUE, PASSED, risen(3600, xid_63=1)),
    healthy(xid, "a number that NVIDIA does not know", CATALOGUE, WARNING, risen(3600, xid_9999=1)),
    sick(xid, "a GPU that fell off the bus", CATALOGUE, REBOOT, risen(3600, xid_79=1)),
    healthy(temperature, "just below its slowdown temperature", "no limit of the GPU", PASSED, HOT),
    healthy(temperature, "a hot room: the driver slows all GPUs", "nvml.h: SW thermal", MONITOR, *HOT_ROOM),
    healthy(temperature, "fast power trigger", "nvml.h: HW slowdown without heat", MONITOR, TRIGGER, *COOL),
    sick(temperature, "slowed in a cool room", "a fan tray failed", DRAIN, HOT_ROOM[0], *COOL),
    sick(temperature, "GB200 under an asserted power brake", "NVIDIA/NVSentinel#1666", DRAIN, BRAKE, *COOL),
]
test_machines_get_the_verdict_that_a_person_gives_them = considered(COUNTER_EXAMPLES)
