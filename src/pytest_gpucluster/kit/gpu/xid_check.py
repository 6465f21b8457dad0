"""The check of the Xids and SXids in the kernel log. kit/gpu/xid.py has NVIDIA's action for each, with its source."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.known_lines import known
from pytest_gpucluster.kit.gpu import xid as xids
from pytest_gpucluster.kit.gpu.xid import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.known_lines import KnownLine
    from pytest_gpucluster.kit.gpu.nvidia_smi import Gpu, Gpus
    from pytest_gpucluster.kit.node.kernel_log import KernelLog, XidEvent

ACTIONS = {
    Advice.SUPPORT: Action.MONITOR,  # support must first say what it means: gpu.recovery_action and gpu.count judge the state
    Advice.RESET: Action.RESET_GPU,
    Advice.REBOOT: Action.REBOOT,
    Advice.INSPECT: Action.DRAIN,
}


@check(
    "gpu.xid",
    cause="the driver reported an error for which NVIDIA requires a reset, a reboot or a repair",
    hint="dmesg | grep -e Xid -e SXid; follow NVIDIA's Xid catalogue; return the GPU if the error recurs",
    action=Action.DRAIN,
    never_healthy="NVIDIA's Xid catalogue demands a reset, a reboot or an inspection for the Xid, and since then the driver was neither "
    "reloaded nor does it state that this GPU needs no recovery",
)
def xid(kernel_log: KernelLog, gpus: Gpus, known_lines: Sequence[KnownLine]) -> Judgement:
    """No Xid or SXid since boot requires a reset, a reboot or support. Those of applications are only counted."""
    if kernel_log.since is not None:
        yield Metric("kernel_log_since", kernel_log.since, "s after boot")
    if kernel_log.unsent_xids:
        yield NotAvailable(
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
        if line := known(known_lines, found.event.text):
            yield from _of_site(kernel_log, found, gpus.at(found.bus), line)
            continue
        entry = xids.lookup(found.number, found.text)
        excuse = _excuse(kernel_log, found) or _present_state(entry, gpus.device(found.bus))
        yield from _judged(kernel_log, found, gpus.at(found.bus), entry, excuse)
    for found in kernel_log.sxids:
        if line := known(known_lines, found.event.text):
            yield from _of_site(kernel_log, found, found.bus, line)
            continue
        entry = xids.lookup_sxid(found.number, found.text)
        yield from _judged(kernel_log, found, found.bus, entry, _excuse(kernel_log, found))


def _of_site(log: KernelLog, found: XidEvent, part: str, line: KnownLine) -> Iterator[Finding | Advisory]:
    """Yield what `known` of the cluster file requires for an event, which decides before NVIDIA's catalogue."""
    measured = f"{found.text[: xids.QUOTED_LENGTH]}: {line.words}{_when(log, found)}"
    if line.failure:
        yield Finding(part, measured, "no such line", line.failure)
    elif line.action == "warn":
        yield Advisory(part, measured, "no such line")


def _when(log: KernelLog, found: XidEvent) -> str:
    repeated = f", {found.event.count} times" if found.event.count > 1 else ""
    return f"{repeated}, last {log.when(found.event.last)}"


def _judged(
    log: KernelLog, found: XidEvent, part: str, entry: xids.Xid, excuse: str
) -> Iterator[Finding | Advisory]:
    measured = f"{entry}{_when(log, found)}"
    if entry.fails and not excuse:
        yield Finding(
            part, measured, "no Xid that requires a reset, a reboot or support", ACTIONS[entry.advice]
        )
    elif entry.fails or entry.warns:
        yield Advisory(part, f"{measured}{excuse}", "no Xid")


def _excuse(log: KernelLog, found: XidEvent) -> str:
    """Return why an Xid no longer applies to the GPU, '' if it applies."""
    if log.reloaded_after(found.event):
        return "; the driver was reloaded since"
    if _recovered(log, found):
        return "; the driver withdrew its request for recovery since (Xid 154)"
    return ""


def _present_state(entry: xids.Xid, gpu: Gpu | None) -> str:
    """Return what nvidia-smi shows of the GPU now that clears its Xid, '' if nothing does.

    gpu.c of the driver derives the recovery action from what is true now: the GPU is connected, and nothing has marked
    it for a reset. A GPU that has fallen off the bus answers no query (Xid 79).
    """
    if gpu is None or not entry.fails:
        return ""
    if entry.recovery and gpu.recovery_action == "None":
        return "; the driver requests no recovery of this GPU now (nvidia-smi -q: GPU Recovery Action)"
    if entry.number == OFF_THE_BUS and gpu.recovery_action is None and gpu.temperature is not None:
        return "; nvidia-smi reads this GPU again"
    return ""


OFF_THE_BUS = 79


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
