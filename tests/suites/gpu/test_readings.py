"""Values that a GPU does not report, and GPUs that report none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gpu_helpers import PROFILE, Host, devices, failing, judge, lost

from pytest_gpucluster.config.models import GpuProfile
from pytest_gpucluster.core.check import Action, Finding, Outcome
from pytest_gpucluster.kit.gpu import nvidia_csv, nvidia_smi
from pytest_gpucluster.suites.gpu.checks import inventory, memory
from pytest_gpucluster.suites.gpu.readings import nvidia_smi_message


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
READ = {
    "memory": ("gpu.memory", "140.4 GiB (within 1%)", Action.MONITOR),
    "uuid": ("gpu.uuids", "a UUID", Action.MONITOR),
    "vbios": ("gpu.vbios", "a version", Action.MONITOR),
    "serial": ("gpu.serials", "a serial number", Action.MONITOR),
    "persistence": ("gpu.persistence", "Enabled", Action.MONITOR),
    "compute_mode": ("gpu.compute_mode", "Default", Action.MONITOR),
    "mig": ("gpu.mig", "Disabled", Action.MONITOR),
    "ecc": ("gpu.ecc_mode", "Enabled", Action.MONITOR),
    "ecc_volatile_uncorrected": ("gpu.ecc_volatile", "0", Action.MONITOR),
    "pcie_width": ("gpu.pcie_width", "x16", Action.MONITOR),
    "pcie_gen": ("gpu.pcie_gen", "generation 5", Action.MONITOR),
    "pcie_gen_max": ("gpu.pcie_gen", "generation 5", Action.MONITOR),
    "throttle": ("gpu.throttle", "readable clock event reasons", Action.MONITOR),
    "temperature": ("gpu.temperature", "at most 85 C", Action.MONITOR),
    "power_limit": ("gpu.power_limit", "700 W", Action.MONITOR),
    "clock_sm_max": ("gpu.clocks", "a highest clock", Action.MONITOR),
    "memory_used": ("gpu.idle_memory", "at most 1 GiB", Action.MONITOR),
    "fabric_state": ("gpu.fabric_state", "Completed", Action.MONITOR),
    "fabric_status": ("gpu.fabric_state", "Success", Action.MONITOR),
    "recovery_action": ("gpu.recovery_action", "None", Action.MONITOR),
}


STATED = {
    "memory",
    "uuid",
    "pcie_width",
    "pcie_gen",
    "pcie_gen_max",
    "power_limit",
    "fabric_state",
    "fabric_status",
}


STATED |= {"recovery_action"}  # it is stated nowhere, and yet there is nothing else to judge


@pytest.mark.parametrize("said", ["[Unknown Error]", "ERR!", "[Timeout]"])
@pytest.mark.parametrize("attribute", READ)
def test_an_error_in_reading_a_value_is_an_error_of_that_value(attribute: str, said: str) -> None:
    check, expected, action = READ[attribute]
    host = Host()
    host.change(4, **{attribute: None}, unread={attribute: said})
    verdict = judge(host)[check]
    (finding,) = verdict.findings
    assert (finding.part, finding.measured, finding.expected) == (str(host.gpus.devices[4]), said, expected)
    assert verdict.action is action


@pytest.mark.parametrize("said", ["[N/A]", "N/A", "[Not Supported]", "[Not Found]", "Unknown"])
@pytest.mark.parametrize("attribute", sorted(set(READ) - {"mig"}))
def test_a_value_that_no_gpu_of_the_node_has_accuses_none(attribute: str, said: str) -> None:
    """As in guests. Where the profile states the value, it is not checked."""
    check, _, _ = READ[attribute]
    host = Host()
    for index in range(8):
        host.change(index, **{attribute: None}, unread={attribute: said})
    verdict = judge(host)[check]
    assert verdict.findings == ()
    expected = Outcome.NOT_CHECKED if attribute in STATED else Outcome.NOT_APPLICABLE
    assert verdict.outcome is expected
    if attribute != "serial":
        assert (
            verdict.reason
            == f"{attribute} of {host.gpus.devices[7 * (expected is Outcome.NOT_APPLICABLE)]}: {said}, "
            "as on all GPUs of this model on the node"
        )


@pytest.mark.parametrize("key", ["ecc", "persistence", "compute_mode", "max_temperature", "max_idle_memory"])
def test_what_the_profile_states_itself_is_not_checked_where_it_cannot_be_read(key: str) -> None:
    stated = GpuProfile(**{**PROFILE.model_dump(exclude_unset=True), key: getattr(PROFILE, key)})
    attribute = {"max_temperature": "temperature", "max_idle_memory": "memory_used"}.get(key, key)
    host = Host()
    for index in range(8):
        host.change(index, **{attribute: None}, unread={attribute: "[N/A]"})
    assert judge(host, stated)[READ[attribute][0]].outcome is Outcome.NOT_CHECKED
    if key == "ecc":
        for index in range(8):
            host.change(index, ecc_volatile_uncorrected=None, unread={"ecc_volatile_uncorrected": "[N/A]"})
        assert judge(host, stated)["gpu.ecc_volatile"].outcome is Outcome.NOT_CHECKED


def test_a_gpu_that_lacks_what_its_siblings_report_is_watched() -> None:
    host = Host()
    host.change(2, memory=None, unread={"memory": "[N/A]"})
    verdict = judge(host)["gpu.memory"]
    (finding,) = verdict.findings
    assert finding.measured == "[N/A]"
    assert finding.expected == "140.4 GiB (within 1%); other GPUs of the node report it"
    assert verdict.action is Action.MONITOR
    host.change(2, name="another model")
    assert judge(host)["gpu.memory"].outcome is Outcome.NOT_CHECKED  # nobody like it to compare with


def test_a_lost_gpu_is_reported_and_not_counted() -> None:
    host = lost()
    verdicts = judge(host)
    part = str(host.gpus.devices[4])
    assert verdicts["gpu.count"].findings == (Finding(part, "[GPU is lost]", "answers", Action.DRAIN),)
    assert [it.value for it in verdicts["gpu.count"].metrics] == [7]
    for check in ("gpu.names", "gpu.throttle", "gpu.idle_memory"):
        assert verdicts[check].reason == f"{part} is lost (see gpu.count): [GPU is lost]"
        assert verdicts[check].outcome is Outcome.NOT_CHECKED
    assert part not in {it.device for it in verdicts["gpu.temperature"].metrics}


def test_a_node_whose_gpus_are_all_lost_names_each() -> None:
    host = Host()
    for index in range(8):
        host.change(index, memory=None, unread={"memory": "[GPU is lost]"})
    verdict = judge(host)["gpu.names"]
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert verdict.reason == f"{host.gpus.devices[0]} is lost (see gpu.count): [GPU is lost]"


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        (nvidia_smi.Gpus(driver_problem="no driver"), "nvidia-smi does not work (see gpu.driver): no driver"),
        (nvidia_smi.Gpus(), "nvidia-smi lists no GPU (see gpu.count): no message"),
        (
            nvidia_smi.Gpus(messages=("a", "b"), failed="exit 6"),
            "nvidia-smi lists no GPU (see gpu.count): a; b (exit 6)",
        ),
        (nvidia_smi.Gpus(failed="exit 6"), "nvidia-smi lists no GPU (see gpu.count): (exit 6)"),
        (
            nvidia_smi.Gpus(messages=("x" * 300,)),
            f"nvidia-smi lists no GPU (see gpu.count): {'x' * 200}",
        ),
    ],
)
def test_a_node_without_gpus_has_the_message_of_nvidia_smi(gpus: nvidia_smi.Gpus, reason: str) -> None:
    verdicts = judge(Host(gpus=gpus))
    assert (verdicts["gpu.names"].outcome, verdicts["gpu.names"].reason) == (Outcome.NOT_CHECKED, reason)
    driver = verdicts["gpu.driver"]
    if gpus.driver_problem:
        assert driver.findings == (Finding("driver", "no driver", "nvidia-smi answers"),)
        assert verdicts["gpu.count"].reason == "nvidia-smi does not work (see gpu.driver): no driver"
        assert verdicts["gpu.count"].metrics == ()
    else:
        assert (driver.outcome, driver.reason) == (Outcome.NOT_CHECKED, reason)
        said = nvidia_smi_message(gpus) if gpus.messages or gpus.failed else ""
        assert verdicts["gpu.count"].findings == (
            Finding("GPUs", f"0, nvidia-smi: {said}" if said else "0", "8", Action.DRAIN),
        )


def test_values_that_a_driver_does_not_report_name_its_version() -> None:
    for driver, shown in (("580.159.04", "580.159.04"), (None, "version unknown")):
        host = Host()
        host.change(
            0, recovery_action=None, driver=driver, unread={"recovery_action": nvidia_csv.NOT_REPORTED}
        )
        assert (
            judge(host)["gpu.recovery_action"].reason
            == f"recovery_action: {nvidia_csv.NOT_REPORTED} ({shown})"
        )


def test_a_value_for_root_alone_says_so() -> None:
    host = Host()
    host.change(1, temperature=None, unread={"temperature": "[Insufficient Permissions]"})
    verdict = judge(host)["gpu.temperature"]
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED,
        f"temperature of {host.gpus.devices[1]}: nvidia-smi shows it to root alone: [Insufficient Permissions]",
    )


def test_a_value_without_a_word_of_why_it_is_absent() -> None:
    gpus = devices()
    first = replace(gpus.devices[0], memory=None, unread={})
    alone = nvidia_smi.Gpus((first,))
    assert inventory.memory(alone, PROFILE).findings == (
        Finding(str(first), "no value", "140.4 GiB (within 1%)", Action.MONITOR),
    )
    row = nvidia_smi.RowRemapping(0, None, pending=False, failure=False)
    assert memory.remapped_rows(alone, {str(first.uuid): row}, PROFILE).findings == (
        Finding(str(first), "no value", "at most 8 rows", Action.MONITOR),
    )
