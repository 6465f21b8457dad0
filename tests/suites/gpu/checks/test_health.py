from __future__ import annotations

import pytest
from counter_examples import (
    CONFIGURE,
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
)
from gpu_helpers import MIB, PROFILE, Host, devices, example, failing, gpus, judge, put, uuid
from judged import judged

from pytest_gpucluster.core.check import Action, Finding, Outcome
from pytest_gpucluster.kit.gpu import nvidia_smi
from pytest_gpucluster.kit.gpu.fabric_manager import FabricManager
from pytest_gpucluster.kit.gpu.nvidia_csv import NOT_REPORTED
from pytest_gpucluster.suites.gpu.checks import health as checks


@pytest.mark.parametrize(
    ("mask", "action"),
    [(0x8, MONITOR), (0x88, DRAIN), (0x48, DRAIN), (0x80, MONITOR), (0x40, MONITOR), (0x20, MONITOR)],
)
def test_clocks_that_the_hardware_has_halved_drain(mask: int, action: str) -> None:
    host = Host()
    harmless = 0x117  # idle, application clocks, power cap, sync boost, display
    host.change(3, throttle=mask | harmless)
    verdict = judge(host)["gpu.throttle"]
    assert judged(verdict) == (action, [str(host.gpus.devices[3])])


def test_a_slowdown_fails_only_if_every_later_reading_has_it() -> None:
    host = Host()
    host.change(3, throttle=0x48)
    for later, outcome, action, measured in (
        (0x48, Outcome.FAILED, Action.DRAIN, "hardware slowdown, hardware thermal slowdown"),
        (0x40, Outcome.FAILED, Action.MONITOR, "hardware thermal slowdown"),
    ):
        verdict = checks.throttle(host.gpus, {uuid(host, 3): later})
        assert (verdict.outcome, verdict.action) == (outcome, action)
        assert [finding.measured for finding in verdict.findings] == [measured]
    ended = checks.throttle(host.gpus, {uuid(host, 3): 0x4})
    assert (ended.outcome, ended.advisories[0].measured) == (
        Outcome.PASSED, "hardware slowdown, hardware thermal slowdown, which ended within 15 s"
    )  # fmt: skip
    alone = checks.throttle(host.gpus)
    assert alone.outcome is Outcome.NOT_CHECKED
    assert alone.reason == (
        f"{host.gpus.devices[3]}: hardware slowdown, hardware thermal slowdown in one reading; later readings have no result"
    )


def test_harmless_and_unknown_clock_reasons_fail_nothing() -> None:
    host = Host()
    host.change(3, throttle=0x117)
    assert judge(host)["gpu.throttle"].advisories == ()
    host.change(3, throttle=0x10001)
    verdict = judge(host)["gpu.throttle"]
    assert judged(verdict) == (WARNING, [str(host.gpus.devices[3])])
    assert verdict.advisories[0].measured.endswith(" 0x10000")


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("Reset", "reset gpu"),
        ("Reboot", REBOOT),
        ("Drain P2P", DRAIN),
        ("Drain and Reset", "reset gpu"),
        ("something new", MONITOR),
    ],
)
def test_what_the_driver_asks_for_is_the_action(said: str, action: str) -> None:
    host = Host()
    host.change(5, recovery_action=said)
    verdict = judge(host)["gpu.recovery_action"]
    assert judged(verdict) == (action, [str(host.gpus.devices[5])])
    assert verdict.findings[0].measured == said


def test_memory_in_use_where_a_display_is_active_is_no_leak() -> None:
    host = Host()
    host.change(2, display=True, memory_used=40_960 * MIB)
    verdict = judge(host)["gpu.idle_memory"]
    assert verdict.outcome is Outcome.PASSED
    (advisory,) = verdict.advisories
    assert (advisory.part, advisory.measured) == (str(host.gpus.devices[2]), "40 GiB that no process holds")
    host.change(2, display=False)
    assert failing(host) == ["gpu.idle_memory"]


def test_the_bits_of_clock_reasons_are_those_of_nvml() -> None:
    host = Host()
    host.change(0, throttle=0x1FF)
    verdict = judge(host)["gpu.throttle"]
    assert verdict.findings[0].measured == (
        "hardware slowdown, software thermal slowdown, hardware thermal slowdown, hardware power brake"
    )
    assert verdict.advisories == ()
    assert set(checks.FINE_REASONS) == {0x1, 0x2, 0x4, 0x10, 0x100}
    assert set(checks.SLOW_REASONS) == {0x8, 0x20, 0x40, 0x80}


def test_device_files() -> None:
    host = Host(
        files=frozenset({"nvidiactl", "nvidia-uvm", *(f"nvidia{n}" for n in range(7)), "nvidia-modeset"})
    )
    assert judge(host)["gpu.device_files"].findings == (Finding("/dev/nvidia[0-9]*", "7 files", "8"),)
    host.files = frozenset()
    verdict = judge(host)["gpu.device_files"]
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED,
        "nvidia-smi works, but /dev shows no nvidiactl: nvidia-smi uses another /dev",
    )
    absent = judge(Host(gpus=nvidia_smi.Gpus(), files=frozenset()))["gpu.device_files"].findings
    assert [it.part for it in absent] == ["/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm"]


@pytest.mark.parametrize(
    ("name", "pid", "memory", "told"),
    [
        ("/usr/bin/nvidia-cuda-mps-server", 7, MIB, None),
        ("nvidia-cuda-mps-server", 7, MIB, None),
        ("/opt/python3", None, None, "process ? /opt/python3 (memory unknown)"),
        ("[Not Found]", 9, 3 * MIB, "process 9 [Not Found] (3 MiB)"),
    ],
)
def test_who_is_a_stray_process(name: str, pid: int | None, memory: int | None, told: str | None) -> None:
    host = Host()
    host.apps = (nvidia_smi.GpuProcess(pid, uuid(host, 2), memory, name),)
    verdict = judge(host)["gpu.stray_processes"]
    assert [it.measured for it in verdict.findings] == ([told] if told else [])
    assert {it.part for it in verdict.findings} <= {str(host.gpus.devices[2])}


def test_memory_that_processes_hold_is_no_leak() -> None:
    host = Host()
    host.change(2, memory_used=3000 * MIB)
    host.apps = tuple(nvidia_smi.GpuProcess(n, uuid(host, 2), 1000 * MIB, "python3") for n in (1, 2))
    assert judge(host)["gpu.idle_memory"].outcome is Outcome.PASSED
    host.change(2, memory_used=3025 * MIB)
    assert [it.measured for it in judge(host)["gpu.idle_memory"].findings] == [
        "1.001 GiB that no process holds"
    ]
    host.apps = (nvidia_smi.GpuProcess(1, uuid(host, 2), None, "python3"),)
    assert judge(host)["gpu.idle_memory"].findings == ()
    host.apps = (nvidia_smi.GpuProcess(1, uuid(host, 3), 4000 * MIB, "python3"),)
    assert len(judge(host)["gpu.idle_memory"].findings) == 1


def test_memory_in_use_on_grace_is_the_operating_systems() -> None:
    """Grace is known by its name."""
    names: dict[str, tuple[str, ...]] = {WARNING: ("NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA GB300")}
    names[MONITOR] = ("NVIDIA GB10", "NVIDIA RTX GX200", "NVIDIA xGH200", "NVIDIA GB2000", "NVIDIA GBX00", "")
    for expected, models in names.items():
        for model in models:
            host = Host()
            host.change(2, name=model or None, memory_used=2048 * MIB)
            assert judged(judge(host)["gpu.idle_memory"]) == (expected, [str(host.gpus.devices[2])])


def test_highest_clocks_are_compared_by_model() -> None:
    host = Host()
    host.change(3, clock_sm_max=1500.0)
    usual = host.gpus.devices[0]
    (found,) = judge(host)["gpu.clocks"].findings
    assert found.part == str(host.gpus.devices[3])
    assert found.measured == f"SM 1500 MHz, memory {usual.clock_memory_max:g} MHz"
    assert (
        found.expected
        == f"SM {usual.clock_sm_max:g} MHz, memory {usual.clock_memory_max:g} MHz, as on 31 of 32 GPUs of this model"
    )
    host.change(
        3, clock_sm_max=usual.clock_sm_max, clock_memory_max=None, unread={"clock_memory_max": "ERR!"}
    )
    (found,) = judge(host)["gpu.clocks"].findings
    assert (found.measured, found.expected, found.action) == ("ERR!", "a highest clock", Action.MONITOR)
    host.change(4, clock_sm=None)
    assert [it.value for it in judge(host)["gpu.clocks"].metrics][3] == 0


def test_device_files_are_counted_by_their_numbers() -> None:
    gpus = devices()
    names = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia", *(f"nvidia{n}" for n in range(8))}
    assert checks.device_files(frozenset(names), gpus, PROFILE).outcome is Outcome.PASSED
    more = frozenset({*names, "nvidia8"})
    assert checks.device_files(more, gpus, PROFILE).outcome is Outcome.PASSED
    assert checks.device_files(frozenset({"nvidiactl"}), nvidia_smi.Gpus(), PROFILE).findings == (
        Finding("/dev/nvidia[0-9]*", "0 files", "8"), Finding("/dev/nvidia-uvm", "absent", "present")
    )  # fmt: skip


REASONS = "nvml.h, nvmlClocksEventReasons"
FLAGS = "NVIDIA GPU Memory Error Management, Error Recovery and Response Flags"
BUSY = put(apps=lambda host: [nvidia_smi.GpuProcess(7, uuid(host, 0), 9 * 2**30, "python3")])
MPS = "https://docs.nvidia.com/deploy/mps/index.html"


def mps(host: Host) -> list[nvidia_smi.GpuProcess]:
    return [
        nvidia_smi.GpuProcess(9, uuid(host, n), 900 * MIB, "/usr/bin/nvidia-cuda-mps-server")
        for n in range(8)
    ]


COUNTER_EXAMPLES = [
    example("gpu.idle_memory", "the driver's own reserve counts as used", "nvidia-smi: memory.used, memory.reserved", PASSED, gpus(memory_used=900 * MIB)),
    example("gpu.idle_memory", "MPS holds a context on each GPU", MPS, PASSED, gpus(memory_used=1500 * MIB), put(apps=mps)),
    example("gpu.idle_memory", "GH200: the operating system uses memory of the GPU", "NVIDIA Grace tuning guide: coherent memory", WARNING,
            gpus(memory_used=6 * 1024 * MIB, name="NVIDIA GH200 480GB")),
    example("gpu.idle_memory", "40 GiB without a process", "a job ended without releasing it", MONITOR, gpus(3, memory_used=40 * 1024 * MIB), sick=True),
    example("gpu.stray_processes", "MPS holds a context on each GPU", MPS, PASSED, put(apps=mps)),
    example("gpu.stray_processes", "none", "nvidia-smi --query-compute-apps", PASSED),
    example("gpu.stray_processes", "python of an earlier job", "nvidia-smi --query-compute-apps", MONITOR, BUSY, sick=True),
    example("gpu.throttle", "T4, idle", REASONS, PASSED, gpus(throttle=0x1)),
    example("gpu.throttle", "H200 at its power limit under load", REASONS, PASSED, gpus(throttle=0x4)),
    example("gpu.throttle", "clocks locked by the site, sync boost", REASONS, PASSED, gpus(throttle=0x12)),
    example("gpu.throttle", "H100 sampled while its performance state changes", f"{REASONS}: HW slowdown", MONITOR,
            gpus(3, throttle=0x8)),
    example("gpu.throttle", "H100 read as a burst of another job ends", REASONS, WARNING, gpus(3, throttle=0x48),
            put(throttle_later=lambda host: {uuid(host, 3): 0x1})),
    example("gpu.throttle", "B200 in a warm aisle, slowed by the driver", REASONS, MONITOR, gpus(3, throttle=0x20)),
    example("gpu.throttle", "GeForce in a guest, reasons not supported", "healthy-titan-v-driver-560", NOT_APPLICABLE,
            gpus(throttle=None, unread={"throttle": "[N/A]"})),
    example("gpu.throttle", "GB200 whose power brake is asserted", "NVIDIA/NVSentinel#1666", DRAIN,
            gpus(0, 1, throttle=0x88), sick=True),
    example("gpu.throttle", "H100 with a dead fan, hardware slows it", REASONS, DRAIN, gpus(2, throttle=0x48), sick=True),
    example("gpu.temperature", "passive T4, idle at 70 C", "T4 product brief: 85 C at most", PASSED, gpus(temperature=70.0)),
    example("gpu.temperature", "RTX 4090 at 86 C a second after its job", "slows down at 90 C", MONITOR,
            gpus(0, temperature=86.0, throttle=0x1)),
    example("gpu.temperature", "TITAN RTX at 91 C after its job, limit 94 C", "nvidia-smi -q: GPU Slowdown Temp 94 C", MONITOR,
            gpus(0, temperature=91.0, throttle=0x1)),
    example("gpu.temperature", "V100 at work on a host without Slurm", "a process of its own", MONITOR, BUSY,
            gpus(0, temperature=92.0, throttle=0x60)),
    example("gpu.temperature", "GPU at 97 C without a process, its reasons not readable", "above the limit of every model", DRAIN,
            gpus(0, temperature=97.0, throttle=None), sick=True),
    example("gpu.temperature", "idle A100 at 93 C that its driver slows", f"{REASONS}: thermal slowdown", DRAIN,
            gpus(0, temperature=93.0, throttle=0x20), sick=True),
    example("gpu.recovery_action", "H200, driver 580", FLAGS, PASSED),
    example("gpu.recovery_action", "A100, driver 535 without the field", "nvidia-smi 535 --help-query-gpu", NOT_CHECKED,
            gpus(recovery_action=None, unread={"recovery_action": NOT_REPORTED})),
    example("gpu.recovery_action", "guest with a virtual GPU", "nvidia-smi: [N/A]", NOT_CHECKED,
            gpus(recovery_action=None, unread={"recovery_action": "[N/A]"})),
    example("gpu.recovery_action", "a word that a later driver adds", "nvml.h: the list grows", MONITOR,
            gpus(3, recovery_action="Bus Reset")),
    example("gpu.recovery_action", "H100 after an uncontained error", FLAGS, "reset gpu", gpus(3, recovery_action="Reset"),
            sick=True),
    example("gpu.device_files", "freshly booted node: CUDA makes nvidia-uvm", "NVIDIA/enroot#106", WARNING,
            put(files=lambda host: (host.files - {"nvidia-uvm"}) | {"nvidia-modprobe"})),
    example("gpu.device_files", "no nvidia-uvm, and nothing that could make it", "NVIDIA/enroot#106", CONFIGURE,
            put(files=lambda host: host.files - {"nvidia-uvm"}), sick=True),
    example("gpu.fabric_manager", "GPU operator: fabric manager in its container", "NVIDIA/NVSentinel#883", WARNING,
            put(service=FabricManager("inactive", None))),
    example("gpu.fabric_manager", "HGX A100: the driver reports no fabric", "nvidia-smi: fabric.state [N/A]", MONITOR,
            put(service=FabricManager("inactive", None)),
            gpus(fabric_state=None, fabric_status=None, unread={"fabric_state": "[N/A]", "fabric_status": "[N/A]"})),
    example("gpu.fabric_manager", "HGX H100 whose fabric manager failed after it set up the fabric", "NVIDIA/NVSentinel#883",
            CONFIGURE, put(service=FabricManager("failed", None)), sick=True),
    example("gpu.fabric_manager", "HGX H100 whose fabric manager was killed", "NVIDIA/NVSentinel#883, node 1", CONFIGURE,
            put(service=FabricManager("failed", None)), gpus(fabric_state="In Progress", fabric_status="N/A"), sick=True),
]  # fmt: skip


@pytest.mark.parametrize("machine", COUNTER_EXAMPLES, ids=name)
def test_machines_get_the_verdict_that_a_person_gives_them(machine: CounterExample) -> None:
    assert_as_expected(machine)


def test_the_bounds_of_heat_clocks_and_memory() -> None:
    """A hot GPU is taken out at 95 C; a highest clock that differs is no setting; memory is shown in MiB."""
    host = Host()
    for temperature, action in ((95.0, Action.DRAIN), (94.9, Action.MONITOR)):
        host.change(2, temperature=temperature, throttle=0)
        verdict = judge(host)["gpu.temperature"]
        assert (verdict.outcome, verdict.action) == (Outcome.FAILED, action)
    host = Host()
    host.change(2, clock_sm_max=1000)
    verdict = judge(host)["gpu.clocks"]
    assert (verdict.outcome, verdict.action) == (Outcome.FAILED, Action.MONITOR)
    host.change(2, memory_used=3 * MIB)
    assert judge(host)["gpu.idle_memory"].metrics[2].value == 3
