"""The checks of a burn-in's loads: they run to the end, with correct results, at the expected rate. Pure."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec

from pytest_gpucluster.cluster.slurm.task_place import MISPLACED
from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check, revised, with_cause, with_contention
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.part import GPUS, Part, named
from pytest_gpucluster.core.units import format_duration, format_size
from pytest_gpucluster.kit.mpi.mpi_errors import code_of, with_software_cause
from pytest_gpucluster.suites.burnin.config import DTYPES, GPU_LOADS
from pytest_gpucluster.suites.burnin.limits import BELOW_LIMIT, Rate, bound_of, misses, rates, too_slow
from pytest_gpucluster.suites.burnin.results import HOST, WAITED, in_rounds, unit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpucluster.core.check import Check, Judgement, Verdict
    from pytest_gpucluster.suites.burnin.config import BurninConfig
    from pytest_gpucluster.suites.burnin.results import BurninResult, LoadFailure, Mismatch, NodeTotals

P = ParamSpec("P")
PARTNERS = 3
TESTED = 0.9  # of the free memory of a GPU
OUT_OF_MEMORY, NO_TORCH = "out_of_memory", "no_torch"  # codes of kit/mpi/mpi_errors.py
CPUS = Part("cpu", name="CPUs")
_NAMES = {"beside": "copies beside the products"}
_SLOWER_THAN_MOST = (
    "two thirds of the parts of this run reach the limit, while this one, whose power limit was not lowered and which no other "
    "process uses, does not; or its kernels fail while another GPU of the node and half of the run are fine"
)


def _problems(burnin: BurninResult, node: str, load: str, config: BurninConfig) -> Judgement:
    """Yield how the load failed, or why it was not run; a failure that peers do not contradict drains no node."""
    totals = burnin.nodes[node]
    yield from unmeasured(totals, load, config=config)
    action = None if _alone_fails(burnin, node, load) else Action.MONITOR
    for it in totals.problems:
        if it.load == load and not it.process_ended:
            yield _failed(totals, it, action)


def _failed(totals: NodeTotals, it: LoadFailure, action: Action | None) -> Finding:
    measured = Quote(f"{it.load}: {it.text}")
    return Finding(totals.part(it.part), measured, "the load runs to its end", action, code=it.code)


def _alone_fails(burnin: BurninResult, node: str, load: str) -> bool:
    """Return whether the load fails on few parts of the run: else its software, or a setting of the node, may be at fault.

    Parts are GPUs, of which one of the same node must be fine, or for collectives whole nodes. Nothing is known of loads of
    the host, which a full disk or a limit of the system may end.
    """
    failing = {
        (name, it.part)
        for name, totals in burnin.nodes.items()
        for it in totals.problems
        if it.load == load and not it.process_ended
    }
    if load == "nccl":
        return most_continue(len({name for name, _ in failing}), len(burnin.nodes))
    used = {(name, part) for name, totals in burnin.nodes.items() for part in totals.used}
    beside = any(name == node for name, _ in used - failing)
    return load in GPU_LOADS and beside and most_continue(len(failing), len(used))


def _wrong(part: Part, count: int, text: str, right: str, code: str = "wrong_data") -> Finding:
    return Finding(part, Quantity(count, "wrong", text), Quantity(0, "wrong", right), code=code)


def most_continue(failing: int, total: int) -> bool:
    """Return whether at least as many parts continue as fail: then the failing ones are at fault, not what all share."""
    return total > 1 and 2 * failing <= total


def unmeasured(totals: NodeTotals, *loads: str, config: BurninConfig | None = None) -> Judgement:
    """Yield why none of these loads has a result."""
    if any(totals.ran[load] for load in loads):
        if totals.lost:  # what it found until then counts, and is no proof
            yield NotAvailable(f"{loads[0]} did not run to its end: see burnin.survived")
        return
    if config is not None and not set(loads) & set(config.loads):
        yield NotApplicable(f"burnin.loads of the cluster file leaves {loads[0]} out")
    elif totals.hello is None:
        yield totals.absent()
    elif set(loads) & set(GPU_LOADS) and not totals.used:
        yield _without_gpus(totals.hello)
    elif any(load in totals.lacks for load in loads):
        yield NotAvailable(next(totals.lacks[load] for load in loads if load in totals.lacks))
    elif any(load in totals.skips for load in loads):
        yield NotApplicable(next(totals.skips[load] for load in loads if load in totals.skips))
    elif any(it.load in loads and it.process_ended for it in totals.problems):
        yield NotAvailable(f"{loads[0]} did not run to its end: see burnin.survived")
    elif not any(it.load in loads for it in totals.problems):
        why = totals.lost or totals.out
        yield NotAvailable(f"{loads[0]} was not run" + (f": {why}" if why else " in the available time"))


def _without_gpus(hello: Mapping[str, Any]) -> NotAvailable | NotApplicable:
    broken, shown = [why for why in hello.get("broken", ()) if why], len(hello.get("gpus", ()))
    if broken:
        return NotAvailable(f"no worker on the GPUs: {broken[0]}")
    if shown:
        problem = f"nvidia-smi shows {shown} GPUs, the step has none"
        return NotAvailable(f"{problem}: check the profile and gres.conf")
    return NotApplicable("the node has no GPU")


def _left_out(totals: NodeTotals, known: Mapping[str, Mapping[str, float]]) -> Judgement:
    """Yield the GPUs without a rate where other GPUs of the node have one; a problem of a GPU is a finding already."""
    measured = {part for parts in known.values() for part in parts}
    explained = {it.part for it in totals.problems}
    for uuid in totals.used if measured else ():
        if uuid not in measured | explained:
            part = totals.part(uuid)
            yield NotAvailable(f"{part} has no result: the load ran on other GPUs of the node only")


def _rates(burnin: BurninResult, node: str, metrics: tuple[str, ...], config: BurninConfig, what: str) -> Judgement:
    """Judge rates against their hard limits; one metric per GPU and rate."""
    totals, judged = burnin.nodes[node], False
    known = {metric: burnin.median(metric, node) for metric in metrics}
    yield from _left_out(totals, known)
    for rate in (rate for metric in metrics for rate in rates(burnin, node, metric)):
        bound = bound_of(burnin, rate, config)
        yield Metric(f"burnin_{rate.metric}", rate.value, unit_of(rate.metric), totals.part(rate.part), bound=bound)
        judged |= bound is not None
        yield from too_slow(burnin, rate, config)
    if not judged and totals.used and any(known.values()):
        name = next((gpu.name for gpu in totals.gpus.values()), "?")
        yield Advisory(
            Part(name=what),
            f"no limit is known for {name}: compared with the other GPUs only (burnin.stragglers)",
            "a limit in burnin.expect",
            code="no_limit",
        )


def _host_rates(burnin: BurninResult, node: str, config: BurninConfig, *metrics: str) -> Judgement:
    """Yield rates of the host; one below its hard limit proves no fault: a governor or other work may slow it."""
    for rate in (rate for metric in metrics for rate in rates(burnin, node, metric)):
        bound = bound_of(burnin, rate, config)
        yield Metric(f"burnin_{rate.metric}", rate.value, unit_of(rate.metric), bound=bound)
        for slow in too_slow(burnin, rate, config):
            yield replace(slow, action=Action.MONITOR)


def _mismatch_finding(part: Part, mismatches: Sequence[Mismatch], others: str) -> Finding:
    """Return the finding on results that differ; without a majority it drains no node."""
    proved = [it for it in mismatches if not it.disputed]
    measured = "; ".join(it.text for it in (proved or mismatches)[:4])
    if proved:
        expected = f"the result of the other {others} for the same input"
        return Finding(part, measured, expected, code="other_result")
    return Finding(part, measured, mismatches[0].disputed, Action.MONITOR, code="disputed_result")


def _excused_by_processes(load: str = "") -> Callable[[Check[P]], Check[P]]:
    """Change the cause of a failure if signals to the loads, or other processes on the GPUs, explain every finding.

    `load`: the load whose rates are judged; without it, other processes explain only a lack of memory.
    """

    def revise(verdict: Verdict, burnin: BurninResult, node_name: str, *_config: BurninConfig) -> Verdict:
        verdict = _with_signal_cause(verdict)
        found = [_other_processes(burnin.nodes[node_name], finding, load) for finding in verdict.findings]
        names = ", ".join(sorted({name for names in found for name in names}))
        return with_contention(verdict, f"others are at work on the GPU: {names}" if found and all(found) else "")

    return revised(revise)


def _with_signal_cause(verdict: Verdict) -> Verdict:
    """Return another cause if every finding is a load that was stopped or killed: no hardware fault does that."""
    starved = with_cause(
        verdict,
        "starved",
        "the kernel killed processes of the burn-in: the host's memory or the job's memory limit is too small",
        "dmesg -T | grep -i 'killed process'; free -h; DefMemPerNode, DefMemPerGPU, RealMemory of slurm.conf",
    )
    return with_cause(
        starved,
        "stopped",
        "a signal stopped processes of the burn-in on the node: scontrol suspend, a debugger, or kill -STOP",
        "scontrol show job of this run; ps -eo pid,stat,lstart,cmd on the node; repeat",
    )


def _other_processes(totals: NodeTotals, finding: Finding, load: str) -> tuple[str, ...]:
    """Return the processes of others that explain a finding: a slow GPU, or one without free memory."""
    uuid = finding.part.name if finding.part.name in totals.gpus else ""
    if finding.code == OUT_OF_MEMORY:
        uuids = [uuid] if uuid else sorted(set(totals.gpus) - set(totals.used))
        return tuple(name for uuid in uuids for name in (*totals.gpus[uuid].foreign, *totals.strangers.get(uuid, ())))
    return totals.others(uuid, load) if uuid and load and finding.code == BELOW_LIMIT else ()


def dead_loads(totals: NodeTotals) -> list[Finding]:
    """Return the loads whose process died or hung."""
    return [
        _failed(totals, it, Action.MONITOR if it.code in ("ended", "killed", "starved") else None)
        for it in totals.problems
        if it.process_ended
    ]


def _with_start_cause(verdict: Verdict, *_facts: object) -> Verdict:
    """Return another cause if the only findings are GPUs on which no worker started."""
    if not verdict.findings or any(finding.part != GPUS for finding in verdict.findings):
        return verdict
    return with_software_cause(
        replace(
            verdict,
            cause="no work could be started on the GPU: the driver, CUDA_VISIBLE_DEVICES, or memory that is taken",
            hint="in a step on the node: nvidia-smi; python3 -c 'import torch; torch.zeros(1).cuda()'; -m 'gpu or ddp'",
        )
    )


@_excused_by_processes()
@revised(_with_start_cause)
@check(
    "burnin.survived",
    cause="the node died, hung or lost its processes under load",
    hint="the console of the node, dmesg, the BMC's event log; slurmd's log has the end of the step",
    action=Action.DRAIN,
    never_healthy="the loads only compute: signals, a lack of memory, other processes and a network that loses most nodes, which change "
    "the action, are recognised, and what remains is the death of the node, its driver or a GPU",
    repeated=in_rounds,
)
def survived(burnin: BurninResult, node_name: str) -> Judgement:
    """The node took part to the end, and none of its loads died."""
    totals = burnin.nodes[node_name]
    yield Metric("burnin_rounds", totals.rounds, "rounds")
    if totals.lost:
        others = most_continue(sum(bool(other.lost) for other in burnin.nodes.values()), len(burnin.nodes))
        action = None if others and totals.lost_code != "ended" else Action.MONITOR
        text = f"lost after {totals.rounds} rounds: {totals.lost}"
        yield Finding(Part("node"), text, "answers to the end", action, code=totals.lost_code or "lost")
    if totals.out and totals.hello is None:
        expected = "takes part, in the stated container"
        yield Finding(Part("node"), totals.out, expected, Action.CONFIGURE, code=MISPLACED)
    yield from dead_loads(totals)
    if totals.hello is not None and len(totals.used) < burnin.gpus:
        why = "; ".join(totals.hello.get("broken", ())) or "no reason is known"
        fault = totals.hello.get("fault", {})
        code = code_of(why, fault.get("code") or "fewer_gpus", low_limits=fault.get("low_limits", False))
        if _environment_at_fault(burnin, code):
            advice = "name an environment whose python has torch: burnin.environment"
            advice = advice if code == NO_TORCH else "check burnin.environment, or run -m gpu"
            yield NotAvailable(f"no GPU of any node was loaded: {why}: {advice}")
        else:
            took_part = Quantity(len(totals.used), "GPUs", f"{len(totals.used)} took part: {why}")
            wanted = Quantity(burnin.gpus, "GPUs", f"{burnin.gpus}")
            yield Finding(GPUS, took_part, wanted, Action.CONFIGURE, code=code)
    if (burnin.early or not totals.rounds) and not totals.lost and not totals.out:
        why = burnin.early or "the time was too short"
        ran, of = format_duration(burnin.seconds), format_duration(burnin.requested)
        raise NotAvailable(f"it took part for {ran} of {of}, {totals.rounds} rounds: {why}")


@check(
    "burnin.corruption",
    cause="silent data corruption: the GPU computes or stores wrong values and reports no error",
    hint="take the GPU out of service; repeat the burn-in on this node alone; dcgmi diag -r 3; return the GPU",
    action=Action.VENDOR,
    never_healthy="a healthy GPU gives the same bits for the same input and kernel, and the others of the model, one of them on its node, "
    "agree on them",
    repeated=in_rounds,
)
def corruption(burnin: BurninResult, node_name: str, config: BurninConfig | None = None) -> Judgement:
    """The same seeded input gives the same bits in every repetition, on every GPU and in every round."""
    totals = burnin.nodes[node_name]
    yield from unmeasured(totals, "matmul", "hbm", "copies", "peer", config=config)
    for load in ("matmul", "beside", "hbm", "copies", "peer"):
        for part, count in totals.wrong.get(load, {}).items():
            if count:
                text = f"{_NAMES.get(load, load)}: {count} wrong elements"
                yield _wrong(totals.part(part), count, text, "bit by bit the same", code=f"wrong_{load}")
    for (other, part), mismatches in burnin.corrupt_gpus().items():
        if other == node_name and part != HOST:
            yield _mismatch_finding(totals.part(part), mismatches, "GPUs")
    checked = sum(totals.checked.get("matmul", {}).values())
    yield Metric("burnin_products_checked", checked, "products")
    for part, share in burnin.median("checking", node_name).items():
        yield Metric("burnin_checking", share, unit_of("checking"), totals.part(part))


@_excused_by_processes("matmul")
@check(
    "burnin.matmul",
    cause="a GPU that is slow: clocks held down by heat, power or settings, or another process on it",
    hint="nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE,PIDS of this GPU under load",
    action=Action.DRAIN,
    never_healthy=_SLOWER_THAN_MOST,
    repeated=in_rounds,
)
def matmul(burnin: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """Products of matrices reach the GPU's hard limit in every data type that it has."""
    yield from _problems(burnin, node_name, "matmul", config)
    yield from _rates(burnin, node_name, DTYPES, config, "TFLOP/s")


@_excused_by_processes()
@check(
    "burnin.gpu_memory",
    cause="the memory of a GPU returns other data than were written, without an ECC error",
    hint="take the GPU out of service; dcgmi diag -r 3, nvidia-smi -q -d ECC,ROW_REMAPPER; return the GPU",
    action=Action.VENDOR,
    never_healthy="healthy memory returns what was written to it; a test that cannot run drains a node only while it runs on another GPU of "
    "the node and on half of the run",
    repeated=in_rounds,
)
def gpu_memory(burnin: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """A pattern and its inverse over nearly all free memory of each GPU are read back unchanged."""
    totals = burnin.nodes[node_name]
    yield from _problems(burnin, node_name, "gpu_memory", config)
    shares = burnin.median("tested", node_name)
    yield from _left_out(totals, {"tested": shares})
    for part, count in totals.wrong.get("gpu_memory", {}).items():
        if count:
            first = totals.first_wrong.get(part, "")
            text = f"{count} wrong words of 4 bytes, the first {first}"
            yield _wrong(totals.part(part), count, text, "what was written")
    for part, share in shares.items():
        yield Metric("burnin_gpu_memory_tested", share, unit_of("tested"), totals.part(part))
        if share < TESTED:
            yield Advisory(
                totals.part(part),
                Quantity(share, unit_of("tested"), f"{share:.0%} of the free memory was tested"),
                Quantity(TESTED, unit_of("tested"), f"at least {TESTED:.0%} of it"),
                code="partly_tested",
            )


@_excused_by_processes("hbm")
@check(
    "burnin.memory_bandwidth",
    cause="a GPU's memory is slow: lower memory clock, a stack that trains badly, active row remapping",
    hint="nvidia-smi -q -d CLOCK,ROW_REMAPPER,ECC; reset the GPU; return it if it stays slow",
    action=Action.RESET_GPU,
    never_healthy=_SLOWER_THAN_MOST,
    repeated=in_rounds,
)
def memory_bandwidth(burnin: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """Copies within the GPU's memory reach the GPU's hard limit."""
    yield from _problems(burnin, node_name, "hbm", config)
    yield from _rates(burnin, node_name, ("hbm",), config, "memory bandwidth")


@_excused_by_processes("copies")
@check(
    "burnin.copies",
    cause="the path between host and GPU is slow: fewer PCIe lanes, an older generation, wrong NUMA node",
    hint="nvidia-smi -q -d PCI; lspci -vv for LnkSta; numactl; see gpu.pcie_width and gpu.pcie_gen",
    action=Action.DRAIN,
    never_healthy=_SLOWER_THAN_MOST,
    repeated=in_rounds,
)
def copies(burnin: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """Copies between pinned host memory and the GPU reach the hard limit of its PCIe link, in both directions."""
    yield from _problems(burnin, node_name, "copies", config)
    yield from _rates(burnin, node_name, ("h2d", "d2h"), config, "PCIe bandwidth")


@_excused_by_processes("peer")
@check(
    "burnin.peer",
    cause="the path from GPU to GPU is slow or broken",
    hint="nvidia-smi topo -m; nvidia-smi nvlink -s; see gpu.nvlink_state and gpu.topology",
    action=Action.DRAIN,
    never_healthy=_SLOWER_THAN_MOST,
    repeated=in_rounds,
)
def peer(burnin: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """Every pair of GPUs copies in both directions at once, and reaches a hard limit of the cluster file or profile."""
    totals = burnin.nodes[node_name]
    if totals.hello is not None and len(totals.used) == 1:
        raise NotApplicable("one GPU alone has no peer")
    yield from _problems(burnin, node_name, "peer", config)
    for rate in rates(burnin, node_name, "peer"):
        bound = bound_of(burnin, rate, config)
        yield Metric("burnin_peer", rate.value, "GB/s", totals.part(rate.part), bound=bound)
        yield from too_slow(burnin, rate, config)


@_excused_by_processes()
@check(
    "burnin.nccl",
    cause="collectives fail with this node, or deliver wrong data",
    hint="pytest -m nccl --nodes=... finds the node, adapter, link or leaf",
    action=Action.DRAIN,
    never_healthy="partners of this node work with other nodes while all groups with this one fail, give wrong sums or are slow; a failure "
    "of most nodes takes none of them out of service",
    repeated=in_rounds,
)
def nccl(burnin: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """All-reduce within the node and with changing partners ends, and the sums are right.

    A pair that fails fails both nodes, except a node whose partner is bad by itself, was lost, or fails with others.
    """
    totals = burnin.nodes[node_name]
    if totals.used and sum(len(other.used) for other in burnin.nodes.values()) == 1:
        raise NotApplicable("one GPU alone has nothing to reduce with")
    if _partners_at_fault(burnin, node_name):
        yield from unmeasured(totals, "nccl", config=config)
    else:
        yield from _problems(burnin, node_name, "nccl", config)
        for part, count in totals.wrong.get("nccl", {}).items():
            if count:
                yield _wrong(totals.part(part), count, f"{count} wrong elements", "right sums")
    for metric in ("nccl_alone", "nccl_pairs"):
        if values := burnin.median(metric, node_name).values():
            yield Metric(f"burnin_{metric}", min(values), "GB/s")
            if metric == "nccl_alone":  # the node once: all its GPUs share one bandwidth
                yield from too_slow(burnin, Rate(node_name, HOST, metric, min(values)), config)
    yield from _slow_pairs(burnin, node_name, config)


def _slow_pairs(burnin: BurninResult, node: str, config: BurninConfig) -> Judgement:
    """Judge the node's fastest pair; only the node is at fault if one of its partners is fast with another node."""
    best = {
        name: max(map(statistics.median, totals.partners.values()))
        for name, totals in burnin.nodes.items()
        if totals.partners
    }
    if node not in best:
        return
    met = [Rate(name, HOST, "nccl_pairs", best[name]) for name in burnin.nodes[node].partners if name in best]
    proved = len(met) >= PARTNERS and not all(misses(burnin, rate, config) for rate in met)
    among = "" if proved else ": the node, its partners or the network, for no partner is known to be fast"
    for slow in too_slow(burnin, Rate(node, HOST, "nccl_pairs", best[node]), config):
        text = f"{slow.measured} with the best of {len(met)} partners{among}"
        measured = Quantity(best[node], "GB/s", text)
        action, code = (None, slow.code) if proved else (Action.MONITOR, "below_limit_undecided")
        yield replace(slow, measured=measured, action=action, code=code)


def _environment_at_fault(burnin: BurninResult, code: str) -> bool:
    """Return whether no node could use a GPU for a reason that is probably in the environment of the burn-in."""
    several = len(burnin.nodes) > 1 and code != OUT_OF_MEMORY
    return not any(other.used for other in burnin.nodes.values()) and (several or code == NO_TORCH)


def _partners_at_fault(burnin: BurninResult, node: str) -> bool:
    """Return whether every failed group of the node has a partner that is bad by itself, was lost, or failed first."""
    totals = burnin.nodes[node]
    problems = _nccl_problems(totals)
    waited = all(it.code == WAITED for it in problems)
    bad = {
        name
        for name, other in burnin.nodes.items()
        if name != node
        # one that failed by an error of its own did not wait for another node
        and (_bad_by_itself(other) or (waited and any(it.code != WAITED for it in _nccl_problems(other))))
    }
    if any(totals.wrong.get("nccl", {}).values()):
        return bool(bad & totals.partners.keys())
    return bool(bad) and all(not it.members or bad & set(it.members) for it in problems)


def _bad_by_itself(totals: NodeTotals) -> bool:
    """Return whether a node was lost, could not take part, or has wrong data or dead loads without a partner."""
    wrong = any(any(parts.values()) for load, parts in totals.wrong.items() if load != "nccl")
    return bool(totals.out or totals.lost or wrong or dead_loads(totals))


def _nccl_problems(totals: NodeTotals) -> list[LoadFailure]:
    return [it for it in totals.problems if it.load == "nccl"]


@check(
    "burnin.cpu",
    cause="a CPU computes wrong values, or processes on it die",
    hint="mcelog, ras-mc-ctl --summary; stress the CPU alone; replace it",
    action=Action.VENDOR,
    never_healthy="integer work gives one digest on every healthy CPU; its speed takes no node out of service",
    repeated=in_rounds,
)
def cpu(burnin: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """The same work gives the same digest in every repetition, on every CPU of every node."""
    totals = burnin.nodes[node_name]
    yield from _problems(burnin, node_name, "cpu", config)
    for count in filter(None, totals.wrong.get("cpu", {}).values()):
        yield _wrong(CPUS, count, f"{count} repetitions gave another result", "the same result")
    for (other, part), mismatches in burnin.corrupt_gpus().items():
        if other == node_name and part == HOST:
            yield _mismatch_finding(CPUS, mismatches, "nodes")
    yield from _host_rates(burnin, node_name, config, "cpu")


@check(
    "burnin.memory",
    cause="the memory of the host loses bits",
    hint="edac-util, ras-mc-ctl --errors; memtester; replace the module",
    action=Action.VENDOR,
    never_healthy="healthy memory returns what was written to it; its speed takes no node out of service",
    repeated=in_rounds,
)
def memory(burnin: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """Patterns written over the host's memory are read back unchanged."""
    totals = burnin.nodes[node_name]
    yield from _problems(burnin, node_name, "memory", config)
    for count in filter(None, totals.wrong.get("memory", {}).values()):
        text = f"{count} blocks of 1 MiB read back changed"
        yield _wrong(Part("memory"), count, text, "what was written")
    yield from _host_rates(burnin, node_name, config, "memory")


@check(
    "burnin.storage",
    cause="the node's storage returns other data than were written",
    hint="dmesg; smartctl -a; nvme smart-log; fsck; replace the disk",
    action=Action.DRAIN,
    never_healthy="healthy storage returns what was written and synced to it; its speed takes no node out of service",
    repeated=in_rounds,
)
def storage(burnin: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """Files written and synced are read back unchanged."""
    totals = burnin.nodes[node_name]
    yield from _problems(burnin, node_name, "storage", config)
    for count in filter(None, totals.wrong.get("storage", {}).values()):
        part, text = named("mount", config.storage or "storage"), f"{count} blocks of 4 MiB read back changed"
        yield _wrong(part, count, text, f"what was written ({format_size(config.storage_size)} per round)")
    yield from _host_rates(burnin, node_name, config, "storage_write", "storage_read")


@check(
    "burnin.rdma",
    cause="a transfer between the adapters of two nodes failed or was slow while their GPUs and processors were loaded",
    hint="pytest -m rdma --nodes=... finds the node, adapter, link or leaf",
    action=Action.MONITOR,
    repeated=in_rounds,
)
def rdma(burnin: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """Under the load of GPUs and processors, data move over all rails of the node at once, with changing partners."""
    if len(burnin.nodes) < 2:
        raise NotApplicable("one node alone has no partner")
    yield from _problems(burnin, node_name, "rdma", config)
    yield from _host_rates(burnin, node_name, config, "rdma")
