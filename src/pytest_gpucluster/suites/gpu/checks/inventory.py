"""Number, identity and modes of GPUs."""

from __future__ import annotations

import re
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_gpucluster.config.profile_files import MEMORY_TOLERANCE
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import (
    Action,
    Advisory,
    Finding,
    Judgement,
    Metric,
    Verdict,
    check,
    revised,
    with_cause,
)
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.majority import Norm, owners
from pytest_gpucluster.core.part import GPUS, named
from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.kit.gpu.nvidia_smi import HANG, REQUIRES_RESET, Gpu, Gpus
from pytest_gpucluster.suites.gpu import readings
from pytest_gpucluster.suites.gpu.libraries import stem_of
from pytest_gpucluster.suites.gpu.missing_gpus import HINT, RESET_HINT, absent_gpus
from pytest_gpucluster.suites.gpu.readings import ByModel, of_present_gpus, unread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.config.models import GpuProfile
    from pytest_gpucluster.kit.gpu.nvidia_smi import Topology
    from pytest_gpucluster.suites.gpu.libraries import Libraries
    from pytest_gpucluster.suites.gpu.missing_gpus import UsualBuses

# NVIDIA delivers graphics cards with ECC off (nvidia-smi(1), "ECC Mode")
_GRAPHICS = re.compile(r"\b(GeForce|RTX|Quadro|TITAN)\b")
# WARNING: infoROM is corrupted at gpu 0008:00:00.0
_CORRUPT = re.compile(r"inforom.*corrupt", re.IGNORECASE)
_AT_GPU = re.compile(r"\bat gpu ([0-9a-f:.]+)", re.IGNORECASE)


_APART: Mapping[str, str] = MappingProxyType({})  # every node has a host of its own
_NO_OTHERS: UsualBuses = MappingProxyType({})
_DRIVER = named("software", "driver")


def uuid_owners(facts: Mapping[str, Gpus]) -> dict[str, tuple[str, ...]]:
    """Return {UUID: nodes}; a node stands there as often as it lists the UUID."""
    return owners({node: [gpu.uuid for gpu in gpus if gpu.uuid] for node, gpus in facts.items()})


def serial_owners(facts: Mapping[str, Gpus]) -> dict[str, tuple[str, ...]]:
    """Return {serial number: nodes}, each node once: the GPUs of one board share its number."""
    return owners({node: {gpu.serial for gpu in gpus if gpu.serial} for node, gpus in facts.items()})


def driver_majority(facts: Mapping[str, Gpus]) -> ByModel:
    """Return {GPU model: majority of driver versions}, with one vote per node."""
    return readings.by_model(facts, lambda gpu: gpu.driver, per_node=True)


def vbios_majority(facts: Mapping[str, Gpus]) -> ByModel:
    """Return {GPU model: majority of VBIOS versions}, with one vote per GPU."""
    return readings.by_model(facts, lambda gpu: gpu.vbios, per_node=False)


@check(
    "gpu.driver",
    rules_out="a driver that differs from most nodes",
    show="cat /proc/driver/nvidia/version; nvidia-smi",
    cause="the driver is not loaded, does not answer, or is of another version",
    hint="cat /proc/driver/nvidia/version; modprobe nvidia; dkms status; install the fleet's driver and reboot",
    action=Action.CONFIGURE,
    never_healthy="a driver that works reads its GPUs in seconds; nvidia-smi did not end within 90 s, and the driver was loaded",
)
def driver(gpus: Gpus, gpu_profile: GpuProfile, driver_majority: ByModel) -> Judgement:
    """nvidia-smi works, and the driver has the stated version, else that of the fleet's majority."""
    if gpus.owner and (gpus.driver_problem or gpus.cut_off):
        raise NotAvailable(gpus.owner)
    if gpus.driver_problem:
        hangs = Action.REBOOT if gpus.cut_off == "gpus" else None
        problem = Quote(gpus.driver_problem)
        yield Finding(_DRIVER, problem, "nvidia-smi answers", hangs, code="hangs" if hangs else "driver_down")
        return
    first = readings.with_gpus(gpus).devices[0]
    if gpus.cut_off:
        slow = f"nvidia-smi did not finish within {HANG} s: stopped at its query {gpus.cut_off!r}"
        unloaded = any(gpu.persistence is False for gpu in gpus)
        if unloaded:
            why = "persistence mode is off, so each start loads the driver again (see gpu.persistence)"
            yield NotAvailable(f"{slow}; {why}")
        else:
            yield Finding(_DRIVER, slow, "nvidia-smi answers", Action.REBOOT, code="hangs")
    if gpu_profile.driver is None and driver_majority.get(first.name or "", Norm[str]()).total < 2:
        yield NotApplicable("the profile states no driver, and there is no other node to compare with")
    for found in readings.judge_version(Gpus((first,)), "driver", driver_majority, stated=gpu_profile.driver):
        yield replace(found, part=_DRIVER) if isinstance(found, Finding) else found


def _count_cause(verdict: Verdict, gpus: Gpus, gpu_profile: GpuProfile, *_facts: object) -> Verdict:
    """Return another cause if there are too many GPUs, or if GPUs only require a reset."""
    if len(gpus) > gpu_profile.count and not gpus.failed and not any(gpu.lost for gpu in gpus):
        return replace(
            verdict,
            cause="the node has more GPUs than its profile states: the cluster file names another model",
            hint="nvidia-smi -L; gpucluster profiles show; correct the profile of the node, or its gpu.count",
            action=Action.CONFIGURE,
        )
    if verdict.findings and verdict.action is Action.CONFIGURE:
        return replace(
            verdict,
            cause="the profile states more GPUs than the driver and Slurm show, or nvidia-smi fails as a whole",
            hint="nvidia-smi -L; lspci -d 10de:; correct the profile of the node, or its gpu.count",
        )
    return with_cause(
        verdict, "requires_reset", "a GPU has an error that only a reset clears", RESET_HINT, action=Action.RESET_GPU
    )


@revised(_count_cause)
@check(
    "gpu.count",
    show="nvidia-smi -L; lspci -d 10de:",
    cause="a GPU fell off the bus, or was not found at boot",
    hint=HINT,
    action=Action.CONFIGURE,
    never_healthy="the driver names a GPU that does not answer, or Slurm gives jobs more GPUs of the node than answer; a count "
    "that only the profile states takes no node out of service, unless NVLinks join fewer GPUs, in a number that no board and no "
    "partition of one has",
)
def count(
    gpus: Gpus,
    gpu_profile: GpuProfile,
    info: NodeInfo | None = None,
    usual_buses: UsualBuses = _NO_OTHERS,
    known_connections: Topology | None = None,
) -> Judgement:
    """nvidia-smi lists as many GPUs as the profile has.

    Only a GPU that the driver, Slurm or the board shows, and that does not answer, takes the node out of service: the profile
    may be that of another model. A GPU that nvidia-smi does not list is known by its bus id on the other nodes. info: of Slurm,
    None for a node without it. known_connections: of a board, its NVLinks join seven GPUs, but no bridge and no partition does.
    """
    if gpus.driver_problem:
        raise NotAvailable(f"nvidia-smi does not work (see gpu.driver): {gpus.driver_problem}")
    lost = [gpu for gpu in gpus if gpu.lost]
    yield Metric("gpu_count", len(gpus) - len(lost), "GPUs")
    for gpu in lost:
        # without a bus id only the messages of nvidia-smi identify the GPU
        message = "" if gpu.bus or not gpus.messages else f"; nvidia-smi: {readings.nvidia_smi_message(gpus)}"
        reset, why = REQUIRES_RESET in gpu.lost, Quote(f"{gpu.lost}{message}")
        yield Finding(gpu.part, why, "answers", Action.DRAIN, code="requires_reset" if reset else "lost")
    if len(gpus) != gpu_profile.count or (gpus.failed and not lost):
        message = f", nvidia-smi: {readings.nvidia_smi_message(gpus)}" if gpus.messages or gpus.failed else ""
        promised = _promised(gpus, info)
        # a number that Slurm states, too, is the site's: it runs the node with fewer
        on_board = _lacks_gpus(known_connections) and promised != len(gpus)
        missing = len(gpus) < gpu_profile.count and (len(gpus) < promised or on_board)
        gone = lost or _AWAY.search(message) or missing
        found = Quantity(len(gpus), "GPUs", f"{len(gpus)} GPUs{message}")
        action, reset = Action.DRAIN if gone else None, REQUIRES_RESET in message
        wanted, other = Quantity(gpu_profile.count, "GPUs"), len(gpus) != gpu_profile.count
        code = "requires_reset" if reset else "count" if other else "nvidia_smi_failed"
        yield Finding(GPUS, found, wanted, action, code=code)
        for part in absent_gpus(gpus, gpu_profile.count, usual_buses):
            yield Finding(part, "absent", "present", action, code="requires_reset" if reset else "absent")


# nvidia-smi prints these of a GPU that the driver has and that does not answer (nvmlErrorString)
_AWAY = re.compile(
    r"Unable to determine the device handle|GPU is lost|fallen off the bus|requires reset", re.IGNORECASE
)


# GPUs that NVLinks join on a board, and in a partition of one (Fabric Manager, shared NVSwitch)
_BOARDS = (1, 2, 4, 8, 16)


def _lacks_gpus(connections: Topology | None) -> bool:
    """Return whether NVLinks join all GPUs of the node in a number that no board has; an AC922 has them in threes."""
    groups = connections.linked() if connections else []
    return len(groups) == 1 and len(groups[0]) not in _BOARDS


def _promised(gpus: Gpus, info: NodeInfo | None) -> int:
    """Return how many GPUs Slurm gives to jobs on the node; 0 if its count is of MIG devices, or is not known."""
    divided = any(gpu.mig for gpu in gpus) or (info is not None and info.allocates_mig)
    return info.gpus if info is not None and not divided else 0


@check(
    "gpu.names",
    show="nvidia-smi -L",
    cause="a GPU of another model",
    hint="nvidia-smi -L; check the profile of the node",
    action=Action.CONFIGURE,
    setting="the profile's gpu.name",
)
@of_present_gpus
def names(gpus: Gpus, gpu_profile: GpuProfile) -> Judgement:
    """Every GPU has the profile's name."""
    return readings.judge_equal(gpus, "name", gpu_profile.name, code="wrong_model")


@check(
    "gpu.memory",
    show="nvidia-smi -i INDEX --query-gpu=index,memory.total --format=csv",
    cause="memory of the GPU is disabled, or another model",
    hint="nvidia-smi -q -d MEMORY,ECC,ROW_REMAPPER -i INDEX; reset the GPU; return it if that does not help",
    action=Action.CONFIGURE,
    never_healthy="all GPUs of the same model, VBIOS, ECC and MIG mode beside it have more memory; a profile alone takes no node out "
    "of service",
)
@of_present_gpus
def memory(gpus: Gpus, gpu_profile: GpuProfile) -> Judgement:
    """memory.total is that of the profile, within 1%."""
    if gpu_profile.memory is None:
        raise NotApplicable("the profile states no GPU memory")
    for gpu in gpus:
        stated = f"{format_size(gpu_profile.memory)} (within 1%)"
        expected = Quantity(gpu_profile.memory, "bytes", stated)
        if gpu.memory is None:
            yield unread(gpus, gpu, "memory", expected, stated=True)
            continue
        yield Metric("gpu_memory", gpu.memory / 2**20, "MiB", gpu.part)
        if abs(gpu.memory - gpu_profile.memory) > MEMORY_TOLERANCE * gpu_profile.memory:
            size = Quantity(gpu.memory, "bytes", format_size(gpu.memory))
            yield Finding(gpu.part, size, expected, _lost_memory(gpus, gpu), code="wrong_memory")


def _board(gpu: Gpu) -> tuple[str | None, str | None, bool | None, bool | None]:
    return gpu.name, gpu.vbios, gpu.ecc, gpu.mig


def _lost_memory(gpus: Gpus, gpu: Gpu) -> Action | None:
    """Return VENDOR for a GPU with less memory than the others of its board with the same settings on the node.

    Boards with one name may have different memory (RTX 3080 of 10 and 12 GB); their VBIOS differs.
    """
    others = [one.memory for one in gpus if one is not gpu and _board(one) == _board(gpu) and one.memory]
    least = min(others, default=0) * (1 - MEMORY_TOLERANCE)
    return Action.VENDOR if len(others) > 1 and (gpu.memory or 0) < least else None


@check(
    "gpu.cuda",
    show="nvidia-smi -q | grep 'CUDA Version'",
    cause="the driver is older than the software needs",
    hint="install a newer driver",
    action=Action.CONFIGURE,
    setting="the profile's gpu.cuda",
)
@of_present_gpus
def cuda(gpus: Gpus, gpu_profile: GpuProfile) -> Judgement:
    """The driver's CUDA version is at least the profile's."""
    if gpu_profile.cuda is None:
        raise NotApplicable("the profile states no CUDA version")
    elif gpus.cuda is None:
        raise NotAvailable("nvidia-smi shows no CUDA version in its header")
    elif _version(gpus.cuda) < _version(gpu_profile.cuda):
        wanted = f"CUDA {gpu_profile.cuda} or later"
        yield Finding(_DRIVER, Quote(f"CUDA {gpus.cuda}"), wanted, code="old_cuda")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


@check(
    "gpu.vbios",
    show="nvidia-smi -i INDEX --query-gpu=index,vbios_version --format=csv",
    cause="a replaced GPU with other firmware, or a flash that did not reach every GPU",
    hint="nvidia-smi -i INDEX --query-gpu=index,vbios_version --format=csv; flash the fleet's VBIOS",
    action=Action.CONFIGURE,
    setting="the profile's gpu.vbios",
)
@of_present_gpus
def vbios(gpus: Gpus, gpu_profile: GpuProfile, vbios_majority: ByModel) -> Judgement:
    """The VBIOS has the stated version, else that of most GPUs of the same model in the fleet."""
    return readings.judge_version(gpus, "vbios", vbios_majority, stated=gpu_profile.vbios)


@check(
    "gpu.uuids",
    show="nvidia-smi -L",
    cause="two nodes show the same GPU: a cloned machine, or one GPU passed through twice",
    hint="nvidia-smi -L on both nodes",
    action=Action.CONFIGURE,
)
@of_present_gpus
def uuids(
    gpus: Gpus, uuid_owners: Mapping[str, Sequence[str]], node_name: str, hosts: Mapping[str, str] = _APART
) -> Judgement:
    """No other GPU of the fleet has the UUID of this one; the nodes of one host may share its GPUs.

    hosts: {node: its host, by NodeHostName of Slurm}.
    """
    same = _same_host([uuid_owners.get(gpu.uuid or "", ()) for gpu in gpus], node_name, hosts)
    for gpu in gpus:
        if gpu.uuid is None:
            yield unread(gpus, gpu, "uuid", "a UUID", stated=True)
            continue
        others = list(uuid_owners.get(gpu.uuid, (node_name,)))
        others.remove(node_name)
        if others := [node for node in others if node not in same]:
            same_on = f"the same UUID on {hostlist.fold(others)}"
            yield Finding(gpu.part, same_on, "a UUID of its own", code="same_uuid")


def _same_host(owners: Sequence[Sequence[str]], node: str, hosts: Mapping[str, str]) -> set[str]:
    """Return the other nodes of the same host that list all of these GPUs, as with several slurmd on one host."""
    shared = set.intersection(*map(set, owners)) - {node}
    return {other for other in shared if hosts.get(other, other) == hosts.get(node, node)}


@check(
    "gpu.serials",
    show="nvidia-smi -i INDEX --query-gpu=index,serial --format=csv",
    cause="the InfoROM of a GPU is damaged, or two nodes show the same board",
    hint="nvidia-smi -i INDEX --query-gpu=index,serial --format=csv on both nodes",
    action=Action.MONITOR,
)
@of_present_gpus
def serials(
    gpus: Gpus, serial_owners: Mapping[str, Sequence[str]], node_name: str, hosts: Mapping[str, str] = _APART
) -> Judgement:
    """Serial numbers are readable where the model has them, and no node of another host has the same."""
    if all(gpu.lacks("serial") for gpu in gpus):
        raise NotApplicable("GPUs of this model report no serial number")
    same = _same_host([serial_owners.get(gpu.serial or "", ()) for gpu in gpus], node_name, hosts)
    for gpu in gpus:
        if gpu.serial is None:
            yield unread(gpus, gpu, "serial", "a serial number", stated=False)
            continue
        mine = {node_name, *same}
        if others := [owner for owner in serial_owners.get(gpu.serial, ()) if owner not in mine]:
            measured = f"serial {gpu.serial}, also on {hostlist.fold(others)}"
            yield Finding(gpu.part, measured, "a serial of its own", code="same_serial")


@check(
    "gpu.inforom",
    show="nvidia-smi -q -i INDEX | grep -A4 Inforom",
    cause="the InfoROM of a GPU is corrupted",
    hint="nvidia-smi -q -i INDEX | grep -A4 Inforom; return the GPU",
    action=Action.VENDOR,
    never_healthy="the driver verifies the checksums of the InfoROM, which no setting of a site writes",
)
@of_present_gpus
def inforom(gpus: Gpus) -> Judgement:
    """nvidia-smi does not warn of a corrupted InfoROM."""
    for message in gpus.messages:
        if _CORRUPT.search(message):
            at = _AT_GPU.search(message)
            part = gpus.at(at[1]) if at else GPUS
            yield Finding(part, Quote(message), "no warning of nvidia-smi", code="corrupt_inforom")


@check(
    "gpu.persistence",
    show="nvidia-smi -i INDEX --query-gpu=index,persistence_mode --format=csv",
    cause="persistence mode is off: the driver unloads between jobs, which costs seconds and loses settings",
    hint="systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1",
    action=Action.CONFIGURE,
    setting="the profile's gpu.persistence",
)
@of_present_gpus
def persistence(gpus: Gpus, gpu_profile: GpuProfile) -> Judgement:
    """Persistence mode is as the profile states."""
    return readings.judge_switch(gpus, "persistence", gpu_profile, what="persistence mode")


@check(
    "gpu.compute_mode",
    show="nvidia-smi -i INDEX --query-gpu=index,compute_mode --format=csv",
    cause="a former job or an administrator set another compute mode",
    hint="nvidia-smi -i INDEX -c DEFAULT",
    action=Action.CONFIGURE,
    setting="the profile's gpu.compute_mode",
)
@of_present_gpus
def compute_mode(gpus: Gpus, gpu_profile: GpuProfile) -> Judgement:
    """The compute mode is as the profile states."""
    if gpu_profile.compute_mode is None:
        raise NotApplicable("the profile states no compute mode")
    stated = readings.states(gpu_profile, "compute_mode")
    wanted = gpu_profile.compute_mode
    yield from readings.judge_equal(gpus, "compute_mode", wanted, code="wrong_mode", stated=stated)


@check(
    "gpu.mig",
    show="nvidia-smi -i INDEX --query-gpu=index,mig.mode.current,mig.mode.pending --format=csv",
    cause="MIG mode was left on, or off",
    hint="nvidia-smi -i INDEX -mig 0 (or 1), then reset the GPU",
    action=Action.CONFIGURE,
    setting="the profile's gpu.mig",
)
@of_present_gpus
def mig(gpus: Gpus, gpu_profile: GpuProfile, info: NodeInfo | None = None) -> Judgement:
    """MIG mode is as the profile states; where it states none, off, unless Slurm allocates MIG instances of the node."""
    of_site = not readings.states(gpu_profile, "mig") and (info is None or info.allocates_mig)
    for found in readings.judge_switch(gpus, "mig", gpu_profile, what="MIG mode"):
        if not (of_site and isinstance(found, Finding)):
            yield found
        elif info is None:  # no Slurm states what jobs get
            yield Advisory(found.part, found.measured, found.expected, found.code)


@check(
    "gpu.ecc_mode",
    show="nvidia-smi -i INDEX --query-gpu=index,ecc.mode.current,ecc.mode.pending --format=csv",
    cause="ECC was switched off",
    hint="nvidia-smi -i INDEX -e 1, then reboot",
    action=Action.CONFIGURE,
    setting="the profile's gpu.ecc",
)
@of_present_gpus
def ecc_mode(gpus: Gpus, gpu_profile: GpuProfile) -> Judgement:
    """ECC is as the profile states; graphics cards may have it off if the profile does not state it."""
    off = all(gpu.ecc is False and _GRAPHICS.search(gpu.name or "") for gpu in gpus)
    if off and not readings.states(gpu_profile, "ecc"):
        raise NotApplicable("graphics cards are delivered with ECC off, and the profile does not state `ecc`")
    else:
        yield from readings.judge_switch(gpus, "ecc", gpu_profile, what="ECC")


# what each program that uses CUDA loads; others serve graphics or video, or are of an earlier driver
_REQUIRED = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")


@check(
    "gpu.libraries",
    cause="a container runtime or an aborted installation left empty files, or the driver was removed or upgraded in part",
    hint="ls -lL of the file; reinstall the driver's libraries of the version in /proc/driver/nvidia/version; ldconfig",
    action=Action.CONFIGURE,
    show="ls -lL PART; head -c 4 PART",
)
def libraries(libraries: Libraries) -> Judgement:
    """Every library of NVIDIA that the loader's cache names for 64 bits is an ELF file; so is a file of the ones that CUDA requires.

    Other broken files beside them, as an earlier driver leaves them, are a warning.
    """
    for path, problem in sorted(libraries.bad.items()):
        is_cached = libraries.cached.get(path)
        required = stem_of(path) in _REQUIRED and not libraries.replaced(path)
        deviation = Finding if is_cached or (is_cached is None and required) else Advisory
        code = "absent" if "No such file" in problem else "unreadable" if problem else "no_elf_file"
        shown = Quote(problem or "is empty or no ELF file")
        yield deviation(named("file", path), shown, "an ELF file", code=code)
