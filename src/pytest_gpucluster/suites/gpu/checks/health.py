"""Present state of GPUs: clocks, temperature, power, leftovers of jobs, device files and fabric manager."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.fault_rules import unless_it_works
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.majority import Norm, differs
from pytest_gpucluster.core.part import named
from pytest_gpucluster.core.text import count
from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.kit.gpu.gpu_processes import unexpected_processes
from pytest_gpucluster.kit.gpu.nvidia_smi import MAKES_UVM, PAUSE, READINGS, Gpus
from pytest_gpucluster.suites.gpu.readings import ByModel, by_model, of_present_gpus, unread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.config.models import GpuProfile
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.gpu.fabric_manager import FabricManager
    from pytest_gpucluster.kit.gpu.nvidia_smi import Gpu, GpuProcess

POWER_TOLERANCE = 1.0  # watts; nvidia-smi prints hundredths, the board stores milliwatts

# bits of clocks_event_reasons.active (nvml.h, nvmlClocksEventReasons)
FINE_REASONS = {
    0x1: "idle",
    0x2: "applications clocks setting",
    0x4: "software power cap",
    0x10: "sync boost",
    0x100: "display clock setting",
}
HALVED, SOFT_HEAT, HEAT, BRAKE = 0x8, 0x20, 0x40, 0x80
SLOW_REASONS = {
    HALVED: "hardware slowdown",
    SOFT_HEAT: "software thermal slowdown",
    HEAT: "hardware thermal slowdown",
    BRAKE: "hardware power brake",
}

# GH200, GB200, GB300: their memory is a NUMA node of the operating system
_GRACE = re.compile(r"\bG[HB]\d{3}\b")

# actions of gpu_recovery_action (nvml.h, nvmlDeviceGpuRecoveryAction_t)
RECOVERY = {
    "Reset": Action.RESET_GPU,
    "Reboot": Action.REBOOT,
    "Drain P2P": Action.DRAIN,
    "Drain and Reset": Action.RESET_GPU,
}
HOTTEST = 85.0  # C: accepted of an idle GPU
IDLE_MEMORY = 2**30  # bytes in use on an idle GPU
OVERHEATED = 95.0  # C: data centre GPUs of NVIDIA slow down at 83 to 92, graphics cards at 88 to 94


def clock_majority(facts: Mapping[str, Gpus]) -> ByModel:
    """Return {GPU model: majority of the highest clocks}, with one vote per GPU."""
    return by_model(facts, _highest_clocks, per_node=False)


def _highest_clocks(gpu: Gpu) -> str | None:
    if gpu.clock_sm_max is None or gpu.clock_memory_max is None:
        return None
    return f"SM {gpu.clock_sm_max:g} MHz, memory {gpu.clock_memory_max:g} MHz"


def slowed(gpu: Gpu) -> int:
    """Return the bits of the clock event reasons that are no ordinary ones."""
    return (gpu.throttle or 0) & functools.reduce(int.__or__, SLOW_REASONS)


def _reasons(mask: int) -> str:
    return ", ".join(name for bit, name in SLOW_REASONS.items() if mask & bit)


@check(
    "gpu.throttle",
    rules_out="power brake and heat",
    cause="the GPU is too hot, or its power supply or the system limits it",
    hint="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i INDEX; fans, filters, power supplies, BMC log",
    action=Action.DRAIN,
    never_healthy="in every reading for 10 seconds and longer the hardware halves the clocks and states heat or the power brake as the "
    "cause; a burst ends within that time, halved clocks without a cause come with a change of the performance state, and idleness, "
    "power limits and locked clocks set other bits",
)
@of_present_gpus
def throttle(gpus: Gpus, throttle_later: Mapping[str, int] = MappingProxyType({})) -> Judgement:
    """Only idleness, a power cap or a setting limits the clocks for longer than a burst.

    throttle_later: {UUID: the reasons that later readings all have}, of a node whose first reading has a slowdown.
    """
    for gpu in gpus:
        if gpu.throttle is None:
            yield unread(gpus, gpu, "throttle", "readable clock event reasons", stated=False)
            continue
        if bad := slowed(gpu):
            later = throttle_later.get(gpu.uuid or "")
            if later is None:
                yield NotAvailable(f"{gpu}: {_reasons(bad)} in one reading; later readings have no result")
            elif lasting := bad & later:
                # halved for a cause: either bit alone comes and goes with the load or with a change of the state
                halved = lasting & HALVED and lasting & (HEAT | BRAKE)
                action = None if halved else Action.MONITOR
                # the reason that says most: halved clocks come with each other one
                worst = SLOW_REASONS[max(bit for bit in SLOW_REASONS if lasting & bit)].replace(" ", "_")
                yield Finding(gpu.part, _reasons(lasting), "no slowdown", action, code=f"lasting_{worst}")
            else:
                brief = f"{_reasons(bad)}, which ended within {READINGS * PAUSE} s"
                yield Advisory(gpu.part, brief, "no slowdown", code="brief_slowdown")
        if unknown := gpu.throttle & ~functools.reduce(int.__or__, (*FINE_REASONS, *SLOW_REASONS)):
            shown = f"clock event reason {unknown:#x}"
            yield Advisory(gpu.part, shown, "a reason that this release knows", code="unknown_reason")


@check(
    "gpu.temperature",
    rules_out="heat",
    show="nvidia-smi -q -d TEMPERATURE -i INDEX",
    cause="cooling: fans, filters, hot air, a loose heat sink",
    hint="nvidia-smi -q -d TEMPERATURE -i INDEX; ipmitool sdr type fan",
    action=Action.MONITOR,
    of_job=True,
    never_healthy="no process uses the GPU, and yet it exceeds its own limit of temperature, so that driver or hardware slow it, or 95 C, "
    "which is above the limit of every model",
)
@of_present_gpus
def temperature(gpus: Gpus, apps: Sequence[GpuProcess] = ()) -> Judgement:
    """No idle GPU is hotter than 85 C; one without processes that slows for its own limit leaves service."""
    busy = {app.uuid for app in apps}
    limit = Quantity(HOTTEST, "C", f"at most {HOTTEST:g} C")
    for gpu in gpus:
        if gpu.temperature is None:
            yield unread(gpus, gpu, "temperature", limit, stated=False)
            continue
        yield Metric("temperature", gpu.temperature, "C", gpu.part, bound=limit)
        if gpu.temperature > HOTTEST:
            too_hot = gpu.temperature >= OVERHEATED or (gpu.throttle or 0) & (SOFT_HEAT | HEAT)
            overheated = too_hot and gpu.uuid not in busy
            action = Action.DRAIN if overheated else None
            yield Finding(gpu.part, Quantity(gpu.temperature, "C"), limit, action, code="too_hot")


@check(
    "gpu.power_limit",
    rules_out="a lowered power limit",
    show="nvidia-smi -i INDEX --query-gpu=index,power.limit,power.default_limit --format=csv",
    cause="the power limit was lowered",
    hint="set the limit with nvidia-smi -pl, or reboot; find the script that sets it",
    action=Action.CONFIGURE,
    setting="the profile's gpu.power_limit",
)
@of_present_gpus
def power_limit(gpus: Gpus, gpu_profile: GpuProfile) -> Judgement:
    """The power limit is that of the profile."""
    if gpu_profile.power_limit is None:
        raise NotApplicable("the profile states no power limit")
    expected = Quantity(gpu_profile.power_limit, "W")
    for gpu in gpus:
        if gpu.power is not None:
            yield Metric("power", gpu.power, "W", gpu.part)
        if gpu.power_limit is None:
            yield unread(gpus, gpu, "power_limit", expected, stated=True)
        elif abs(gpu.power_limit - gpu_profile.power_limit) > POWER_TOLERANCE:
            yield Finding(gpu.part, Quantity(gpu.power_limit, "W"), expected, code="wrong_power_limit")


@check(
    "gpu.clocks",
    rules_out="lowered clocks",
    show="nvidia-smi -q -d CLOCK -i INDEX",
    cause="application clocks were left low, or a GPU differs from its fleet",
    hint="nvidia-smi -rac; nvidia-smi -rgc; nvidia-smi -q -d CLOCK -i INDEX",
    action=Action.CONFIGURE,
    of_job=True,
)
@of_present_gpus
def clocks(gpus: Gpus, clock_majority: ByModel) -> Judgement:
    """Highest clocks are those of most GPUs of this model; application clocks are not below their default."""
    for gpu in gpus:
        highest = _highest_clocks(gpu)
        if highest is None:
            attribute = "clock_sm_max" if gpu.clock_sm_max is None else "clock_memory_max"
            yield unread(gpus, gpu, attribute, "a highest clock", stated=False)
            continue
        for found in clock_majority.get(gpu.name or "", Norm[str]()).judge(gpu.part, highest, worse=differs):
            # measured on this GPU, no setting
            yield replace(found, action=Action.MONITOR) if isinstance(found, Finding) else found
        now, default = gpu.clock_application, gpu.clock_application_default
        if now is not None and default is not None and now < default:
            lowered = Quantity(now, "MHz", f"application clock {now:g} MHz")
            yield Finding(gpu.part, lowered, Quantity(default, "MHz"), code="lowered_clock")


@check(
    "gpu.idle_memory",
    show="nvidia-smi -i INDEX --query-gpu=index,memory.used --format=csv",
    cause="no process holds this memory of the GPU: a job ended without releasing it",
    hint="reset the GPU while no process uses it (nvidia-smi --gpu-reset -i INDEX), or reboot",
    action=Action.MONITOR,
    of_job=True,
)
@of_present_gpus
def idle_memory(gpus: Gpus, apps: Sequence[GpuProcess]) -> Judgement:
    """A GPU without processes has its memory free; gpu.stray_processes judges memory that processes hold."""
    limit = Quantity(IDLE_MEMORY, "bytes", f"at most {format_size(IDLE_MEMORY)}")
    for gpu in gpus:
        if gpu.memory_used is None:
            yield unread(gpus, gpu, "memory_used", limit, stated=False)
            continue
        yield Metric("memory_used", gpu.memory_used / 2**20, "MiB", gpu.part)
        held = [app.memory for app in apps if app.uuid == gpu.uuid]
        if None in held:
            continue
        left = gpu.memory_used - sum(size for size in held if size is not None)
        if left > IDLE_MEMORY:
            size = Quantity(left, "bytes", f"{format_size(left)} that no process holds")
            # the operating system uses it on Grace, the display server on a GPU with a display
            used = _GRACE.search(gpu.name or "") or gpu.display
            yield (Advisory if used else Finding)(gpu.part, size, limit, code="memory_left")


@check(
    "gpu.stray_processes",
    rules_out="another process on the GPU",
    show="nvidia-smi -i INDEX",
    cause="a process of a former job, or one that was started without Slurm, uses the GPU",
    hint="ps -eo pid,user,lstart,cmd; end the process; check Slurm's epilog",
    action=Action.MONITOR,
    of_job=True,
)
@of_present_gpus
def stray_processes(gpus: Gpus, apps: Sequence[GpuProcess]) -> Judgement:
    """No process computes on the GPUs of an idle node."""
    for gpu, process in unexpected_processes(gpus, apps):
        yield Finding(gpu, Quote(process), "no process on an idle node", code="stray_process")


@check(
    "gpu.recovery_action",
    show="nvidia-smi -q -i INDEX | grep -i 'recovery action'",
    cause="the driver itself requests a reset, a reboot or a drain of this GPU",
    hint="nvidia-smi -q -i INDEX | grep 'Recovery Action'; perform the action that it names",
    action=Action.RESET_GPU,
    never_healthy="the driver sets a recovery action only after an error of this GPU that the action clears",
)
@of_present_gpus
def recovery_action(gpus: Gpus) -> Judgement:
    """The driver requests no recovery of any GPU."""
    for gpu in gpus:
        if gpu.recovery_action is None:
            yield unread(gpus, gpu, "recovery_action", "None", stated=True)
        elif gpu.recovery_action != "None":
            wanted = gpu.recovery_action
            known = wanted in RECOVERY
            action, word = RECOVERY.get(wanted, Action.MONITOR), wanted.lower().replace(" ", "_")
            code = f"requests_{word}" if known else "requests_other"
            yield Finding(gpu.part, Quote(wanted), "None", action, code=code)


@check(
    "gpu.device_files",
    cause="udev or nvidia-modprobe has not made the device files",
    hint="ls -l /dev/nvidia*; nvidia-modprobe -u -c=0; modprobe nvidia_uvm",
    action=Action.CONFIGURE,
)
def device_files(files: frozenset[str], gpus: Gpus, gpu_profile: GpuProfile) -> Judgement:
    """/dev has a file for each GPU, nvidiactl and nvidia-uvm, which CUDA may make at its first use."""
    if gpus.devices and "nvidiactl" not in files:  # nvidia-smi cannot work without that file
        raise NotAvailable("nvidia-smi works, but /dev shows no nvidiactl: nvidia-smi uses another /dev")
    numbered = sum(name.removeprefix("nvidia").isdecimal() for name in files)
    if numbered < gpu_profile.count:
        present = Quantity(numbered, "files", count(numbered, "file"))
        wanted = Quantity(gpu_profile.count, "files")
        yield Finding(named("file", "/dev/nvidia[0-9]*"), present, wanted, code="too_few")
    for name in ("nvidiactl", "nvidia-uvm"):
        if name not in files:
            found = Finding(named("file", f"/dev/{name}"), "absent", "present", code="absent")
            yield unless_it_works(MAKES_UVM in files and name != "nvidiactl", found)


@check(
    "gpu.fabric_manager",
    cause="fabric manager does not run: the NVSwitch fabric is not set up, and CUDA fails to start",
    hint="systemctl status nvidia-fabricmanager; journalctl -u nvidia-fabricmanager; it must have the driver's version",
    action=Action.MONITOR,
    never_healthy="systemd reports that fabric manager of a node with NVSwitch failed, without which CUDA starts no program; one that starts, "
    "or that the host does not use, takes no node out of service",
)
def fabric_manager(fabric_service: FabricManager, gpu_profile: GpuProfile, gpus: Gpus) -> Judgement:
    """Fabric manager has set up the NVSwitches of a node that has them: as a service of the host, or in a container."""
    if not gpu_profile.nvswitch:
        raise NotApplicable("the profile states no NVSwitch")
    elif fabric_service.state != "active":
        service, state = named("service", "nvidia-fabricmanager"), Quote(fabric_service.state)
        failed = fabric_service.state == "failed"
        action = Action.DRAIN if failed else None
        found = Finding(service, state, "active", action, code="failed" if failed else "not_active")
        # where the host's own is not in use, a container or the rack may have one
        unused = fabric_service.state in ("inactive", "unknown")
        yield unless_it_works(gpus.joined_fabric, found) if unused else found
