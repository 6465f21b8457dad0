"""Checks of the GPUs of a node. Only the present state counts; sources stand at the limits."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import (
    Action,
    Advisory,
    Finding,
    Metric,
    NotApplicable,
    NotChecked,
    check,
    with_cause,
)
from pytest_gpucluster.core.majority import Norm, norm, owners
from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.kit.gpu_processes import unexpected_processes
from pytest_gpucluster.kit.nvidia_csv import NOT_REPORTED, is_unsupported
from pytest_gpucluster.kit.nvidia_smi import (
    HANG,
    REQUIRES_RESET,
    ROWS,
    Gpu,
    Gpus,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pytest_gpucluster.config.models import GpuProfile
    from pytest_gpucluster.core.check import Judgement, Verdict
    from pytest_gpucluster.kit.fabric_manager import FabricManager
    from pytest_gpucluster.kit.nvidia_smi import GpuProcess, LinkErrors, RowRemapping, Topology

P = ParamSpec("P")

MEMORY_TOLERANCE = 0.01  # memory.total differs a little between drivers; one lost stack is 12% or more
SPEED_TOLERANCE = 0.01  # nvidia-smi rounds GB/s
POWER_TOLERANCE = 1.0  # watts; nvidia-smi prints hundredths, the board holds milliwatts

# Bits of clocks_event_reasons.active (nvml.h, nvmlClocksEventReasons).
FINE_REASONS = {
    0x1: "idle",
    0x2: "applications clocks setting",
    0x4: "software power cap",
    0x10: "sync boost",
    0x100: "display clock setting",
}
HALVED = 0x8
SLOW_REASONS = {
    HALVED: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}

# Counters of `nvidia-smi nvlink -e` and from what value on they fail. DCGM (DcgmGPUHardwareLimits.h and
# DcgmHealthWatch.cpp; DcgmUtilities.cpp for the bit error rate): one replay, recovery error or failed recovery fails;
# CRC errors matter from a hundred on, below that the link repairs them by itself. NVLink 5 has other counters.
NVLINK_LIMITS: dict[str, float] = {
    "replay errors": 1,
    "recovery errors": 1,
    "crc errors": 100,
    "crc flit errors": 100,
    "crc data errors": 100,
    "malformed packet errors": 1,
    "buffer overrun errors": 1,
    "local link integrity errors": 1,
    "link recovery failed events": 1,
    # DCGM warns of the first one. Of 5,760 links of GB200 one was not at 0, at 505, and failed five days later
    # (marin-community/marin, issues 8934 and 9086).
    "link recovery successful events": 100,
}
NVLINK_BER = 1e-12
_RATE = "effective ber"
# What these count was sent again, or is the fault of the other end: DCGM warns of a successful recovery, and judges the
# others by how fast they rise, which a single reading does not show.
NVLINK_WARNINGS = (
    "rx errors",
    "rx remote errors",
    "rx general errors",
    "tx discards",
    "link recovery successful events",
    "total link recovery events",
    "effective errors",
    "symbol errors",
    "symbol ber",
)

# Its memory is a NUMA node of the operating system, its adapters are on its CPU's own PCIe ports: GH200, GB200, GB300.
_GRACE = re.compile(r"\bG[HB]\d{3}\b")

# Cards that also draw: NVIDIA delivers them with ECC off (nvidia-smi(1), "ECC Mode").
_GRAPHICS = re.compile(r"\b(GeForce|RTX|Quadro|TITAN)\b")

_AT_GPU = re.compile(
    r"\bat gpu ([0-9a-f:.]+)", re.IGNORECASE
)  # WARNING: infoROM is corrupted at gpu 0008:00:00.0

# The table of retired pages holds 64; DCGM fails at 63 (DcgmGPUHardwareLimits.h, DCGM_LIMIT_MAX_RETIRED_PAGES).
RETIRED_PAGES = 63

# What the words of gpu_recovery_action ask for (nvml.h, nvmlDeviceGpuRecoveryAction_t); any other: a reset.
RECOVERY = {"Reboot": Action.REBOOT, "Drain P2P": Action.DRAIN, "Drain and Reset": Action.RESET_GPU}


# --- what the fleet agrees on ------------------------------------------------------------------------------------

ByModel = dict[str, Norm[str]]


def uuid_owners(facts: Mapping[str, Gpus]) -> dict[str, tuple[str, ...]]:
    """Return {UUID: nodes}, a node as often as it lists the UUID."""
    return owners({node: [gpu.uuid for gpu in gpus if gpu.uuid] for node, gpus in facts.items()})


def serial_owners(facts: Mapping[str, Gpus]) -> dict[str, tuple[str, ...]]:
    """Return {serial number: nodes}, each node once: the GPUs of one board share its number."""
    return owners({node: {gpu.serial for gpu in gpus if gpu.serial} for node, gpus in facts.items()})


def _by_model(facts: Mapping[str, Gpus], read: Callable[[Gpu], str | None], *, once: bool) -> ByModel:
    """Count a value over the fleet, apart for each model of GPU; `once` a node instead of once a GPU."""
    votes: dict[str, list[tuple[str, str]]] = {}
    for node, gpus in facts.items():
        pairs = [(gpu.name, value) for gpu in gpus if gpu.name and (value := read(gpu))]
        for model, value in dict.fromkeys(pairs) if once else pairs:
            votes.setdefault(model, []).append((node, value))
    voters = "nodes with this model" if once else "GPUs of this model"
    return {model: norm(pairs, voters) for model, pairs in votes.items()}


def driver_majority(facts: Mapping[str, Gpus]) -> ByModel:
    """Return {GPU model: majority of driver versions}, one vote a node."""
    return _by_model(facts, lambda gpu: gpu.driver, once=True)


def vbios_majority(facts: Mapping[str, Gpus]) -> ByModel:
    """Return {GPU model: majority of VBIOS versions}, one vote a GPU."""
    return _by_model(facts, lambda gpu: gpu.vbios, once=False)


def clock_majority(facts: Mapping[str, Gpus]) -> ByModel:
    """Return {GPU model: majority of the highest clocks}, one vote a GPU."""
    return _by_model(facts, _highest_clocks, once=False)


def _highest_clocks(gpu: Gpu) -> str | None:
    if gpu.clock_sm_max is None or gpu.clock_memory_max is None:
        return None
    return f"SM {gpu.clock_sm_max:g} MHz, memory {gpu.clock_memory_max:g} MHz"


# --- helpers -----------------------------------------------------------------------------------------------------


def _of_gpus(
    judge: Callable[Concatenate[Gpus, P], Judgement],
) -> Callable[Concatenate[Gpus, P], Judgement]:
    """Leave to gpu.count and gpu.driver a node without GPUs, and a GPU that is lost: nothing of it can be judged."""

    @functools.wraps(judge)
    def judged(gpus: Gpus, /, *args: P.args, **kwargs: P.kwargs) -> Judgement:
        lost = [gpu for gpu in gpus if gpu.lost]
        for gpu in lost:
            yield NotChecked(f"{gpu} is lost (see gpu.count): {gpu.lost}")
        if len(lost) < len(gpus):
            present = replace(gpus, devices=tuple(gpu for gpu in gpus if not gpu.lost)) if lost else gpus
            yield from judge(present, *args, **kwargs)
        elif lost:
            return
        elif gpus.driver_problem:
            yield NotChecked(f"nvidia-smi does not work (see gpu.driver): {gpus.driver_problem}")
        else:
            yield NotChecked(f"nvidia-smi lists no GPU (see gpu.count): {_said(gpus)}")

    return judged


def _said(gpus: Gpus) -> str:
    said = "; ".join(gpus.messages)[:200] or ("" if gpus.failed else "no message")
    return f"{said} ({gpus.failed})".strip() if gpus.failed else said


def _unread(
    gpus: Gpus, gpu: Gpu, attribute: str, expected: str, *, stated: bool, monitor: bool = False
) -> Finding | NotChecked | NotApplicable:
    """Say why a value is not there.

    A GPU that lacks what its siblings of the same model report, differs. Where none reports it, the model, the guest or
    the driver has no such value: not checked where the profile states it. Any other text is an error of the driver in
    reading the GPU, which a reset clears; `monitor`: a wrong value would not drain either.
    """
    text = gpu.unread.get(attribute, "no value")
    if text == NOT_REPORTED:
        return NotChecked(f"{attribute}: {NOT_REPORTED} ({gpu.driver or 'version unknown'})")
    if _not_for_us(text):
        return NotChecked(f"{attribute} of {gpu}: nvidia-smi shows it to root alone: {text}")
    if not is_unsupported(text):
        return Finding(str(gpu), text, expected, Action.MONITOR if monitor else Action.RESET_GPU)
    if any(one.name == gpu.name and getattr(one, attribute) is not None for one in gpus):
        return Finding(str(gpu), text, f"{expected}; other GPUs of the node report it", Action.MONITOR)
    why = f"{attribute} of {gpu}: {text}, as of all its kind on this node"
    return NotChecked(why) if stated else NotApplicable(why)


def _states(profile: GpuProfile, key: str) -> bool:
    """Whether the profile itself states a value, and not just its default."""
    return key in profile.model_fields_set


def _not_for_us(text: str) -> bool:
    """Return True for NVML's words (nvmlErrorString) where the user may not see a value: no fault of the GPU."""
    return "insufficient permissions" in text.lower()


def _equal(
    gpus: Gpus, attribute: str, expected: Any, shown: Callable[[Any], str] = str, **how: bool
) -> Judgement:
    for gpu in gpus:
        value = getattr(gpu, attribute)
        if value is None:
            yield _unread(gpus, gpu, attribute, shown(expected), **{"stated": True, **how})
        elif value != expected:
            yield Finding(str(gpu), shown(value), shown(expected))


def _switch(
    gpus: Gpus, attribute: str, profile: GpuProfile, *, what: str, monitor: bool = False
) -> Judgement:
    """Judge an Enabled or Disabled; a GPU without the feature has it disabled."""
    on = getattr(profile, attribute)
    if on is None:
        yield NotApplicable(f"the profile does not say whether {what} is to be on")
        return
    shown = {True: "Enabled", False: "Disabled"}
    for gpu in gpus:
        value = getattr(gpu, attribute)
        if value is None and not on and gpu.lacks(attribute):
            continue
        if value is None:
            stated = _states(profile, attribute)
            yield _unread(gpus, gpu, attribute, shown[on], stated=stated, monitor=monitor)
        elif value != on:
            yield Finding(str(gpu), shown[value], shown[on])


def _drift(gpus: Gpus, attribute: str, fleet: ByModel, *, stated: str | None) -> Judgement:
    """Judge a version: by what the profile states ('535.*' is a prefix), else by the fleet's majority."""
    for gpu in gpus:
        value = getattr(gpu, attribute)
        if value is None:
            expected = stated or "a version"
            yield _unread(gpus, gpu, attribute, expected, stated=stated is not None, monitor=True)
        elif stated is None:
            for found in fleet.get(gpu.name or "", Norm[str]()).judge(str(gpu), value):
                yield replace(found, action=Action.MONITOR)
        elif not _fits(value, stated):
            yield Finding(str(gpu), value, stated)


def _fits(value: str, stated: str) -> bool:
    if stated.endswith("*"):
        return value.lower().startswith(stated[:-1].lower())
    return value.lower() == stated.lower()


# --- there, and the right ones -----------------------------------------------------------------------------------


@check(
    "gpu.count",
    cause="a GPU fell off the bus, or was not found at boot",
    hint="dmesg | grep -i -e xid -e nvrm; lspci -d 10de:; power the node off and on; reseat the GPU",
)
def _count(gpus: Gpus, profile: GpuProfile) -> Judgement:
    """nvidia-smi lists as many GPUs as the profile has."""
    if gpus.driver_problem:
        yield NotChecked(f"nvidia-smi does not work (see gpu.driver): {gpus.driver_problem}")
        return
    lost = [gpu for gpu in gpus if gpu.lost]
    yield Metric("gpu_count", len(gpus) - len(lost), "GPUs")
    for gpu in lost:
        # without its bus id only what nvidia-smi said beside the table tells which it is
        said = "" if gpu.bus or not gpus.messages else f"; nvidia-smi: {_said(gpus)}"
        yield Finding(str(gpu), f"{gpu.lost}{said}", "answers")
    if len(gpus) != profile.count or (gpus.failed and not lost):
        said = f", nvidia-smi: {_said(gpus)}" if gpus.messages or gpus.failed else ""
        yield Finding("GPUs", f"{len(gpus)}{said}", str(profile.count))


def count(gpus: Gpus, profile: GpuProfile) -> Verdict:
    """Judge the number of GPUs; one of which the driver says that a reset is due is there, and needs just that.

    A node that has more than was said lacks none: it is the saying that is wrong.
    """
    verdict = _count(gpus, profile)
    if len(gpus) > profile.count and not gpus.failed and not any(gpu.lost for gpu in gpus):
        return replace(
            verdict,
            cause="the node has more GPUs than its profile says: the cluster file names another model",
            hint="nvidia-smi -L; gpucluster profiles show; correct the profile of the node, or `gpu: {count: N}`",
            action=Action.MONITOR,
        )
    return with_cause(
        verdict,
        REQUIRES_RESET,
        "a GPU met an error that its driver clears by a reset alone",
        "dmesg | grep Xid; end what uses the GPU; nvidia-smi -r -i INDEX (with NVSwitch: of all GPUs), or reboot",
        action=Action.RESET_GPU,
    )


@check("gpu.names", cause="a GPU of another model", hint="nvidia-smi -L; is this the right profile?")
@_of_gpus
def names(gpus: Gpus, profile: GpuProfile) -> Judgement:
    """Every GPU has the profile's name."""
    return _equal(gpus, "name", profile.name)


@check(
    "gpu.memory",
    cause="memory of the GPU is disabled, or another model",
    hint="nvidia-smi -q -d MEMORY,ECC,ROW_REMAPPER; reset the GPU; return it if that does not help",
    action=Action.VENDOR,
)
@_of_gpus
def memory(gpus: Gpus, profile: GpuProfile) -> Judgement:
    """memory.total is that of the profile, within 1%."""
    if profile.memory is None:
        yield NotApplicable("the profile states no GPU memory")
        return
    for gpu in gpus:
        expected = f"{format_size(profile.memory)} (within 1%)"
        if gpu.memory is None:
            yield _unread(gpus, gpu, "memory", expected, stated=True)
            continue
        yield Metric("gpu_memory", gpu.memory / 2**20, "MiB", str(gpu))
        if abs(gpu.memory - profile.memory) > MEMORY_TOLERANCE * profile.memory:
            yield Finding(str(gpu), format_size(gpu.memory), expected)


@check(
    "gpu.driver",
    cause="the driver is not loaded, does not answer, or is of another version",
    hint="cat /proc/driver/nvidia/version; modprobe nvidia; dkms status; install the fleet's driver and reboot",
)
def driver(gpus: Gpus, profile: GpuProfile, fleet: ByModel) -> Judgement:
    """nvidia-smi works, and the driver is the one stated, else that of the fleet's majority."""
    if gpus.driver_problem:
        yield Finding("driver", gpus.driver_problem, "nvidia-smi answers")
        return
    if not gpus.devices:
        yield NotChecked(f"nvidia-smi lists no GPU (see gpu.count): {_said(gpus)}")
        return
    if gpus.cut_off:
        slow = f"nvidia-smi had not told all after {HANG} s: cut off at its query {gpus.cut_off!r}"
        unloaded = any(gpu.persistence is False for gpu in gpus)
        why = "persistence mode is off, so each start loads the driver anew (see gpu.persistence)"
        yield NotChecked(f"{slow}; {why}") if unloaded else Finding("driver", slow, "nvidia-smi answers")
    first = gpus.devices[0]
    if profile.driver is None and fleet.get(first.name or "", Norm[str]()).total < 2:
        yield NotApplicable("the profile states no driver, and there is no other node to compare with")
    for found in _drift(Gpus((first,)), "driver", fleet, stated=profile.driver):
        yield replace(found, part="driver") if isinstance(found, Finding) else found


@check("gpu.cuda", cause="the driver is older than the software needs", hint="install a newer driver")
@_of_gpus
def cuda(gpus: Gpus, profile: GpuProfile) -> Judgement:
    """The driver's CUDA version is at least the profile's."""
    if profile.cuda is None:
        yield NotApplicable("the profile states no CUDA version")
    elif gpus.cuda is None:
        yield NotChecked("nvidia-smi shows no CUDA version in its header")
    elif _version(gpus.cuda) < _version(profile.cuda):
        yield Finding("driver", f"CUDA {gpus.cuda}", f"CUDA {profile.cuda} or later")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


@check(
    "gpu.vbios",
    cause="a replaced GPU with other firmware, or a flash that did not reach every GPU",
    hint="nvidia-smi --query-gpu=index,vbios_version --format=csv; flash the fleet's VBIOS",
    action=Action.MONITOR,
)
@_of_gpus
def vbios(gpus: Gpus, profile: GpuProfile, fleet: ByModel) -> Judgement:
    """The VBIOS is the one stated, else that of most GPUs of the same model in the fleet."""
    return _drift(gpus, "vbios", fleet, stated=profile.vbios)


@check(
    "gpu.uuids",
    cause="two nodes show the same GPU: a cloned machine, or one GPU passed through twice",
    hint="nvidia-smi -L on both nodes",
)
@_of_gpus
def uuids(gpus: Gpus, owned: Mapping[str, Sequence[str]], node: str) -> Judgement:
    """No other GPU of the fleet has the UUID of this one."""
    for gpu in gpus:
        if gpu.uuid is None:
            yield _unread(gpus, gpu, "uuid", "a UUID", stated=True)
            continue
        others = list(owned.get(gpu.uuid, (node,)))
        others.remove(node)
        if others:
            yield Finding(str(gpu), f"the same UUID on {hostlist.fold(others)}", "a UUID of its own")


@check(
    "gpu.serials",
    cause="the InfoROM of a GPU is damaged, or two nodes show the same board",
    hint="nvidia-smi --query-gpu=index,serial --format=csv on both nodes",
    action=Action.MONITOR,
)
@_of_gpus
def serials(gpus: Gpus, owned: Mapping[str, Sequence[str]], node: str) -> Judgement:
    """Serial numbers are readable where the model has them, and no other node has the same."""
    if all(gpu.lacks("serial") for gpu in gpus):
        yield NotApplicable("GPUs of this model report no serial number")
        return
    for gpu in gpus:
        if gpu.serial is None:
            yield _unread(gpus, gpu, "serial", "a serial number", stated=False, monitor=True)
            continue
        others = [owner for owner in owned.get(gpu.serial, ()) if owner != node]
        if others:
            yield Finding(
                str(gpu), f"serial {gpu.serial}, also on {hostlist.fold(others)}", "a serial of its own"
            )


@check(
    "gpu.inforom",
    cause="the InfoROM of a GPU is corrupted",
    hint="nvidia-smi -q | grep -A4 Inforom; return the GPU",
    action=Action.VENDOR,
)
@_of_gpus
def inforom(gpus: Gpus) -> Judgement:
    """nvidia-smi warns of no corrupted InfoROM."""
    for message in gpus.messages:
        if "inforom" in message.lower():
            at = _AT_GPU.search(message)
            yield Finding(gpus.at(at[1]) if at else "GPUs", message, "no warning of nvidia-smi")


@check(
    "gpu.device_files",
    cause="udev or nvidia-modprobe has not made the device files",
    hint="ls -l /dev/nvidia*; nvidia-modprobe -u -c=0; modprobe nvidia_uvm",
)
def device_files(files: frozenset[str], gpus: Gpus, profile: GpuProfile) -> Judgement:
    """/dev has a file for each GPU, nvidiactl and nvidia-uvm."""
    if gpus.devices and "nvidiactl" not in files:  # without that file nvidia-smi could not have answered
        yield NotChecked("nvidia-smi works, yet /dev shows no nvidiactl: this is not the /dev that it uses")
        return
    numbered = sum(name.removeprefix("nvidia").isdecimal() for name in files)
    if numbered < profile.count:
        yield Finding("/dev/nvidia[0-9]*", f"{numbered} files", f"{profile.count}")
    for name in ("nvidiactl", "nvidia-uvm"):
        if name not in files:
            yield Finding(f"/dev/{name}", "absent", "present")


# --- modes -------------------------------------------------------------------------------------------------------


@check(
    "gpu.persistence",
    cause="persistence mode is off: the driver unloads between jobs, which costs seconds and loses settings",
    hint="systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1",
    action=Action.MONITOR,
)
@_of_gpus
def persistence(gpus: Gpus, profile: GpuProfile) -> Judgement:
    """Persistence mode is as the profile says."""
    return _switch(gpus, "persistence", profile, what="persistence mode", monitor=True)


@check(
    "gpu.compute_mode",
    cause="a former job or an administrator set another compute mode",
    hint="nvidia-smi -c DEFAULT",
    action=Action.MONITOR,
)
@_of_gpus
def compute_mode(gpus: Gpus, profile: GpuProfile) -> Judgement:
    """The compute mode is as the profile says."""
    if profile.compute_mode is None:
        yield NotApplicable("the profile states no compute mode")
        return
    stated = _states(profile, "compute_mode")
    yield from _equal(gpus, "compute_mode", profile.compute_mode, stated=stated, monitor=True)


@check(
    "gpu.mig",
    cause="MIG mode was left on, or off",
    hint="nvidia-smi -mig 0 (or 1), then reset the GPU",
    action=Action.RESET_GPU,
)
@_of_gpus
def mig(gpus: Gpus, profile: GpuProfile) -> Judgement:
    """MIG mode is as the profile says."""
    return _switch(gpus, "mig", profile, what="MIG mode")


@check(
    "gpu.ecc_mode",
    cause="ECC was switched off",
    hint="nvidia-smi -e 1, then reboot",
    action=Action.REBOOT,
)
@_of_gpus
def ecc_mode(gpus: Gpus, profile: GpuProfile) -> Judgement:
    """ECC is as the profile says; graphics cards may have it off where the profile does not say."""
    if not _states(profile, "ecc") and all(
        gpu.ecc is False and _GRAPHICS.search(gpu.name or "") for gpu in gpus
    ):
        yield NotApplicable("graphics cards are delivered with ECC off, and the profile does not state `ecc`")
    else:
        yield from _switch(gpus, "ecc", profile, what="ECC")


# --- memory errors -----------------------------------------------------------------------------------------------


def _without_ecc(profile: GpuProfile) -> Iterator[NotApplicable]:
    if not profile.ecc:
        yield NotApplicable("the profile has no ECC")


@check(
    "gpu.ecc_volatile",
    cause="uncorrectable memory errors since the driver was loaded",
    hint="nvidia-smi -q -d ECC,ROW_REMAPPER; reset the GPU; return it if they come back",
    action=Action.RESET_GPU,
)
@_of_gpus
def ecc_volatile(gpus: Gpus, profile: GpuProfile) -> Judgement:
    """No uncorrectable ECC error since the driver was loaded; corrected ones are measured."""
    if not profile.ecc:
        yield from _without_ecc(profile)
        return
    for gpu in gpus:
        if gpu.ecc_volatile_corrected is not None:
            yield Metric("ecc_volatile_corrected", gpu.ecc_volatile_corrected, "errors", str(gpu))
        if gpu.ecc_volatile_uncorrected is None:
            yield _unread(gpus, gpu, "ecc_volatile_uncorrected", "0", stated=_states(profile, "ecc"))
            continue
        yield Metric("ecc_volatile_uncorrected", gpu.ecc_volatile_uncorrected, "errors", str(gpu))
        if gpu.ecc_volatile_uncorrected:
            yield Finding(str(gpu), f"{gpu.ecc_volatile_uncorrected} uncorrectable", "0")


@check(
    "gpu.ecc_aggregate",
    cause="the GPU's on-chip memory has failed more often than its life allows",
    hint="nvidia-smi -q -d ECC (SRAM Threshold Exceeded); return the GPU",
    action=Action.VENDOR,
)
@_of_gpus
def ecc_aggregate(gpus: Gpus, profile: GpuProfile) -> Judgement:
    """Uncorrectable SRAM errors over the GPU's life stay within limits.

    Where the driver knows the GPU's own threshold (580 and later), that decides, unless the profile states
    `max_aggregate_sram_uncorrectable` itself; elsewhere the count may not exceed that number. DRAM errors are
    repaired by row remapping and judged there.
    """
    if not profile.ecc:
        yield from _without_ecc(profile)
        return
    for gpu in gpus:
        if gpu.ecc_aggregate_uncorrected is not None:
            yield Metric("ecc_aggregate_uncorrected", gpu.ecc_aggregate_uncorrected, "errors", str(gpu))
        yield from _sram(gpus, gpu, profile)


def _sram(gpus: Gpus, gpu: Gpu, profile: GpuProfile) -> Judgement:
    limit = profile.max_aggregate_sram_uncorrectable
    stated = "max_aggregate_sram_uncorrectable" in profile.model_fields_set
    if gpu.ecc_aggregate_sram is not None:
        yield Metric("ecc_aggregate_sram_uncorrected", gpu.ecc_aggregate_sram, "errors", str(gpu))
    if gpu.sram_threshold_exceeded:
        yield Finding(
            str(gpu), f"SRAM threshold exceeded ({gpu.ecc_aggregate_sram} uncorrectable)", "not exceeded"
        )
    elif not stated and _not_for_us(gpu.unread.get("sram_threshold_exceeded", "")):
        yield NotChecked(f"SRAM threshold of {gpu}: nvidia-smi shows it to root alone")
    elif gpu.sram_threshold_exceeded is None or stated:
        # Where the driver does not count SRAM apart, the total is an upper bound of it.
        found = gpu.ecc_aggregate_sram
        if found is None and gpu.lacks("ecc_aggregate_sram") and gpu.ecc_aggregate_uncorrected is not None:
            if gpu.ecc_aggregate_uncorrected > limit:
                yield NotChecked(
                    f"{gpu}: {gpu.ecc_aggregate_uncorrected} uncorrectable errors in all, of SRAM and DRAM; this driver"
                    " does not count SRAM apart"
                )
        elif found is None:
            expected = f"at most {limit} uncorrectable in SRAM"
            yield _unread(gpus, gpu, "ecc_aggregate_sram", expected, stated=stated)
        elif found > limit:
            yield Finding(str(gpu), f"{found} uncorrectable in SRAM", f"at most {limit}")


@check(
    "gpu.remapped_rows",
    cause="the GPU's memory has run out of spare rows, or a remapping failed",
    hint="nvidia-smi -q -d ROW_REMAPPER; return the GPU",
    action=Action.VENDOR,
)
@_of_gpus
def remapped_rows(gpus: Gpus, rows: Mapping[str, RowRemapping], profile: GpuProfile) -> Judgement:
    """No row remapping failed, and rows remapped for uncorrectable errors stay within the profile's limit."""
    if not profile.ecc:
        yield from _without_ecc(profile)
        return
    for gpu, row in _rows_of(gpus, rows):
        if isinstance(row, NotChecked | NotApplicable):
            yield row
        else:
            yield from _remapped(gpu, row, profile)


def _remapped(gpu: Gpu, row: RowRemapping, profile: GpuProfile) -> Judgement:
    limit = profile.max_remapped_uncorrectable
    if row.correctable is not None:
        yield Metric("remapped_rows_correctable", row.correctable, "rows", str(gpu))
    if row.failure is None:
        yield _row_unread(gpu, row, "failure", "no failure")
    elif row.failure:
        yield Finding(str(gpu), "a row remapping failed", "no failure")
    if row.uncorrectable is None:
        yield _row_unread(gpu, row, "uncorrectable", f"at most {limit} rows")
        return
    yield Metric("remapped_rows_uncorrectable", row.uncorrectable, "rows", str(gpu))
    if row.uncorrectable > limit:
        # a remapped row is repaired; only a failed remapping is a reason to return a GPU (NVIDIA's RMA policy)
        action = None if _states(profile, "max_remapped_uncorrectable") else Action.MONITOR
        found = f"{row.uncorrectable} rows remapped for uncorrectable errors"
        yield Finding(str(gpu), found, f"at most {limit}", action)


def _row_unread(gpu: Gpu, row: RowRemapping, name: str, expected: str) -> Finding | NotChecked:
    """Say why one value of a GPU that remaps rows is not there."""
    text = row.unread.get(name, "no value")
    if is_unsupported(text):
        return NotChecked(f"remapped_rows.{name} of {gpu}: {text}")
    return Finding(str(gpu), text, expected, Action.RESET_GPU)


def _rows_of(
    gpus: Gpus, rows: Mapping[str, RowRemapping]
) -> Iterator[tuple[Gpu, RowRemapping | NotChecked | NotApplicable]]:
    """Pair the GPUs with their remapping; say why where a GPU has none."""
    for gpu in gpus:
        row = rows.get(gpu.uuid or "")
        if row is None:
            yield gpu, NotChecked(f"{gpu}: nvidia-smi --query-remapped-rows does not list it")
        elif denied := next(filter(_not_for_us, row.unread.values()), ""):
            yield gpu, NotChecked(f"row remapping of {gpu}: nvidia-smi shows it to root alone: {denied}")
        elif len(row.unread) == len(ROWS) and all(map(is_unsupported, row.unread.values())):
            yield gpu, NotApplicable("GPUs before Ampere, and guests, report no row remapping")
        else:
            yield gpu, row


@check(
    "gpu.remapped_pending",
    cause="a row waits to be remapped; until then the bad memory is in use",
    hint="drain the node; nvidia-smi --gpu-reset -i INDEX, or reboot",
    action=Action.RESET_GPU,
)
@_of_gpus
def remapped_pending(gpus: Gpus, rows: Mapping[str, RowRemapping], profile: GpuProfile) -> Judgement:
    """No row remapping waits for a reset."""
    if not profile.ecc:
        yield from _without_ecc(profile)
        return
    for gpu, row in _rows_of(gpus, rows):
        if isinstance(row, NotChecked | NotApplicable):
            yield row
        elif row.pending is None:
            yield _row_unread(gpu, row, "pending", "none pending")
        elif row.pending:
            yield Finding(str(gpu), "a row remapping is pending", "none pending")


@check(
    "gpu.retired_pages",
    cause="a page waits to be retired, so that bad memory is in use, or the table of retired pages is full",
    hint="drain the node; nvidia-smi --gpu-reset -i INDEX, or reboot",
    action=Action.RESET_GPU,
)
@_of_gpus
def retired_pages(gpus: Gpus) -> Judgement:
    """No page retirement waits for a reset, and there is room for more of them (GPUs before Ampere)."""
    if all(gpu.retired_pending is None and gpu.lacks("retired_pending") for gpu in gpus):
        yield NotApplicable("GPUs since Ampere remap rows (see gpu.remapped_rows)")
        return
    for gpu in gpus:
        retired = (gpu.retired_single or 0) + (gpu.retired_double or 0)
        if retired >= RETIRED_PAGES:
            yield Finding(str(gpu), f"{retired} retired pages", f"fewer than {RETIRED_PAGES}", Action.VENDOR)
        if gpu.retired_pending is None and gpu.lacks("retired_pending"):
            continue  # beside one that is broken, so that it tells something else
        if gpu.retired_pending is None:
            yield _unread(gpus, gpu, "retired_pending", "none pending", stated=False)
        elif gpu.retired_pending:
            yield Finding(str(gpu), "a page retirement is pending", "none pending")


# --- links -------------------------------------------------------------------------------------------------------


_NO_NVLINKS = "the profile states no NVLinks"


def _uuid_of(gpu: Gpu) -> str:
    return gpu.uuid or ""


@check(
    "gpu.nvlink_state",
    cause="an NVLink is down or slow: the GPU is badly seated, or its fabric was not set up",
    hint="nvidia-smi nvlink -s; journalctl -u nvidia-fabricmanager; reset all GPUs of the node; reseat the GPU",
)
@_of_gpus
def nvlink_state(
    gpus: Gpus, links: Mapping[str, Mapping[int, float | None]], profile: GpuProfile
) -> Judgement:
    """As many NVLinks are active as the profile says, or as on most GPUs of the node, each at its speed."""
    wanted = _usual_links(gpus, links) if profile.nvlinks is None else profile.nvlinks
    if not wanted:
        yield NotApplicable(_NO_NVLINKS)
        return
    most = ", as on most GPUs of the node" if profile.nvlinks is None else ""
    for gpu in gpus:
        of_gpu = links.get(_uuid_of(gpu))
        if gpu.mig and not of_gpu:
            yield _in_mig_mode(gpu)
            continue
        if of_gpu is None:
            yield NotChecked(f"{gpu}: nvidia-smi nvlink -s does not list it")
            continue
        active = {link: speed for link, speed in of_gpu.items() if speed is not None}
        yield Metric("nvlinks_active", len(active), "links", str(gpu))
        # a GPU without a bridge among others with one has no link at all
        if len(active) != wanted and (active or not most):
            down = [str(link) for link, speed in of_gpu.items() if speed is None]
            which = f" (inactive: link {', '.join(down)})" if down else ""
            differs = Action.MONITOR if most else None
            yield Finding(str(gpu), f"{len(active)} active links{which}", f"{wanted}{most}", differs)
        yield from _link_speeds(gpu, active, profile.nvlink_speed)


def _in_mig_mode(gpu: Gpu) -> NotApplicable:
    """A GPU that is cut into MIG devices uses no NVLink; whether it is to be cut is for gpu.mig."""
    return NotApplicable(f"{gpu} is in MIG mode (see gpu.mig), which has no NVLink")


def _usual_links(gpus: Gpus, links: Mapping[str, Mapping[int, float | None]]) -> int:
    """Return how many links are active on most GPUs of the node; 0 where there is no majority."""
    of_all = ((str(gpu), links.get(_uuid_of(gpu), {})) for gpu in gpus)
    return norm((gpu, sum(speed is not None for speed in one.values())) for gpu, one in of_all).value or 0


def _link_speeds(gpu: Gpu, active: Mapping[int, float], expected: float | None) -> Iterator[Finding]:
    if expected is None:
        return
    for link, speed in active.items():
        if abs(speed - expected) > SPEED_TOLERANCE * expected:
            yield Finding(f"{gpu} NVLink {link}", f"{speed:g} GB/s", f"{expected:g} GB/s")


@check(
    "gpu.nvlink_errors",
    cause="an NVLink loses data and has to repeat it: a bad contact or a failing GPU or switch",
    hint="nvidia-smi nvlink -e; reset all GPUs of the node and measure again; reseat the GPU",
)
@_of_gpus
def nvlink_errors(gpus: Gpus, errors: Mapping[str, LinkErrors], profile: GpuProfile) -> Judgement:
    """The error counters since the driver was loaded stay below NVLINK_LIMITS."""
    if profile.nvlinks == 0:
        yield NotApplicable(_NO_NVLINKS)
        return
    for gpu in gpus:
        of_gpu = errors.get(_uuid_of(gpu))
        if of_gpu is not None and (of_gpu.zeros or of_gpu.counts or of_gpu.unread):
            yield from _link_errors(gpu, of_gpu)
        elif gpu.mig:
            yield _in_mig_mode(gpu)
        else:
            why = f"{gpu}: nvidia-smi nvlink -e shows no counter"
            yield NotChecked(why) if profile.nvlinks else NotApplicable(why)


def _link_errors(gpu: Gpu, of_gpu: LinkErrors) -> Judgement:
    known = [row for row in of_gpu.counts if row[1].lower() in NVLINK_LIMITS]
    yield Metric("nvlink_errors", sum(found for _, _, found in known), "errors", str(gpu))
    for link, counter, found in known:
        limit = NVLINK_LIMITS[counter.lower()]
        if found >= limit:
            expected = f"below {limit} since the driver's start"
            yield Finding(f"{gpu} NVLink {link}", f"{found} {counter}", expected)
    for link, counter, found in of_gpu.counts:
        if counter.lower() == _RATE and found > NVLINK_BER:
            yield Finding(f"{gpu} NVLink {link}", f"{counter} {found:g}", f"at most {NVLINK_BER:g}")
    for link, counter, text in of_gpu.unread:
        if not is_unsupported(text):
            yield NotChecked(f"{counter} of {gpu} NVLink {link}: {text}")
    yield from _link_warnings(gpu, of_gpu)


def _link_warnings(gpu: Gpu, of_gpu: LinkErrors) -> Iterator[Advisory]:
    """Warn once a counter of what proves no fault, and of what this release does not know."""
    others: dict[str, dict[int, float]] = {}
    for link, counter, found in of_gpu.counts:
        name = counter.lower()
        judged = name == _RATE or (name in NVLINK_LIMITS and name not in NVLINK_WARNINGS)
        if found and not judged and found < NVLINK_LIMITS.get(name, math.inf):
            others.setdefault(counter, {})[link] = found
    for counter, values in others.items():
        known = counter.lower() in NVLINK_WARNINGS
        shown = ", ".join(f"{value:g} on NVLink {link}" for link, value in values.items())
        expected = "0 since the driver's start" if known else "a counter that this release knows"
        yield Advisory(str(gpu), f"{counter}: {shown}", expected)


@check(
    "gpu.pcie_width",
    cause="the GPU or its riser is badly seated: lanes are lost",
    hint="lspci -vv -s BUS_ID | grep -i lnksta; reseat the GPU; try another slot",
)
@_of_gpus
def pcie_width(gpus: Gpus, profile: GpuProfile) -> Judgement:
    """The PCIe link has as many lanes as the profile says; lanes do not go down when a GPU idles."""
    if profile.pcie_width is None:
        yield NotApplicable("the profile states no PCIe width")
        return
    for gpu in gpus:
        if gpu.pcie_width is not None:
            yield Metric("pcie_width", gpu.pcie_width, "lanes", str(gpu))
    yield from _equal(gpus, "pcie_width", profile.pcie_width, lambda lanes: f"x{lanes}")


@check(
    "gpu.pcie_gen",
    cause="the slot or the firmware limits the PCIe generation, or the link trained down",
    hint="lspci -vv -s BUS_ID | grep -i -e lnkcap -e lnksta; BIOS settings; reseat the GPU",
)
@_of_gpus
def pcie_gen(gpus: Gpus, profile: GpuProfile) -> Judgement:
    """GPU and slot can do the profile's PCIe generation, and do it where the GPU is awake.

    A GPU that saves power (P1 and higher numbers) may run its link at a lower generation and raises it under load:
    there only the maximum is judged. In P0 the current generation is judged too.
    """
    if profile.pcie_gen is None:
        yield NotApplicable("the profile states no PCIe generation")
        return
    expected = f"generation {profile.pcie_gen}"
    for gpu in gpus:
        if gpu.pcie_gen is not None:
            yield Metric("pcie_gen", gpu.pcie_gen, "generation", str(gpu))
        if gpu.pcie_gen_max is None:
            yield _unread(gpus, gpu, "pcie_gen_max", expected, stated=True)
        elif gpu.pcie_gen_max < profile.pcie_gen:
            yield Finding(str(gpu), f"at most generation {gpu.pcie_gen_max} in this slot", expected)
        elif gpu.pcie_gen is None:
            yield _unread(gpus, gpu, "pcie_gen", expected, stated=True)
        elif gpu.pcie_gen < profile.pcie_gen and gpu.pstate == "P0":
            yield Finding(str(gpu), f"generation {gpu.pcie_gen} in P0", expected)
        elif gpu.pcie_gen < profile.pcie_gen and gpu.pstate is None:
            yield NotChecked(
                f"{gpu}: generation {gpu.pcie_gen} now, and no performance state that would explain it"
            )


@check(
    "gpu.topology",
    cause="NVLinks between two GPUs are down, or GPUs sit in other slots than on the other nodes",
    hint="nvidia-smi topo -m; nvidia-smi nvlink -s; journalctl -u nvidia-fabricmanager",
)
@_of_gpus
def topology(
    gpus: Gpus, found: Topology, links: Mapping[str, Mapping[int, float | None]] | None, profile: GpuProfile
) -> Judgement:
    """Any two GPUs are connected as the profile says; what a down NVLink explains is for gpu.nvlink_state.

    `links` is None where the state of the NVLinks cannot be read: then nothing else tells of one that is down.
    """
    if profile.topology is None:
        yield NotApplicable("the profile states no topology")
    elif profile.count < 2:  # a pair
        yield NotApplicable("one GPU has nobody to be connected with")
    else:
        active = {gpu.index: _active(links or {}, gpu) for gpu in gpus}
        cut = [gpu for gpu in gpus if gpu.mig and not active[gpu.index]]
        yield from map(_in_mig_mode, cut)
        down = (
            set() if links is None else {at for at, count in active.items() if count < (profile.nvlinks or 0)}
        )
        explained = down | {gpu.index for gpu in cut}
        yield from _pairs(gpus, found.links, profile.topology, "topo -m", explained=explained)


def _active(links: Mapping[str, Mapping[int, float | None]], gpu: Gpu) -> int:
    return sum(speed is not None for speed in links.get(_uuid_of(gpu), {}).values())


@check(
    "gpu.p2p",
    cause="GPUs cannot reach each other's memory over NVLink",
    hint="nvidia-smi topo -p2p n; fabric manager; IOMMU and ACS settings",
)
@_of_gpus
def p2p(
    gpus: Gpus, found: Mapping[int, Mapping[int, str]], connections: Topology, profile: GpuProfile
) -> Judgement:
    """Any two GPUs that NVLink connects can use peer access; which these are is for gpu.topology."""
    if not profile.nvlinks:
        yield NotApplicable(_NO_NVLINKS)
    elif profile.count < 2:  # a pair
        yield NotApplicable("one GPU has no peer")
    else:
        linked = {
            gpu: {other: cell for other, cell in of_gpu.items() if _is_linked(connections, gpu, other)}
            for gpu, of_gpu in found.items()
        }
        if found and not any(linked.values()):
            yield NotApplicable("nvidia-smi topo -m shows no two GPUs that NVLink connects")
        yield from _pairs(gpus, linked, "OK", "topo -p2p n")


def _is_linked(connections: Topology, gpu: int, other: int) -> bool:
    return connections.links.get(gpu, {}).get(other, "").startswith("NV")


def _pairs(
    gpus: Gpus,
    found: Mapping[int, Mapping[int, str]],
    expected: str,
    what: str,
    explained: Collection[int | None] = (),
) -> Judgement:
    indices = [gpu.index for gpu in gpus if gpu.index is not None]
    if missing := [index for index in indices if index not in found]:
        yield NotChecked(f"nvidia-smi {what} has no row for GPU {', '.join(map(str, missing))}")
    for index in indices:
        for other, cell in sorted(found.get(index, {}).items()):
            if other > index and cell != expected and not {index, other} & set(explained):
                yield Finding(f"GPU {index} to GPU {other}", cell, expected)


def numa_majority(
    gpus: Mapping[str, Gpus], found: Mapping[str, Topology]
) -> dict[tuple[str, int, int], Norm[str]]:
    """Return {(GPU model, GPUs of the node, index): norm of NUMA nodes}."""
    votes: dict[tuple[str, int, int], list[tuple[str, str]]] = {}
    for node in gpus.keys() & found.keys():
        for index, numa in found[node].numa.items():
            key = _model(gpus[node]), len(gpus[node]), index
            votes.setdefault(key, []).append((node, f"NUMA node {numa}"))
    return {key: norm(sorted(values), "nodes of this kind") for key, values in votes.items()}


def _model(gpus: Gpus) -> str:
    return next((gpu.name for gpu in gpus if gpu.name), "")


@check(
    "gpu.numa_affinity",
    cause="a GPU is in another slot than on the other nodes, or the firmware divides the CPUs differently",
    hint="nvidia-smi topo -m; lscpu; BIOS settings (NUMA nodes per socket); compare with a good node",
    action=Action.MONITOR,
)
@_of_gpus
def numa_affinity(gpus: Gpus, found: Topology, fleet: Mapping[tuple[str, int, int], Norm[str]]) -> Judgement:
    """Every GPU is near the same NUMA nodes as on most nodes with as many GPUs of this model."""
    if not found.numa:
        yield NotApplicable("nvidia-smi topo -m shows no NUMA affinity: a guest, or a driver before 450")
        return
    for gpu in gpus:
        numa = found.numa.get(-1 if gpu.index is None else gpu.index)
        most = fleet.get((_model(gpus), len(gpus), -1 if gpu.index is None else gpu.index), Norm[str]())
        if most.total < 2:  # this node and another one
            yield NotApplicable("there is no other node of this kind to compare with")
        else:
            yield from most.judge(str(gpu), f"NUMA node {numa or 'unknown'}")


# --- NVSwitch ----------------------------------------------------------------------------------------------------


@check(
    "gpu.fabric_manager",
    cause="fabric manager does not run: the NVSwitch fabric is not set up, and CUDA fails to start",
    hint="systemctl status nvidia-fabricmanager; journalctl -u nvidia-fabricmanager; it has to be the driver's version",
)
def fabric_manager(found: FabricManager, profile: GpuProfile) -> Judgement:
    """The service nvidia-fabricmanager is active where the node has NVSwitch."""
    if not profile.nvswitch:
        yield NotApplicable("the profile states no NVSwitch")
    elif found.state != "active":
        yield Finding("nvidia-fabricmanager", found.state, "active")


@check(
    "gpu.fabric_state",
    cause="the GPU has not joined the NVLink fabric",
    hint="nvidia-smi -q | grep -A2 Fabric; restart nvidia-fabricmanager; reset all GPUs of the node",
    action=Action.REBOOT,
)
@_of_gpus
def fabric_state(gpus: Gpus, profile: GpuProfile) -> Judgement:
    """Every GPU has completed its registration with the NVLink fabric, and the fabric is healthy."""
    if not profile.fabric_state:
        yield NotApplicable("the profile states no fabric state")
        return
    for gpu in gpus:
        state, status = (gpu.fabric_state or "", gpu.fabric_status or "")
        if state not in ("", "Completed") or status not in ("", "Success"):
            shown = [state or gpu.unread["fabric_state"], status or gpu.unread["fabric_status"]]
            yield Finding(str(gpu), ", ".join(shown), "Completed, Success")
        elif not state:
            yield _unread(gpus, gpu, "fabric_state", "Completed", stated=True)
        elif not status:
            yield _unread(gpus, gpu, "fabric_status", "Success", stated=True)
        elif gpu.fabric_health not in (None, "Healthy"):
            # nvml.h, NVML_GPU_FABRIC_HEALTH_SUMMARY_*: the other word is Limited Capacity, which works, if slowly
            action = None if gpu.fabric_health == "Unhealthy" else Action.MONITOR
            yield Finding(str(gpu), f"fabric health {gpu.fabric_health}", "Healthy", action)


# --- health now --------------------------------------------------------------------------------------------------


@check(
    "gpu.throttle",
    cause="the GPU is too hot, its power supply limits it, or the system holds it back",
    hint="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; fans, filters, power supplies, BMC log",
)
@_of_gpus
def throttle(gpus: Gpus) -> Judgement:
    """No clock is held down but by idleness or a power cap."""
    for gpu in gpus:
        if gpu.throttle is None:
            yield _unread(gpus, gpu, "throttle", "readable clock event reasons", stated=False)
            continue
        if bad := [name for bit, name in SLOW_REASONS.items() if gpu.throttle & bit]:
            # the hardware has halved the clocks; without that bit the others come and go with the load
            lasting = None if gpu.throttle & HALVED else Action.MONITOR
            yield Finding(str(gpu), ", ".join(bad), "no slowdown", lasting)
        if unknown := gpu.throttle & ~functools.reduce(int.__or__, (*FINE_REASONS, *SLOW_REASONS)):
            yield Advisory(str(gpu), f"clock event reason {unknown:#x}", "a reason that this release knows")


@check(
    "gpu.temperature",
    cause="cooling: fans, filters, hot air, a loose heat sink",
    hint="nvidia-smi -q -d TEMPERATURE; ipmitool sdr type fan",
)
@_of_gpus
def temperature(gpus: Gpus, profile: GpuProfile) -> Judgement:
    """No GPU is hotter than the profile allows."""
    limit = f"at most {profile.max_temperature:g} C"
    for gpu in gpus:
        if gpu.temperature is None:
            yield _unread(gpus, gpu, "temperature", limit, stated=_states(profile, "max_temperature"))
            continue
        yield Metric("temperature", gpu.temperature, "C", str(gpu))
        if gpu.temperature > profile.max_temperature:
            yield Finding(str(gpu), f"{gpu.temperature:g} C", limit)


@check(
    "gpu.power_limit",
    cause="somebody lowered the power limit",
    hint="nvidia-smi -pl WATTS, or reboot; look for a script that sets it",
    action=Action.MONITOR,
)
@_of_gpus
def power_limit(gpus: Gpus, profile: GpuProfile) -> Judgement:
    """The power limit is that of the profile."""
    if profile.power_limit is None:
        yield NotApplicable("the profile states no power limit")
        return
    for gpu in gpus:
        if gpu.power is not None:
            yield Metric("power", gpu.power, "W", str(gpu))
        if gpu.power_limit is None:
            yield _unread(gpus, gpu, "power_limit", f"{profile.power_limit:g} W", stated=True, monitor=True)
        elif abs(gpu.power_limit - profile.power_limit) > POWER_TOLERANCE:
            yield Finding(str(gpu), f"{gpu.power_limit:g} W", f"{profile.power_limit:g} W")


@check(
    "gpu.clocks",
    cause="application clocks were left low, or a GPU differs from its fleet",
    hint="nvidia-smi -rac; nvidia-smi -rgc; nvidia-smi -q -d CLOCK",
    action=Action.MONITOR,
)
@_of_gpus
def clocks(gpus: Gpus, fleet: ByModel) -> Judgement:
    """Highest clocks are those of the fleet's GPUs of this model; application clocks are not below their default."""
    for gpu in gpus:
        highest = _highest_clocks(gpu)
        if highest is None:
            attribute = "clock_sm_max" if gpu.clock_sm_max is None else "clock_memory_max"
            yield _unread(gpus, gpu, attribute, "a highest clock", stated=False, monitor=True)
            continue
        yield Metric("clock_sm", gpu.clock_sm or 0, "MHz", str(gpu))
        yield from fleet.get(gpu.name or "", Norm[str]()).judge(str(gpu), highest)
        now, default = gpu.clock_application, gpu.clock_application_default
        if now is not None and default is not None and now < default:
            yield Finding(str(gpu), f"application clock {now:g} MHz", f"{default:g} MHz")


@check(
    "gpu.idle_memory",
    cause="memory of the GPU is held by no process: a job died badly",
    hint="nvidia-smi --gpu-reset -i INDEX while nobody uses it, or reboot",
    action=Action.RESET_GPU,
)
@_of_gpus
def idle_memory(gpus: Gpus, apps: Sequence[GpuProcess], profile: GpuProfile) -> Judgement:
    """A GPU without processes has its memory free; what listed processes hold is for gpu.stray_processes."""
    limit = f"at most {format_size(profile.max_idle_memory)}"
    for gpu in gpus:
        if gpu.memory_used is None:
            yield _unread(gpus, gpu, "memory_used", limit, stated=_states(profile, "max_idle_memory"))
            continue
        yield Metric("memory_used", gpu.memory_used / 2**20, "MiB", str(gpu))
        held = [app.memory for app in apps if app.uuid == gpu.uuid]
        if None in held:
            continue
        left = gpu.memory_used - sum(size for size in held if size is not None)
        if left > profile.max_idle_memory:
            held_by = f"{format_size(left)} that no process holds"
            # on Grace the operating system keeps files in it as in any other memory; what draws is no compute process
            others = _GRACE.search(gpu.name or "") or gpu.display
            yield Advisory(str(gpu), held_by, limit) if others else Finding(str(gpu), held_by, limit)


@check(
    "gpu.stray_processes",
    cause="a process of a former job, or one that was started past Slurm, still uses the GPU",
    hint="ps -o pid,user,lstart,cmd -p PID; end it; look at Slurm's epilog",
    action=Action.MONITOR,
)
@_of_gpus
def stray_processes(gpus: Gpus, apps: Sequence[GpuProcess]) -> Judgement:
    """Nobody computes on the GPUs of an idle node."""
    for gpu, process in unexpected_processes(gpus, apps):
        yield Finding(gpu, process, "no process on an idle node")


@check(
    "gpu.recovery_action",
    cause="the driver itself asks for a reset, a reboot or a drain of this GPU",
    hint="nvidia-smi -q | grep 'Recovery Action'; do what it says",
    action=Action.RESET_GPU,
)
@_of_gpus
def recovery_action(gpus: Gpus) -> Judgement:
    """The driver asks for no recovery of any GPU."""
    for gpu in gpus:
        if gpu.recovery_action is None:
            yield _unread(gpus, gpu, "recovery_action", "None", stated=True)
        elif gpu.recovery_action != "None":
            yield Finding(str(gpu), gpu.recovery_action, "None", RECOVERY.get(gpu.recovery_action))


ALL: tuple[Callable[..., Verdict], ...] = (
    count, names, memory, driver, cuda, vbios, uuids, serials, inforom, device_files, persistence, compute_mode, mig,
    ecc_mode, ecc_volatile, ecc_aggregate, remapped_rows, remapped_pending, retired_pages, nvlink_state, nvlink_errors,
    pcie_width, pcie_gen, topology, p2p, numa_affinity, fabric_manager, fabric_state, throttle, temperature,
    power_limit, clocks, idle_memory, stray_processes, recovery_action,
)  # fmt: skip
