"""Number, identity and modes of GPUs."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest
from gpu_helpers import (
    GIB,
    LOST,
    MIB,
    PROFILE,
    Host,
    changed,
    considered_hosts,
    devices,
    examples,
    failing,
    gpus,
    judge,
    listed,
    put,
    said,
    sick,
    states,
    told,
    unread,
    verdict,
)

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.kit.gpu import nvidia_smi
from pytest_gpucluster.suites.gpu.checks import inventory as checks

if TYPE_CHECKING:
    from collections.abc import Callable


def on_all(**values: Any) -> nvidia_smi.Gpus:
    return replace(devices(), devices=tuple(replace(one, **values) for one in devices()))


# --- drivers and versions


def test_drivers_in_halves_drain_nobody_and_both_are_named() -> None:
    old, new = on_all(driver="535.104.05"), on_all(driver="550.54.15")
    fleet = {"gpu01": old, "gpu02": old, "gpu03": new, "gpu04": new}
    for usual, shown in (
        (fleet, "535.104.05 on gpu[01-02], 550.54.15 on gpu[03-04]"),
        ({**fleet, "gpu03": old}, "535.104.05, as on 3 of 4 nodes"),
    ):
        found = checks.driver(new, PROFILE, checks.driver_majority(usual))
        assert told(found) == "configure: driver"
        assert shown in str(found.findings[0].expected)


def test_a_driver_alone_has_none_to_differ_from() -> None:
    found = devices()
    for nodes, stated, end in ((1, None, "not applicable"), (2, None, "passed"), (1, "580.*", "passed")):
        fleet = checks.driver_majority({f"gpu{n:02}": found for n in range(nodes)})
        assert told(checks.driver(found, PROFILE.model_copy(update={"driver": stated}), fleet)) == end
    assert said("gpu.driver", gpus(0, driver="535.1"), states(driver="580.*")) == "configure: driver"


def test_a_cut_off_answer_is_no_pass_of_the_driver() -> None:
    """Its first query took 60 s and the second was cut off: the GPUs were told, and nothing else was."""
    assert said("gpu.driver", listed(8, cut_off="rows")) == "reboot: driver"
    # each start loads the driver again, which takes seconds: that has its own check
    slow = verdict("gpu.driver", listed(8, cut_off="rows"), gpus(3, persistence=False))
    assert (told(slow), "gpu.persistence" in slow.reason) == ("not checked", True)


def test_a_vbios_is_counted_on_the_gpus_of_one_node_as_well() -> None:
    for odd, expected in (((3,), "as on 7 of 8 GPUs"), ((3, 4, 5, 6), "(4) on gpu01, 96.00.74.00.0B (4) on gpu01")):
        found = changed(gpus(*odd, vbios="96.00.74.00.0B")).gpus
        findings = checks.vbios(found, PROFILE, checks.vbios_majority({"gpu01": found})).findings
        assert len(findings) == (1 if len(odd) == 1 else 8)
        assert expected in str(findings[0].expected)


def test_a_stated_version_is_equal_or_a_prefix() -> None:
    for version, stated, fits in (
        ("580.159.04", "580.159.04", True),
        ("580.159.04", "58*", True),
        ("580.159.04", "580", False),
        ("580.159.04", "570.*", False),
        ("96.00.A5.00.1A", "96.00.a5*", True),
        ("96.00.a5.00.1a", "96.00.A5.00.1A", True),
    ):
        found = checks.vbios(on_all(vbios=version), PROFILE.model_copy(update={"vbios": stated}), {})
        shown = [(str(it.measured), it.expected) for it in found.findings]
        assert shown == [(version, stated)] * (0 if fits else 8)


def test_versions_of_cuda_are_compared_as_numbers() -> None:
    newer = (("12.2", "12.2"), ("12.10", "12.2"), ("13.0", "12.9"), ("12", "12"))
    older = (("12.1", "12.2"), ("11.8", "12"))
    for pairs, end in ((newer, "passed"), (older, "configure: driver"), (((None, "12"),), "not checked")):
        for found, needed in pairs:
            assert said("gpu.cuda", listed(8, cuda=found), states(cuda=needed)) == end


# --- the count


@pytest.mark.parametrize("shown", ["[GPU is lost]", "[Unknown Error]", "[GPU requires reset]"])
def test_a_gpu_that_is_lost_fails_the_count_alone(shown: str) -> None:
    """Nothing can be read of it: none of its values is wrong, nor is it to be sent back for them."""
    names = {it.name for it in fields(nvidia_smi.Gpu)} - {"index", "name", "uuid", "bus", "unread"}
    host = changed(*(unread(name, shown, 4) for name in names))
    assert failing(host) == ["gpu.count"]
    (finding,) = judge(host, "gpu.count")["gpu.count"].findings
    assert (finding.part.index, str(finding.measured)) == (4, shown)
    assert told(judge(host, "gpu.memory")["gpu.memory"]) == "not checked"
    host.change(0, memory=MIB)  # the others still fail where they do
    assert failing(host) == ["gpu.count", "gpu.memory"]


RESET = unread("memory_used", "[GPU requires reset]", 4)
GONE = "Unable to determine the device handle for GPU0000:02:00.0: Unknown Error"


@pytest.mark.parametrize(
    ("changes", "end", "measured"),
    [
        ((RESET,), "reset gpu: GPU 4", ["[GPU requires reset]"]),
        ((RESET, listed(7)), "drain: GPU 4; GPUs; GPU 7", ["[GPU requires reset]", "7 GPUs", "absent"]),
        ((listed(0, "No devices were found"),), "drain: GPUs", ["0 GPUs, nvidia-smi: No devices were found"]),
        # it lists all GPUs, and yet it fails
        ((listed(8, failed="exit 255"),), "configure: GPUs", ["8 GPUs, nvidia-smi: (exit 255)"]),
        ((listed(8), states(count=7)), "configure: GPUs", ["8 GPUs"]),
        ((LOST, states(count=7)), "drain: GPU 4; GPUs", ["[GPU is lost]", "8 GPUs"]),
        ((listed(7, GONE), put(info=None)), "drain: GPUs; GPU 7", [f"7 GPUs, nvidia-smi: {GONE}", "absent"]),
        ((listed(7), put(info=None)), "configure: GPUs; GPU 7", ["7 GPUs", "absent"]),
    ],
)
def test_more_and_fewer_gpus_than_stated(
    changes: tuple[Callable[[Host], None], ...], end: str, measured: list[str]
) -> None:
    found = verdict("gpu.count", *changes)
    assert (told(found), [str(it.measured) for it in found.findings]) == (end, measured)


def joined(*groups: range) -> Callable[[Host], None]:
    """Return a change that joins the GPUs of each group by NVLinks."""
    links = {gpu: {it: "NV18" for it in group if it != gpu} for group in groups for gpu in group}
    return put(connections=nvidia_smi.Topology(links, {}))


@pytest.mark.parametrize(
    ("listing", "links", "slurm", "stated", "end"),
    [
        (7, [range(7)], None, 8, "drain: GPUs; GPU 7"),
        (6, [range(6)], 8, 8, "drain: GPUs; GPU 6; GPU 7"),
        (7, [range(7)], 7, 8, "configure: GPUs; GPU 7"),  # the site runs it with seven
        (4, [range(4)], None, 8, "configure: GPUs"),  # a partition, or another board
        (8, [range(8)], None, 16, "configure: GPUs"),
        (6, [range(3), range(3, 6)], None, 8, "configure: GPUs"),  # an AC922
        (7, [range(n, n + 1) for n in range(7)], None, 8, "configure: GPUs; GPU 7"),  # cards
        (7, [range(7)], None, 6, "configure: GPUs"),  # more than the profile states
    ],
)
def test_a_board_shows_that_gpus_are_missing(
    listing: int, links: list[range], slurm: int | None, stated: int, end: str
) -> None:
    info = None if slurm is None else NodeInfo("gpu01", "IDLE", gres={"gpu:h200": slurm})
    found = verdict("gpu.count", listed(listing), joined(*links), put(info=info), states(count=stated))
    assert told(found).startswith(end)


def test_a_lost_gpu_without_an_address_is_recognised_by_the_message_of_nvidia_smi() -> None:
    gone = nvidia_smi.Gpu(unread=dict.fromkeys((it.name for it in fields(nvidia_smi.Gpu)), "[Unknown Error]"))
    host = changed(listed(8, GONE, failed="exit 15"))
    host.gpus = replace(host.gpus, devices=(*host.gpus.devices[:4], gone, *host.gpus.devices[5:]))
    (finding,) = judge(host, "gpu.count")["gpu.count"].findings
    assert str(finding.part) == "unknown GPU"
    assert str(finding.measured) == f"[Unknown Error]; nvidia-smi: {GONE} (exit 15)"


# --- modes


def test_a_gpu_without_mig_has_it_switched_off() -> None:
    assert said("gpu.mig", unread("mig", "[N/A]")) == "passed"
    instances = NodeInfo("gpu01", "IDLE", gres={"gpu:1g.10gb": 56})
    assert said("gpu.mig", gpus(mig=True), put(info=instances)) == "passed"
    assert said("gpu.mig", gpus(mig=True), put(info=None)).partition(":")[0] == "warning"
    assert said("gpu.mig", unread("mig", "[N/A]"), states(mig=True)) == "not checked"


def test_graphics_cards_come_with_ecc_off() -> None:
    cards = ("NVIDIA GeForce RTX 4090", "NVIDIA RTX 4000 Ada Generation", "Quadro RTX 6000", "TITAN RTX")
    for model in (*cards, "NVIDIA XRTX 1", "NVIDIA RTXX", "NVIDIA A100", None):
        off = (gpus(name=model, ecc=False), states(name=model or ""))
        end = "not applicable" if model in cards else "configure"
        assert said("gpu.ecc_mode", *off).partition(":")[0] == end
        assert len(verdict("gpu.ecc_mode", *off, states(ecc=True)).findings) == 8
        # switched on by somebody: then it was lost on the others
        assert len(verdict("gpu.ecc_mode", *off, gpus(0, ecc=True)).findings) == 7


def test_a_warning_of_a_corrupted_inforom_names_its_gpu() -> None:
    for warning, part in (
        ("infoROM is corrupted at gpu 0000:00:0B.0", "GPU 5"),
        ("WARNING: infoROM is corrupted at gpu 0000:99:00.0", "GPU"),
        ("infoROM is corrupted at gpu that", "GPUs"),
    ):
        assert said("gpu.inforom", listed(8, "unlike", warning)) == f"return to vendor: {part}"


def test_one_gpu_of_two_with_less_memory_may_be_of_another_kind() -> None:
    for count, end in ((2, "configure"), (3, "return to vendor")):
        assert said("gpu.memory", listed(count), gpus(0, memory=100_000 * MIB)) == f"{end}: GPU 0"


# --- who is who


def test_a_serial_number_on_two_nodes_is_watched() -> None:
    found = verdict("gpu.serials", lambda host: host.change(2, serial=f"{host.gpus.devices[2].serial}gpu03"))
    assert told(found) == "monitor: GPU 2"
    assert str(found.findings[0].measured).endswith("also on gpu03")


# --- machines that were considered

HUNG = "nvidia-smi did not answer within 90 s"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch (exit 18)"
CORPUS = "tests/corpus"


def promised(count: int) -> Callable[[Host], None]:
    return put(info=NodeInfo("gpu01", "IDLE", gres={"gpu": count} if count else {}))


def no_driver(why: str, cut_off: str = "") -> Callable[[Host], None]:
    return put(gpus=nvidia_smi.Gpus(driver_problem=why, cut_off=cut_off))


SAME_HOST, OTHER_HOST = (put(hosts={"gpu01": "host1", "gpu05": host}) for host in ("host1", "host2"))
# GPUs of two boards with one name
RTX_3080 = (gpus(memory=12 * GIB, vbios="1"), gpus(3, memory=10 * GIB, vbios="2"), states(memory=12 * GIB))
L40S = (gpus(memory=46068 * MIB), gpus(3, memory=49140 * MIB, ecc=False), states(memory=46068 * MIB))
DEPRECATED = "WARNING: persistence mode is deprecated and will be removed"
IN_A_GUEST = "Note: infoROM version is not available in this virtual machine"
COUNTER_EXAMPLES = [
    *examples(
        "gpu.serials",
        ("not applicable", "GeForce: no serial number", "nvidia-smi: [N/A]", unread("serial", "[N/A]")),
        ("passed", "two GPUs of one board share it", "of the board", gpus(1, 2, serial="1650000000001")),
        ("passed", "two nodes of Slurm on one host", "slurm.conf(5): multiple slurmd", SAME_HOST),
        ("monitor", "a damaged InfoROM", "nvidia-smi: [N/A]", unread("serial", "[N/A]", 3), sick),
    ),
    *examples(
        "gpu.driver",
        ("configure", "the first node with a newer driver", "node by node", gpus(driver="590.44.01")),
        ("not checked", "16 GPUs", "no persistence", gpus(persistence=False), listed(8, cut_off="errors")),
        ("configure", "library newer than the module", "version mismatch", no_driver(MISMATCH)),
        ("configure", "an image without it", "not found", no_driver("sh: nvidia-smi: not found (exit 127)")),
        ("reboot", "nvidia-smi hangs, GPU off the bus", "D state in nvidia_ioctl", no_driver(HUNG, "gpus")),
    ),
    *examples(
        "gpu.count",
        ("configure", "a virtual machine with one GPU", "the host's profile", listed(1), promised(1)),
        ("configure", "four of eight GPUs kept for another use", "gres.conf", listed(4), promised(4)),
        ("passed", "MIG: Slurm counts 56 devices", "slurm.conf: gres of MIG", gpus(mig=True), promised(56)),
        ("configure", "two slurmd on one host show all", "multiple slurmd", promised(4), states(count=4)),
        ("passed", "asked too early", "nvmlErrorString", unread("temperature", "[Unknown Error]", 3)),
        ("drain", "a GPU that is lost", "sick-gpu-lost-reboot-to-recover", LOST),
        ("drain", "seven of eight GPUs, Slurm gives eight", "not found at boot", listed(7)),
    ),
    *examples(
        "gpu.memory",
        ("configure", "one H200 with more memory", "H20 of 96 and 141 GB", gpus(3, memory=150_000 * MIB)),
        ("configure", "RTX 3080 of 10 and of 12 GB have one name", "two VBIOS versions", *RTX_3080),
        ("configure", "L40S with ECC off beside others with ECC", "it takes 1/16 of GDDR6", *L40S),
        ("configure", "all GPUs of another model", "the profile alone", gpus(memory=81559 * MIB)),
        ("return to vendor", "one H200 with less memory", "it lost some", gpus(3, memory=120_000 * MIB)),
    ),
    *examples(
        "gpu.inforom",
        ("passed", "GeForce without serial", "nvidia-smi -q: Inforom N/A", unread("serial", "[N/A]")),
        ("passed", "warning of another part", "nvidia-smi of driver 595", listed(8, DEPRECATED)),
        ("passed", "InfoROM cannot be read in a guest", "nvmlErrorString", listed(8, IN_A_GUEST)),
        ("return to vendor", "it is broken", CORPUS, listed(8, "infoROM is corrupted at gpu 0000:00:0B.0")),
    ),
    *examples(
        "gpu.uuids",
        ("passed", "two slurmd on one host share its GPUs", "NodeHostname of slurm.conf", SAME_HOST),
        ("configure", "a cloned machine", "one UUID, two hosts", put(hosts={"gpu07": "gpu07"})),
    ),
]
test_machines_get_the_verdict_that_a_person_gives_them = considered_hosts(COUNTER_EXAMPLES)


def test_another_host_that_shows_the_same_boards_is_found_by_both_numbers() -> None:
    ends = {check: said(check, OTHER_HOST).partition(":")[0] for check in ("gpu.serials", "gpu.uuids")}
    assert ends == {"gpu.serials": "monitor", "gpu.uuids": "configure"}
