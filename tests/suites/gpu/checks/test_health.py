"""Clocks, temperature, leftovers of jobs, device files and fabric manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from gpu_helpers import (
    GIB,
    MIB,
    Host,
    considered_hosts,
    examples,
    gpus,
    process,
    put,
    said,
    sick,
    unread,
    uuid,
    verdict,
)
from judged import figures

from pytest_gpucluster.core.check import Action
from pytest_gpucluster.kit.gpu import nvidia_smi
from pytest_gpucluster.kit.gpu.fabric_manager import FabricManager
from pytest_gpucluster.kit.gpu.nvidia_csv import NOT_REPORTED

if TYPE_CHECKING:
    from collections.abc import Callable

HARMLESS = 0x117  # idle, application clocks, power cap, sync boost, display


def test_clocks_are_slow_by_some_reasons_and_unknown_ones_are_a_warning() -> None:
    """The examples below have the others."""
    cases = ((0, "passed"), (0xE8, "drain: GPU 3"), (64, "monitor: GPU 3"), (65536, "warning: GPU 3"))
    for bits, end in cases:
        assert said("gpu.throttle", gpus(3, throttle=bits | HARMLESS)) == end
    (warning,) = verdict("gpu.throttle", gpus(3, throttle=0x10001)).advisories
    assert str(warning.measured).endswith(" 0x10000")


@pytest.mark.parametrize(
    ("later", "end", "code"),
    [
        (0x48, Action.DRAIN, "lasting_hardware_thermal_slowdown"),
        (0x40, Action.MONITOR, "lasting_hardware_thermal_slowdown"),
        (0x88, Action.DRAIN, "lasting_hardware_power_brake"),
    ],
)
def test_a_slowdown_fails_only_if_every_later_reading_has_it(later: int, end: Action, code: str) -> None:
    slow = gpus(3, throttle=0xC8)
    found = verdict("gpu.throttle", slow, put(throttle_later=lambda host: {uuid(host, 3): later}))
    assert (found.action, [it.code for it in found.findings]) == (end, [code])
    assert said("gpu.throttle", slow, put(throttle_later={"another": 0x48})) == "not checked"


@pytest.mark.parametrize(
    "asked", ["Reset: reset gpu", "Reboot: reboot", "Drain P2P: drain", "Drain and Reset: reset gpu"]
)
def test_what_the_driver_asks_for_is_the_action(asked: str) -> None:
    words, action = asked.split(": ")
    assert said("gpu.recovery_action", gpus(5, recovery_action=words)) == f"{action}: GPU 5"


HELD = gpus(2, memory_used=3000 * MIB)


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ((HELD, process(2, 1000 * MIB), process(2, 1000 * MIB)), "passed"),  # all but 1000 MiB
        ((gpus(2, memory_used=3025 * MIB), process(2, 1000 * MIB), process(2, 1000 * MIB)), "monitor: GPU 2"),
        ((HELD, process(2, None)), "passed"),  # how much it holds is unknown
        ((HELD, process(3, 4000 * MIB)), "monitor: GPU 2"),
        ((gpus(2, display=True, memory_used=40 * GIB),), "warning: GPU 2"),
        ((gpus(2, display=False, memory_used=40 * GIB),), "monitor: GPU 2"),
    ],
)
def test_memory_of_no_process_or_display_leaks(changes: tuple[Callable[[Host], None], ...], end: str) -> None:
    assert said("gpu.idle_memory", *changes) == end


def test_memory_in_use_on_grace_is_the_operating_systems() -> None:
    """Grace is known by its name."""
    others = ("NVIDIA GB10", "NVIDIA RTX GX200", "NVIDIA xGH200", "NVIDIA GB2000", "NVIDIA GBX00", None)
    for end, models in (("warning", ("NVIDIA GH200 480GB", "NVIDIA GB300")), ("monitor", others)):
        for model in models:
            assert said("gpu.idle_memory", gpus(2, name=model, memory_used=2 * GIB)) == f"{end}: GPU 2"


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (process(2, MIB, "/usr/bin/nvidia-cuda-mps-server"), []),
        (process(2, MIB, "nvidia-cuda-mps-server"), []),
        (process(2, None, "/opt/python3", None), [[]]),
        (process(2, 3 * MIB, "[Not Found]", 9), [[9, 3]]),
    ],
)
def test_who_is_a_stray_process(found: Callable[[Host], None], shown: list[list[float]]) -> None:
    findings = verdict("gpu.stray_processes", found).findings
    assert [figures(it.measured) for it in findings] == shown
    assert {it.part for it in findings} <= {Host().gpus.devices[2].part}


def test_highest_clocks_are_compared_by_model() -> None:
    usual = Host().gpus.devices[0]
    found = verdict("gpu.clocks", gpus(3, clock_sm_max=1500.0))
    (one,) = found.findings
    assert (found.action, one.part) == (Action.MONITOR, Host().gpus.devices[3].part)  # no setting
    clocks = [usual.clock_sm_max, usual.clock_memory_max]
    assert (figures(one.measured), figures(one.expected)) == ([1500, clocks[1]], [*clocks, 31, 32])
    assert said("gpu.clocks", unread("clock_memory_max", "ERR!", 3)) == "monitor: GPU 3"


@pytest.mark.parametrize(("degrees", "end"), [(95.0, "drain"), (94.9, "monitor")])
def test_a_gpu_without_processes_is_taken_out_at_95_degrees(degrees: float, end: str) -> None:
    assert said("gpu.temperature", gpus(2, temperature=degrees, throttle=0)) == f"{end}: GPU 2"


NUMBERED = {f"nvidia{n}" for n in range(8)}
NO_GPU = nvidia_smi.Gpus()
ALL_FILES = "/dev/nvidia[0-9]*; /dev/nvidiactl; /dev/nvidia-uvm"


@pytest.mark.parametrize(
    ("files", "facts", "end"),
    [
        ({"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia", *NUMBERED}, {}, "passed"),
        ({"nvidiactl", "nvidia-uvm", *NUMBERED, "nvidia-modeset"} - {"nvidia7"}, {}, "configure: /dev/nvidia[0-9]*"),
        (set(), {}, "not checked"),  # nvidia-smi works, with another /dev
        (set(), {"gpus": NO_GPU}, f"configure: {ALL_FILES}"),
        ({"nvidiactl"}, {"gpus": NO_GPU}, "configure: /dev/nvidia[0-9]*; /dev/nvidia-uvm"),
    ],
)
def test_device_files_are_counted_by_their_numbers(files: set[str], facts: dict[str, Any], end: str) -> None:
    assert said("gpu.device_files", put(files=frozenset(files), **facts)) == end


NVML = "nvml.h, nvmlClocksEventReasons"
FLAGS = "GPU Memory Error Management, Recovery Flags"
MPS = "https://docs.nvidia.com/deploy/mps/index.html"
NVSENTINEL = "NVIDIA/NVSentinel#883"


def mps(host: Host) -> None:
    for index in range(8):
        process(index, 900 * MIB, "/usr/bin/nvidia-cuda-mps-server")(host)


def service(state: str) -> Callable[[Host], None]:
    return put(fabric_service=FabricManager(state, None))


NO_FABRIC = (unread("fabric_state", "[N/A]"), unread("fabric_status", "[N/A]"))
BURST = (gpus(3, throttle=0x48), put(throttle_later=lambda host: {uuid(host, 3): 0x1}))
NO_UVM = put(files=lambda host: host.files - {"nvidia-uvm"})
MODPROBE = put(files=lambda host: (host.files - {"nvidia-uvm"}) | {"nvidia-modprobe"})
COUNTER_EXAMPLES = [
    *examples(
        "gpu.idle_memory",
        ("passed", "the driver's own reserve counts as used", "memory.reserved", gpus(memory_used=900 * MIB)),
        ("passed", "MPS holds a context on each GPU", MPS, gpus(memory_used=1500 * MIB), mps),
        ("warning", "GH200: system memory", "Grace", gpus(memory_used=6 * GIB, name="NVIDIA GH200 480GB")),
        ("monitor", "40 GiB without a process", "of a job that ended", gpus(3, memory_used=40 * GIB), sick),
    ),
    *examples(
        "gpu.stray_processes",
        ("passed", "MPS holds a context on each GPU", MPS, mps),
        ("monitor", "python of an earlier job", "nvidia-smi --query-compute-apps", process(0), sick),
    ),
    *examples(
        "gpu.throttle",
        ("passed", "T4, idle", NVML, gpus(throttle=0x1)),
        ("passed", "H200 at its power limit under load", NVML, gpus(throttle=0x4)),
        ("passed", "clocks locked by the site, sync boost", NVML, gpus(throttle=0x12)),
        ("monitor", "H100 while its performance state changes", NVML, gpus(3, throttle=0x8)),
        ("warning", "H100 read as a burst of another job ends", NVML, *BURST),
        ("monitor", "B200 in a warm aisle, slowed by the driver", NVML, gpus(3, throttle=0x20)),
        ("not applicable", "GeForce in a guest", "healthy-titan-v-driver-560", unread("throttle", "[N/A]")),
        ("drain", "GB200 whose power brake is asserted", "NVIDIA/NVSentinel#1666", gpus(0, 1, throttle=0x88)),
        ("drain", "H100 with a dead fan, hardware slows it", NVML, gpus(2, throttle=0x48)),
    ),
    *examples(
        "gpu.temperature",
        ("passed", "passive T4, idle at 70 C", "T4 product brief: 85 C", gpus(temperature=70.0)),
        ("monitor", "RTX 4090 a second after its job", "limit 90 C", gpus(0, temperature=86.0, throttle=0x1)),
        ("monitor", "TITAN RTX after its job", "limit 94 C", gpus(0, temperature=91.0, throttle=0x1)),
        ("monitor", "V100 at work", "its process", process(0), gpus(0, temperature=92.0, throttle=0x60)),
        ("drain", "97 C without a process", "above all limits", gpus(0, temperature=97.0, throttle=None)),
        ("drain", "idle A100 that its driver slows", NVML, gpus(0, temperature=93.0, throttle=0x20)),
        ("drain", "idle GPU that the hardware slows", NVML, gpus(0, temperature=93.0, throttle=0x40)),
    ),
    *examples(
        "gpu.recovery_action",
        ("passed", "H200, driver 580", FLAGS),
        ("not checked", "driver 535 without the field", FLAGS, unread("recovery_action", NOT_REPORTED)),
        ("not checked", "guest with a virtual GPU", FLAGS, unread("recovery_action", "[N/A]")),
        ("monitor", "a word that a later driver adds", FLAGS, gpus(3, recovery_action="Bus Reset")),
        ("reset gpu", "H100 after an uncontained error", FLAGS, gpus(3, recovery_action="Reset")),
    ),
    *examples(
        "gpu.device_files",
        ("warning", "freshly booted: CUDA makes nvidia-uvm", "NVIDIA/enroot#106", MODPROBE),
        ("configure", "nothing can make nvidia-uvm", "NVIDIA/enroot#106", NO_UVM, sick),
    ),
    *examples(
        "gpu.fabric_manager",
        ("warning", "GPU operator: it runs in a container", NVSENTINEL, service("inactive")),
        ("monitor", "HGX A100: the driver reports no fabric", "[N/A]", service("inactive"), *NO_FABRIC),
        ("monitor", "it starts, for up to twelve minutes", "TimeoutStartSec=720", service("activating")),
        ("drain", "it failed after it set up the fabric", NVSENTINEL, service("failed")),
    ),
]
test_machines_get_the_verdict_that_a_person_gives_them = considered_hosts(COUNTER_EXAMPLES)
