from __future__ import annotations

import pytest
from gpu_helpers import MIB, PROFILE, Host, devices, failing, judge, uuid

from pytest_gpucluster.core.check import Action, Advisory, Finding, Outcome
from pytest_gpucluster.kit import nvidia_smi
from pytest_gpucluster.suites.gpu.checks import health as checks


@pytest.mark.parametrize(
    ("mask", "measured", "action"),
    [
        (0x8, "hardware slowdown", Action.DRAIN),
        (0x88, "hardware slowdown, hardware power brake", Action.DRAIN),
        (0x48, "hardware slowdown, hardware thermal slowdown", Action.DRAIN),
        (0x80, "hardware power brake", Action.MONITOR),
        (0x40, "hardware thermal slowdown", Action.MONITOR),
        (0x20, "software thermal slowdown", Action.MONITOR),
    ],
)
def test_clocks_that_the_hardware_has_halved_drain(mask: int, measured: str, action: Action) -> None:
    host = Host()
    host.change(
        3, throttle=mask | 0x117
    )  # idle, application clocks, power cap, sync boost, display: harmless
    verdict = judge(host)["gpu.throttle"]
    (finding,) = verdict.findings
    assert (finding.part, finding.measured) == (str(host.gpus.devices[3]), measured)
    assert (finding.expected, verdict.action) == ("no slowdown", action)


def test_harmless_and_unknown_clock_reasons_fail_nothing() -> None:
    host = Host()
    host.change(3, throttle=0x117)
    assert judge(host)["gpu.throttle"].advisories == ()
    host.change(3, throttle=0x10001)
    verdict = judge(host)["gpu.throttle"]
    assert verdict.outcome is Outcome.PASSED
    (advisory,) = verdict.advisories
    assert (advisory.part, advisory.measured) == (str(host.gpus.devices[3]), "clock event reason 0x10000")
    assert advisory.expected == "a reason that this release knows"


@pytest.mark.parametrize("name", ["NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA GB300"])
def test_memory_in_use_on_grace_is_the_operating_systems(name: str) -> None:
    host = Host()
    host.change(2, name=name, memory_used=40_960 * MIB)
    verdict = judge(host)["gpu.idle_memory"]
    assert verdict.outcome is Outcome.PASSED
    (advisory,) = verdict.advisories
    assert (advisory.measured, advisory.expected) == ("40 GiB that no process holds", "at most 1 GiB")


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("Reset", Action.RESET_GPU),
        ("Reboot", Action.REBOOT),
        ("Drain P2P", Action.DRAIN),
        ("Drain and Reset", Action.RESET_GPU),
        ("something new", Action.MONITOR),
    ],
)
def test_what_the_driver_asks_for_is_the_action(said: str, action: Action) -> None:
    host = Host()
    host.change(5, recovery_action=said)
    verdict = judge(host)["gpu.recovery_action"]
    (finding,) = verdict.findings
    assert (finding.part, finding.measured) == (str(host.gpus.devices[5]), said)
    assert (finding.expected, verdict.action) == ("None", action)


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
    verdict = checks.throttle(host.gpus)
    assert verdict.findings == (
        Finding(
            str(host.gpus.devices[0]),
            "hardware slowdown, software thermal slowdown, hardware thermal slowdown, hardware power brake",
            "no slowdown",
        ),
    )
    assert verdict.advisories == ()
    assert checks.FINE_REASONS == {
        0x1: "idle", 0x2: "applications clocks setting", 0x4: "software power cap", 0x10: "sync boost",
        0x100: "display clock setting",
    }  # fmt: skip
    assert checks.SLOW_REASONS == {
        0x8: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
        0x80: "hardware power brake",
    }  # fmt: skip
    assert checks.RECOVERY == {
        "Reset": Action.RESET_GPU, "Reboot": Action.REBOOT, "Drain P2P": Action.DRAIN,
        "Drain and Reset": Action.RESET_GPU,
    }  # fmt: skip


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


def test_grace_is_known_by_its_name() -> None:
    for name in ("NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA GB300"):
        host = Host()
        host.change(2, name=name, memory_used=2048 * MIB)
        verdict = judge(host)["gpu.idle_memory"]
        assert verdict.advisories == (
            Advisory(str(host.gpus.devices[2]), "2 GiB that no process holds", "at most 1 GiB"),
        )
    for other in ("NVIDIA GB10", "NVIDIA RTX GX200", "NVIDIA xGH200", "NVIDIA GB2000", "NVIDIA GBX00", None):
        host = Host()
        host.change(2, name=other, memory_used=2048 * MIB)
        assert judge(host)["gpu.idle_memory"].outcome is Outcome.FAILED


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
