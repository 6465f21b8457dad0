"""The checks of the loads of a burn-in: did they run to their end, are their results right, are they fast enough. Pure."""

from __future__ import annotations

import re
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, ParamSpec

from pytest_gpucluster.core.check import (
    NO_MEMORY,
    Action,
    Finding,
    Metric,
    NotApplicable,
    NotChecked,
    check,
    revised,
    with_cause,
    with_contention,
)
from pytest_gpucluster.core.units import format_duration, format_size
from pytest_gpucluster.kit.mpi_errors import with_software_cause
from pytest_gpucluster.suites.burnin.config import DTYPES, GPU_LOADS
from pytest_gpucluster.suites.burnin.limits import Rate, limit_of, misses, rates, too_slow
from pytest_gpucluster.suites.burnin.results import HOST, unit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpucluster.core.check import Check, Judgement, Verdict
    from pytest_gpucluster.suites.burnin.config import BurninConfig
    from pytest_gpucluster.suites.burnin.results import BurninResult, Mismatch, NodeTotals

P = ParamSpec("P")
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


def _problems(told: NodeTotals, load: str, config: BurninConfig) -> Judgement:
    """Yield how the load failed, or why it was not run."""
    yield from unmeasured(told, load, config=config)
    for name, part, text in told.problems:
        if name == load and not _process_ended(load, text):
            yield Finding(told.part(part), f"{load}: {text}", "the load runs to its end")


def unmeasured(told: NodeTotals, *loads: str, config: BurninConfig | None = None) -> Judgement:
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
        yield from too_slow(whole, rate, config)
    if not judged and told.used and any(whole.median(metric, node) for metric in metrics):
        name = next((gpu.name for gpu in told.gpus.values()), "?")
        yield NotChecked(
            f"no {what} is known of {name}: say it under burnin.expect; the fleet is compared by burnin.stragglers"
        )


def _host_rates(whole: BurninResult, node: str, config: BurninConfig, *metrics: str) -> Judgement:
    """Yield rates of the host, and those below a hard limit: slow is not wrong, so nothing is returned for it."""
    for rate in (rate for metric in metrics for rate in rates(whole, node, metric)):
        yield Metric(f"burnin_{rate.metric}", rate.value, unit_of(rate.metric))
        for slow in too_slow(whole, rate, config):
            yield replace(slow, action=Action.DRAIN)


def _lied(part: str, lies: Sequence[Mismatch], others: str) -> Finding:
    """Return the finding on results that differ; where no majority tells who is right, nobody leaves."""
    proved = [lie for lie in lies if not lie.disputed]
    said = "; ".join(lie.text for lie in (proved or lies)[:4])
    if proved:
        return Finding(part, said, f"the result of the other {others} for the same input")
    return Finding(part, said, lies[0].disputed, Action.MONITOR)


def _minding_others(load: str = "") -> Callable[[Check[P]], Check[P]]:
    """Where others at work on the GPUs explain every finding, say that instead.

    `load`: the one whose rates are judged; without it only memory that they hold explains anything.
    """

    def minded(verdict: Verdict, whole: BurninResult, node_name: str, *_config: BurninConfig) -> Verdict:
        verdict = _unless_stopped(verdict)
        theirs = [_others_of(whole.nodes[node_name], finding, load) for finding in verdict.findings]
        names = ", ".join(sorted({name for names in theirs for name in names}))
        return with_contention(
            verdict, f"others are at work on the GPU: {names}" if theirs and all(theirs) else ""
        )

    return revised(minded)


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


def dead_loads(told: NodeTotals) -> list[Finding]:
    """Return the loads whose process died or hung."""
    return [
        Finding(told.part(part), f"{load}: {text}", "the load runs to its end")
        for load, part, text in told.problems
        if _process_ended(load, text)
    ]


def _never_began(verdict: Verdict, *_facts: object) -> Verdict:
    """Return the causes of GPUs that never began, where nothing else was found."""
    if not verdict.findings or any(finding.part != GPUS for finding in verdict.findings):
        return verdict
    return with_software_cause(
        replace(
            verdict,
            cause="no work could be started on the GPU: the driver, CUDA_VISIBLE_DEVICES, or memory that is taken",
            hint="in a step on the node: nvidia-smi; python3 -c 'import torch; torch.zeros(1).cuda()'; -m 'gpu or ddp'",
        )
    )


@_minding_others()
@revised(_never_began)
@check(
    "burnin.survived",
    cause="the node died, hung or lost its processes under load",
    hint="the console of the node, dmesg, the BMC's event log; slurmd's log says what became of the step",
)
def survived(whole: BurninResult, node_name: str) -> Judgement:
    """The node took part to the end; a process that died took its load along."""
    told = whole.nodes[node_name]
    yield Metric("burnin_rounds", told.rounds, "rounds")
    if told.lost:
        yield Finding("node", f"lost after {told.rounds} rounds: {told.lost}", "answers to the end")
    yield from dead_loads(told)
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


@check(
    "burnin.corruption",
    cause="silent data corruption: the GPU computes or stores wrong values without a word",
    hint="take the GPU out of service; repeat the burn-in on this node alone; dcgmi diag -r 3; return the GPU",
    action=Action.VENDOR,
)
def corruption(whole: BurninResult, node_name: str) -> Judgement:
    """The same seeded input gives the same bits: again and again, on every GPU and in every round."""
    told = whole.nodes[node_name]
    yield from unmeasured(told, "matmul", "hbm", "copies", "peer")
    for load in ("matmul", "hbm", "copies", "peer"):
        for part, count in told.wrong.get(load, {}).items():
            if count:
                yield Finding(told.part(part), f"{load}: {count} wrong elements", "bit by bit the same")
    for (other, part), lies in whole.corrupt_gpus().items():
        if other == node_name and part != HOST:
            yield _lied(told.part(part), lies, "GPUs")
    checked = sum(told.checked.get("matmul", {}).values())
    yield Metric("burnin_products_checked", checked, "products")


@_minding_others("matmul")
@check(
    "burnin.matmul",
    cause="a GPU that is slow: clocks held down by heat, power or settings, or another process on it",
    hint="nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE,PIDS of this GPU while it works",
)
def matmul(whole: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """Products of matrices reach the floor of the card, in every data type that it has."""
    yield from _problems(whole.nodes[node_name], "matmul", config)
    yield from _rates(whole, node_name, DTYPES, config, "TFLOP/s")


@_minding_others("hbm")
@check(
    "burnin.memory_bandwidth",
    cause="a GPU's memory is slow: lower memory clock, a stack that trains badly, row remapping at work",
    hint="nvidia-smi -q -d CLOCK,ROW_REMAPPER,ECC; reset the GPU; return it if it stays slow",
    action=Action.RESET_GPU,
)
def memory_bandwidth(whole: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """Copies within the GPU's memory reach the floor of the card."""
    yield from _problems(whole.nodes[node_name], "hbm", config)
    yield from _rates(whole, node_name, ("hbm",), config, "memory bandwidth")


@_minding_others("copies")
@check(
    "burnin.copies",
    cause="the way between host and GPU is slow: fewer PCIe lanes, an older generation, wrong NUMA node",
    hint="nvidia-smi -q -d PCI; lspci -vv for LnkSta; numactl; gpu.pcie_width and gpu.pcie_gen tell more",
)
def copies(whole: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """Copies between pinned host memory and the GPU reach the floor of its PCIe link, in both directions."""
    yield from _problems(whole.nodes[node_name], "copies", config)
    yield from _rates(whole, node_name, ("h2d", "d2h"), config, "PCIe link")


@_minding_others("peer")
@check(
    "burnin.peer",
    cause="the way from GPU to GPU is slow or broken",
    hint="nvidia-smi topo -m; nvidia-smi nvlink -s; gpu.nvlink_state and gpu.topology tell more",
)
def peer(whole: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """Every pair of GPUs copies both ways at once; a hard limit is judged where cluster file or profile states one."""
    told = whole.nodes[node_name]
    if told.hello is not None and len(told.used) == 1:
        yield NotApplicable("one GPU alone has no peer")
        return
    yield from _problems(told, "peer", config)
    for rate in rates(whole, node_name, "peer"):
        yield Metric("burnin_peer", rate.value, "GB/s", told.part(rate.part))
        yield from too_slow(whole, rate, config)


@_minding_others()
@check(
    "burnin.nccl",
    cause="collectives fail with this node, or deliver wrong data",
    hint="pytest -m nccl --nodes=... tells node, adapter, link or leaf",
)
def nccl(whole: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """All-reduce within the node and with changing partners ends, and the sums are right.

    A pair that fails accuses both; it acquits a node whose partner left the burn-in, was lost, or fails with others.
    """
    told = whole.nodes[node_name]
    if told.used and sum(len(other.used) for other in whole.nodes.values()) == 1:
        yield NotApplicable("one GPU alone has nothing to reduce with")
        return
    if _blamed_on_others(whole, node_name):
        yield from unmeasured(told, "nccl", config=config)
    else:
        yield from _problems(told, "nccl", config)
        for part, count in told.wrong.get("nccl", {}).items():
            if count:
                yield Finding(told.part(part), f"{count} wrong elements", "right sums")
    for metric in ("nccl_alone", "nccl_pairs"):
        values = whole.median(metric, node_name)
        if values:
            yield Metric(f"burnin_{metric}", min(values.values()), "GB/s")
    yield from _slow_alone(whole, node_name, config)
    yield from _slow_pairs(whole, node_name, config)


def _slow_alone(whole: BurninResult, node: str, config: BurninConfig) -> Judgement:
    """Its GPUs share one figure: the node is said to be slow once."""
    least = min(whole.median("nccl_alone", node).values(), default=None)
    if least is not None:
        yield from too_slow(whole, Rate(node, HOST, "nccl_alone", least), config)


def _slow_pairs(whole: BurninResult, node: str, config: BurninConfig) -> Judgement:
    """A node is slow where its best pair is; that is its own fault only where a partner of it is fast with another."""
    best = {name: pair for name, told in whole.nodes.items() if (pair := _best_pair(told)) is not None}
    if node not in best:
        return
    met = [Rate(name, HOST, "nccl_pairs", best[name]) for name in whole.nodes[node].partners if name in best]
    proved = len(met) >= PARTNERS and not all(misses(whole, rate, config) for rate in met)
    among = "" if proved else ": the node, its partners or the network, for no partner is known to be fast"
    for slow in too_slow(whole, Rate(node, HOST, "nccl_pairs", best[node]), config):
        measured = f"{slow.measured} with the best of {len(met)} partners{among}"
        yield replace(slow, measured=measured, action=None if proved else Action.MONITOR)


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
def cpu(whole: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """The same work gives the same digest on every CPU of every node, again and again."""
    told = whole.nodes[node_name]
    yield from _problems(told, "cpu", config)
    for count in filter(None, told.wrong.get("cpu", {}).values()):
        yield Finding("CPUs", f"{count} repetitions gave another result", "the same result")
    for (other, part), lies in whole.corrupt_gpus().items():
        if other == node_name and part == HOST:
            yield _lied("CPUs", lies, "nodes")
    yield from _host_rates(whole, node_name, config, "cpu")


@check(
    "burnin.memory",
    cause="the memory of the host loses bits",
    hint="edac-util, ras-mc-ctl --errors; memtester; replace the module",
    action=Action.VENDOR,
)
def memory(whole: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """Patterns written over the host's memory are read back unchanged."""
    told = whole.nodes[node_name]
    yield from _problems(told, "memory", config)
    for count in filter(None, told.wrong.get("memory", {}).values()):
        yield Finding("memory", f"{count} blocks of 1 MiB read back changed", "what was written")
    yield from _host_rates(whole, node_name, config, "memory")


@check(
    "burnin.storage",
    cause="the node's storage returns other data than were written",
    hint="dmesg; smartctl -a; nvme smart-log; fsck; replace the disk",
)
def storage(whole: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """Files written and synced are read back unchanged."""
    told = whole.nodes[node_name]
    yield from _problems(told, "storage", config)
    for count in filter(None, told.wrong.get("storage", {}).values()):
        yield Finding(
            config.storage or "storage",
            f"{count} blocks of 4 MiB read back changed",
            f"what was written ({format_size(config.storage_size)} a round)",
        )
    yield from _host_rates(whole, node_name, config, "storage_write", "storage_read")
