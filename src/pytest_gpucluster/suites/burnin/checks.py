"""Judge a burn-in: one check a subject, for one node among its fleet. Pure; limits stand with their source."""

from __future__ import annotations

import functools
import re
import statistics
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import (
    NO_MEMORY,
    Action,
    Advisory,
    Finding,
    Metric,
    NotApplicable,
    NotChecked,
    check,
    with_cause,
    with_contention,
)
from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.core.outliers import outliers
from pytest_gpucluster.core.units import format_duration, format_size
from pytest_gpucluster.kit import xid as xids
from pytest_gpucluster.kit.mpi_errors import with_software_cause
from pytest_gpucluster.kit.xid_check import ACTIONS
from pytest_gpucluster.suites.burnin import dcgm as dcgm_probe
from pytest_gpucluster.suites.burnin.dcgm import DcgmDiag
from pytest_gpucluster.suites.burnin.limits import Rate, limit_of, misses, rates, too_slow
from pytest_gpucluster.suites.burnin.results import HOST, unit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_gpucluster.core.check import Judgement, Verdict
    from pytest_gpucluster.core.outliers import Halves, Outliers
    from pytest_gpucluster.suites.burnin.config import BurninConfig
    from pytest_gpucluster.suites.burnin.dcgm import DcgmResult, DcgmWarning
    from pytest_gpucluster.suites.burnin.results import BurninResult, Lie, NodeTotals

P = ParamSpec("P")

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
GPU_LOADS = ("matmul", "hbm", "copies", "peer", "nccl")
GPU_METRICS = (*DTYPES, "hbm")
HOST_METRICS = (
    "h2d",
    "d2h",
    "peer",
    "nccl_alone",
    "nccl_pairs",
    "cpu",
    "memory",
    "storage_write",
    "storage_read",
)

# DCGM's dcgm_errors.h. dcgmErrorSeverity_t: none, monitor and config leave the GPU fit for work
_ISOLATE, _CONFIG, _RESET = 2, 5, 6
_MILD = frozenset({0, 1, _CONFIG})
# dcgmErrorCategory_t: configuration, library, CUDA, EUD, other software, DCGM itself: these break no hardware, but for
# what DCGM would isolate (an EUD that failed)
_SOFTWARE_CATEGORIES = frozenset({3, 4, 6, 7, 8, 16})
# Before DCGM 3.3 a result has words alone. These tests are of nvvs/plugin_src/software; its others (page retirement,
# row remapping, InfoROM) are of the hardware
_SOFTWARE_TESTS = frozenset({
    "denylist", "blacklist", "nvml library", "cuda main library", "cuda toolkit libraries", "permissions and os blocks",
    "permissions and os-related blocks", "persistence mode", "environment variables", "graphics processes",
    "fabric manager",
})  # fmt: skip
# All else are Hardware, Integration and Stress
_DEPLOYMENT = "Deployment"
# What other software does to a test: variables, another process on the GPU
_SOFTWARE_WORDS = (
    "CUDA_VISIBLE_DEVICES",
    "cudaDeviceGetByPCIBusId",
    "busy or unavailable",
    "ersistence mode",
)

# By how much a counter may rise under load. One uncorrectable error, remapped row, or NVLink replay fails (DCGM,
# DcgmGPUHardwareLimits.h); CRC errors matter from a hundred on. `None`: see the function that asks.
NEVER = 0
LIMITS = {
    "gone": NEVER,
    "ecc_uncorrected_volatile": NEVER,
    "ecc_uncorrected_aggregate": NEVER,
    "remapped_uncorrectable": NEVER,
    "remapped_correctable": NEVER,
    "remapped_pending": NEVER,
    "remapped_failure": NEVER,
    "nvlink_replay_errors": NEVER,
    "nvlink_recovery_errors": NEVER,
    "nvlink_crc_errors": 99,
    "nvlink_link_recovery_failed_events": NEVER,
    "nvlink_malformed_packet_errors": NEVER,
    "nvlink_buffer_overrun_errors": NEVER,
    "nvlink_local_link_integrity_errors": NEVER,
    "link_downed": NEVER,
    "link_error_recovery": NEVER,
    "local_link_integrity_errors": NEVER,
    "excessive_buffer_overrun_errors": NEVER,
    "port_rcv_errors": 9,
    "port_rcv_remote_physical_errors": 9,
    "symbol_error": 119,  # InfiniBand allows a bit error rate of 1e-12: some a minute at 400 Gb/s
}
REPLAYS_A_MINUTE = 8  # DCGM: DCGM_LIMIT_MAX_PCIREPLAY_RATE
PARTNERS = 3
STOPPED = "process is stopped by a signal"  # as the payload says it of a load that hangs
STARVED = "by the OOM killer"  # as the payload says it, from the kernel's log
NO_TORCH = "No module named 'torch'"
# How a rank of a collective ends that only waited for another: by time, by a closed connection
_FOLLOWS = re.compile(
    r"[Tt]imed? ?out|[Cc]onnection (?:closed|reset|refused|was)|[Bb]roken pipe|[Rr]emote ?(?:[Ee]rror|process)|"
    r"(?:did not answer in time|had not ended after [\w ]+?)(?: \(|$)"
)
GPUS = "GPUs"  # the part that stands for all of a node's
SMI = "nvidia-smi"  # the part that is the driver's own tool
_NO_ANSWER = re.compile("no (?:end|answer)")  # as the payload says it of a command that hangs
DEATHS = 3  # processes of loads that may die until the node has to leave
# After these the node's results cannot be trusted, or it may take others down: it leaves the burn-in at once
FATAL = (
    "gone",
    "ecc_uncorrected_volatile",
    "ecc_uncorrected_aggregate",
    "remapped_uncorrectable",
    "remapped_failure",
)


# --- while it runs -----------------------------------------------------------------------------------------------


def fatal(told: NodeTotals) -> str:
    """Return why a node has to leave the burn-in now, '' where it may stay."""
    for load, parts in told.wrong.items():
        for part, count in parts.items():
            # of a group of nodes nobody knows yet whose data are wrong
            if count and (load != "nccl" or not told.partners):
                return f"wrong data: {load}, {told.part(part)}"
    for part, counters in told.rose.items():
        for counter, count in counters.items():
            if counter in FATAL or ((entry := _xid_of(counter)) and entry.fails):
                return f"{told.part(part)}: {counter} rose by {count}"
    died = _died(told)
    if len(died) >= DEATHS:
        return f"{len(died)} processes of its loads died: {died[-1].measured}"
    return ""


def lying(whole: BurninResult) -> dict[str, str]:
    """Return {node: why} for nodes that have to leave since their results differ from those of most others."""
    return {
        node: f"wrong data: {whole.nodes[node].part(part)}: {proved[0].said}"
        for (node, part), lies in whole.corrupt_gpus().items()
        if (proved := [lie for lie in lies if not lie.disputed])
    }


def _lied(part: str, lies: Sequence[Lie], others: str) -> Finding:
    """Return the finding on results that differ; where no majority tells who is right, nobody leaves."""
    proved = [lie for lie in lies if not lie.disputed]
    said = "; ".join(lie.said for lie in (proved or lies)[:4])
    if proved:
        return Finding(part, said, f"the result of the other {others} for the same input")
    return Finding(part, said, lies[0].disputed, Action.MONITOR)


def suspicious(whole: BurninResult, node: str, config: BurninConfig, seconds: float) -> bool:
    """Tell whether anything was found so far that will fail the node, for the progress line."""
    told = whole.nodes[node]
    slow = any(
        misses(whole, rate, config)
        for metric in (*GPU_METRICS, "h2d", "d2h")
        for rate in rates(whole, node, metric)
    )
    risen = any(count > limit for _, _, count, limit in _risen(told, seconds, config))
    return bool(told.out or told.lost or slow or risen or _mute(told) or fatal(told) or _hot(told, config))


def _xid_of(counter: str) -> xids.Xid | None:
    """Return what a counter like xid_79, xid_149:Nonfatal or sxid_20034:Fatal counts, None for another counter."""
    match = re.fullmatch(r"(s?)xid_(\d+)(?::(.*))?", counter)
    if match is None:
        return None
    words = (match[3] or "").replace("_", " ")
    return (xids.lookup_sxid if match[1] else xids.lookup)(int(match[2]), words)


# --- helpers -----------------------------------------------------------------------------------------------------


def _problems(told: NodeTotals, *loads: str) -> Iterator[Finding]:
    for load, part, text in told.problems:
        if load in loads and not _process_ended(load, text):
            yield Finding(told.part(part), f"{load}: {text}", "the load runs to its end")


def _unmeasured(told: NodeTotals, *loads: str, config: BurninConfig | None = None) -> Judgement:
    """Say why none of these loads gave anything."""
    if any(told.ran[load] for load in loads):
        return
    if config is not None and not set(loads) & set(config.loads):
        yield NotApplicable(f"burnin.loads of the cluster file leaves {loads[0]} out")
    elif told.hello is None:
        yield NotChecked(f"the node never took part: {told.lost or told.out or 'no word from it'}")
    elif set(loads) & set(GPU_LOADS) and not told.used:
        broken = [why for why in told.hello.get("broken", ()) if why]
        if broken:
            yield NotChecked(f"no worker on the GPUs: {broken[0]}")
        else:
            yield NotApplicable("the node has no GPU in this step")
    elif any(load in told.skips for load in loads):
        yield NotApplicable(next(told.skips[load] for load in loads if load in told.skips))
    elif any(load in loads and _process_ended(load, text) for load, _, text in told.problems):
        yield NotChecked(f"{loads[0]} did not run to its end: see burnin.survived")
    elif not any(load in loads for load, _, _ in told.problems):
        why = told.lost or told.out
        yield NotChecked(f"{loads[0]} was not run" + (f": {why}" if why else " in the time there was"))


def _rates(
    whole: BurninResult, node: str, metrics: tuple[str, ...], config: BurninConfig, what: str
) -> Judgement:
    """Judge rates against the floor of the card; one metric a GPU and rate."""
    told, judged = whole.nodes[node], False
    for rate in (rate for metric in metrics for rate in rates(whole, node, metric)):
        yield Metric(f"burnin_{rate.metric}", rate.value, unit_of(rate.metric), told.part(rate.part))
        judged |= limit_of(whole, rate, config) is not None
        if slow := too_slow(whole, rate, config):
            yield slow
    if not judged and told.used and any(whole.median(metric, node) for metric in metrics):
        name = next((gpu.name for gpu in told.gpus.values()), "?")
        yield NotChecked(
            f"no {what} is known of {name}: say it under burnin.expect; the fleet is compared by burnin.stragglers"
        )


def _host_rates(whole: BurninResult, node: str, config: BurninConfig, *metrics: str) -> Judgement:
    """Yield rates of the host, and those below a hard limit: slow is not wrong, so nothing is returned for it."""
    for rate in (rate for metric in metrics for rate in rates(whole, node, metric)):
        yield Metric(f"burnin_{rate.metric}", rate.value, unit_of(rate.metric))
        if slow := too_slow(whole, rate, config):
            yield replace(slow, action=Action.DRAIN)


def _minding_others(
    load: str = "",
) -> Callable[
    [Callable[Concatenate[BurninResult, str, P], Verdict]],
    Callable[Concatenate[BurninResult, str, P], Verdict],
]:
    """Where others at work on the GPUs explain every finding, say that instead.

    `load`: the one whose rates are judged; without it only memory that they hold explains anything.
    """

    def wrap(
        judge: Callable[Concatenate[BurninResult, str, P], Verdict],
    ) -> Callable[Concatenate[BurninResult, str, P], Verdict]:
        @functools.wraps(judge)
        def judged(whole: BurninResult, node: str, /, *args: P.args, **kwargs: P.kwargs) -> Verdict:
            verdict = _unless_stopped(judge(whole, node, *args, **kwargs))
            theirs = [_others_of(whole.nodes[node], finding, load) for finding in verdict.findings]
            names = ", ".join(sorted({name for names in theirs for name in names}))
            return with_contention(
                verdict, f"others are at work on the GPU: {names}" if theirs and all(theirs) else ""
            )

        return judged

    return wrap


def _unless_stopped(verdict: Verdict) -> Verdict:
    """Where all that is found is that our processes were stopped or starved, say that: no hardware does it."""
    starved = with_cause(
        verdict,
        STARVED,
        "the kernel ended our processes: the host's memory, or the job's limit of it, does not suffice",
        "dmesg -T | grep -i 'killed process'; free -h; DefMemPerNode, DefMemPerGPU, RealMemory of slurm.conf",
    )
    return with_cause(
        starved,
        STOPPED,
        "our processes on the node were stopped by a signal: scontrol suspend, a debugger, or a kill -STOP",
        "scontrol show job of this run; ps -eo pid,stat,lstart,cmd on the node; repeat",
    )


def _others_of(told: NodeTotals, finding: Finding, load: str) -> tuple[str, ...]:
    """Return the processes of others that explain a finding: a GPU that is slow, or that has no memory for us."""
    parts = {str(gpu): uuid for uuid, gpu in told.gpus.items()}
    if NO_MEMORY in finding.measured:
        uuids = [parts[finding.part]] if finding.part in parts else sorted(set(told.gpus) - set(told.used))
        return tuple(
            name for uuid in uuids for name in (*told.gpus[uuid].foreign, *told.strangers.get(uuid, ()))
        )
    failed = any(text in finding.measured for _, _, text in told.problems)
    return () if failed or not load or finding.part not in parts else told.others(parts[finding.part], load)


def _process_ended(load: str, text: str) -> bool:
    """Tell whether a load's process died or hung, which burnin.survived judges: it says nothing of right or fast."""
    return text.startswith("the load ") and load != "nccl"  # of collectives another node may be the cause


def _died(told: NodeTotals) -> list[Finding]:
    """Return the loads whose process died or hung."""
    return [
        Finding(told.part(part), f"{load}: {text}", "the load runs to its end")
        for load, part, text in told.problems
        if _process_ended(load, text)
    ]


def _risen(told: NodeTotals, seconds: float, config: BurninConfig) -> Iterator[tuple[str, str, int, float]]:
    """Yield (part, counter, by how much it rose, limit) of counters that have one."""
    minutes = max(1.0, seconds / 60)
    for part, rises in sorted(told.rose.items()):
        for counter, count in sorted(rises.items()):
            limit = _limit(counter, minutes, config)
            if limit is not None:
                yield part, counter, count, limit


# --- the checks --------------------------------------------------------------------------------------------------


@check(
    "burnin.survived",
    cause="the node died, hung or lost its processes under load",
    hint="the console of the node, dmesg, the BMC's event log; slurmd's log says what became of the step",
)
def _survived(whole: BurninResult, node: str) -> Judgement:
    """The node took part to the end; a process that died took its load along."""
    told = whole.nodes[node]
    yield Metric("burnin_rounds", told.rounds, "rounds")
    if told.lost:
        yield Finding("node", f"lost after {told.rounds} rounds: {told.lost}", "answers to the end")
    yield from _died(told)
    if told.hello is not None and len(told.used) < whole.gpus:
        why = "; ".join(told.hello.get("broken", ())) or "no reason is known"
        if _for_all(whole, why):
            yield NotChecked(f"no GPU of any node was loaded: {why}: look at burnin.environment, or -m gpu")
        else:
            yield Finding(GPUS, f"{len(told.used)} took part: {why}", f"{whole.gpus}")
    if not told.rounds and not told.lost and not told.out:
        yield NotChecked(
            f"not one round was finished: {whole.ended or 'the time was too short'} ({format_duration(whole.seconds)})"
        )


@_minding_others()
def survived(whole: BurninResult, node: str) -> Verdict:
    """Judge that the node and its GPUs took part to the end; GPUs that never began have causes of their own."""
    verdict = _survived(whole, node)
    if not verdict.findings or any(finding.part != GPUS for finding in verdict.findings):
        return verdict
    return with_software_cause(
        replace(
            verdict,
            cause="no work could be started on the GPU: the driver, CUDA_VISIBLE_DEVICES, or memory that is taken",
            hint="in a step on the node: nvidia-smi; python3 -c 'import torch; torch.zeros(1).cuda()'; -m 'gpu or ddp'",
        )
    )


@check(
    "burnin.corruption",
    cause="silent data corruption: the GPU computes or stores wrong values without a word",
    hint="take the GPU out of service; repeat the burn-in on this node alone; dcgmi diag -r 3; return the GPU",
    action=Action.VENDOR,
)
def corruption(whole: BurninResult, node: str) -> Judgement:
    """The same seeded input gives the same bits: again and again, on every GPU and in every round."""
    told = whole.nodes[node]
    yield from _unmeasured(told, "matmul", "hbm", "copies", "peer")
    for load in ("matmul", "hbm", "copies", "peer"):
        for part, count in told.wrong.get(load, {}).items():
            if count:
                yield Finding(told.part(part), f"{load}: {count} wrong elements", "bit by bit the same")
    for (other, part), lies in whole.corrupt_gpus().items():
        if other == node and part != HOST:
            yield _lied(told.part(part), lies, "GPUs")
    checked = sum(told.checked.get("matmul", {}).values())
    yield Metric("burnin_products_checked", checked, "products")


@_minding_others("matmul")
@check(
    "burnin.matmul",
    cause="a GPU that is slow: clocks held down by heat, power or settings, or another process on it",
    hint="nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE,PIDS of this GPU while it works",
)
def matmul(whole: BurninResult, node: str, config: BurninConfig) -> Judgement:
    """Products of matrices reach the floor of the card, in every data type that it has."""
    told = whole.nodes[node]
    yield from _unmeasured(told, "matmul", config=config)
    yield from _problems(told, "matmul")
    yield from _rates(whole, node, DTYPES, config, "TFLOP/s")


@_minding_others("hbm")
@check(
    "burnin.memory_bandwidth",
    cause="a GPU's memory is slow: lower memory clock, a stack that trains badly, row remapping at work",
    hint="nvidia-smi -q -d CLOCK,ROW_REMAPPER,ECC; reset the GPU; return it if it stays slow",
    action=Action.RESET_GPU,
)
def memory_bandwidth(whole: BurninResult, node: str, config: BurninConfig) -> Judgement:
    """Copies within the GPU's memory reach the floor of the card."""
    told = whole.nodes[node]
    yield from _unmeasured(told, "hbm", config=config)
    yield from _problems(told, "hbm")
    yield from _rates(whole, node, ("hbm",), config, "memory bandwidth")


@_minding_others("copies")
@check(
    "burnin.copies",
    cause="the way between host and GPU is slow: fewer PCIe lanes, an older generation, wrong NUMA node",
    hint="nvidia-smi -q -d PCI; lspci -vv for LnkSta; numactl; gpu.pcie_width and gpu.pcie_gen tell more",
)
def copies(whole: BurninResult, node: str, config: BurninConfig) -> Judgement:
    """Copies between pinned host memory and the GPU reach the floor of its PCIe link, in both directions."""
    told = whole.nodes[node]
    yield from _unmeasured(told, "copies", config=config)
    yield from _problems(told, "copies")
    yield from _rates(whole, node, ("h2d", "d2h"), config, "PCIe link")


@_minding_others("peer")
@check(
    "burnin.peer",
    cause="the way from GPU to GPU is slow or broken",
    hint="nvidia-smi topo -m; nvidia-smi nvlink -s; gpu.nvlink_state and gpu.topology tell more",
)
def peer(whole: BurninResult, node: str, config: BurninConfig) -> Judgement:
    """Every pair of GPUs copies both ways at once; a hard limit is judged where cluster file or profile states one."""
    told = whole.nodes[node]
    if told.hello is not None and len(told.used) == 1:
        yield NotApplicable("one GPU alone has no peer")
        return
    yield from _unmeasured(told, "peer", config=config)
    yield from _problems(told, "peer")
    for rate in rates(whole, node, "peer"):
        yield Metric("burnin_peer", rate.value, "GB/s", told.part(rate.part))
        if slow := too_slow(whole, rate, config):
            yield slow


@_minding_others()
@check(
    "burnin.nccl",
    cause="collectives fail with this node, or deliver wrong data",
    hint="pytest -m nccl --nodes=... tells node, adapter, link or leaf",
)
def nccl(whole: BurninResult, node: str, config: BurninConfig) -> Judgement:
    """All-reduce within the node and with changing partners ends, and the sums are right.

    A pair that fails accuses both; it acquits a node whose partner left the burn-in, was lost, or fails with others.
    """
    told = whole.nodes[node]
    if told.used and sum(len(other.used) for other in whole.nodes.values()) == 1:
        yield NotApplicable("one GPU alone has nothing to reduce with")
        return
    if not _blamed_on_others(whole, node):
        yield from _problems(told, "nccl")
        for part, count in told.wrong.get("nccl", {}).items():
            if count:
                yield Finding(told.part(part), f"{count} wrong elements", "right sums")
    yield from _unmeasured(told, "nccl", config=config)
    for metric in ("nccl_alone", "nccl_pairs"):
        values = whole.median(metric, node)
        if values:
            yield Metric(f"burnin_{metric}", min(values.values()), "GB/s")
    yield from _slow_alone(whole, node, config)
    yield from _slow_pairs(whole, node, config)


def _slow_alone(whole: BurninResult, node: str, config: BurninConfig) -> Judgement:
    """Its GPUs share one figure: the node is said to be slow once."""
    least = min(whole.median("nccl_alone", node).values(), default=None)
    if least is not None and (slow := too_slow(whole, Rate(node, HOST, "nccl_alone", least), config)):
        yield slow


def _slow_pairs(whole: BurninResult, node: str, config: BurninConfig) -> Judgement:
    """A node is slow where its best pair is; that is its own fault only where a partner of it is fast with another."""
    best = {name: pair for name, told in whole.nodes.items() if (pair := _best_pair(told)) is not None}
    if node not in best or not (slow := too_slow(whole, Rate(node, HOST, "nccl_pairs", best[node]), config)):
        return
    met = [Rate(name, HOST, "nccl_pairs", best[name]) for name in whole.nodes[node].partners if name in best]
    proved = len(met) >= PARTNERS and not all(misses(whole, rate, config) for rate in met)
    among = "" if proved else ": the node, its partners or the network, for no partner is known to be fast"
    yield replace(
        slow,
        measured=f"{slow.measured} with the best of {len(met)} partners{among}",
        action=None if proved else Action.MONITOR,
    )


def _best_pair(told: NodeTotals) -> float | None:
    return max((statistics.median(values) for values in told.partners.values()), default=None)


def _for_all(whole: BurninResult, why: str) -> bool:
    """Tell whether no node could use a GPU, for what looks like the fault of the environment: it lacks torch."""
    several = len(whole.nodes) > 1 and NO_MEMORY not in why
    return not any(other.used for other in whole.nodes.values()) and (several or NO_TORCH in why)


def _blamed_on_others(whole: BurninResult, node: str) -> bool:
    """Tell whether every failed group of the node held one that is bad anyway."""
    told = whole.nodes[node]
    said = _of_nccl(told)
    waited = all(_FOLLOWS.search(text) for text in said)
    bad = {
        name
        for name, other in whole.nodes.items()
        if name != node and (other.out or other.lost or (waited and _broke(other)))
    }
    if any(told.wrong.get("nccl", {}).values()):
        return bool(bad & told.partners.keys())
    return bool(bad) and all(
        "(" not in text or bad & set(text.rpartition("(")[2].strip(")").split()) for text in said
    )


def _of_nccl(told: NodeTotals) -> list[str]:
    return [text for load, _, text in told.problems if load == "nccl"]


def _broke(told: NodeTotals) -> bool:
    """Tell whether a collective of the node failed for a reason of its own, and not by waiting for another."""
    return any(not _FOLLOWS.search(text) for text in _of_nccl(told))


@check(
    "burnin.cpu",
    cause="a CPU computes wrong values, or processes on it die",
    hint="mcelog, ras-mc-ctl --summary; stress the CPU alone; replace it",
    action=Action.VENDOR,
)
def cpu(whole: BurninResult, node: str, config: BurninConfig) -> Judgement:
    """The same work gives the same digest on every CPU of every node, again and again."""
    told = whole.nodes[node]
    yield from _unmeasured(told, "cpu", config=config)
    yield from _problems(told, "cpu")
    for count in filter(None, told.wrong.get("cpu", {}).values()):
        yield Finding("CPUs", f"{count} repetitions gave another result", "the same result")
    for (other, part), lies in whole.corrupt_gpus().items():
        if other == node and part == HOST:
            yield _lied("CPUs", lies, "nodes")
    yield from _host_rates(whole, node, config, "cpu")


@check(
    "burnin.memory",
    cause="the memory of the host loses bits",
    hint="edac-util, ras-mc-ctl --errors; memtester; replace the module",
    action=Action.VENDOR,
)
def memory(whole: BurninResult, node: str, config: BurninConfig) -> Judgement:
    """Patterns written over the host's memory are read back unchanged."""
    told = whole.nodes[node]
    yield from _unmeasured(told, "memory", config=config)
    yield from _problems(told, "memory")
    for count in filter(None, told.wrong.get("memory", {}).values()):
        yield Finding("memory", f"{count} blocks of 1 MiB read back changed", "what was written")
    yield from _host_rates(whole, node, config, "memory")


@check(
    "burnin.storage",
    cause="the node's storage returns other data than were written",
    hint="dmesg; smartctl -a; nvme smart-log; fsck; replace the disk",
)
def storage(whole: BurninResult, node: str, config: BurninConfig) -> Judgement:
    """Files written and synced are read back unchanged."""
    told = whole.nodes[node]
    yield from _unmeasured(told, "storage", config=config)
    yield from _problems(told, "storage")
    for count in filter(None, told.wrong.get("storage", {}).values()):
        yield Finding(
            config.storage or "storage",
            f"{count} blocks of 4 MiB read back changed",
            f"what was written ({format_size(config.storage_size)} a round)",
        )
    yield from _host_rates(whole, node, config, "storage_write", "storage_read")


def counters(whole: BurninResult, node: str, config: BurninConfig) -> Verdict:
    """Judge what counters rose by; an nvidia-smi that fails under load has causes of its own."""
    verdict = _counters(whole, node, config)
    if not verdict.findings or any(finding.part != SMI for finding in verdict.findings):
        return verdict
    return replace(
        verdict,
        cause="the driver does not answer any more: a GPU hangs or fell off the bus, or its device files are gone",
        hint="nvidia-smi on the node; dmesg | grep -i -e xid -e nvrm; ps -eo pid,stat,wchan:30,args | grep nvidia; "
        "reset the GPU or reboot",
    )


@check(
    "burnin.counters",
    cause="errors that only show under load: failing memory, a link that replays, a port that loses symbols",
    hint="nvidia-smi -q -d ECC,ROW_REMAPPER; nvidia-smi nvlink -e; perfquery; reset, reseat, replace",
)
def _counters(whole: BurninResult, node: str, config: BurninConfig) -> Judgement:
    """ECC, remapped rows, NVLink, PCIe replay and InfiniBand counters rise by no more than they may, load by load."""
    told = whole.nodes[node]
    if told.hello is None:
        yield from _unmeasured(told, "counters")
        return
    counted = told.hello.get("counted", ())
    unread = told.hello.get("unread", {}).get("gpu")
    if mute := _mute(told):
        yield Finding(SMI, mute, "answers, also under load")
    elif unread and counted and whole.gpus:  # those of InfiniBand
        yield NotChecked(f"the counters of the GPUs could not be read: {unread}")
    if not counted:
        why = "; ".join(f"{source}: {text}" for source, text in told.hello.get("unread", {}).items())
        yield (
            NotChecked(f"no counter could be read: {why}")
            if told.gpus or why
            else NotApplicable("neither GPUs nor InfiniBand ports are there to count anything")
        )
        return
    if not told.ran:
        yield NotChecked("no load was finished, so there is no before and after")
    for part, counter, count, limit in _risen(told, whole.seconds, config):
        yield Metric(f"burnin_rose_{counter}", count, "", told.part(part))
        if count > limit:
            loads = ", ".join(told.rose_in.get(f"{part} {counter}", ()))
            what = "vanished from nvidia-smi" if counter == "gone" else f"{counter} rose by {count}"
            yield Finding(told.part(part), f"{what} during {loads}", f"by at most {limit:g}")
    yield Metric("burnin_counters_read", len(counted), "counters")


def _mute(told: NodeTotals) -> str:
    """Return how nvidia-smi fails where it hangs, or had shown the node's GPUs before the loads; else ''."""
    hello, later = told.hello or {}, told.unread.get("gpu", "")
    said = later or hello.get("unread", {}).get("gpu", "")
    return said if (later and hello.get("gpus")) or _NO_ANSWER.search(said) else ""


def _limit(counter: str, minutes: float, config: BurninConfig) -> float | None:
    """Return by how much a counter may rise; None for one that another check judges."""
    if counter.startswith("ecc_corrected"):
        return config.max_corrected
    if counter == "pcie_replay":
        return REPLAYS_A_MINUTE * minutes
    return LIMITS.get(counter)


@check(
    "burnin.xid",
    cause="the driver reported an error of the GPU under load",
    hint="dmesg | grep -i xid; NVIDIA's Xid catalogue; reset the GPU or reboot; return the GPU if it comes back",
)
def xid(whole: BurninResult, node: str) -> Judgement:
    """The driver reports no Xid of the hardware while loads run."""
    told = whole.nodes[node]
    if told.hello is None:
        yield from _unmeasured(told, "xid")
        return
    if not told.gpus:
        yield NotApplicable("the node has no GPU in this step")
        return
    if not told.ran:
        yield NotChecked("no load was finished, so there is no before and after")
    if not told.hello.get("kernel") or "xid" in told.unread:
        why = told.unread.get("xid") or told.hello.get("unread", {}).get("xid", "no message")
        yield NotChecked(f"the kernel log cannot be read: {why}")
    for part, rises in sorted(told.rose.items()):
        for counter, count in sorted(rises.items()):
            entry = _xid_of(counter)
            if entry is None:
                continue
            loads = ", ".join(told.rose_in.get(f"{part} {counter}", ()))
            yield Metric(f"burnin_{entry.kind.lower()}", count, "", told.part(part))
            measured = f"{entry} {count} times during {loads}"
            if entry.fails:
                yield Finding(told.part(part), measured, "none", ACTIONS[entry.advice])
            elif entry.warns:
                yield Advisory(told.part(part), measured, "none")


@check(
    "burnin.temperature",
    cause="cooling: a fan, a heat sink, dust, the inlet, or a neighbour's exhaust",
    hint="nvidia-smi -q -d TEMPERATURE,PERFORMANCE while it works; compare with the GPUs beside it",
)
def temperature(whole: BurninResult, node: str, config: BurninConfig) -> Judgement:
    """Under load every GPU stays below its limit, and neither heat nor the power brake slows it for long."""
    told = whole.nodes[node]
    yield from _unmeasured(told, *GPU_LOADS)
    if any(told.ran[load] for load in GPU_LOADS) and not told.peaks:
        yield NotChecked("nvidia-smi told no temperature while the loads ran")
    for uuid, peaks in sorted(told.peaks.items()):
        part = told.part(uuid)
        for name, value, unit in (
            ("celsius", peaks.celsius, "C"),
            ("watts", peaks.watts, "W"),
            ("sm_mhz", statistics.median(peaks.sm_mhz) if peaks.sm_mhz else None, "MHz"),
        ):
            if value is not None:
                yield Metric(f"burnin_{name}", value, unit, part)
    yield from _hot(told, config)


def _hot(told: NodeTotals, config: BurninConfig) -> list[Finding]:
    found = []
    for uuid, peaks in sorted(told.peaks.items()):
        gpu = told.gpus.get(uuid)
        limit = config.max_temperature or (gpu.slow_celsius if gpu else None)
        if limit is not None and peaks.celsius is not None and peaks.celsius > limit:
            found.append(Finding(told.part(uuid), f"{peaks.celsius:g} C under load", f"at most {limit:g} C"))
        for reason, count in sorted(peaks.slow.items()):
            if peaks.samples and count / peaks.samples > config.max_throttled:
                found.append(
                    Finding(
                        told.part(uuid),
                        f"{reason} in {count} of {peaks.samples} samples, up to {peaks.celsius or 0:g} C",
                        f"in at most {config.max_throttled:.0%} of them",
                    )
                )
    return found


@check(
    "burnin.dcgm",
    cause="NVIDIA's own diagnostic fails",
    hint="dcgmi diag -r 3 -v; /var/log/nvidia-dcgm; return the GPU if it fails again",
)
def _dcgm(told: NodeTotals, found: DcgmDiag | None, config: BurninConfig) -> Judgement:
    """Every test of `dcgmi diag` passes."""
    if found is None:
        yield from _unmeasured(told, "dcgm", config=config)
        return
    if found.problem:
        yield NotChecked(found.problem)
    by_status = Counter(result.status for result in found.results)
    for result in found.results:
        yield from _of_dcgm(result)
    if found.results:
        yield Metric("dcgm_passed", sum(by_status[status] for status in dcgm_probe.PASSED), "tests")
    beyond = {result.status for result in found.results if result.category != _DEPLOYMENT}
    if set(by_status) <= {*dcgm_probe.SKIPPED} and not found.problem:
        yield NotChecked("dcgmi diag skipped every test")
    elif beyond and beyond <= {*dcgm_probe.SKIPPED}:
        # a product that DCGM does not allow them on (is_allowed), or a plugin that is not installed
        yield NotChecked("dcgmi diag skipped every test of the hardware; those of software ran")


def _of_dcgm(result: DcgmResult) -> Judgement:
    """Yield what one result says: a failure with what to do, or a warning that proves no fault."""
    warning = f": {result.warning}" if result.warning else ""
    where, said = result.where or "node", f"{result.test} ({result.category}): {result.status}{warning}"
    action = _grave(result)
    if result.status in dcgm_probe.FAILED or (
        result.status in dcgm_probe.WARNED and action is not Action.MONITOR
    ):
        yield Finding(where, said, "pass", action)
    elif result.status in dcgm_probe.WARNED or (result.status in dcgm_probe.PASSED and result.warnings):
        yield Advisory(where, said, "pass without a warning")
    elif result.status not in (*dcgm_probe.PASSED, *dcgm_probe.SKIPPED):
        yield NotChecked(f"dcgmi diag: the status {result.status!r} of {result.test} on {where} is not known")


def _grave(result: DcgmResult) -> Action | None:
    """Return what a failed test asks for; None is the action of the check."""
    told = [warning for warning in result.warnings if warning.severity is not None]
    if len(told) < len(result.warnings) or not told:  # before DCGM 3.3
        software = result.test.lower() in _SOFTWARE_TESTS or any(
            word in result.warning for word in _SOFTWARE_WORDS
        )
        return Action.MONITOR if software else None
    graves = {_graveness(warning) for warning in told}
    if graves == {Action.MONITOR}:
        return Action.MONITOR
    return Action.RESET_GPU if graves <= {Action.MONITOR, Action.RESET_GPU} else None


def _graveness(warning: DcgmWarning) -> Action | None:
    if warning.severity in _MILD or (
        warning.severity != _ISOLATE and warning.category in _SOFTWARE_CATEGORIES
    ):
        return Action.MONITOR
    return Action.RESET_GPU if warning.severity == _RESET else None


def dcgm(whole: BurninResult, node: str, config: BurninConfig) -> Verdict:
    """Judge `dcgmi diag`; what DCGM says of each of its findings decides what to do."""
    told = whole.nodes[node]
    found = None
    if told.dcgm is not None:
        said = told.dcgm
        try:
            found = dcgm_probe.read(int(said["rc"]), str(said["out"]), str(said.get("err", "")))
        except ProbeError as error:
            found = DcgmDiag((), str(error))
    verdict = _dcgm(told, found, config)
    if not verdict.findings or verdict.action is not Action.MONITOR:
        return verdict
    cause = "settings or software of the node that NVIDIA's diagnostic minds; its hardware passed"
    return replace(verdict, cause=cause, hint="what DCGM says above; dcgmi diag -r 1")


@check(
    "burnin.stragglers",
    cause="slower than its equals: heat, power, settings, a neighbour, or another process",
    hint="compare nvidia-smi -q of this GPU and of one that is fast, both under load",
    action=Action.MONITOR,
)
def stragglers(whole: BurninResult, node: str, config: BurninConfig) -> Judgement:
    """No GPU, and no node, is far below the median of its equals in the fleet (median and MAD).

    What is below the floor of its card already is judged by burnin.matmul and its like, not twice.
    """
    told, compared, notes = whole.nodes[node], 0, []
    for metric in (*GPU_METRICS, *HOST_METRICS):
        if metric == "nccl_pairs" and len(told.partners) < PARTNERS:
            continue  # a slow partner would slow the median too
        for values in _equals(whole, metric).values():
            if not any(name[0] == node for name in values):
                continue
            named = {f"{owner}\n{part}": value for (owner, part), value in values.items()}
            found = outliers(
                named,
                min_relative=config.min_relative if metric in GPU_METRICS else config.min_relative_host,
            )
            if found.note:
                notes.append(f"{metric}: {found.note}")
                continue
            compared += 1
            for part in sorted({part for owner, part in values if owner == node}):
                rate = Rate(node, part, metric, values[node, part])
                if not misses(whole, rate, config) and (slower := _slower(told, rate, found, len(values))):
                    yield slower
    if not compared:
        yield NotChecked(notes[0] if notes else "nothing was measured that could be compared")


def _slower(told: NodeTotals, rate: Rate, fleet: Outliers, among: int) -> Finding | None:
    """Return the finding on a rate that stands apart from its equals, or is of the slow half of them."""
    name, unit = f"{rate.node}\n{rate.part}", unit_of(rate.metric)
    # with few GPUs the partner is always the same: either of the two may be slow
    shared = rate.metric == "peer" and len(told.used) <= PARTNERS
    part = told.part(rate.part) + (" or its partner" if shared else "")
    measured = f"{rate.metric} {rate.value:.4g} {unit}"
    if name in fleet.low:
        return Finding(
            part,
            f"{measured}, {-fleet.low[name]:.0%} below",
            f"about the median of {among}: {fleet.median:.4g} {unit}",
        )
    if fleet.halves and name in fleet.halves.slow:
        return Finding(part, f"{measured}, as the slow half of the fleet", _in_words(fleet.halves, unit))
    return None


def _in_words(halves: Halves, unit: str) -> str:
    """Name both halves, since no majority tells which of them is right."""
    sides = ((halves.fast, halves.fast_median), (halves.slow, halves.slow_median))
    nodes = [hostlist.fold({name.partition("\n")[0] for name in names}) for names, _ in sides]
    words = [
        f"{len(names)} about {median:.4g} {unit} on {where}"
        for (names, median), where in zip(sides, nodes, strict=True)
    ]
    return f"one speed in the fleet; it has two: {'; '.join(words)}"


def _equals(whole: BurninResult, metric: str) -> Mapping[str, dict[tuple[str, str], float]]:
    """Return the fleet's values by kind: GPUs by their name, nodes by the number of their CPUs and GPUs."""
    kinds: dict[str, dict[tuple[str, str], float]] = {}
    for (owner, part), value in whole.fleet(metric).items():
        told = whole.nodes[owner]
        gpu = told.gpus.get(part)
        host = f"{(told.hello or {}).get('cpus')} CPUs, {len(told.used)} GPUs"
        kinds.setdefault(
            gpu.name if gpu and metric in GPU_METRICS else f"{gpu.name if gpu else ''} {host}", {}
        )[owner, part] = value
    return kinds
