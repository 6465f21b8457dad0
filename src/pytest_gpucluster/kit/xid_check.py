"""The check of the Xids and SXids in the kernel log. kit/xid.py has NVIDIA's action for each, with its source."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, NotChecked, check
from pytest_gpucluster.core.units import format_duration
from pytest_gpucluster.kit import xid as xids
from pytest_gpucluster.kit.xid import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.gpu_config import GpuConfig
    from pytest_gpucluster.kit.kernel_log import KernelLog, XidEvent
    from pytest_gpucluster.kit.nvidia_smi import Gpus

ACTIONS = {
    Advice.RESET: Action.RESET_GPU,
    Advice.REBOOT: Action.REBOOT,
    Advice.SUPPORT: Action.DRAIN,
}


@check(
    "gpu.xid",
    cause="the driver reported an error for which NVIDIA requires a reset, a reboot or a repair",
    hint="dmesg | grep -e Xid -e SXid; follow NVIDIA's Xid catalogue; return the GPU if the error recurs",
    action=Action.DRAIN,
    never_healthy="NVIDIA's Xid catalogue demands a reset, a reboot or support for the Xid, and since then the driver was neither "
    "reloaded nor did it withdraw its request",
)
def xid(kernel_log: KernelLog, gpus: Gpus, gpu_config: GpuConfig) -> Judgement:
    """No Xid or SXid since boot requires a reset, a reboot or support. Those of applications are only counted."""
    if kernel_log.since is not None:
        yield Metric("kernel_log_since", kernel_log.since, "s after boot")
    if kernel_log.unsent_xids:
        yield NotChecked(
            f"{kernel_log.unsent_xids} Xids were not read: more than 200 different ones in the kernel log"
        )
    counts: Counter[tuple[str, str]] = Counter()
    for found in kernel_log.xids:
        counts[f"xid_{found.number}", gpus.at(found.bus)] += found.event.count
    for found in kernel_log.sxids:
        counts[f"sxid_{found.number}", found.bus] += found.event.count
    for (name, part), count in counts.items():
        yield Metric(name, count, "events", part)
    for found in kernel_log.xids:
        entry = xids.lookup(found.number, found.text)
        yield from _judged(kernel_log, found, gpus.at(found.bus), entry, gpu_config)
    for found in kernel_log.sxids:
        yield from _judged(
            kernel_log, found, found.bus, xids.lookup_sxid(found.number, found.text), gpu_config
        )


def _judged(
    log: KernelLog, found: XidEvent, part: str, entry: xids.Xid, config: GpuConfig
) -> Iterator[Finding | Advisory]:
    repeated = f", {found.event.count} times" if found.event.count > 1 else ""
    measured = f"{entry}{repeated}, last {log.when(found.event.last)}"
    excuse = _excuse(log, found, config)
    if entry.fails and not excuse:
        yield Finding(
            part, measured, "no Xid that requires a reset, a reboot or support", ACTIONS[entry.advice]
        )
    elif entry.fails or entry.warns:
        yield Advisory(part, f"{measured}{excuse}", "no Xid")


def _excuse(log: KernelLog, found: XidEvent, config: GpuConfig) -> str:
    """Return why an Xid no longer applies to the GPU, '' if it applies."""
    if found.number in config.xid_ignore:
        return "; the cluster file ignores it (gpu.xid_ignore)"
    if log.reloaded_after(found.event):
        return "; the driver was reloaded since"
    if _recovered(log, found):
        return "; the driver withdrew its request for recovery since (Xid 154)"
    limit, now, last = config.xid_max_age, log.now, found.event.last
    if limit is not None and now is not None and last is not None and now - last > limit:
        return f"; older than gpu.xid_max_age ({format_duration(limit)})"
    return ""


def _recovered(log: KernelLog, found: XidEvent) -> bool:
    """Return whether a later Xid 154 reports that this GPU needs no recovery, as after a reset."""
    return any(
        later.number == xids.RECOVERY_CHANGED
        and later.bus == found.bus
        and later.event.line > found.event.line
        and xids.lookup(later.number, later.text).advice is Advice.IGNORE
        for later in log.xids
    )


_AROUND = 60.0  # seconds; the driver prints the messages around an Xid within this time


def explains(log: KernelLog, line: int, last: float | None) -> bool:
    """Return whether a message of the driver belongs to an Xid that gpu.xid reports: before it or soon after it."""
    return any(
        xids.lookup(found.number, found.text).fails
        and (
            line <= found.event.line
            or (last is not None and found.event.last is not None and last <= found.event.last + _AROUND)
        )
        for found in log.xids
    )
