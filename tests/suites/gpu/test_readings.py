"""Values that a GPU does not report, and GPUs that report none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from counter_examples import DRAIN, MONITOR
from gpu_helpers import PROFILE, Host, devices, failing, judge, lost
from judged import judged

from pytest_gpucluster.config.models import GpuProfile
from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.kit.gpu import nvidia_csv, nvidia_smi
from pytest_gpucluster.suites.gpu.checks import inventory, memory


def test_one_value_that_cannot_be_read_is_no_lost_gpu() -> None:
    host = Host()
    host.change(4, temperature=None, unread={"temperature": "[Unknown Error]"})
    assert not host.gpus.devices[4].lost


def test_what_an_old_driver_does_not_report_is_not_checked() -> None:
    host = Host()
    host.change(0, recovery_action=None, unread={"recovery_action": nvidia_csv.NOT_REPORTED})
    assert judge(host)["gpu.recovery_action"].outcome is Outcome.NOT_CHECKED


@pytest.mark.parametrize("attribute", sorted(nvidia_smi._FIELDS.keys() - {"index", "uuid", "bus"}))
def test_what_nvidia_smi_shows_to_root_alone_is_no_fault_of_a_gpu(attribute: str) -> None:
    host = Host()
    for index in range(8):
        host.change(index, **{attribute: None}, unread={attribute: "[Insufficient Permissions]"})
    assert failing(host) == []


# attribute: the check, what it expects, and what an error in reading it asks for
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
# the profile states it; the action is stated nowhere, and yet there is nothing else to judge
STATED: tuple[str, ...] = (
    "memory",
    "uuid",
    "pcie_width",
    "pcie_gen",
    "pcie_gen_max",
    "power_limit",
    "fabric_state",
)
STATED += ("fabric_status", "recovery_action")


@pytest.mark.parametrize("said", ["[Unknown Error]", "ERR!", "[Timeout]"])
@pytest.mark.parametrize("attribute", READ)
def test_an_error_in_reading_a_value_is_an_error_of_that_value(attribute: str, said: str) -> None:
    host = Host()
    host.change(4, **{attribute: None}, unread={attribute: said})
    verdict = judge(host)[READ[attribute]]
    assert judged(verdict) == (MONITOR, [str(host.gpus.devices[4])])
    assert verdict.findings[0].measured == said


@pytest.mark.parametrize("said", ["[N/A]", "N/A", "[Not Supported]", "[Not Found]", "Unknown"])
@pytest.mark.parametrize("attribute", sorted(set(READ) - {"mig"}))
def test_a_value_that_no_gpu_of_the_node_has_accuses_none(attribute: str, said: str) -> None:
    """As in guests. Where the profile states the value, it is not checked."""
    host = Host()
    for index in range(8):
        host.change(index, **{attribute: None}, unread={attribute: said})
    verdict = judge(host)[READ[attribute]]
    expected = Outcome.NOT_CHECKED if attribute in STATED else Outcome.NOT_APPLICABLE
    assert (verdict.findings, verdict.outcome) == ((), expected)
    if attribute != "serial":
        shown = host.gpus.devices[7 * (expected is Outcome.NOT_APPLICABLE)]
        assert verdict.reason.startswith(f"{attribute} of {shown}: {said}, as on all GPUs")


@pytest.mark.parametrize("key", ["ecc", "persistence", "compute_mode", "max_temperature", "max_idle_memory"])
def test_what_the_profile_states_itself_is_not_checked_where_it_cannot_be_read(key: str) -> None:
    stated = GpuProfile(**{**PROFILE.model_dump(exclude_unset=True), key: getattr(PROFILE, key)})
    attribute = {"max_temperature": "temperature", "max_idle_memory": "memory_used"}.get(key, key)
    host = Host()
    for index in range(8):
        host.change(index, **{attribute: None}, unread={attribute: "[N/A]"})
    assert judge(host, stated)[READ[attribute]].outcome is Outcome.NOT_CHECKED
    if key == "ecc":
        for index in range(8):
            host.change(index, ecc_volatile_uncorrected=None, unread={"ecc_volatile_uncorrected": "[N/A]"})
        assert judge(host, stated)["gpu.ecc_volatile"].outcome is Outcome.NOT_CHECKED


def test_a_gpu_that_lacks_what_its_siblings_report_is_watched() -> None:
    host = Host()
    host.change(2, memory=None, unread={"memory": "[N/A]"})
    verdict = judge(host)["gpu.memory"]
    assert judged(verdict) == (MONITOR, [str(host.gpus.devices[2])])
    assert "other GPUs of the node report it" in verdict.findings[0].expected
    host.change(2, name="another model")
    assert judge(host)["gpu.memory"].outcome is Outcome.NOT_CHECKED  # nobody like it to compare with


def test_a_lost_gpu_is_reported_and_not_counted() -> None:
    host = lost()
    verdicts = judge(host)
    part = str(host.gpus.devices[4])
    assert judged(verdicts["gpu.count"]) == (DRAIN, [part])
    assert [it.value for it in verdicts["gpu.count"].metrics] == [7]
    for check in ("gpu.names", "gpu.throttle", "gpu.idle_memory"):
        assert verdicts[check].outcome is Outcome.NOT_CHECKED
        assert verdicts[check].reason.startswith(f"{part} is lost")
    assert part not in {it.device for it in verdicts["gpu.temperature"].metrics}


def test_a_node_whose_gpus_are_all_lost_names_each() -> None:
    host = Host()
    for index in range(8):
        host.change(index, memory=None, unread={"memory": "[GPU is lost]"})
    verdict = judge(host)["gpu.names"]
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert verdict.reason == f"{host.gpus.devices[0]} is lost (see gpu.count): [GPU is lost]"


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        (nvidia_smi.Gpus(), ""),
        (nvidia_smi.Gpus(messages=("a", "b"), failed="exit 6"), "a; b (exit 6)"),
        (nvidia_smi.Gpus(failed="exit 6"), "(exit 6)"),
        (nvidia_smi.Gpus(messages=("x" * 300,)), "x" * 200),
    ],
)
def test_a_node_without_gpus_has_the_message_of_nvidia_smi(gpus: nvidia_smi.Gpus, said: str) -> None:
    verdicts = judge(Host(gpus=gpus))
    for check in ("gpu.names", "gpu.driver"):
        assert verdicts[check].outcome is Outcome.NOT_CHECKED
        assert verdicts[check].reason.endswith(f"(see gpu.count): {said or 'no message'}")
    assert judged(verdicts["gpu.count"]) == (DRAIN, ["GPUs"])
    assert verdicts["gpu.count"].findings[0].measured == (f"0, nvidia-smi: {said}" if said else "0")


def test_a_node_without_a_driver_has_its_message() -> None:
    verdicts = judge(Host(gpus=nvidia_smi.Gpus(driver_problem="no driver")))
    assert judged(verdicts["gpu.driver"])[1] == ["driver"]
    assert verdicts["gpu.driver"].findings[0].measured == "no driver"
    for check in ("gpu.names", "gpu.count"):
        assert verdicts[check].reason.endswith("(see gpu.driver): no driver")
    assert verdicts["gpu.count"].metrics == ()


def test_values_that_a_driver_does_not_report_name_its_version() -> None:
    unread = {"recovery_action": nvidia_csv.NOT_REPORTED}
    for driver, shown in (("580.159.04", "580.159.04"), (None, "version unknown")):
        host = Host()
        host.change(0, recovery_action=None, driver=driver, unread=unread)
        assert judge(host)["gpu.recovery_action"].reason.endswith(f"({shown})")


def test_a_value_without_a_word_of_why_it_is_absent() -> None:
    first = replace(devices().devices[0], memory=None, unread={})
    alone = nvidia_smi.Gpus((first,))
    row = nvidia_smi.RowRemapping(0, None, pending=False, failure=False)
    rows = memory.remapped_rows(alone, {str(first.uuid): row}, PROFILE)
    for verdict in (inventory.memory(alone, PROFILE), rows):
        assert judged(verdict) == (MONITOR, [str(first)])
        assert verdict.findings[0].measured == "no value"
