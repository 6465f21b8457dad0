"""The gpu checks: the recorded host passes; each deviation fails its own check on its own part, and no other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from gpu_helpers import (
    MIB,
    Host,
    changed,
    failing,
    gpus,
    judge,
    link,
    listed,
    logged,
    put,
    said,
    states,
    told,
    unread,
    uuid,
    verdict,
)

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.kit.gpu import nvidia_smi
from pytest_gpucluster.kit.gpu.fabric_manager import FabricManager

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_recorded_host_passes_everything_and_is_measured() -> None:
    host = Host()
    verdicts = judge(host)
    ends = {name: told(found) for name, found in verdicts.items()}
    assert ends == dict.fromkeys(verdicts, "passed") | {"gpu.retired_pages": "not applicable"}


FABRIC_FAILED = FabricManager("failed", None)
XID = "NVRM: Xid (PCI:0000:00:0b): 46, GPU stopped"
SXID = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 3"


@pytest.mark.parametrize(
    ("check", "end", "change"),
    [
        ("names", "configure: GPU 1", gpus(1, name="NVIDIA H100 80GB HBM3")),
        ("memory", "monitor: GPU 1", unread("memory", "[Unknown Error]", 1)),
        ("cuda", "configure: driver", put(gpus=lambda host: replace(host.gpus, cuda="11.8"))),
        ("vbios", "configure: GPU 3", gpus(3, vbios="96.00.74.00.0B")),
        ("uuids", "configure: GPU 2", lambda host: host.change(2, uuid=f"{uuid(host, 2)}gpu03")),
        ("serials", "monitor: GPU 2", unread("serial", "[Unknown Error]", 2)),
        ("persistence", "configure: GPU 0", gpus(0, persistence=False)),
        ("compute_mode", "configure: GPU 0", gpus(0, compute_mode="Exclusive_Process")),
        ("mig", "configure: GPU 0", gpus(0, mig=True)),
        ("ecc_mode", "configure: GPU 0", gpus(0, ecc=False)),
        ("ecc_volatile", "monitor: GPU 2", unread("ecc_volatile_uncorrected", "[N/A]", 2)),
        ("nvlink_state", "drain: GPU 4 NVLink 7", link(4, 7, 19.9)),
        ("pcie_gen", "monitor: GPU 6", gpus(6, pcie_gen=3)),
        ("fabric_state", "monitor: GPU 0", gpus(0, fabric_state="In Progress")),
        ("throttle", "monitor: GPU 0", gpus(0, throttle=0x80)),
        ("power_limit", "configure: GPU 0", gpus(0, power_limit=500.0)),
        ("clocks", "configure: GPU 0", gpus(0, clock_application=1200.0)),
        ("xid", "reset gpu: GPU 5", logged(XID)),
        ("xid", "reset gpu: nvidia-nvswitch3", logged(SXID, "sxid")),
    ],
)
def test_each_fault_fails_its_own_check_alone(check: str, end: str, change: Callable[[Host], None]) -> None:
    assert failing(changed(change)) == [f"gpu.{check}"]
    assert said(f"gpu.{check}", change) == end


@pytest.mark.parametrize("number", [13, 31, 43, 45, 63, 68, 94])
def test_an_xid_of_an_application_is_measured_and_does_not_fail(number: int) -> None:
    found = verdict("gpu.xid", logged(f"NVRM: Xid (PCI:0000:00:0b): {number}, pid=1"))
    assert found.outcome is Outcome.PASSED
    assert (f"xid_{number}", 2) in {(metric.name, metric.value) for metric in found.metrics}


def test_without_a_driver_one_check_fails_and_few_pass() -> None:
    host = Host(gpus=nvidia_smi.Gpus(driver_problem="NVIDIA-SMI has failed"))
    assert failing(host) == ["gpu.driver"]
    passed = {name for name, verdict in judge(host).items() if verdict.outcome is Outcome.PASSED}
    assert passed == {"gpu.device_files", "gpu.fabric_manager", "gpu.libraries", "gpu.xid"}
    assert (
        failing(Host(gpus=nvidia_smi.Gpus(driver_problem="NVIDIA-SMI has failed", owner="a diagnostic owns the GPUs")))
        == []
    )


@pytest.mark.parametrize(
    ("check", "name", "good", "bad"),
    [
        ("gpu.memory", "memory", 142333 * MIB + MIB // 2, 142333 * MIB),  # 1% below: 142333.29 MiB
        ("gpu.memory", "memory", 145208 * MIB, 145209 * MIB),
        ("gpu.temperature", "temperature", 85.0, 85.1),
        ("gpu.power_limit", "power_limit", 699.0, 698.9),
        ("gpu.power_limit", "power_limit", 701.0, 701.1),
        ("gpu.idle_memory", "memory_used", 1024 * MIB, 1024 * MIB + 1),
        ("gpu.clocks", "clock_application", 1980, 1979),
        ("gpu.clocks", "clock_application_default", None, 1981),
        ("gpu.clocks", "clock_application", None, 1),
        ("gpu.pcie_gen", "pcie_gen", 6, 4),
        ("gpu.pcie_gen", "pcie_gen_max", 6, 4),
    ],
)
def test_a_value_at_its_limit_passes_and_one_beyond_fails(check: str, name: str, good: Any, bad: Any) -> None:
    assert said(check, gpus(2, **{name: good})) == "passed"
    assert verdict(check, gpus(2, **{name: bad})).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("check", "key", "value"),
    [
        *((f"gpu.{key}", key, None) for key in ("memory", "cuda", "persistence", "compute_mode", "mig")),
        *((f"gpu.{key}", key, None) for key in ("pcie_width", "pcie_gen", "topology", "power_limit")),
        *((f"gpu.{check}", "ecc", False) for check in ("ecc_volatile", "ecc_aggregate")),
        *((f"gpu.{check}", "ecc", False) for check in ("remapped_rows", "remapped_pending")),
        ("gpu.ecc_mode", "ecc", None),
        ("gpu.nvlink_state", "nvlinks", 0),
        ("gpu.nvlink_errors", "nvlinks", 0),
        ("gpu.topology", "count", 1),
        ("gpu.p2p", "nvlinks", None),
        ("gpu.p2p", "count", 1),
        ("gpu.fabric_manager", "nvswitch", False),
        ("gpu.fabric_state", "fabric_state", False),
    ],
)
def test_what_the_profile_does_not_state_is_not_judged(check: str, key: str, value: Any) -> None:
    wrong = gpus(0, memory=1, compute_mode="x", ecc_volatile_uncorrected=9, pcie_width=1, power_limit=1.0)
    assert said(check, wrong, put(fabric_service=FABRIC_FAILED), states(**{key: value})) == "not applicable"


def test_a_gpu_that_the_tables_of_nvidia_smi_lack_is_not_checked() -> None:
    host = Host()
    del host.rows[uuid(host, 5)], host.nvlinks[uuid(host, 5)], host.errors[uuid(host, 5)]
    del host.connections.links[5], host.peer_access[5]
    verdicts = judge(host)
    of_rows = ["gpu.remapped_rows", "gpu.remapped_pending"]
    for name in (*of_rows, "gpu.nvlink_state", "gpu.nvlink_errors", "gpu.p2p", "gpu.topology"):
        assert told(verdicts[name]) == "not checked"
        assert "GPU 5" in verdicts[name].reason
    del host.connections.links[6]
    assert judge(host, "gpu.topology")["gpu.topology"].reason.endswith("has no row for GPU 5, 6")


def test_a_single_gpu_without_nvswitch_has_no_peer_over_nvlink() -> None:
    """One H200 of eight, passed through to a virtual machine: nvidia-smi nvlink prints no link of it."""
    alone = (listed(1), put(nvlinks={}, errors={}))
    for count, nvswitch, end in ((1, 0, "not applicable"), (1, 1, "not checked"), (8, 0, "not checked")):
        for check in ("gpu.nvlink_state", "gpu.nvlink_errors"):
            assert said(check, *alone, states(count=count, nvswitch=bool(nvswitch))) == end
    down = put(nvlinks=lambda host: {uuid(host, 0): dict.fromkeys(range(18))})
    found = verdict("gpu.nvlink_state", *alone, down, states(count=1, nvswitch=False))
    assert found.outcome is Outcome.FAILED, "links that are listed are judged"
