"""The checks of counters, Xids and sensors under the loads of a burn-in. Pure; each limit has its source."""

from __future__ import annotations

import re
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check, revised, with_cause
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.fault_rules import Allowance
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.part import named
from pytest_gpucluster.kit.gpu import xid as xids
from pytest_gpucluster.kit.gpu.xid_check import ACTIONS
from pytest_gpucluster.kit.node.port_errors import CAUSED_ELSEWHERE, USUAL, allowed, proves_fault
from pytest_gpucluster.suites.burnin.config import GPU_LOADS
from pytest_gpucluster.suites.burnin.load_checks import unmeasured
from pytest_gpucluster.suites.burnin.results import in_rounds, power

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.core.check import Judgement, Verdict
    from pytest_gpucluster.suites.burnin.config import BurninConfig
    from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals, Peaks

# accepted increase of a counter under load: DCGM fails on one uncorrectable error, remapped row or NVLink replay
# (DcgmGPUHardwareLimits.h); rows that are remapped for corrected errors are no fault (NVIDIA's RMA policy)
LIMITS = dict.fromkeys(
    (
        "gone", "ecc_uncorrected_volatile", "ecc_uncorrected_aggregate", "remapped_uncorrectable", "remapped_pending",
        "remapped_failure", "nvlink_replay_errors", "nvlink_recovery_errors", "nvlink_link_recovery_failed_events",
        "nvlink_malformed_packet_errors", "nvlink_buffer_overrun_errors", "nvlink_local_link_integrity_errors",
    ),
    0,
)  # fmt: skip
_CRC = Allowance(100, 1, "DCGM_LIMIT_MAX_NVLINK_CRC_ERROR")
RATES = {
    "pcie_replay": Allowance(8, 60, "DCGM_LIMIT_MAX_PCIREPLAY_RATE"),
    "nvlink_crc_errors": _CRC,
    "nvlink_crc_flit_errors": _CRC,
    "nvlink_crc_data_errors": _CRC,
}
USUAL_RATE = 50.0  # GB/s of a port whose rate cannot be read: NDR
SMI = named("software", "nvidia-smi")
# reasons of Sensors: the driver slows a GPU for heat; the hardware does, for a cause that has a reason of its own
SOFT_HEAT, HALVED = "sw_thermal_slowdown", "hw_slowdown"


def xid_of(counter: str) -> xids.Xid | None:
    """Return the Xid of a counter like xid_79, xid_149:Nonfatal or sxid_20034:Fatal, None for another counter."""
    match = re.fullmatch(r"(s?)xid_(\d+)(?::(.*))?", counter)
    if match is None:
        return None
    words = (match[3] or "").replace("_", " ")
    return (xids.lookup_sxid if match[1] else xids.lookup)(int(match[2]), words)


def risen_counters(totals: NodeTotals, seconds: float, config: BurninConfig) -> Iterator[tuple[str, str, int, float]]:
    """Yield (part, counter, increase, limit) of the counters that have a limit."""
    port_rates = (totals.hello or {}).get("port_rates", {})
    for part, rises in sorted(totals.rose.items()):
        for counter, count in sorted(rises.items()):
            limit = _limit(counter, seconds, config, port_rates.get(part, USUAL_RATE))
            if limit is not None:
                yield part, counter, count, limit


def _with_driver_cause(verdict: Verdict, *_facts: object) -> Verdict:
    """Return another cause if the only finding is an nvidia-smi that fails under load."""
    return with_cause(
        verdict,
        "no_answer",
        "the driver does not answer: a GPU hangs or fell off the bus, or its device files are gone",
        "nvidia-smi on the node; dmesg | grep -i -e xid -e nvrm; ps -eo pid,stat,wchan:30,args | grep nvidia; "
        "reset the GPU or reboot",
        action=verdict.action,
    )


@revised(_with_driver_cause)
@check(
    "burnin.counters",
    cause="errors that only show under load: failing memory, a link that replays, a port that loses symbols",
    hint="nvidia-smi -q -d ECC,ROW_REMAPPER; nvidia-smi nvlink -e; perfquery; reset, reseat, replace",
    action=Action.DRAIN,
    never_healthy="DCGM isolates a GPU for these errors under load, IBTA allows half as many bit errors at a port that stays up, or an "
    "nvidia-smi that worked before the load hangs since",
    repeated=in_rounds,
)
def counters(burnin: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """Counters of ECC, remapped rows, NVLink, PCIe replays and InfiniBand rise by at most their limit in each load."""
    totals = burnin.nodes[node_name]
    if totals.hello is None:
        raise totals.absent()
    counted = totals.hello.get("counted", ())
    at_first = totals.hello.get("unread", {})
    unread = at_first.get("gpu") or at_first.get("killed") or totals.unread.get("killed")
    if failure := smi_failure(totals):
        yield Finding(SMI, Quote(failure), "answers, also under load", code="no_answer")
    elif unread and counted and burnin.gpus:  # those of InfiniBand
        yield NotAvailable(f"the counters of the GPUs could not be read: {unread}")
    if not counted:
        why = "; ".join(f"{source}: {text}" for source, text in totals.hello.get("unread", {}).items())
        if totals.gpus or why:
            raise NotAvailable(f"no counter could be read: {why}")
        raise NotApplicable("the node has neither GPUs nor InfiniBand ports with counters")
    if not totals.ran:
        yield NotAvailable("no load was finished, so no counters can be compared")
    for part, counter, count, limit in risen_counters(totals, burnin.seconds, config):
        yield Metric(f"burnin_rose_{counter}", count, "", totals.part(part))
        if count > limit:
            loads = ", ".join(totals.rose_in.get(f"{part} {counter}", ()))
            what = "vanished from nvidia-smi" if counter == "gone" else f"{counter} rose by {count}"
            mild = not _proves_fault(counter, totals.rose[part])
            action = Action.MONITOR if mild else None
            rise, most = Quantity(count, "", f"{what} during {loads}"), f"by at most {limit:.0f}"
            yield Finding(totals.part(part), rise, Quantity(limit, "", most), action, code=counter.lower())
    yield Metric("burnin_counters_read", len(counted), "counters")


def smi_failure(totals: NodeTotals) -> str:
    """Return how nvidia-smi fails if it hangs, or if it showed the node's GPUs before the loads; else ''."""
    hello, later = totals.hello or {}, totals.unread
    why: str = later.get("hung") or hello.get("unread", {}).get("hung", "")
    return why or (later.get("gpu", "") if hello.get("gpus") else "")


def _limit(counter: str, seconds: float, config: BurninConfig, port_rate: float) -> float | None:
    """Return the accepted increase of a counter; None if another check judges it, or if it proves nothing."""
    if counter.startswith("ecc_corrected"):
        return config.max_corrected
    if counter in RATES:
        return RATES[counter].within(seconds)
    if counter in USUAL:
        return None if counter in CAUSED_ELSEWHERE else allowed(counter, port_rate, seconds)
    return LIMITS.get(counter)


def _proves_fault(counter: str, rises: Mapping[str, int]) -> bool:
    """Return whether a counter above its limit proves a fault: corrected errors and a link that went down do not."""
    return proves_fault(counter, rises) if counter in USUAL else not counter.startswith("ecc_corrected")


@check(
    "burnin.xid",
    cause="the driver reported an error of the GPU under load",
    hint="dmesg | grep -i xid; NVIDIA's Xid catalogue; reset the GPU or reboot; return the GPU if the error recurs",
    action=Action.DRAIN,
    never_healthy="NVIDIA's Xid catalogue demands a reset, a reboot or an inspection for the Xid, and it came while the loads ran",
    repeated=in_rounds,
)
def xid(burnin: BurninResult, node_name: str) -> Judgement:
    """The driver reports no Xid of the hardware while the loads run."""
    totals = burnin.nodes[node_name]
    if totals.hello is None:
        raise totals.absent()
    if not totals.gpus:
        raise NotApplicable("the node has no GPU in this step")
    if not totals.ran:
        yield NotAvailable("no load was finished, so no counters can be compared")
    if not totals.hello.get("kernel") or "xid" in totals.unread:
        why = totals.unread.get("xid") or totals.hello.get("unread", {}).get("xid", "no message")
        yield NotAvailable(f"the kernel log cannot be read: {why}")
    for part, rises in sorted(totals.rose.items()):
        for counter, count in sorted(rises.items()):
            entry = xid_of(counter)
            if entry is None:
                continue
            loads = ", ".join(totals.rose_in.get(f"{part} {counter}", ()))
            yield Metric(f"burnin_{entry.kind.lower()}", count, "", totals.part(part))
            measured = Quantity(count, "times", f"{entry} {count} times during {loads}")
            none, code = Quantity(0, "times", "none"), counter.partition(":")[0]
            if entry.fails:
                yield Finding(totals.part(part), measured, none, ACTIONS[entry.advice], code=code)
            elif entry.warns:
                yield Advisory(totals.part(part), measured, none, code=code)


@check(
    "burnin.temperature",
    cause="cooling: a fan, a heat sink, dust, the inlet, or a neighbour's exhaust",
    hint="nvidia-smi -q -d TEMPERATURE,PERFORMANCE under load; compare with the GPUs beside it",
    action=Action.DRAIN,
    never_healthy="under load the GPU exceeds its own slowdown temperature, its hardware slows it for long by heat or the power brake, or "
    "its driver does while half of the GPUs of this run or more stay cool",
    repeated=in_rounds,
)
def temperature(burnin: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """Under load every GPU stays below its temperature limit, and is not slowed for long by heat or the power brake."""
    totals = burnin.nodes[node_name]
    yield from unmeasured(totals, *GPU_LOADS)
    if any(totals.ran[load] for load in GPU_LOADS) and not totals.peaks:
        yield NotAvailable("nvidia-smi reported no temperature while the loads ran")
    for uuid, peaks in sorted(totals.peaks.items()):
        for name, value, unit in (
            ("celsius", peaks.celsius, "C"),
            ("sm_mhz", statistics.median(peaks.sm_mhz) if peaks.sm_mhz else None, "MHz"),
        ):
            if value is not None:
                yield Metric(f"burnin_{name}", value, unit, totals.part(uuid))
    yield from _record(totals)
    for found in heat_findings(totals, config):
        room = found.code == SOFT_HEAT and not _others_are_cool(burnin, config)
        yield replace(found, action=Action.MONITOR) if room else found


def _record(totals: NodeTotals) -> Iterator[Metric]:
    """Yield mean and 95th percentile of the power under the hot loads, and the seconds of each reason of throttling."""
    if not totals.used:
        return
    for uuid in sorted(totals.watts):
        mean, high = power(totals, uuid)
        yield Metric("burnin_watts_mean", round(mean, 1), "W", totals.part(uuid))
        yield Metric("burnin_watts_p95", high, "W", totals.part(uuid))
    for uuid, reasons in sorted(totals.slowed.items()):
        for reason, seconds in sorted(reasons.items()):
            yield Metric(f"burnin_slowed_{reason}", round(seconds, 1), "s", totals.part(uuid))


def _others_are_cool(burnin: BurninResult, config: BurninConfig) -> bool:
    """Return whether the driver slows at most half of the GPUs of this run for heat: else the room is too warm."""
    peaks = [one for totals in burnin.nodes.values() for one in totals.peaks.values()]
    return 2 * sum(_slowed(one, SOFT_HEAT, config) for one in peaks) <= len(peaks)


def _slowed(peaks: Peaks, reason: str, config: BurninConfig) -> bool:
    return bool(peaks.samples) and peaks.slow[reason] / peaks.samples > config.max_throttled


def heat_findings(totals: NodeTotals, config: BurninConfig) -> list[Finding]:
    """Return the findings on GPUs that are too hot, or slowed by heat or the power brake for too long."""
    found = []
    for uuid, peaks in sorted(totals.peaks.items()):
        gpu = totals.gpus.get(uuid)
        limit = gpu.slow_celsius if gpu else None
        if limit is not None and peaks.celsius is not None and peaks.celsius > limit:
            hot = Quantity(peaks.celsius, "C", f"{peaks.celsius:g} C under load")
            most = Quantity(limit, "C", f"at most {limit:g} C")
            found.append(Finding(totals.part(uuid), hot, most, code="too_hot"))
        for reason, count in sorted(peaks.slow.items()):
            if _slowed(peaks, reason, config):
                text = f"{reason} in {count} of {peaks.samples} samples, up to {peaks.celsius or 0:g} C"
                share = Quantity(count / peaks.samples, "of the samples", text)
                most = Quantity(
                    config.max_throttled, "of the samples", f"in at most {config.max_throttled:.0%} of them"
                )
                action = Action.MONITOR if reason == HALVED else None
                found.append(Finding(totals.part(uuid), share, most, action, code=reason))
    return found
