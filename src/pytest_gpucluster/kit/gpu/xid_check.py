"""The check of the Xids and SXids in the kernel log, and of GPUs that the driver gave up. kit/gpu/xid.py has NVIDIA's action for each, with its source."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.finding import Quote
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.core.known_lines import known
from pytest_gpucluster.core.part import GPUS, Part
from pytest_gpucluster.kit.gpu import xid as xids
from pytest_gpucluster.kit.gpu.xid import Advice
from pytest_gpucluster.kit.node.log_classes import GPU

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.known_lines import KnownLine
    from pytest_gpucluster.kit.gpu.nvidia_smi import Gpu, Gpus
    from pytest_gpucluster.kit.node.kernel_log import Event, KernelLog, XidEvent

ACTIONS = {
    Advice.SUPPORT: Action.MONITOR,  # support must first say what it means: gpu.recovery_action and gpu.count judge the state
    Advice.RESET: Action.RESET_GPU,
    Advice.REBOOT: Action.REBOOT,
    Advice.INSPECT: Action.DRAIN,
}


@check(
    "gpu.xid",
    cause="the driver reported an error for which NVIDIA requires a reset, a reboot or a repair, or gave a GPU up",
    hint="dmesg | grep -e Xid -e SXid; follow NVIDIA's Xid catalogue; return the GPU if the error recurs",
    action=Action.DRAIN,
    never_healthy="NVIDIA's Xid catalogue demands a reset, a reboot or an inspection for the Xid, and since then the driver was neither "
    "reloaded nor does it state that this GPU needs no recovery; or the driver gave a GPU up, and nvidia-smi lists others but not it",
)
def xid(kernel_log: KernelLog, gpus: Gpus, known_lines: Sequence[KnownLine]) -> Judgement:
    """Since boot no Xid or SXid requires a reset, a reboot or support, and the driver gave up no GPU. Xids of applications are only counted."""
    if kernel_log.since is not None:
        yield Metric("kernel_log_since", kernel_log.since, "s after boot")
    if kernel_log.unsent_xids:
        why = "more than 200 different ones in the kernel log"
        yield NotAvailable(f"{kernel_log.unsent_xids} Xids were not read: {why}")
    counts: Counter[tuple[str, Part]] = Counter()
    for found in kernel_log.xids:
        counts[f"xid_{found.number}", gpus.at(found.bus)] += found.event.count
    for found in kernel_log.sxids:
        counts[f"sxid_{found.number}", Part(name=found.bus)] += found.event.count
    for (name, part), count in counts.items():
        yield Metric(name, count, "events", part)
    given_up = [it for it in kernel_log.of(GPU) if not known(known_lines, it.text)]
    for found in kernel_log.xids:
        if line := known(known_lines, found.event.text):
            yield from _of_site(kernel_log, found, gpus.at(found.bus), line)
            continue
        entry = xids.lookup(found.number, found.text)
        excuse = _excuse(kernel_log, found) or _present_state(entry, gpus.device(found.bus))
        # printed within a minute of the Xid, and about the same GPU or none
        here = ("", found.bus.partition(".")[0])
        around = [it for it in given_up if entry.fails and it.near(found.event) and _slot(it) in here]
        given_up = [it for it in given_up if it not in around]
        yield from _judged(kernel_log, found, gpus.at(found.bus), entry, excuse, around)
    yield from _given_up(kernel_log, given_up, gpus)
    for found in kernel_log.sxids:
        switch = Part("nvswitch", name=found.bus)
        if line := known(known_lines, found.event.text):
            yield from _of_site(kernel_log, found, switch, line)
            continue
        entry = xids.lookup_sxid(found.number, found.text)
        yield from _judged(kernel_log, found, switch, entry, _excuse(kernel_log, found))


def _of_site(log: KernelLog, found: XidEvent, part: Part, line: KnownLine) -> Iterator[Finding | Advisory]:
    """Yield what `known` of the cluster file requires for an event, which decides before NVIDIA's catalogue."""
    measured = Quote(f"{found.text[: xids.QUOTED_LENGTH]}: {line.words}{_when(log, found)}")
    if line.failure:
        yield Finding(part, measured, "no such line", line.failure, code=f"xid_{found.number}")
    elif line.action == "warn":
        yield Advisory(part, measured, "no such line", code=f"xid_{found.number}")


def _when(log: KernelLog, found: XidEvent) -> str:
    repeated = f", {found.event.count} times" if found.event.count > 1 else ""
    return f"{repeated}, last {log.when(found.event.last)}"


def _judged(
    log: KernelLog, found: XidEvent, part: Part, entry: xids.Xid, excuse: str, around: Sequence[Event] = ()
) -> Iterator[Finding | Advisory]:
    lines = "".join(f"; with {it.text[: xids.QUOTED_LENGTH]!r}" for it in around[:_WITH])
    measured = Quote(f"{entry}{_when(log, found)}{lines}{excuse}")
    if entry.fails and not excuse:
        wanted = "no Xid that requires a reset, a reboot or support"
        yield Finding(part, measured, wanted, ACTIONS[entry.advice], code=f"xid_{entry.number}")
    elif entry.fails or entry.warns:
        yield Advisory(part, measured, "no Xid", code=f"xid_{entry.number}")


def _excuse(log: KernelLog, found: XidEvent) -> str:
    """Return why an Xid no longer applies to the GPU, '' if it applies."""
    if log.reloaded_after(found.event):
        return "; the driver was reloaded since"
    later = (it for it in log.xids if it.bus == found.bus and it.event.line > found.event.line)
    changes = (it for it in later if it.number == xids.RECOVERY_CHANGED)
    if any(xids.lookup(it.number, it.text).advice is Advice.IGNORE for it in changes):
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


_NONE_GIVEN_UP = "no GPU that the driver gave up"
_WITH = 3  # lines around an Xid that a finding quotes


def _slot(event: Event) -> str:
    return event.part if ":" in event.part else ""


def _given_up(log: KernelLog, events: Sequence[Event], gpus: Gpus) -> Iterator[Finding | Advisory]:
    """Judge the lines by which the driver gave a GPU up: the present state clears it, or shows that the GPU is gone."""
    by_gpu = grouped((_slot(event), event) for event in events)
    nameless = by_gpu.pop("", [])
    if nameless and not by_gpu:
        by_gpu[""] = nameless
    elif nameless:  # as "The NVIDIA probe routine failed", beside lines that name the GPU
        by_gpu[next(iter(by_gpu))] += nameless
    for slot, lines in by_gpu.items():
        shown = "; ".join(dict.fromkeys(it.text[: xids.QUOTED_LENGTH] for it in lines[: _WITH + 1]))
        last = max(lines, key=lambda it: it.line)
        measured = f"{shown} (last {log.when(last.last)})"
        part = gpus.at(slot) if slot else GPUS
        clears = _works(gpus, slot)
        if all(log.reloaded_after(it) for it in lines):
            clears = "the driver was reloaded since"
        if clears:
            yield Advisory(part, Quote(f"{measured}; {clears}"), _NONE_GIVEN_UP, code="given_up")
        else:
            gone = bool(slot and gpus.devices and not gpus.device(slot))
            words = "; nvidia-smi does not list this GPU now" if gone else ""
            action, found = Action.REBOOT if gone else Action.MONITOR, Quote(f"{measured}{words}")
            yield Finding(part, found, _NONE_GIVEN_UP, action, code="gone" if gone else "given_up")


def _works(gpus: Gpus, slot: str) -> str:
    """Return what nvidia-smi shows of a GPU now that clears it, of all GPUs without a slot; '' if nothing does."""
    found = [gpus.device(slot)] if slot else list(gpus)
    works = [it and not it.lost and it.recovery_action in (None, "None") for it in found]
    return f"nvidia-smi reads {'this GPU' if slot else 'the GPUs'} now" if works and all(works) else ""
