from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from counter_examples import (
    CONFIGURE,
    DRAIN,
    MONITOR,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
    REBOOT,
    VENDOR,
    CounterExample,
    assert_as_expected,
    name,
)
from gpu_helpers import (
    MIB,
    PROFILE,
    Host,
    devices,
    example,
    failing,
    gpus,
    judge,
    lost,
    put,
    recorded,
    survey,
)
from judged import judged

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.config.models import GpuProfile
from pytest_gpucluster.core.check import Action, Finding, Outcome
from pytest_gpucluster.core.majority import Norm
from pytest_gpucluster.kit.gpu import nvidia_smi
from pytest_gpucluster.suites.gpu.checks import health
from pytest_gpucluster.suites.gpu.checks import inventory as checks

if TYPE_CHECKING:
    from collections.abc import Callable


def _other_driver(version: str) -> nvidia_smi.Gpus:
    return replace(devices(), devices=tuple(replace(one, driver=version) for one in devices()))


def test_drivers_in_halves_drain_nobody_and_both_are_named() -> None:
    old, new = _other_driver("535.104.05"), _other_driver("550.54.15")
    fleet = {f"gpu0{n}": old if n < 3 else new for n in range(1, 5)}
    verdict = checks.driver(new, PROFILE, checks.driver_majority(fleet))
    assert judged(verdict) == (CONFIGURE, ["driver"])
    assert verdict.findings[0].expected.endswith("535.104.05 on gpu[01-02], 550.54.15 on gpu[03-04]")
    alone = checks.driver(new, PROFILE, checks.driver_majority({**fleet, "gpu03": old}))
    assert judged(alone) == (CONFIGURE, ["driver"])
    assert alone.findings[0].expected.startswith("535.104.05, as on 3 of 4 nodes")


def test_a_vbios_is_counted_on_the_gpus_of_one_node_as_well() -> None:
    odd = Host()
    odd.change(3, vbios="96.00.74.00.0B")
    usual = odd.gpus.devices[0].vbios
    (found,) = checks.vbios(odd.gpus, PROFILE, checks.vbios_majority({"gpu01": odd.gpus})).findings
    assert found.expected == f"{usual}, as on 7 of 8 GPUs of this model"
    for index in (4, 5, 6):
        odd.change(index, vbios="96.00.74.00.0B")
    verdict = checks.vbios(odd.gpus, PROFILE, checks.vbios_majority({"gpu01": odd.gpus}))
    assert len(verdict.findings) == 8
    assert verdict.findings[0].expected.endswith(f"{usual} (4) on gpu01, 96.00.74.00.0B (4) on gpu01")


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


def test_without_any_gpu_the_count_fails_with_the_message() -> None:
    host = Host(gpus=nvidia_smi.Gpus(messages=("No devices were found",)))
    assert failing(host) == ["gpu.count"]
    assert "No devices were found" in judge(host)["gpu.count"].findings[0].measured


def test_nvidia_smi_that_fails_after_listing_all_gpus_is_no_success() -> None:
    host = Host()
    host.gpus = replace(host.gpus, failed="exit 255")
    assert failing(host) == ["gpu.count"]
    assert "(exit 255)" in judge(host)["gpu.count"].findings[0].measured


def test_a_gpu_without_mig_has_it_switched_off() -> None:
    host = Host()
    for index in range(8):
        host.change(index, mig=None, unread={"mig": "[N/A]"})
    assert judge(host)["gpu.mig"].outcome is Outcome.PASSED
    cut = PROFILE.model_copy(update={"mig": True})
    assert judge(host, cut)["gpu.mig"].outcome is Outcome.NOT_CHECKED


def test_a_driver_that_merely_differs_is_watched() -> None:
    host = Host()
    host.change(0, driver="535.1")
    for stated in (PROFILE, PROFILE.model_copy(update={"driver": "580.*"})):
        assert judged(judge(host, stated)["gpu.driver"]) == (CONFIGURE, ["driver"])


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
    assert (len(verdict.findings), verdict.action) == (7, Action.CONFIGURE)


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


def test_a_lost_gpu_without_an_address_is_recognised_by_the_message_of_nvidia_smi() -> None:
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


@pytest.mark.parametrize(
    ("found", "needed", "fails"),
    [
        ("12.2", "12.2", False), ("12.1", "12.2", True), ("12.10", "12.2", False), ("13.0", "12.9", False),
        ("11.8", "12", True), ("12", "12", False),
    ],
)  # fmt: skip
def test_versions_of_cuda_are_compared_as_numbers(found: str, needed: str, *, fails: bool) -> None:
    verdict = checks.cuda(replace(devices(), cuda=found), PROFILE.model_copy(update={"cuda": needed}))
    assert (verdict.outcome is Outcome.FAILED) is fails


@pytest.mark.parametrize(
    ("version", "stated", "fits"),
    [
        ("580.159.04", "580.159.04", True), ("580.159.04", "580.*", True), ("580.159.04", "58*", True),
        ("580.159.04", "580", False), ("580.159.04", "570.*", False), ("96.00.A5.00.1A", "96.00.a5.00.1a", True),
        ("96.00.A5.00.1A", "96.00.a5*", True), ("96.00.a5.00.1a", "96.00.A5*", True),
        ("96.00.a5.00.1a", "96.00.A5.00.1A", True),
    ],
)  # fmt: skip
def test_a_stated_version_is_equal_or_a_prefix(version: str, stated: str, *, fits: bool) -> None:
    gpus = replace(devices(), devices=tuple(replace(one, vbios=version) for one in devices()))
    verdict = checks.vbios(gpus, PROFILE.model_copy(update={"vbios": stated}), {})
    assert verdict.findings == (() if fits else tuple(Finding(str(one), version, stated) for one in gpus))
    assert verdict.action is Action.CONFIGURE


def test_a_cut_off_answer_is_no_pass_of_the_driver() -> None:
    """Its first query took 60 s and the second was cut off: the GPUs were told, and nothing else was."""
    late = replace(devices(), cut_off="rows")
    assert judged(judge(Host(gpus=late))["gpu.driver"]) == (REBOOT, ["driver"])
    # each start loads the driver again, which takes seconds: that has its own check
    host = Host(gpus=late)
    host.change(3, persistence=False)
    verdict = judge(host)["gpu.driver"]
    assert (verdict.outcome, "gpu.persistence" in verdict.reason) == (Outcome.NOT_CHECKED, True)


def test_a_driver_alone_has_none_to_differ_from() -> None:
    gpus = devices()
    alone = checks.driver(gpus, PROFILE, checks.driver_majority({"gpu01": gpus}))
    assert (alone.outcome, alone.reason) == (
        Outcome.NOT_APPLICABLE,
        "the profile states no driver, and there is no other node to compare with",
    )
    two = checks.driver_majority({"gpu01": gpus, "gpu02": gpus})
    assert checks.driver(gpus, PROFILE, two).outcome is Outcome.PASSED
    stated = PROFILE.model_copy(update={"driver": "580.*"})
    assert checks.driver(gpus, stated, checks.driver_majority({"gpu01": gpus})).outcome is Outcome.PASSED


def test_a_header_without_cuda_is_not_checked() -> None:
    verdict = checks.cuda(replace(devices(), cuda=None), PROFILE)
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED,
        "nvidia-smi shows no CUDA version in its header",
    )


def test_a_serial_number_on_two_nodes_is_watched() -> None:
    host = Host()
    host.change(2, serial=f"{host.gpus.devices[2].serial}3")
    part, serial = str(host.gpus.devices[2]), host.gpus.devices[2].serial
    verdict = judge(host)["gpu.serials"]
    assert verdict.findings == (Finding(part, f"serial {serial}, also on gpu03", "a serial of its own"),)
    for index in range(8):
        host.change(index, serial=None, unread={"serial": "[N/A]"})
    verdict = judge(host)["gpu.serials"]
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_APPLICABLE,
        "GPUs of this model report no serial number",
    )


@pytest.mark.parametrize("name", ["NVIDIA XRTX 1", "NVIDIA RTXX", "NVIDIA A100", None])
def test_what_only_looks_like_a_graphics_card_has_ecc(name: str | None) -> None:
    gpus = replace(devices(), devices=tuple(replace(one, name=name, ecc=False) for one in devices()))
    assert len(checks.ecc_mode(gpus, PROFILE).findings) == 8


@pytest.mark.parametrize(
    ("said", "part"),
    [
        ("infoROM is corrupted at gpu 0000:00:0B.0", "GPU 5"), ("INFOROM is corrupted AT GPU 0000:00:0b.0", "GPU 5"),
        ("infoROM is corrupted at gpu that", "GPUs"), ("infoROM corrupted, what gpu 0000:00:0B.0", "GPUs"),
    ],
)  # fmt: skip
def test_a_warning_names_its_gpu(said: str, part: str) -> None:
    host = Host()
    host.gpus = replace(host.gpus, messages=("unlike", said))
    (found,) = checks.inforom(host.gpus).findings
    assert found.part == (str(host.gpus.devices[5]) if part == "GPU 5" else part)


def test_who_owns_what_and_who_votes() -> None:
    one, two, three = devices().devices[:3]
    nameless = replace(three, name=None, vbios="x")
    without = replace(three, vbios=None, driver=None, uuid=None, serial=None, clock_sm_max=None)
    facts = {
        "n1": nvidia_smi.Gpus((one, replace(two, serial=one.serial), nameless, without)),
        "n2": nvidia_smi.Gpus((one, replace(two, uuid=one.uuid, driver="1"))),
    }
    assert checks.uuid_owners(facts) == {
        one.uuid: ("n1", "n2", "n2"), two.uuid: ("n1",), three.uuid: ("n1",)
    }  # fmt: skip
    assert {
        serial: nodes for serial, nodes in checks.serial_owners(facts).items() if serial == one.serial
    } == {one.serial: ("n1", "n2")}
    assert checks.vbios_majority(facts) == {
        one.name: Norm(((one.vbios, ("n1", "n1", "n2", "n2")),), "GPUs of this model")
    }
    assert checks.driver_majority(facts) == {
        one.name: Norm(((one.driver, ("n1", "n2")), ("1", ("n2",))), "nodes with this model")
    }
    clocks = f"SM {one.clock_sm_max:g} MHz, memory {one.clock_memory_max:g} MHz"
    assert health.clock_majority(facts)[str(one.name)].votes == ((clocks, ("n1", "n1", "n2", "n2")),)


def test_a_uuid_may_stand_twice_on_one_node() -> None:
    gpus = devices()
    first, second = gpus.devices[:2]
    twice = replace(gpus, devices=(first, replace(second, uuid=first.uuid)))
    verdict = checks.uuids(
        twice, checks.uuid_owners({"gpu01": twice, "gpu02": nvidia_smi.Gpus((first,))}), "gpu01"
    )
    assert [it.measured for it in verdict.findings] == ["the same UUID on gpu[01-02]"] * 2
    assert checks.uuids(gpus, {}, "gpu01").outcome is Outcome.PASSED
    assert checks.serials(gpus, {}, "gpu01").outcome is Outcome.PASSED
    without = replace(first, serial=None, unread={"serial": "[N/A]"})
    one = checks.serials(replace(gpus, devices=(without, second)), {}, "gpu01")
    assert [it.expected for it in one.findings] == ["a serial number; other GPUs of the node report it"]


def test_more_and_fewer_gpus_than_stated() -> None:
    host, more, fewer = Host(), *(PROFILE.model_copy(update={"count": count}) for count in (7, 9))

    def told(gpus: nvidia_smi.Gpus, profile: GpuProfile) -> tuple[list[str], Action, bool]:
        verdict = checks.count(gpus, profile)
        several = "more GPUs than its profile" in verdict.cause
        return [it.measured for it in verdict.findings], verdict.action, several

    assert told(host.gpus, more) == (["8"], Action.CONFIGURE, True)
    failed = replace(host.gpus, failed="exit 3")
    assert told(failed, more) == (["8, nvidia-smi: (exit 3)"], Action.CONFIGURE, False)
    assert told(replace(host.gpus, messages=("a",)), fewer)[0] == ["8, nvidia-smi: a"]
    slurm = judge(host, fewer)["gpu.count"]
    assert (slurm.action, "Slurm" in slurm.cause) == (Action.CONFIGURE, True)  # Slurm gives 8 to jobs as well
    gone = lost()
    gone.gpus = replace(gone.gpus, failed="exit 3", messages=("a",))
    assert told(gone.gpus, PROFILE) == (["[GPU is lost]"], Action.DRAIN, False)
    assert told(gone.gpus, more)[1:] == (Action.DRAIN, False)
    due = Host()
    due.change(1, memory=None, unread={"memory": "[GPU requires reset]"})
    assert told(due.gpus, PROFILE)[1] is Action.RESET_GPU


HUNG = "nvidia-smi did not answer within 90 s"


def listed(count: int, *messages: str, failed: str = "") -> Callable[[Host], None]:
    """Return a change: nvidia-smi lists the first GPUs, with these lines outside of its table."""
    return put(
        gpus=lambda host: replace(
            host.gpus, devices=host.gpus.devices[:count], messages=messages, failed=failed
        )
    )


def promised(count: int) -> Callable[[Host], None]:
    return put(info=NodeInfo("gpu01", "IDLE", gres={"gpu": count} if count else {}))


COUNTER_EXAMPLES = [
    example("gpu.serials", "GeForce: the model has no serial number", "nvidia-smi: [N/A]", NOT_APPLICABLE, gpus(serial=None, unread={"serial": "[N/A]"})),
    example("gpu.serials", "two GPUs of one board share its serial number", "nvidia-smi -q: Serial Number is that of the board", PASSED, gpus(1, 2, serial="1650000000001")),
    example("gpu.serials", "two nodes of Slurm on one host", "slurm.conf(5): multiple slurmd", PASSED, put(also={"gpu01": "host1", "gpu05": "host1"})),
    example("gpu.serials", "the InfoROM of one GPU of eight is damaged", "nvidia-smi: [N/A] of one GPU", MONITOR, gpus(3, serial=None, unread={"serial": "[N/A]"}), sick=True),
    example("gpu.serials", "another host shows the same boards", "two nodes of one address", MONITOR, put(also={"gpu01": "host1", "gpu05": "host2"}), sick=True),
    example("gpu.driver", "the first node with a newer driver", "an upgrade node by node", CONFIGURE,
            gpus(driver="590.44.01")),
    example("gpu.driver", "16 GPUs without persistence mode: the queries take two minutes", "NVIDIA Driver Persistence",
            NOT_CHECKED, gpus(persistence=False), put(gpus=lambda host: replace(host.gpus, cut_off="errors"))),
    example("gpu.driver", "library newer than the loaded module, after an update", "nvidia-smi: version mismatch", CONFIGURE,
            put(gpus=nvidia_smi.Gpus(driver_problem="Failed to initialize NVML: Driver/library version mismatch (exit 18)"))),
    example("gpu.driver", "no driver in an image without it", "nvidia-smi: command not found", CONFIGURE,
            put(gpus=nvidia_smi.Gpus(driver_problem="sh: nvidia-smi: not found (exit 127)"))),
    example("gpu.driver", "nvidia-smi hangs with a GPU that fell off the bus", "D state in nvidia_ioctl", REBOOT,
            put(gpus=nvidia_smi.Gpus(driver_problem=HUNG)), sick=True),
    example("gpu.count", "a virtual machine with one GPU, the profile of the host", "healthy-h200-vm-one-of-eight", CONFIGURE,
            listed(1), promised(1)),
    example("gpu.count", "four of eight GPUs kept for another use, Slurm gives four", "gres.conf", CONFIGURE, listed(4),
            promised(4)),
    example("gpu.count", "GPUs divided by MIG: Slurm counts 56 devices", "slurm.conf: gres of MIG", PASSED, gpus(mig=True),
            promised(56)),
    example("gpu.count", "two slurmd on one host show all its GPUs", "multiple slurmd", CONFIGURE, promised(4), count=4),
    example("gpu.count", "the first query asked too early, one value unknown", "nvmlErrorString", PASSED,
            gpus(3, temperature=None, unread={"temperature": "[Unknown Error]"})),
    example("gpu.count", "a GPU that is lost", "sick-gpu-lost-reboot-to-recover", DRAIN,
            gpus(4, memory=None, unread={"memory": "[GPU is lost]"}), sick=True),
    example("gpu.count", "seven of eight GPUs, Slurm gives eight", "a GPU not found at boot", DRAIN, listed(7), sick=True),
    example("gpu.memory", "one H200 with more memory than the others", "H20 of 96 and 141 GB", CONFIGURE,
            gpus(3, memory=150_000 * MIB)),
    example("gpu.memory", "RTX 3080 of 10 and of 12 GB have one name", "two boards, two VBIOS versions", CONFIGURE,
            gpus(memory=12288 * MIB, vbios="94.02.A0.00.01"), gpus(3, memory=10240 * MIB, vbios="94.02.42.00.01"),
            memory=12288 * MIB),
    example("gpu.memory", "L40S with ECC off beside others with ECC", "nvidia-smi -q: ECC takes 1/16 of GDDR6", CONFIGURE,
            gpus(memory=46068 * MIB), gpus(3, memory=49140 * MIB, ecc=False), memory=46068 * MIB),
    example("gpu.memory", "all GPUs of another model than the profile", "the profile alone", CONFIGURE,
            gpus(memory=81559 * MIB)),
    example("gpu.memory", "one H200 with less memory than seven others", "memory that the GPU lost", VENDOR,
            gpus(3, memory=120_000 * MIB), sick=True),
    example("gpu.inforom", "GeForce without serial and InfoROM versions", "nvidia-smi -q: Inforom N/A", PASSED,
            gpus(serial=None, unread={"serial": "[N/A]"})),
    example("gpu.inforom", "warning of another part", "nvidia-smi of driver 595", PASSED,
            listed(8, "WARNING: persistence mode is deprecated and will be removed")),
    example("gpu.inforom", "a note that InfoROM cannot be read in a guest", "nvmlErrorString", PASSED,
            listed(8, "Note: infoROM version is not available in this virtual machine")),
    example("gpu.inforom", "an InfoROM that is corrupted", "sick-v100-inforom-below-the-table", VENDOR,
            listed(8, "WARNING: infoROM is corrupted at gpu 0000:00:0B.0"), sick=True),
    example("gpu.uuids", "two slurmd on one host share its GPUs", "NodeHostname of slurm.conf", PASSED,
            put(also={"gpu01b": "gpu01", "gpu01": "gpu01"})),
    example("gpu.uuids", "a cloned machine shows the GPUs of another host", "one UUID, two hosts", CONFIGURE,
            put(also={"gpu07": "gpu07"}), sick=True),
]  # fmt: skip


@pytest.mark.parametrize("machine", COUNTER_EXAMPLES, ids=name)
def test_machines_get_the_verdict_that_a_person_gives_them(machine: CounterExample) -> None:
    assert_as_expected(machine)


def test_one_gpu_of_two_with_less_memory_may_be_of_another_kind() -> None:
    for count, action in ((2, None), (3, Action.VENDOR)):
        host = Host()
        host.gpus = replace(host.gpus, devices=host.gpus.devices[:count])
        host.change(0, memory=100_000 * MIB)
        (finding,) = judge(host)["gpu.memory"].findings
        assert finding.action is action
