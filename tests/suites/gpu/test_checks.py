"""The gpu checks: the recorded host passes; each deviation fails its own check on its own part, and no other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from gpu_helpers import (
    FAULTS,
    MIB,
    PROFILE,
    Host,
    devices,
    judge,
    logged,
    recorded,
    remap,
    survey,
    topology,
    uuid,
)

from pytest_gpucluster.config.models import GpuProfile
from pytest_gpucluster.core.check import Action, Finding, Outcome
from pytest_gpucluster.kit import nvidia_csv, nvidia_smi
from pytest_gpucluster.kit import xid_check as xid
from pytest_gpucluster.suite import checks_as_tests
from pytest_gpucluster.suites.gpu import checks as gpu

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict


def failing(host: Host, profile: GpuProfile = PROFILE) -> list[str]:
    return [name for name, verdict in judge(host, profile).items() if verdict.outcome is Outcome.FAILED]


def test_the_recorded_host_passes_everything() -> None:
    verdicts = judge(Host())
    assert [f"test_{name.partition('.')[2]}" for name in sorted(verdicts)] == sorted(
        checks_as_tests(gpu, xid)
    )
    assert {v.check: v.reason for v in verdicts.values() if v.outcome is not Outcome.PASSED} == {
        "gpu.retired_pages": "GPUs since Ampere remap rows (see gpu.remapped_rows)"
    }


def _other_driver(version: str) -> nvidia_smi.Gpus:
    return replace(devices(), devices=tuple(replace(one, driver=version) for one in devices()))


def test_drivers_in_halves_drain_nobody_and_both_are_named() -> None:
    old, new = _other_driver("535.104.05"), _other_driver("550.54.15")
    fleet = {f"gpu0{n}": old if n < 3 else new for n in range(1, 5)}
    verdict = gpu.driver(new, PROFILE, gpu.driver_majority(fleet))
    assert verdict.findings == (
        Finding(
            "driver",
            "550.54.15",
            "one value on all nodes with this model; no majority: 535.104.05 on gpu[01-02], "
            "550.54.15 on gpu[03-04]",
            Action.MONITOR,
        ),
    )
    assert (verdict.outcome, verdict.action) == (Outcome.FAILED, Action.MONITOR)
    alone = gpu.driver(new, PROFILE, gpu.driver_majority({**fleet, "gpu03": old}))
    assert (alone.findings[0].expected, alone.action) == (
        "535.104.05, as on 3 of 4 nodes with this model",
        Action.MONITOR,
    )


def test_a_vbios_is_counted_on_the_gpus_of_one_node_as_well() -> None:
    odd = Host()
    odd.change(3, vbios="96.00.74.00.0B")
    usual = odd.gpus.devices[0].vbios
    (found,) = gpu.vbios(odd.gpus, PROFILE, gpu.vbios_majority({"gpu01": odd.gpus})).findings
    assert found.expected == f"{usual}, as on 7 of 8 GPUs of this model"
    for index in (4, 5, 6):
        odd.change(index, vbios="96.00.74.00.0B")
    verdict = gpu.vbios(odd.gpus, PROFILE, gpu.vbios_majority({"gpu01": odd.gpus}))
    assert len(verdict.findings) == 8
    assert verdict.findings[0].expected.endswith(f"{usual} (4) on gpu01, 96.00.74.00.0B (4) on gpu01")


def test_gpu_7_of_the_recording_is_within_limits_and_measured() -> None:
    verdicts = judge(Host())
    aggregate = {(m.name, m.device[:5]): m.value for m in verdicts["gpu.ecc_aggregate"].metrics}
    assert aggregate["ecc_aggregate_sram_uncorrected", "GPU 7"] == 1
    rows = {(m.name, m.device[:5]): m.value for m in verdicts["gpu.remapped_rows"].metrics}
    assert rows["remapped_rows_correctable", "GPU 7"] == 1
    strict = PROFILE.model_copy(update={"max_aggregate_sram_uncorrectable": 0})
    assert "max_aggregate_sram_uncorrectable" in strict.model_fields_set
    assert failing(Host(), strict) == ["gpu.ecc_aggregate"]  # a site that says 0 means 0


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_fails_its_own_check_on_its_own_part(name: str) -> None:
    check, part, put = FAULTS[name]
    host = Host()
    put(host)
    assert failing(host) == [check]
    (first, *_) = judge(host)[check].findings
    assert first.part.startswith(part)


@pytest.mark.parametrize("number", [13, 31, 43, 45, 63, 68, 94])
def test_an_xid_of_an_application_is_measured_and_does_not_fail(number: int) -> None:
    host = Host()
    logged(f"NVRM: Xid (PCI:0000:00:0b): {number}, pid=1")(host)
    verdict = judge(host)["gpu.xid"]
    assert verdict.outcome is Outcome.PASSED
    assert (f"xid_{number}", 2) in {(metric.name, metric.value) for metric in verdict.metrics}


def test_a_sleeping_gpu_may_run_its_link_slower() -> None:
    host = Host()
    for index in range(8):
        host.change(index, pcie_gen=1, pstate="P8")
    assert failing(host) == []


@pytest.mark.parametrize("said", ["[GPU is lost]", "[Unknown Error]", "[GPU requires reset]"])
def test_a_gpu_that_is_lost_fails_the_count_alone(said: str) -> None:
    """Nothing can be read of it: none of its values is wrong, nor is it to be sent back for them."""
    header, *rows = recorded("query-gpu.txt").splitlines()
    cells = rows[4].split(", ")
    kept = {place for place, name in enumerate(header.split(", ")) if name in {"index", "name", "uuid"}}
    rows[4] = ", ".join(cell if place in kept else said for place, cell in enumerate(cells))
    found = nvidia_smi.parse_gpus(survey(gpus="\n".join([header, *rows]), header=recorded("nvidia-smi.txt")))
    host = Host()
    everything = {name: said for name in nvidia_smi._FIELDS if name not in {"index", "name", "uuid"}}
    host.change(4, **dict.fromkeys(everything), unread=everything)
    assert found.devices[4].lost == host.gpus.devices[4].lost == said
    verdicts = judge(host)
    assert [name for name, verdict in verdicts.items() if verdict.outcome is Outcome.FAILED] == ["gpu.count"]
    (finding,) = verdicts["gpu.count"].findings
    assert finding.part.startswith("GPU 4 (")
    assert finding.measured == said
    assert (
        verdicts["gpu.memory"].outcome is Outcome.NOT_CHECKED
    )  # of GPU 4; the others still fail where they do
    host.change(0, memory=1 * MIB)
    assert failing(host) == ["gpu.count", "gpu.memory"]


def test_a_gpu_that_requires_a_reset_is_to_be_reset_unless_others_are_gone() -> None:
    host = Host()
    host.change(4, memory_used=None, unread={"memory_used": "[GPU requires reset]"})
    verdicts = judge(host)
    assert [name for name, verdict in verdicts.items() if verdict.outcome is Outcome.FAILED] == ["gpu.count"]
    assert verdicts["gpu.count"].action is Action.RESET_GPU
    assert "reset" in verdicts["gpu.count"].cause
    host.gpus = replace(host.gpus, devices=host.gpus.devices[:7])
    assert judge(host)["gpu.count"].action is Action.DRAIN


def test_where_the_profile_states_no_nvlinks_the_other_gpus_of_the_node_tell() -> None:
    unstated = PROFILE.model_copy(update={"nvlinks": None, "nvlink_speed": None})
    host = Host()
    assert judge(host, unstated)["gpu.nvlink_state"].outcome is Outcome.PASSED
    host.links[uuid(host, 4)].update({7: None})
    (finding,) = judge(host, unstated)["gpu.nvlink_state"].findings
    assert (finding.measured, finding.expected) == (
        "17 active links (inactive: link 7)",
        "18, as on most GPUs of the node",
    )


@pytest.mark.parametrize("bridged", [0, 2, 4, 6])
def test_cards_that_are_bridged_in_pairs_are_not_accused(bridged: int) -> None:
    host = Host()
    for index in range(bridged, 8):
        host.links[uuid(host, index)] = dict.fromkeys(host.links[uuid(host, index)])
    unstated = PROFILE.model_copy(update={"nvlinks": None, "nvlink_speed": None})
    expected = Outcome.PASSED if bridged > 4 else Outcome.NOT_APPLICABLE
    assert judge(host, unstated)["gpu.nvlink_state"].outcome is expected


def test_one_value_that_cannot_be_read_is_no_lost_gpu() -> None:
    host = Host()
    host.change(4, temperature=None, unread={"temperature": "[Unknown Error]"})
    assert not host.gpus.devices[4].lost


def test_without_a_driver_one_check_fails_and_none_passes() -> None:
    host = Host(gpus=nvidia_smi.Gpus(driver_problem="NVIDIA-SMI has failed"))
    verdicts = judge(host)
    assert failing(host) == ["gpu.driver"]
    passed = {name for name, verdict in verdicts.items() if verdict.outcome is Outcome.PASSED}
    assert passed == {"gpu.device_files", "gpu.fabric_manager", "gpu.xid"}


def test_an_nvidia_smi_that_answers_late_is_no_pass_of_the_driver() -> None:
    """Its first query took 60 s and the second was cut off: the GPUs were told, and nothing else was."""
    late = replace(Host().gpus, cut_off="rows")
    verdict = judge(Host(gpus=late))["gpu.driver"]
    assert [finding.measured for finding in verdict.findings] == [
        "nvidia-smi had not told all after 90 s: cut off at its query 'rows'"
    ]
    # each start loads the driver anew, which takes seconds: that has its own check
    unloaded = Host(gpus=late)
    unloaded.change(3, persistence=False)
    assert judge(unloaded)["gpu.driver"].outcome is Outcome.NOT_CHECKED


def test_without_any_gpu_the_count_fails_with_what_was_said() -> None:
    host = Host(gpus=nvidia_smi.Gpus(messages=("No devices were found",)))
    assert failing(host) == ["gpu.count"]
    assert "No devices were found" in judge(host)["gpu.count"].findings[0].measured


def test_a_broken_gpu_accuses_no_other_of_its_retired_pages() -> None:
    host = Host()
    for index in range(8):
        text = "[Unknown Error]" if index == 3 else "[N/A]"
        host.change(index, retired_pending=None, unread={"retired_pending": text})
    (finding,) = judge(host)["gpu.retired_pages"].findings
    assert finding.part.startswith("GPU 3 ")


def test_nvidia_smi_that_fails_after_listing_all_gpus_is_no_success() -> None:
    host = Host()
    host.gpus = replace(host.gpus, failed="exit 255")
    assert failing(host) == ["gpu.count"]
    assert "(exit 255)" in judge(host)["gpu.count"].findings[0].measured


def test_what_an_old_driver_does_not_report_is_not_checked() -> None:
    host = Host()
    host.change(0, recovery_action=None, unread={"recovery_action": nvidia_csv.NOT_REPORTED})
    assert judge(host)["gpu.recovery_action"].outcome is Outcome.NOT_CHECKED


def test_a_driver_that_differs_from_the_fleet_fails_on_that_node() -> None:
    host = Host()
    for index in range(8):
        host.change(index, driver="570.172.08")
    assert failing(host) == ["gpu.driver"]


@pytest.mark.parametrize("attribute", sorted(nvidia_smi._FIELDS.keys() - {"index", "uuid", "bus"}))
def test_what_nvidia_smi_shows_to_root_alone_is_no_fault_of_a_gpu(attribute: str) -> None:
    host = Host()
    for index in range(8):
        host.change(index, **{attribute: None}, unread={attribute: "[Insufficient Permissions]"})
    assert failing(host) == []


def test_row_remapping_for_root_alone_is_not_checked() -> None:
    host = Host()
    denied = {"failure": "[Insufficient Permissions]", "pending": "[Insufficient Permissions]"}
    remap(host, failure=None, pending=None, unread=denied)
    verdicts = judge(host)
    assert failing(host) == []
    for check in ("gpu.remapped_rows", "gpu.remapped_pending"):
        assert verdicts[check].outcome is Outcome.NOT_CHECKED
        assert "to root alone" in verdicts[check].reason


def test_more_gpus_than_stated_are_a_fault_of_the_statement() -> None:
    verdict = judge(Host(), PROFILE.model_copy(update={"count": 4}))["gpu.count"]
    assert verdict.outcome is Outcome.FAILED
    assert verdict.action is Action.MONITOR
    assert "more GPUs than its profile says" in verdict.cause
    fewer = judge(Host(), PROFILE.model_copy(update={"count": 9}))["gpu.count"]
    assert fewer.action is Action.DRAIN


# --- values that cannot be read ----------------------------------------------------------------------------------

# attribute: the check, what it expects, and what an error in reading it asks for
READ = {
    "memory": ("gpu.memory", "140.4 GiB (within 1%)", Action.RESET_GPU),
    "uuid": ("gpu.uuids", "a UUID", Action.RESET_GPU),
    "vbios": ("gpu.vbios", "a version", Action.MONITOR),
    "serial": ("gpu.serials", "a serial number", Action.MONITOR),
    "persistence": ("gpu.persistence", "Enabled", Action.MONITOR),
    "compute_mode": ("gpu.compute_mode", "Default", Action.MONITOR),
    "mig": ("gpu.mig", "Disabled", Action.RESET_GPU),
    "ecc": ("gpu.ecc_mode", "Enabled", Action.RESET_GPU),
    "ecc_volatile_uncorrected": ("gpu.ecc_volatile", "0", Action.RESET_GPU),
    "pcie_width": ("gpu.pcie_width", "x16", Action.RESET_GPU),
    "pcie_gen": ("gpu.pcie_gen", "generation 5", Action.RESET_GPU),
    "pcie_gen_max": ("gpu.pcie_gen", "generation 5", Action.RESET_GPU),
    "throttle": ("gpu.throttle", "readable clock event reasons", Action.RESET_GPU),
    "temperature": ("gpu.temperature", "at most 85 C", Action.RESET_GPU),
    "power_limit": ("gpu.power_limit", "700 W", Action.MONITOR),
    "clock_sm_max": ("gpu.clocks", "a highest clock", Action.MONITOR),
    "memory_used": ("gpu.idle_memory", "at most 1 GiB", Action.RESET_GPU),
    "fabric_state": ("gpu.fabric_state", "Completed", Action.RESET_GPU),
    "fabric_status": ("gpu.fabric_state", "Success", Action.RESET_GPU),
    "recovery_action": ("gpu.recovery_action", "None", Action.RESET_GPU),
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
            "as of all its kind on this node"
        )


def test_a_gpu_without_mig_has_it_switched_off() -> None:
    host = Host()
    for index in range(8):
        host.change(index, mig=None, unread={"mig": "[N/A]"})
    assert judge(host)["gpu.mig"].outcome is Outcome.PASSED
    cut = PROFILE.model_copy(update={"mig": True})
    assert judge(host, cut)["gpu.mig"].outcome is Outcome.NOT_CHECKED


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


def test_memory_that_is_missing_is_returned() -> None:
    host = Host()
    host.change(2, memory=100 * MIB)
    assert judge(host)["gpu.memory"].action is Action.VENDOR


@pytest.mark.parametrize("said", ["[N/A]", "[Unknown Error]"])
@pytest.mark.parametrize("name", ["failure", "uncorrectable", "pending"])
def test_one_value_of_row_remapping_that_cannot_be_read(name: str, said: str) -> None:
    host = Host()
    remap(host, **{name: None}, unread={name: said})
    verdict = judge(host)["gpu.remapped_pending" if name == "pending" else "gpu.remapped_rows"]
    if said == "[N/A]":
        assert (verdict.outcome, verdict.reason) == (
            Outcome.NOT_CHECKED,
            f"remapped_rows.{name} of {host.gpus.devices[3]}: [N/A]",
        )
    else:
        (finding,) = verdict.findings
        expected = {"failure": "no failure", "uncorrectable": "at most 8 rows", "pending": "none pending"}[
            name
        ]
        assert (finding.part, finding.measured) == (str(host.gpus.devices[3]), said)
        assert (finding.expected, verdict.action) == (expected, Action.RESET_GPU)


def test_a_guest_without_row_remapping_fails_nothing() -> None:
    """MIG mode on driver 535 shows all of it as N/A, and no retired pages either."""
    host = Host()
    for one in list(host.rows):
        host.rows[one] = nvidia_smi.RowRemapping(
            None, None, None, None, dict.fromkeys(nvidia_smi.ROWS, "[N/A]")
        )
    for check in ("gpu.remapped_rows", "gpu.remapped_pending"):
        verdict = judge(host)[check]
        assert verdict.outcome is Outcome.NOT_APPLICABLE
        assert verdict.reason == "GPUs before Ampere, and guests, report no row remapping"


def test_many_remapped_rows_are_watched_unless_the_site_states_a_limit() -> None:
    host = Host()
    remap(host, uncorrectable=8)
    assert failing(host) == []
    remap(host, uncorrectable=9)
    verdict = judge(host)["gpu.remapped_rows"]
    (finding,) = verdict.findings
    assert finding.measured == "9 rows remapped for uncorrectable errors"
    assert (finding.expected, verdict.action) == ("at most 8", Action.MONITOR)
    stated = GpuProfile(**PROFILE.model_dump(exclude_unset=True), max_remapped_uncorrectable=8)
    assert judge(host, stated)["gpu.remapped_rows"].action is Action.VENDOR
    remap(host, uncorrectable=0, failure=True)
    assert judge(host)["gpu.remapped_rows"].action is Action.VENDOR


# --- NVLink ------------------------------------------------------------------------------------------------------


def counted(host: Host, counter: str, value: float) -> Verdict:
    host.errors[uuid(host, 4)] = nvidia_smi.LinkErrors(53, ((7, counter, value),))
    return judge(host)["gpu.nvlink_errors"]


@pytest.mark.parametrize(("counter", "limit"), sorted(gpu.NVLINK_LIMITS.items()))
def test_each_counter_fails_from_its_limit_on(counter: str, limit: int) -> None:
    host = Host()
    assert counted(host, counter.title(), limit - 1).outcome is Outcome.PASSED
    verdict = counted(host, counter.title(), limit)
    (finding,) = verdict.findings
    assert finding.part == f"{host.gpus.devices[4]} NVLink 7"
    assert finding.measured == f"{limit} {counter.title()}"
    assert (finding.expected, verdict.action) == (f"below {limit} since the driver's start", Action.DRAIN)
    assert verdict.advisories == ()


@pytest.mark.parametrize("counter", gpu.NVLINK_WARNINGS)
def test_a_counter_that_proves_no_fault_warns(counter: str) -> None:
    host = Host()
    verdict = counted(host, counter, 3)
    assert verdict.outcome is Outcome.PASSED
    (advisory,) = verdict.advisories
    assert advisory.part == str(host.gpus.devices[4])
    assert advisory.measured == f"{counter}: 3 on NVLink 7"
    assert advisory.expected == "0 since the driver's start"
    assert counted(host, counter, 0).advisories == ()


def test_an_unknown_counter_is_reported_once_a_gpu() -> None:
    host = Host()
    counts = ((1, "PLR Xmit Retry Blocks", 5), (2, "PLR Xmit Retry Blocks", 6))
    host.errors[uuid(host, 4)] = nvidia_smi.LinkErrors(0, counts)
    verdict = judge(host)["gpu.nvlink_errors"]
    assert verdict.outcome is Outcome.PASSED
    (advisory,) = verdict.advisories
    assert advisory.measured == "PLR Xmit Retry Blocks: 5 on NVLink 1, 6 on NVLink 2"
    assert advisory.expected == "a counter that this release knows"


@pytest.mark.parametrize(("rate", "fails"), [(15e-255, False), (1e-12, False), (2e-12, True), (15e-3, True)])
def test_the_bit_error_rate_after_correction_is_at_most_1e_12(rate: float, *, fails: bool) -> None:
    host = Host()
    verdict = counted(host, "Effective BER", rate)
    assert verdict.advisories == ()
    if fails:
        (finding,) = verdict.findings
        assert finding.part == f"{host.gpus.devices[4]} NVLink 7"
        assert (finding.measured, finding.expected) == (f"Effective BER {rate:g}", "at most 1e-12")
    else:
        assert verdict.outcome is Outcome.PASSED


def test_a_counter_that_cannot_be_read_is_not_checked() -> None:
    host = Host()
    host.errors[uuid(host, 4)] = nvidia_smi.LinkErrors(0, (), ((7, "Replay Errors", "N/A"),))
    assert judge(host)["gpu.nvlink_errors"].outcome is Outcome.PASSED
    host.errors[uuid(host, 4)] = nvidia_smi.LinkErrors(0, (), ((7, "Replay Errors", "Unknown Error"),))
    verdict = judge(host)["gpu.nvlink_errors"]
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert verdict.reason == f"Replay Errors of {host.gpus.devices[4]} NVLink 7: Unknown Error"


@pytest.mark.parametrize(("links", "outcome"), [(18, Outcome.NOT_CHECKED), (None, Outcome.NOT_APPLICABLE)])
def test_a_gpu_without_counters(links: int | None, outcome: Outcome) -> None:
    host = Host()
    host.errors[uuid(host, 4)] = nvidia_smi.LinkErrors(0, ())
    verdict = judge(host, PROFILE.model_copy(update={"nvlinks": links}))["gpu.nvlink_errors"]
    assert (verdict.outcome, verdict.reason) == (
        outcome,
        f"{host.gpus.devices[4]}: nvidia-smi nvlink -e shows no counter",
    )
    none = PROFILE.model_copy(update={"nvlinks": 0})
    assert judge(host, none)["gpu.nvlink_errors"].reason == "the profile states no NVLinks"


@pytest.mark.parametrize("stated", [True, False])
def test_a_gpu_in_mig_mode_has_no_nvlink(*, stated: bool) -> None:
    host = Host()
    for index in range(8):
        host.change(index, mig=True)
        host.links[uuid(host, index)] = {}
        host.errors[uuid(host, index)] = nvidia_smi.LinkErrors(0, ())
    verdicts = judge(host, PROFILE.model_copy(update={"mig": stated}))
    for check in ("gpu.nvlink_state", "gpu.nvlink_errors", "gpu.topology"):
        assert verdicts[check].outcome is Outcome.NOT_APPLICABLE, check
        said = f"{host.gpus.devices[7]} is in MIG mode (see gpu.mig), which has no NVLink"
        assert verdicts[check].reason == said
    assert (verdicts["gpu.mig"].outcome is Outcome.PASSED) is stated
    host = Host()
    host.change(1, mig=True)  # with links and counters, whatever the reason: they are judged
    assert failing(host) == ["gpu.mig"]
    assert judge(host)["gpu.nvlink_state"].outcome is Outcome.PASSED


def test_a_gpu_with_fewer_links_than_its_siblings_is_watched() -> None:
    host = Host()
    host.links[uuid(host, 4)].update({7: None})
    assert judge(host)["gpu.nvlink_state"].action is Action.DRAIN
    unstated = PROFILE.model_copy(update={"nvlinks": None})
    assert judge(host, unstated)["gpu.nvlink_state"].action is Action.MONITOR


def test_peer_access_is_for_pairs_that_nvlink_connects() -> None:
    host = Host()
    for index in range(2, 8):
        host.topology.links[0][index] = host.topology.links[index][0] = "SYS"
        host.p2p[0][index] = host.p2p[index][0] = "NS"
    assert judge(host)["gpu.p2p"].outcome is Outcome.PASSED
    host.p2p[0][1] = "NS"
    (finding,) = judge(host)["gpu.p2p"].findings
    assert (finding.part, finding.measured, finding.expected) == ("GPU 0 to GPU 1", "NS", "OK")
    for row in host.topology.links.values():
        row.update(dict.fromkeys(row, "SYS"))
    verdict = judge(host)["gpu.p2p"]
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_APPLICABLE,
        "nvidia-smi topo -m shows no two GPUs that NVLink connects",
    )


# --- the fleet ---------------------------------------------------------------------------------------------------


def test_a_gpu_near_another_numa_node_than_in_the_fleet_is_watched() -> None:
    host = Host()
    host.topology = replace(host.topology, numa={**host.topology.numa, 5: "1"})
    verdict = judge(host)["gpu.numa_affinity"]
    (finding,) = verdict.findings
    assert finding.part == str(host.gpus.devices[5])
    assert (finding.measured, finding.expected) == (
        "NUMA node 1",
        "NUMA node 0, as on 4 of 4 nodes of this kind",
    )
    assert verdict.action is Action.MONITOR
    assert failing(host) == ["gpu.numa_affinity"]
    del host.topology.numa[5]
    (finding,) = judge(host)["gpu.numa_affinity"].findings
    assert finding.measured == "NUMA node unknown"


def test_the_numa_nodes_of_guests_and_of_single_nodes_are_not_judged() -> None:
    host = Host()
    alone = gpu.numa_majority({"gpu01": host.gpus}, {"gpu01": host.topology})
    verdict = gpu.numa_affinity(host.gpus, host.topology, alone)
    assert verdict.reason == "there is no other node of this kind to compare with"
    assert verdict.outcome is Outcome.NOT_APPLICABLE
    host.topology = replace(host.topology, numa={})
    verdict = judge(host)["gpu.numa_affinity"]
    assert verdict.reason == "nvidia-smi topo -m shows no NUMA affinity: a guest, or a driver before 450"
    assert verdict.outcome is Outcome.NOT_APPLICABLE


def test_numa_nodes_are_compared_among_nodes_of_one_kind() -> None:
    gpus, found = devices(), topology()
    other = replace(gpus, devices=tuple(replace(one, name="NVIDIA H100 NVL") for one in gpus))
    facts = {"a": gpus, "b": gpus, "c": other, "d": replace(gpus, devices=gpus.devices[:4]), "e": gpus}
    most = gpu.numa_majority(facts, dict.fromkeys("abcd", found))
    assert {key: one.total for key, one in most.items() if key[2] == 0} == {
        ("NVIDIA H200", 8, 0): 2,
        ("NVIDIA H100 NVL", 8, 0): 1,
        ("NVIDIA H200", 4, 0): 1,
    }


def test_a_driver_that_merely_differs_is_watched() -> None:
    host = Host()
    host.change(0, driver="535.1")
    verdict = judge(host)["gpu.driver"]
    assert (verdict.findings[0].part, verdict.action) == ("driver", Action.MONITOR)
    stated = PROFILE.model_copy(update={"driver": "580.*"})
    assert judge(host, stated)["gpu.driver"].action is Action.DRAIN


# --- health now --------------------------------------------------------------------------------------------------


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
        ("something new", Action.RESET_GPU),
    ],
)
def test_what_the_driver_asks_for_is_the_action(said: str, action: Action) -> None:
    host = Host()
    host.change(5, recovery_action=said)
    verdict = judge(host)["gpu.recovery_action"]
    (finding,) = verdict.findings
    assert (finding.part, finding.measured) == (str(host.gpus.devices[5]), said)
    assert (finding.expected, verdict.action) == ("None", action)


@pytest.mark.parametrize(
    ("state", "status", "measured"),
    [
        ("In Progress", "Success", "In Progress, Success"),
        ("Completed", "Insufficient Resources", "Completed, Insufficient Resources"),
        ("In Progress", None, "In Progress, [N/A]"),
        ("Not Started", None, "Not Started, [N/A]"),
    ],
)
def test_a_gpu_that_has_not_joined_the_fabric(state: str, status: str | None, measured: str) -> None:
    host = Host()
    unread = {} if status else {"fabric_status": "[N/A]"}
    host.change(0, fabric_state=state, fabric_status=status, unread=unread)
    verdict = judge(host)["gpu.fabric_state"]
    (finding,) = verdict.findings
    assert (finding.part, finding.measured) == (str(host.gpus.devices[0]), measured)
    assert (finding.expected, verdict.action) == ("Completed, Success", Action.REBOOT)


@pytest.mark.parametrize(
    ("health", "action"),
    [("Unhealthy", Action.REBOOT), ("Limited Capacity", Action.MONITOR), ("something new", Action.MONITOR)],
)
def test_a_fabric_that_is_not_healthy(health: str, action: Action) -> None:
    host = Host()
    host.change(0, fabric_health="Healthy")
    assert failing(host) == []
    host.change(0, fabric_health=health)
    verdict = judge(host)["gpu.fabric_state"]
    (finding,) = verdict.findings
    assert (finding.part, finding.measured) == (str(host.gpus.devices[0]), f"fabric health {health}")
    assert (finding.expected, verdict.action) == ("Healthy", action)


def test_memory_in_use_where_a_display_is_active_is_no_leak() -> None:
    host = Host()
    host.change(2, display=True, memory_used=40_960 * MIB)
    verdict = judge(host)["gpu.idle_memory"]
    assert verdict.outcome is Outcome.PASSED
    (advisory,) = verdict.advisories
    assert (advisory.part, advisory.measured) == (str(host.gpus.devices[2]), "40 GiB that no process holds")
    host.change(2, display=False)
    assert failing(host) == ["gpu.idle_memory"]


@pytest.mark.parametrize(
    "name",
    ["NVIDIA GeForce RTX 4090", "NVIDIA RTX 4000 Ada Generation", "Quadro RTX 6000", "NVIDIA TITAN RTX"],
)
def test_graphics_cards_come_with_ecc_off(name: str) -> None:
    host = Host()
    for index in range(8):
        host.change(index, name=name, ecc=False)
    verdict = judge(host, PROFILE.model_copy(update={"name": name}))["gpu.ecc_mode"]
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_APPLICABLE,
        "graphics cards are delivered with ECC off, and the profile does not state `ecc`",
    )
    stated = GpuProfile(**PROFILE.model_dump(exclude_unset=True), ecc=True)
    assert len(judge(host, stated)["gpu.ecc_mode"].findings) == 8
    host.change(0, ecc=True)  # switched on by somebody: then it was lost on the others
    verdict = judge(host)["gpu.ecc_mode"]
    assert (len(verdict.findings), verdict.action) == (7, Action.REBOOT)


def test_ecc_that_is_off_on_all_gpus_for_computing_was_switched_off() -> None:
    host = Host()
    for index in range(8):
        host.change(index, ecc=False)
    verdict = judge(host)["gpu.ecc_mode"]
    assert (len(verdict.findings), verdict.action) == (8, Action.REBOOT)


@pytest.mark.parametrize(
    ("single", "double", "full"), [(60, 2, False), (60, 3, True), (None, 63, True), (63, None, True)]
)
def test_a_full_table_of_retired_pages_is_for_the_vendor(
    single: int | None, double: int | None, *, full: bool
) -> None:
    host = Host()
    host.change(
        3, retired_pending=False, retired_single=single, retired_double=double, unread={"retired_pending": ""}
    )
    verdict = judge(host)["gpu.retired_pages"]
    if not full:
        assert verdict.outcome is Outcome.PASSED
        return
    (finding,) = verdict.findings
    assert (finding.part, finding.measured) == (str(host.gpus.devices[3]), "63 retired pages")
    assert (finding.expected, verdict.action) == ("fewer than 63", Action.VENDOR)
    host.change(3, retired_pending=True)
    assert [one.action for one in judge(host)["gpu.retired_pages"].findings] == [
        Action.VENDOR,
        Action.RESET_GPU,
    ]


def test_a_warning_of_no_known_gpu_names_what_it_says() -> None:
    host = Host()
    for said, part in (
        ("WARNING: infoROM is corrupted at gpu 0000:99:00.0", "GPU at 0000:99:00.0"),
        ("WARNING: infoROM is corrupted", "GPUs"),
    ):
        host.gpus = replace(host.gpus, messages=(said,))
        verdict = judge(host)["gpu.inforom"]
        (finding,) = verdict.findings
        assert (finding.part, finding.measured, verdict.action) == (part, said, Action.VENDOR)
        assert finding.expected == "no warning of nvidia-smi"


def test_a_lost_gpu_without_an_address_is_told_by_what_nvidia_smi_said() -> None:
    host = Host()
    everything = dict.fromkeys(nvidia_smi._FIELDS, "[Unknown Error]")
    gone = nvidia_smi.Gpu(unread=everything)
    host.gpus = replace(host.gpus, devices=(*host.gpus.devices[:4], gone, *host.gpus.devices[5:]))
    message = "Unable to determine the device handle for GPU0000:02:00.0: Unknown Error"
    host.gpus = replace(host.gpus, messages=(message,), failed="exit 15")
    (finding,) = judge(host)["gpu.count"].findings
    assert finding.part == "GPU ? (no UUID, no bus id)"
    assert finding.measured == f"[Unknown Error]; nvidia-smi: {message} (exit 15)"
    assert finding.expected == "answers"


def test_the_topology_is_judged_where_the_state_of_the_links_cannot_be_read() -> None:
    host = Host()
    host.topology.links[0].update({1: "SYS"})
    host.links = None
    verdict = gpu.topology(host.gpus, host.topology, None, PROFILE)
    (finding,) = verdict.findings
    assert (finding.part, finding.measured, finding.expected) == ("GPU 0 to GPU 1", "SYS", "NV18")
    assert gpu.topology(host.gpus, host.topology, {}, PROFILE).outcome is Outcome.PASSED  # all links are down
    host.change(1, mig=True)
    assert gpu.topology(host.gpus, host.topology, None, PROFILE).outcome is Outcome.NOT_APPLICABLE
    unstated = PROFILE.model_copy(update={"nvlinks": None})
    links: dict[str, dict[int, float | None]] = {uuid(host, 1): {}} | {
        uuid(host, at): {0: 26.6} for at in (0, *range(2, 8))
    }
    assert gpu.topology(host.gpus, host.topology, links, unstated).outcome is Outcome.NOT_APPLICABLE
    host.change(1, mig=False)
    assert len(gpu.topology(host.gpus, host.topology, links, unstated).findings) == 1
