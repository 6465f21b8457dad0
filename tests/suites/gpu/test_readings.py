"""Values that a GPU does not report, and GPUs that report none."""

from __future__ import annotations

from dataclasses import fields

import pytest
from gpu_helpers import LOST, PROFILE, changed, devices, failing, gpus, judge, put, said, states, told, unread, verdict

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.kit.gpu.nvidia_smi import Gpu, Gpus

# attribute: the check that judges it
READ = {
    "memory": "gpu.memory",
    "uuid": "gpu.uuids",
    "vbios": "gpu.vbios",
    "serial": "gpu.serials",
    "persistence": "gpu.persistence",
    "compute_mode": "gpu.compute_mode",
    "mig": "gpu.mig",
    "ecc": "gpu.ecc_mode",
    "ecc_volatile_uncorrected": "gpu.ecc_volatile",
    "pcie_width": "gpu.pcie_width",
    "pcie_gen": "gpu.pcie_gen",
    "pcie_gen_max": "gpu.pcie_gen",
    "throttle": "gpu.throttle",
    "temperature": "gpu.temperature",
    "power_limit": "gpu.power_limit",
    "clock_sm_max": "gpu.clocks",
    "memory_used": "gpu.idle_memory",
    "fabric_state": "gpu.fabric_state",
    "fabric_status": "gpu.fabric_state",
    "recovery_action": "gpu.recovery_action",
}
# the profile states it, or there is nothing else to judge
STATED = {"memory", "uuid", "pcie_width", "pcie_gen", "pcie_gen_max", "power_limit", "fabric_state"}
STATED |= {"fabric_status", "recovery_action"}
ALL = sorted({it.name for it in fields(Gpu)} - {"index", "uuid", "bus", "unread"})


@pytest.mark.parametrize("attribute", ALL)
def test_what_nvidia_smi_shows_to_root_alone_is_no_fault_of_a_gpu(attribute: str) -> None:
    assert failing(changed(unread(attribute, "[Insufficient Permissions]"))) == []


@pytest.mark.parametrize("attribute", READ)
def test_an_error_in_reading_a_value_is_an_error_of_that_value(attribute: str) -> None:
    for shown in ("[Unknown Error]", "ERR!", "[Timeout]"):
        host = changed(unread(attribute, shown, 4))
        assert not host.gpus.devices[4].lost
        found = judge(host, READ[attribute])[READ[attribute]]
        assert (told(found), str(found.findings[0].measured)) == ("monitor: GPU 4", shown)


@pytest.mark.parametrize("attribute", sorted(set(READ) - {"mig"}))
def test_a_value_that_no_gpu_of_the_node_has_accuses_none(attribute: str) -> None:
    """As in guests. Where the profile states the value, it is not checked."""
    for shown in ("[N/A]", "N/A", "[Not Supported]", "[Not Found]", "Unknown"):
        found = verdict(READ[attribute], unread(attribute, shown))
        unsaid = shown in {"[Not Found]", "Unknown"}  # these do not say that there is no such value
        assert told(found) == ("not checked" if attribute in STATED or unsaid else "not applicable")
        assert (attribute == "serial" and not unsaid) or f"{shown}, as on all GPUs" in found.reason


@pytest.mark.parametrize("key", ["ecc", "persistence", "compute_mode"])
def test_what_the_profile_states_itself_is_not_checked_where_it_cannot_be_read(key: str) -> None:
    stated = states(**{key: getattr(PROFILE, key)})
    assert said(READ[key], unread(key, "[N/A]"), stated) == "not checked"
    if key == "ecc":
        assert said("gpu.ecc_volatile", unread("ecc_volatile_uncorrected", "[N/A]"), stated) == "not checked"


def test_a_gpu_that_lacks_what_its_siblings_report_is_watched() -> None:
    lacking = unread("memory", "[N/A]", 2)
    found = verdict("gpu.memory", lacking)
    assert told(found) == "monitor: GPU 2"
    assert "other GPUs of the node report it" in str(found.findings[0].expected)
    # nobody like it to compare with
    assert said("gpu.memory", lacking, gpus(2, name="another model")) == "not checked"


def test_a_lost_gpu_is_reported_and_not_counted() -> None:
    count = verdict("gpu.count", LOST)
    assert (told(count), [it.value for it in count.metrics]) == ("drain: GPU 4", [7])
    part = str(devices().devices[4])
    for check in ("gpu.names", "gpu.throttle", "gpu.idle_memory"):
        found = verdict(check, LOST)
        assert (told(found), found.reason.startswith(f"{part} is lost")) == ("not checked", True)
    assert part not in {it.device for it in verdict("gpu.temperature", LOST).metrics}
    assert said("gpu.names", unread("memory", "[GPU is lost]")) == "not checked", "of all"


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (Gpus(), ""),
        (Gpus(messages=("a", "b"), failed="exit 6"), "a; b (exit 6)"),
        (Gpus(messages=("x" * 300,)), "x" * 200),
    ],
)
def test_a_node_without_gpus_has_the_message_of_nvidia_smi(found: Gpus, shown: str) -> None:
    for check in ("gpu.names", "gpu.driver"):
        none = verdict(check, put(gpus=found))
        assert none.outcome is Outcome.NOT_CHECKED
        assert none.reason.endswith(f"(see gpu.count): {shown or 'no message'}")
    count = verdict("gpu.count", put(gpus=found))
    assert told(count) == "drain: GPUs"
    assert str(count.findings[0].measured) == "0 GPUs" + f", nvidia-smi: {shown}" * bool(shown)
