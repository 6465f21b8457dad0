"""Links of GPUs: NVLink, NVSwitch, PCIe, peer access and NUMA nodes."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.fault_rules import Allowance
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.majority import Norm, decides, differs, norm, norms
from pytest_gpucluster.core.part import Part, nvlink, register
from pytest_gpucluster.core.text import count
from pytest_gpucluster.kit.gpu.nvidia_csv import is_unsupported
from pytest_gpucluster.suites.gpu.readings import judge_equal, of_present_gpus, unread

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pytest_gpucluster.config.models import GpuProfile
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.gpu.nvidia_smi import Gpu, Gpus, LinkErrors, Topology

register("gpu_pair", "GPU pair")

SPEED_TOLERANCE = 0.01  # nvidia-smi rounds GB/s
IDLE = 0x1  # of clocks_event_reasons.active (nvml.h, nvmlClocksEventReasons)
BRIDGED = (2, 4)  # GPUs that a bridge joins; H200 NVL has bridges of four
MOST_PAIR = 2  # GPUs; of two that differ neither is known to be at fault

_DCGM = "DCGM"
# {counter of `nvidia-smi nvlink -e`: what may come between two readings}, as in DCGM (DcgmGPUHardwareLimits.h: CRC errors matter
# from 100 per second on; DcgmHealthWatch.cpp: none of the others); NVLink 5 has other counters
_CRC, _NONE = Allowance(100, 1, _DCGM), Allowance(0, 1, _DCGM)
NVLINK_RATES = dict.fromkeys(("crc errors", "crc flit errors", "crc data errors"), _CRC) | dict.fromkeys(
    (
        "replay errors", "recovery errors", "malformed packet errors", "buffer overrun errors",
        "local link integrity errors", "link recovery failed events",
    ),
    _NONE,
)  # fmt: skip
# {counter: the lowest total since the driver was loaded that fails}; the link has recovered since, and healthy
# ones count CRC errors and replays over weeks
NVLINK_TOTALS: dict[str, float] = {
    "recovery errors": 1,
    "malformed packet errors": 1,
    "buffer overrun errors": 1,
    "local link integrity errors": 1,
    "link recovery failed events": 1,
    # DCGM warns of the first one; of 5,760 links of GB200 one was above 0, at 505, and failed five days later
    # (marin-community/marin, issues 8934 and 9086)
    "link recovery successful events": 100,
}
NVLINK_BER = 1e-12
_RATE, _RATED = "effective ber", "effective errors"
LEAST_ERRORS = 10  # fewer errors measure no rate: of a link that just came up one is a rate of 1e-10
# data that was sent again, and faults of the other end; DCGM warns of a successful recovery, and judges the others by
# their rate, which a single reading does not show
NVLINK_WARNINGS = (
    "replay errors",
    "crc errors",
    "crc flit errors",
    "crc data errors",
    "rx errors",
    "rx remote errors",
    "rx general errors",
    "tx discards",
    "link recovery successful events",
    "total link recovery events",
    _RATED,
    "symbol errors",
    "symbol ber",
)
_NEVER: Mapping[str, LinkErrors] = MappingProxyType({})  # there was no second reading
_NO_NVLINKS = "the profile states no NVLinks"
# of eight, one H200 passed through to a virtual machine
_NO_PEER = "a single GPU without NVSwitch has no peer"


def _uuid_of(gpu: Gpu) -> str:
    return gpu.uuid or ""


@check(
    "gpu.nvlink_state",
    show="nvidia-smi nvlink -s -i INDEX",
    cause="an NVLink is down or slow: the GPU is badly seated, or its fabric was not set up",
    hint="nvidia-smi nvlink -s -i INDEX; journalctl -u nvidia-fabricmanager; reset all GPUs of the node; reseat the GPU",
    action=Action.CONFIGURE,
    never_healthy="most GPUs of the same board have more active links, or faster ones; a GPU without any link counts only on a board, "
    "which has NVSwitch, or whose NVLinks join more GPUs than a bridge does, or three",
)
@of_present_gpus
def nvlink_state(
    gpus: Gpus,
    nvlinks: Mapping[str, Mapping[int, float | None]],
    gpu_profile: GpuProfile,
    known_connections: Topology | None = None,
) -> Judgement:
    """As many NVLinks are active as the profile states, or as on most GPUs of the node, each at its speed."""
    usual, usual_speed = _usual_links(gpus, nvlinks), _usual_speed(gpus, nvlinks)
    wanted = usual if gpu_profile.nvlinks is None else gpu_profile.nvlinks
    if not wanted:
        raise NotApplicable(_NO_NVLINKS)
    most = ", as on most GPUs of the node" if gpu_profile.nvlinks is None else ""
    on_board = gpu_profile.nvswitch or _is_board(known_connections)
    linked = {gpu.name for gpu in gpus if _active(nvlinks, gpu)}
    for gpu in gpus:
        of_gpu = nvlinks.get(_uuid_of(gpu))
        board = on_board and gpu.name in linked  # no card for a display beside it
        if gpu.mig and not of_gpu:
            yield _in_mig_mode(gpu)
            continue
        if of_gpu is None:
            why = f"{gpu}: nvidia-smi nvlink -s does not list it"
            yield NotApplicable(f"{why}: {_NO_PEER}") if _without_peer(gpu_profile) else NotAvailable(why)
            continue
        active = {link: speed for link, speed in of_gpu.items() if speed is not None}
        yield Metric("nvlinks_active", len(active), "links", gpu.part)
        # a card without a bridge among others with one has no link at all
        if len(active) != wanted and (active or not most or board):
            lost = len(active) < usual and bool(active or board) and not gpu.mig
            action = Action.DRAIN if lost else None
            yield from _unlike(gpu, of_gpu, Quantity(wanted, "active links", f"{wanted} links{most}"), action)
        expected = gpu_profile.nvlink_speed
        for link, speed in active.items():
            if expected is not None and abs(speed - expected) > SPEED_TOLERANCE * expected:
                slow = Action.DRAIN if speed < usual_speed * (1 - SPEED_TOLERANCE) else None
                found, stated = Quantity(speed, "GB/s"), Quantity(expected, "GB/s")
                yield Finding(nvlink(link, gpu.part), found, stated, slow, code="wrong_speed")


def _unlike(gpu: Gpu, links: Mapping[int, float | None], wanted: Quantity, action: Action | None) -> Iterator[Finding]:
    """Yield each inactive link of a GPU that has others; the number of links where it shows no more."""
    down = [link for link, speed in links.items() if speed is None]
    active = len(links) - len(down)
    if active and len(down) == wanted.number - active:
        for link in down:
            yield Finding(nvlink(link, gpu.part), "inactive", f"active ({wanted})", action, code="inactive")
    else:
        which = f" (inactive: link {', '.join(map(str, down))})" if down else ""
        found = Quantity(active, "active links", f"{count(active, 'active link')}{which}")
        yield Finding(gpu.part, found, wanted, action, code="link_count")


def _is_board(connections: Topology | None) -> bool:
    """Return whether NVLinks join GPUs in a group that no bridge makes, so that each GPU of the node has its links."""
    groups = connections.linked() if connections else ()
    return any(len(group) not in (1, *BRIDGED) for group in groups)


def _without_peer(gpu_profile: GpuProfile) -> bool:
    return gpu_profile.count == 1 and not gpu_profile.nvswitch


def _in_mig_mode(gpu: Gpu) -> NotApplicable:
    return NotApplicable(f"{gpu} is in MIG mode, which has no NVLink")


def _usual_links(gpus: Gpus, links: Mapping[str, Mapping[int, float | None]]) -> int:
    """Return how many links are active on most GPUs of the node; 0 without a majority."""
    return norm((str(gpu), _active(links, gpu)) for gpu in gpus).value or 0


def _usual_speed(gpus: Gpus, links: Mapping[str, Mapping[int, float | None]]) -> float:
    """Return the speed in GB/s of most active links of the node; 0 without a majority."""
    found = (speed for gpu in gpus for speed in links.get(_uuid_of(gpu), {}).values() if speed is not None)
    return norm(("", speed) for speed in found).value or 0.0


def _active(links: Mapping[str, Mapping[int, float | None]], gpu: Gpu) -> int:
    return sum(speed is not None for speed in links.get(_uuid_of(gpu), {}).values())


@check(
    "gpu.nvlink_errors",
    show="nvidia-smi nvlink -e -i INDEX",
    cause="an NVLink loses data and must repeat it: a bad contact or a failing GPU or switch",
    hint="nvidia-smi nvlink -e -i INDEX; reset all GPUs of the node and measure again; reseat the GPU",
    action=Action.MONITOR,
    never_healthy="errors rose between two readings by more than DCGM allows in that time, or the bit error rate after the correction, "
    "measured by ten errors or more, is above 1e-12; totals of the past take no node out of service",
)
@of_present_gpus
def nvlink_errors(
    gpus: Gpus,
    nvlink_counters: Mapping[str, LinkErrors],
    gpu_profile: GpuProfile,
    nvlink_later: Mapping[str, LinkErrors] = _NEVER,
) -> Judgement:
    """The error counters rise by no more than DCGM allows between two readings, and their totals are low."""
    if gpu_profile.nvlinks == 0:
        raise NotApplicable(_NO_NVLINKS)
    for gpu in gpus:
        of_gpu = nvlink_counters.get(_uuid_of(gpu))
        if of_gpu is not None and (of_gpu.zeros or of_gpu.counts or of_gpu.unread):
            yield from _link_errors(gpu, of_gpu)
            if later := nvlink_later.get(_uuid_of(gpu)):
                yield from _risen(gpu, of_gpu, later)
        elif gpu.mig:
            yield _in_mig_mode(gpu)
        else:
            why = f"{gpu}: nvidia-smi nvlink -e shows no counter"
            if _without_peer(gpu_profile):
                yield NotApplicable(f"{why}: {_NO_PEER}")
            else:
                yield NotAvailable(why) if gpu_profile.nvlinks else NotApplicable(why)


def _risen(gpu: Gpu, of_gpu: LinkErrors, later: LinkErrors) -> Judgement:
    """Judge how far counters rose between two readings; one that was cleared meanwhile began at 0."""
    before = {(link, counter): found for link, counter, found in of_gpu.counts}
    seconds = later.at - of_gpu.at if later.at and of_gpu.at else None
    for link, counter, found in later.counts:
        if allowed := NVLINK_RATES.get(counter.lower()):
            old = before.get((link, counter), 0)
            rise = found - old if found >= old else found
            for one in allowed.judge(nvlink(link, gpu.part), rise, seconds, counter):
                if isinstance(one, Finding):
                    yield replace(one, action=Action.DRAIN, code=f"{_word(counter)}_rose")
                else:
                    yield one


def _word(counter: str) -> str:
    return counter.lower().replace(" ", "_")


def _link_errors(gpu: Gpu, of_gpu: LinkErrors) -> Judgement:
    known = [row for row in of_gpu.counts if row[1].lower() in {**NVLINK_RATES, **NVLINK_TOTALS}]
    yield Metric("nvlink_errors", sum(found for _, _, found in known), "errors", gpu.part)
    for link, counter, found in known:
        limit = NVLINK_TOTALS.get(counter.lower(), math.inf)
        if found >= limit:
            most = Quantity(limit, counter, f"below {limit} since the driver's start")
            total, code = Quantity(found, counter), f"{_word(counter)}_in_total"
            yield Finding(nvlink(link, gpu.part), total, most, code=code)
    errors = {link: found for link, counter, found in of_gpu.counts if counter.lower() == _RATED}
    for link, counter, found in of_gpu.counts:
        if counter.lower() == _RATE and found > NVLINK_BER:
            action = Action.DRAIN if errors.get(link, 0) >= LEAST_ERRORS else None
            rate = Quantity(found, "errors per bit", f"{counter} {found:g}")
            most = Quantity(NVLINK_BER, "errors per bit", f"at most {NVLINK_BER:g}")
            yield Finding(nvlink(link, gpu.part), rate, most, action, code="bit_error_rate")
    for link, counter, text in of_gpu.unread:
        if not is_unsupported(text):
            yield NotAvailable(f"{counter} of {gpu} NVLink {link}: {text}")
    yield from _link_warnings(gpu, of_gpu)


def _link_warnings(gpu: Gpu, of_gpu: LinkErrors) -> Iterator[Advisory]:
    """Yield one warning for each counter that proves no fault, or that is unknown."""
    others: dict[str, dict[int, float]] = {}
    for link, counter, found in of_gpu.counts:
        name = counter.lower()
        judged = name == _RATE or (name in NVLINK_TOTALS and name not in NVLINK_WARNINGS)
        if found and not judged and found < NVLINK_TOTALS.get(name, math.inf):
            others.setdefault(counter, {})[link] = found
    for counter, values in others.items():
        shown = ", ".join(f"{value:g} on NVLink {link}" for link, value in values.items())
        expected, code = "a counter that this release knows", "unknown_counter"
        if counter.lower() in NVLINK_WARNINGS:
            expected, code = "0 since the driver's start", f"{_word(counter)}_since_start"
        yield Advisory(gpu.part, f"{counter}: {shown}", expected, code=code)


@check(
    "gpu.pcie_width",
    rules_out="seating of the GPU (PCIe width)",
    show="nvidia-smi -i INDEX --query-gpu=index,pcie.link.width.current,pcie.link.width.max --format=csv",
    cause="the GPU or its riser is badly seated: lanes are lost",
    hint="lspci -vv -d 10de: | grep -i lnksta; reseat the GPU; try another slot",
    action=Action.CONFIGURE,
    never_healthy="most GPUs of the model in the same performance state use more lanes, and the driver reports that this GPU and its "
    "slot could, too",
)
@of_present_gpus
def pcie_width(gpus: Gpus, gpu_profile: GpuProfile) -> Judgement:
    """The PCIe link has as many lanes as the profile states; an idle GPU may reduce them (nvidia-smi(1))."""
    if gpu_profile.pcie_width is None:
        raise NotApplicable("the profile states no PCIe width")
    for gpu in gpus:
        if gpu.pcie_width is not None:
            yield Metric("pcie_width", gpu.pcie_width, "lanes", gpu.part)
    # fewer lanes than they and their slots allow, and than most GPUs of their model here have
    narrow = {
        gpu.part
        for gpu in gpus
        if gpu.pcie_width is not None and gpu.pcie_width < min(gpu.pcie_width_max or 0, _usual(gpus, gpu, "pcie_width"))
    }

    def shown(lanes: int) -> Quantity:
        return Quantity(lanes, "lanes", f"x{lanes}")

    for found in judge_equal(gpus, "pcie_width", gpu_profile.pcie_width, shown, code="wrong_width"):
        lost = isinstance(found, Finding) and found.part in narrow
        yield replace(found, action=Action.DRAIN) if isinstance(found, Finding) and lost else found


def _usual(gpus: Gpus, gpu: Gpu, attribute: str) -> int:
    """Return the number of most GPUs of this model and performance state on the node; 0 without a majority of three."""
    same = (one for one in gpus if (one.name, one.pstate) == (gpu.name, gpu.pstate))
    alike = norm((str(one), getattr(one, attribute)) for one in same)
    return alike.value or 0 if alike.total > MOST_PAIR else 0


@check(
    "gpu.pcie_gen",
    show="nvidia-smi -i INDEX --query-gpu=index,pcie.link.gen.current,pcie.link.gen.max --format=csv",
    cause="the slot or the firmware limits the PCIe generation, or the link trained down",
    hint="lspci -vv -d 10de: | grep -i -e lnkcap -e lnksta; BIOS settings; reseat the GPU",
    action=Action.CONFIGURE,
    never_healthy="most GPUs of the same NVSwitch board, whose slots are alike, report a higher generation that GPU and slot can use; slots "
    "of cards may differ by design, and the generation in use, which an idle link may lower, takes no node out of service",
)
@of_present_gpus
def pcie_gen(gpus: Gpus, gpu_profile: GpuProfile) -> Judgement:
    """GPU and slot support the profile's PCIe generation, and use it in P0.

    A GPU that saves power (P1 and higher numbers) may lower the generation of its link, and raises it under load.
    """
    if gpu_profile.pcie_gen is None:
        raise NotApplicable("the profile states no PCIe generation")
    expected = Quantity(gpu_profile.pcie_gen, "PCIe", f"generation {gpu_profile.pcie_gen}")
    for gpu in gpus:
        if gpu.pcie_gen is not None:
            yield Metric("pcie_gen", gpu.pcie_gen, "generation", gpu.part)
        if gpu.pcie_gen_max is None:
            yield unread(gpus, gpu, "pcie_gen_max", expected, stated=True)
        elif gpu.pcie_gen_max < gpu_profile.pcie_gen:
            slower = gpu_profile.nvswitch and gpu.pcie_gen_max < _usual(gpus, gpu, "pcie_gen_max")
            most = Quantity(gpu.pcie_gen_max, "PCIe", f"at most generation {gpu.pcie_gen_max} in this slot")
            yield Finding(gpu.part, most, expected, Action.DRAIN if slower else None, code="slow_slot")
        elif gpu.pcie_gen is None:
            yield unread(gpus, gpu, "pcie_gen", expected, stated=True)
        elif gpu.pcie_gen < gpu_profile.pcie_gen and gpu.pstate == "P0":
            # some boards lower it in P0 too, without load: no proof against a link
            if (gpu.throttle or 0) & IDLE and gpu.pcie_gen >= _usual(gpus, gpu, "pcie_gen"):
                why = f"{gpu}: generation {gpu.pcie_gen}, idle as the others: burnin.copies measures it"
                yield NotAvailable(why)
            else:
                now = Quantity(gpu.pcie_gen, "PCIe", f"generation {gpu.pcie_gen} in P0")
                yield Finding(gpu.part, now, expected, Action.MONITOR, code="slow_in_p0")
        elif gpu.pcie_gen < gpu_profile.pcie_gen and gpu.pstate is None:
            yield NotAvailable(f"{gpu}: generation {gpu.pcie_gen}, and its performance state is not known")


@check(
    "gpu.topology",
    show="nvidia-smi topo -m",
    cause="NVLinks between two GPUs are down, or GPUs are in other slots than on the other nodes",
    hint="nvidia-smi topo -m; nvidia-smi nvlink -s -i INDEX; journalctl -u nvidia-fabricmanager",
    action=Action.CONFIGURE,
    never_healthy="two thirds of the pairs of this node are connected as the profile states, which only a fabric that connects "
    "all GPUs alike does; bridges and meshes connect fewer",
)
@of_present_gpus
def topology(
    gpus: Gpus,
    connections: Topology,
    known_nvlinks: Mapping[str, Mapping[int, float | None]] | None,
    gpu_profile: GpuProfile,
) -> Judgement:
    """Any two GPUs are connected as the profile states; gpu.nvlink_state judges those with an NVLink that is down.

    known_nvlinks: None if the state of the NVLinks cannot be read: then every pair is judged.
    """
    if gpu_profile.topology is None:
        raise NotApplicable("the profile states no topology")
    elif gpu_profile.count < 2:  # a pair
        raise NotApplicable("one GPU has no other GPU to connect to")
    else:
        active = {gpu.index: _active(known_nvlinks or {}, gpu) for gpu in gpus}
        partitioned = [gpu for gpu in gpus if gpu.mig and not active[gpu.index]]
        yield from map(_in_mig_mode, partitioned)
        explained = {gpu.index for gpu in partitioned}
        if known_nvlinks is not None:
            explained |= {index for index, count in active.items() if count < (gpu_profile.nvlinks or 0)}
        links, wanted = connections.links, gpu_profile.topology
        found = _pairs(gpus, links, wanted, "topo -m", explained, code="wrong_connection")
        yield from _beside_good_pairs(found, links, wanted)


@check(
    "gpu.p2p",
    show="nvidia-smi topo -p2p n",
    cause="GPUs cannot reach each other's memory over NVLink",
    hint="nvidia-smi topo -p2p n; fabric manager; IOMMU and ACS settings",
    action=Action.CONFIGURE,
    never_healthy="NVLink connects the two GPUs, and most such pairs of the node have peer access: a setting of the host, the "
    "firmware or the driver holds for all of them",
)
@of_present_gpus
def p2p(
    gpus: Gpus, peer_access: Mapping[int, Mapping[int, str]], connections: Topology, gpu_profile: GpuProfile
) -> Judgement:
    """Any two GPUs that NVLink connects can use peer access; gpu.topology judges which these are."""
    if not gpu_profile.nvlinks:
        raise NotApplicable(_NO_NVLINKS)
    elif gpu_profile.count < 2:  # a pair
        raise NotApplicable("one GPU has no peer")
    else:
        linked = {
            gpu: {
                other: cell
                for other, cell in of_gpu.items()
                if connections.links.get(gpu, {}).get(other, "").startswith("NV")
            }
            for gpu, of_gpu in peer_access.items()
        }
        if peer_access and not any(linked.values()):
            yield NotApplicable("nvidia-smi topo -m shows no two GPUs that NVLink connects")
        partitioned = [gpu for gpu in gpus if gpu.mig]
        yield from map(_in_mig_mode, partitioned)
        explained = {gpu.index for gpu in partitioned}
        found = _pairs(gpus, linked, "OK", "topo -p2p n", explained, code="no_peer_access")
        yield from _beside_good_pairs(found, linked, "OK")


def _beside_good_pairs(found: Judgement, pairs: Mapping[int, Mapping[int, str]], expected: str) -> Judgement:
    """Yield findings on pairs of GPUs that take the node out of service if most of its pairs are as expected."""
    cells = [cell for gpu, of_gpu in pairs.items() for other, cell in of_gpu.items() if other > gpu]
    most = decides(cells.count(expected), len(cells))
    for one in found:
        yield replace(one, action=Action.DRAIN) if most and isinstance(one, Finding) else one


def _pairs(
    gpus: Gpus,
    found: Mapping[int, Mapping[int, str]],
    expected: str,
    what: str,
    explained: Collection[int | None],
    *,
    code: str,
) -> Judgement:
    indices = [gpu.index for gpu in gpus if gpu.index is not None]
    if missing := [index for index in indices if index not in found]:
        yield NotAvailable(f"nvidia-smi {what} has no row for GPU {', '.join(map(str, missing))}")
    for index in indices:
        for other, cell in sorted(found.get(index, {}).items()):
            if other > index and cell != expected and not {index, other} & set(explained):
                part = Part("gpu_pair", name=f"GPU {index} to GPU {other}")
                yield Finding(part, Quote(cell), expected, code=code)


def numa_majority(gpus: Mapping[str, Gpus], found: Mapping[str, Topology]) -> dict[tuple[str, int, int], Norm[str]]:
    """Return {(GPU model, GPUs of the node, index): norm of NUMA nodes}."""
    return norms(
        (
            ((_model(gpus[node]), len(gpus[node]), index), node, f"NUMA node {numa}")
            for node in sorted(gpus.keys() & found.keys())
            for index, numa in found[node].numa.items()
        ),
        "nodes of this kind",
    )


def _model(gpus: Gpus) -> str:
    return next((gpu.name for gpu in gpus if gpu.name), "")


@check(
    "gpu.numa_affinity",
    cause="a GPU is in another slot than on the other nodes, or the firmware divides the CPUs differently",
    hint="nvidia-smi topo -m; lscpu; BIOS settings (NUMA nodes per socket); compare with a good node",
    action=Action.CONFIGURE,
)
@of_present_gpus
def numa_affinity(
    gpus: Gpus,
    connections: Topology,
    numa_majority: Mapping[tuple[str, int, int], Norm[str]],
    gpu_profile: GpuProfile | None = None,
) -> Judgement:
    """Every GPU is near the same NUMA nodes as on most nodes with as many GPUs of this model."""
    if not connections.numa:
        raise NotApplicable("nvidia-smi topo -m shows no NUMA affinity: a guest, or a driver before 450")
    # a missing one shifts the numbers of the others
    if gpu_profile is not None and len(gpus) < gpu_profile.count:
        raise NotAvailable("the node lacks GPUs (see gpu.count)")
    for gpu in gpus:
        index = -1 if gpu.index is None else gpu.index
        numa = connections.numa.get(index)
        most = numa_majority.get((_model(gpus), len(gpus), index), Norm[str]())
        if most.total < 2:  # this node and another one
            yield NotApplicable("there is no other node of this kind to compare with")
        else:
            yield from most.judge(gpu.part, f"NUMA node {numa or 'unknown'}", worse=differs)


def _not_joined(gpus: Gpus, gpu: Gpu) -> Iterator[Finding]:
    """Yield what a GPU reports that has a fabric and does not use it; nothing without one (Not Supported, Not Started, N/A)."""
    failed = gpu.fabric_state == "Completed" and gpu.fabric_status not in (None, "", "Success")
    if gpu.fabric_health not in (None, "", "Healthy"):
        yield _unhealthy(gpu, Action.MONITOR)
    elif gpu.fabric_state == "In Progress" or failed:
        shown = Quote(f"{gpu.fabric_state}, {gpu.fabric_status or 'N/A'}")
        yield Finding(gpu.part, shown, _JOINED, Action.MONITOR, code="not_joined")
    else:
        for attribute in ("fabric_state", "fabric_status", "fabric_health"):
            yield from _unreadable(gpus, gpu, attribute)


def _unreadable(gpus: Gpus, gpu: Gpu, attribute: str) -> Iterator[Finding]:
    """Yield an error of the driver instead of a value; what the GPU lacks is nothing."""
    if attribute in gpu.unread:
        expected = "Healthy" if attribute == "fabric_health" else _JOINED
        found = unread(gpus, gpu, attribute, expected, stated=False)
        if isinstance(found, Finding) and found.code == "unreadable":
            yield found


def _unhealthy(gpu: Gpu, action: Action) -> Finding:
    """Return the finding on a fabric that is not Healthy.

    The other value is Limited Capacity, which works at a lower speed (NVML_GPU_FABRIC_HEALTH_SUMMARY_*).
    """
    sick, found = gpu.fabric_health == "Unhealthy", Quote(f"fabric health {gpu.fabric_health}")
    code = "unhealthy" if sick else "limited_capacity"
    return Finding(gpu.part, found, "Healthy", action if sick else Action.MONITOR, code=code)


_JOINED = "Completed, Success"


@check(
    "gpu.fabric_state",
    show="nvidia-smi -q -i INDEX | grep -A3 Fabric",
    cause="the GPU has not joined the NVLink fabric",
    hint="nvidia-smi -q -i INDEX | grep -A2 Fabric; restart nvidia-fabricmanager; reset all GPUs of the node",
    action=Action.MONITOR,
    never_healthy="the GPU ended its registration with an error where others of the node joined the fabric, or the driver itself calls "
    "it unhealthy",
)
@of_present_gpus
def fabric_state(gpus: Gpus, gpu_profile: GpuProfile) -> Judgement:
    """Every GPU has completed its registration with the NVLink fabric, and the fabric is healthy."""
    if not gpu_profile.fabric_state:
        faults = [fault for gpu in gpus for fault in _not_joined(gpus, gpu)]
        yield from faults
        if not faults:
            yield NotApplicable("the profile states no fabric state")
        return
    # without one that joined the fabric, it may be starting, or lack its configuration; a GPU that has not ended its
    # registration may belong to no partition (shared NVSwitch)
    joined = any((gpu.fabric_state, gpu.fabric_status) == ("Completed", "Success") for gpu in gpus)
    for gpu in gpus:
        state, status = (gpu.fabric_state or "", gpu.fabric_status or "")
        if state not in ("", "Completed") or status not in ("", "Success"):
            shown = [state or gpu.unread["fabric_state"], status or gpu.unread["fabric_status"]]
            action = Action.REBOOT if joined and state == "Completed" else None
            yield Finding(gpu.part, Quote(", ".join(shown)), _JOINED, action, code="not_joined")
        elif not state:
            yield unread(gpus, gpu, "fabric_state", "Completed", stated=True)
        elif not status:
            yield unread(gpus, gpu, "fabric_status", "Success", stated=True)
        elif gpu.fabric_health not in (None, "", "Healthy"):
            yield _unhealthy(gpu, Action.REBOOT)
        else:
            yield from _unreadable(gpus, gpu, "fabric_health")
