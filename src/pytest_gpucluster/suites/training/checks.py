"""A training on each node alone, and on all nodes. Pure; the facts are those of payload.py."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding, Metric, check, revised, with_cause, with_contention
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.majority import decides, norm
from pytest_gpucluster.core.outliers import outliers
from pytest_gpucluster.core.part import Part, named, register
from pytest_gpucluster.core.text import some
from pytest_gpucluster.kit.framework.between import judge_between
from pytest_gpucluster.kit.framework.payload_result import (
    between_check,
    framework_check,
    judge_package,
    not_finite,
    rank_part,
    transport_check,
    untrained,
)
from pytest_gpucluster.kit.gpu.gpu_peaks import bare
from pytest_gpucluster.kit.mpi.mpi_errors import with_software_cause
from pytest_gpucluster.kit.nccl.nccl_transport import judge_transport
from pytest_gpucluster.suites.training.facts import (
    MODES,
    distance,
    distances,
    mean_curve,
    ranks_of,
    ranks_on,
    trained_by_node,
    trained_in,
    trained_on,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.core.check import Judgement, Verdict
    from pytest_gpucluster.core.finding import Measure
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.core.outliers import Outliers
    from pytest_gpucluster.kit.framework.between import Reach
    from pytest_gpucluster.kit.framework.payload_result import Fact, PayloadResult, PayloadTask
    from pytest_gpucluster.suites.training.config import TrainingConfig, TrainingLimit
    from pytest_gpucluster.suites.training.facts import RankInfo, TrainedMode

_NO_NODE = "no node can take part: see training.framework and training.alone"
_ONE_NODE = "fewer than two nodes can train together: see training.alone and training.replay"
# On CPUs ranks are compared by the CPU time of their thread: other programs change it through caches and hyper-threads
CPU_RELATIVE = 3.0
register("mode", "mode", named=True)  # of training, like ddp
_STEPS = {"alone": "trains on its node alone and ends with 0", "together": "trains with all ranks and ends with 0"}


@framework_check("training.framework", "torch")
def framework(node_name: str, packages: PayloadResult, peers: Collection[str] | None = None) -> Judgement:
    """Judge that torch is installed, in the version of the other nodes of its kind (`peers`)."""
    yield from judge_package(node_name, packages, "torch", peers)


def _not_hardware(verdict: Verdict, *_facts: object) -> Verdict:
    """Return the verdict with a cause outside the node's hardware, if it has one: memory in use, software."""
    in_use = with_cause(
        verdict,
        "out_of_memory",
        "another process uses the memory of the GPU, or the model is too large for it",
        "training.processes names the process",
    )
    return with_software_cause(in_use)


@revised(_not_hardware)
@check(
    "training.alone",
    cause="a rank of the node crashes or hangs while it trains, or gradients are lost within the node",
    hint="the first rank of the list; dmesg | grep -i xid; the gpu and ddp suites for the parts",
    action=Action.MONITOR,  # torch, its settings or the limits of the step may be the cause
)
def alone(node_name: str, alone: PayloadResult) -> Judgement:
    """Judge that every rank trains on the node alone, by DDP and FSDP, and that DDP leaves equal parameters."""
    alone.require_tasks(_NO_NODE)
    tasks = alone.tasks_of(node_name)
    if not tasks:
        yield alone.silent(node_name).finding(Part("task"), "one task per rank")
    yield from _unfinished(tasks, alone, "alone")
    yield from _unequal(trained_on(alone, "ddp", node_name))
    for mode in ("plain", "fsdp"):
        for run in trained_on(alone, mode, node_name):
            yield from not_finite(run.rank.part(), run.losses)


def _proved(verdict: Verdict, _node_name: str, alone: PayloadResult, *_facts: object) -> Verdict:
    """Return the verdict without a drain unless equal software gave the usual bits elsewhere.

    Settings of one node may change bits too, so another GPU of the node must have given them, and 7 of 8 of its kind.
    """
    if not verdict.findings:  # of most nodes; what follows reads the facts of all ranks
        return verdict
    ranks, usual = ranks_of(alone), alone.once(_usual)
    bad = [rank for rank in ranks.values() if rank.part() in {it.part for it in verdict.findings}]
    for rank in bad:
        alike = {it.full_label for it in ranks.values() if it.setup == rank.setup}
        beside = {it.full_label for it in ranks.values() if it.node == rank.node} & alike & usual
        if not rank.on_gpu or not beside or len(alike) < 8 or 8 * len(alike & usual) < 7 * len(alike):
            return replace(verdict, action=Action.MONITOR)
    return verdict


def _usual(alone: PayloadResult) -> set[str]:
    """Return the places of the ranks whose replays are equal, and equal to those of most ranks of their setup."""
    ranks, bits = ranks_of(alone), {}
    for fact in alone.facts("replayed"):
        rank = ranks.get(int(fact["rank"]))
        if rank and fact["runs"] and _repeats(fact["runs"]):
            bits[rank] = repr(fact["runs"][0])
    found = set()
    for setup in {rank.setup for rank in bits}:
        mine = {rank.full_label: value for rank, value in bits.items() if rank.setup == setup}
        common = statistics.mode(mine.values())
        found |= {label for label, value in mine.items() if value == common}
    return found


@revised(_proved)
@check(
    "training.replay",
    cause="silent data corruption: the GPU computes or stores wrong values and reports no error",
    hint="take the GPU out of service; pytest -m burnin on this node alone; dcgmi diag -r 3; return the GPU",
    action=Action.DRAIN,
    never_healthy="deterministic algorithms give the same bits on every healthy GPU of a model; a library that is not deterministic "
    "differs on most GPUs, which is not judged",
)
def replay(node_name: str, alone: PayloadResult) -> Judgement:
    """Judge that deterministic steps give the same bits twice on each GPU, and on all GPUs of one kind.

    Equal programs on equal GPUs, without a collective: a healthy GPU should give no other bits.
    """
    mine = alone.of_node(node_name, "replayed")
    ranks = ranks_of(alone)
    alone.require_tasks(_NO_NODE)
    if not mine:
        raise NotAvailable("no rank of the node replayed: see training.alone")
    for fact in mine:
        rank = ranks[int(fact["rank"])]
        if fact["reason"]:
            yield NotAvailable(f"{rank.label}: torch has no deterministic algorithm: {fact['reason']}")
            continue
        devices = "GPUs of this model" if rank.on_gpu else "ranks on such CPUs"
        among, usual = alone.once(_replays, rank.setup, devices)
        unequal = among - usual.total
        if among > 1 and 2 * unequal > among:  # no fault of one GPU
            differ = f"two replays differ on {unequal} of {among} {devices}"
            yield NotAvailable(f"torch or a library is not deterministic: {differ}")
        elif _repeats(fact["runs"]):
            yield from usual.judge_result(rank.part(), fact["runs"][0], shown=_digest)
        else:
            first, again = fact["runs"][0], next(run for run in fact["runs"] if run != fact["runs"][0])
            expected = f"equal bits in {len(fact['runs'])} replays"
            yield Finding(rank.part(), _replayed(first, again), expected, code="not_repeatable")
    steps = sum(len(fact["runs"]) * fact["steps"] for fact in mine)
    yield Metric("training_replayed", steps, "steps", better="neither")


def _replays(alone: PayloadResult, setup: tuple[str, str], voters: str) -> tuple[int, Norm[Fact]]:
    """Return how many ranks of a setup replayed, and the votes of those whose replays are equal."""
    ranks = ranks_of(alone)
    peers = [
        (rank.node, fact["runs"])
        for fact in alone.facts("replayed")
        if (rank := ranks.get(int(fact["rank"]))) and rank.setup == setup and not fact["reason"]
    ]
    return len(peers), norm([(node, runs[0]) for node, runs in peers if _repeats(runs)], voters)


def _repeats(runs: Sequence[Fact]) -> bool:
    return all(run == runs[0] for run in runs)


def _digest(run: Fact) -> str:
    return f"parameters {run['digest']}, last loss {run['losses'][-1]}"


def _replayed(first: Fact, other: Fact) -> str:
    pairs = zip(first["losses"], other["losses"], strict=True)
    step = next((number for number, (one, two) in enumerate(pairs, 1) if one != two), None)
    where = f"the loss of step {step} differs" if step else "the parameters differ after the last step"
    return f"{where} between two replays"


@check(
    "training.loss",
    cause="a rank computes wrong values, or gradients are wrong within the node",
    hint="training.replay compares the bits; pytest -m burnin on this node alone",
    action=Action.MONITOR,  # the tolerance is no proof against a node; training.replay is
)
def loss(node_name: str, alone: PayloadResult, config: TrainingConfig) -> Judgement:
    """Judge that equal trainings have equal loss curves: each rank by itself, then the mean of the node's group."""
    ranks = ranks_on(alone, node_name)
    alone.require_tasks(_NO_NODE)
    if not trained_on(alone, "plain", node_name):
        raise NotAvailable("no rank of the node trained: see training.alone")
    mine = next(iter(ranks))
    parts = {rank.full_label: rank.part() for rank in ranks}
    plain = alone.once(_rank_distances, mine.setup)
    yield from _deviating(plain, parts, config, "losses of one rank by itself")
    for mode in ("ddp", "fsdp"):
        curves = alone.once(_group_distances, mode, mine.setup, mine.size)
        yield from _deviating(curves, {node_name: named("mode", mode)}, config, "mean loss on the node")
    both = [mean_curve(trained_on(alone, mode, node_name)) for mode in ("ddp", "fsdp")]
    if all(both) and (apart := distance(both[1], both[0])) > config.loss_tolerance:
        measured = Quantity(100 * apart, "%", f"losses {apart:.1%} from those of ddp")
        yield Finding(named("mode", "fsdp"), measured, _within(config), code="modes_differ")


def _rank_distances(alone: PayloadResult, setup: tuple[str, str]) -> Mapping[str, float]:
    """Return {place: distance of the losses of a rank by itself} of the ranks of a setup, the farthest first."""
    runs = (run for run in trained_in(alone, "plain").values() if run.rank.setup == setup)
    return distances({run.rank.full_label: run.losses for run in runs})


def _group_distances(alone: PayloadResult, mode: str, setup: tuple[str, str], size: int) -> Mapping[str, float]:
    """Return {node: distance of the mean losses} of the groups of a setup and size, the farthest first."""
    curves = {}
    for node, runs in trained_by_node(alone, mode).items():
        like = [run for run in runs if (run.rank.setup, run.rank.size) == (setup, size)]
        if like:
            curves[node] = mean_curve(like)
    return distances(curves)


def _deviating(
    apart: Mapping[str, float], mine: Mapping[str, Part], config: TrainingConfig, what: str
) -> Iterator[Finding]:
    """Yield a finding for each of `mine` ({name: part}) that is far from the median curve; the farthest come first."""
    far = dict(takewhile(lambda pair: pair[1] > config.loss_tolerance, apart.items()))
    clear = decides(len(apart) - len(far), len(apart))
    for name in sorted(mine.keys() & (far if clear else apart if far else {}).keys()):
        worst = far.get(name, 0.0)
        measured = Quantity(100 * worst, "%", f"{what} {worst:.1%} from the median curve")
        if clear:
            usual = _within(config, f", as {len(apart) - len(far)} of {len(apart)}")
            yield Finding(mine[name], measured, usual, code="loss_deviates")
        else:
            others = f"one curve; no majority: {some(far)} deviate"
            yield Finding(mine[name], measured, others, code="no_majority")


def _within(config: TrainingConfig, more: str = "") -> Quantity:
    tolerance = config.loss_tolerance
    return Quantity(100 * tolerance, "%", f"within {tolerance:.2%}{more}")


# -- speed


def _contended(verdict: Verdict, node_name: str, alone: PayloadResult, *_facts: object) -> Verdict:
    """Return the verdict without a drain if other processes use GPUs of the node."""
    known = "; ".join(f"{rank.label}: {names}" for rank, names in _foreign(node_name, alone).items())
    return with_contention(verdict, f"others are at work on {known}" if known else "")


def _foreign(node_name: str, *results: PayloadResult) -> dict[RankInfo, str]:
    """Return {rank: processes} of the GPUs of the node that others use, at start or end of a step."""
    found: dict[str, tuple[RankInfo, list[str]]] = {}
    for result in results:
        ended = result.by_rank("done")
        for rank in ranks_on(result, node_name):
            late = ended.get(rank.rank, {}).get("others") or ()
            _, names = found.setdefault(rank.label, (rank, []))
            names += (*(rank.others or ()), *late)
    return {rank: some(dict.fromkeys(names)) for rank, names in found.values() if names}


@revised(_contended)
@check(
    "training.speed",
    cause="the GPUs of the node are slow under a real load: clocks, power, heat, links within the node, the host",
    hint="nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE under load; pytest -m 'burnin or nccl' on the node",
    action=Action.MONITOR,
)
def speed(node_name: str, alone: PayloadResult, limits: Sequence[TrainingLimit], gpu_name: str) -> Judgement:
    """Judge tokens/s, TFLOP/s and MFU of each rank on the node alone against profile and cluster file."""
    measured = False
    for mode in MODES:
        runs = trained_on(alone, mode, node_name)
        if not runs:
            continue
        measured = True
        bounds = [_limit(mode, run.rank, limits, gpu_name) for run in runs]
        yield from _figures(mode, runs, next(filter(None, bounds), None))
        for run, bound in zip(runs, bounds, strict=True):
            mfu = _mfu(run)
            if bound and mfu is not None and 100 * mfu < bound.number:
                words = f"MFU {mfu:.1%} ({run.tflops:.4g} TFLOP/s) in {mode}"
                yield Finding(run.rank.part(), Quantity(100 * mfu, "%", words), bound, code="below_bound")
    alone.require_tasks(_NO_NODE)
    if not measured:
        raise NotAvailable("no rank of the node trained: see training.alone")


def _figures(mode: str, runs: Sequence[TrainedMode], bound: Quantity | None) -> Iterator[Metric]:
    """Yield the figures of a mode, medians over the ranks of the node."""
    middle = statistics.median
    yield Metric(f"training_{mode}_rate", middle(run.rate for run in runs), "tokens/s", better="higher")
    yield Metric(f"training_{mode}_flops", middle(run.tflops for run in runs), "TFLOP/s")
    shares = [mfu for run in runs if (mfu := _mfu(run)) is not None]
    if shares:
        yield Metric(f"training_{mode}_mfu", 100 * middle(shares), "%", better="higher", bound=bound)
    yield Metric(f"training_{mode}_step", 1e3 * middle(run.median for run in runs), "ms", detail=True)
    yield Metric(f"training_{mode}_p95", 1e3 * max(run.p95 for run in runs), "ms", detail=True)
    spread = max((max(run.steps) - min(run.steps)) / run.median for run in runs)
    yield Metric(f"training_{mode}_spread", 100 * spread, "%", detail=True, better="neither")
    for run in runs:
        name, label = f"training_{mode}_rate", run.rank.label
        yield Metric(name, run.rate, "tokens/s", label, detail=True, better="higher")


def _mfu(run: TrainedMode) -> float | None:
    peak = run.rank.peak
    return run.tflops / peak if peak else None


def _limit(mode: str, rank: RankInfo, limits: Sequence[TrainingLimit], gpu_name: str) -> Quantity | None:
    """Return the lowest MFU in percent, of the profile's row; None without one."""
    size = 1 if mode == "plain" else rank.size
    for row in limits if rank.on_gpu and bare(rank.name) == bare(gpu_name) else ():
        if (row.mode, row.model) == (mode, rank.model) and (row.max_gpus is None or size <= row.max_gpus):
            return Quantity(100 * row.mfu, "%", f">= {row.mfu:.1%}: the profile's row of training: {row.source}")
    return None


@revised(_contended)
@check(
    "training.stragglers",
    cause="slower than others of its kind: heat, power, settings, the host, or another process",
    hint="compare nvidia-smi -q of this GPU and of a fast one, both under load; top on the node",
    action=Action.MONITOR,
)
def stragglers(
    node_name: str,
    alone: PayloadResult,
    together: PayloadResult,
    config: TrainingConfig,
    peers: frozenset[str] | None = None,
) -> Judgement:
    """Judge the time of each rank's own work, before it waits for others, against ranks of its kind (median, MAD)."""
    compared, note = False, "nothing was measured that could be compared"
    steps = (("plain", alone, "alone"), ("ddp", alone, "alone"), ("ddp", together, "all nodes"))
    for mode, result, title in steps:
        ranks = [run.rank for run in trained_on(result, mode, node_name) if run.busy]
        for setup in sorted({rank.setup for rank in ranks}):
            rates, found = result.once(_work_outliers, mode, setup, config.min_relative, peers)
            note, compared = found.note or note, compared or not found.note
            for rank in (rank for rank in ranks if rank.setup == setup):
                if slower := _slower(rank.full_label, found, len(rates)):
                    code, usual = slower
                    took = 1e3 / rates[rank.full_label]
                    words = f"{took:.4g} ms of its own work per step, {mode} ({title})"
                    yield Finding(rank.part(), Quantity(took, "ms", words), usual, code=code)
    if not compared:
        raise NotAvailable(note)


def _work_outliers(
    result: PayloadResult, mode: str, setup: tuple[str, str], min_relative: float, peers: frozenset[str] | None
) -> tuple[Mapping[str, float], Outliers]:
    """Return {place: steps/s of its own work} of the ranks of a setup on the peers, and the outliers among them."""
    runs = {run.rank: 1 / run.busy for run in trained_in(result, mode).values() if run.busy}
    rates = {
        rank.full_label: rate
        for rank, rate in runs.items()
        if rank.setup == setup and (peers is None or rank.node in peers)
    }
    # four times the time is a quarter of the rate
    least = min_relative if any(rank.on_gpu for rank in runs) else CPU_RELATIVE / (1 + CPU_RELATIVE)
    return rates, outliers(rates, min_relative=least)


def _slower(label: str, found: Outliers, among: int) -> tuple[str, Measure] | None:
    """Return a code and what is usual, if the rank is an outlier among rates or of their slow half."""
    if label in found.low:
        usual = 1e3 / found.median
        return "slower", Quantity(usual, "ms", f"about the median of {among}: {usual:.4g} ms")
    if found.halves and label in found.halves.slow:
        fast, slow = 1e3 / found.halves.fast_median, 1e3 / found.halves.slow_median
        return "two_speeds", f"one speed of all {among}; there are two: {fast:.4g} and {slow:.4g} ms"
    return None


@check(
    "training.processes",
    cause="a process of an earlier job, or one that was started without Slurm, computes on the GPU",
    hint="nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv on the node; end the process",
    action=Action.MONITOR,
)
def processes(node_name: str, alone: PayloadResult, together: PayloadResult) -> Judgement:
    """Judge that no other process uses the GPU of a rank, before and after the training."""
    ranks = ranks_on(alone, node_name)
    alone.require_tasks(_NO_NODE)
    if not ranks:
        yield NotAvailable("no rank of the node joined: see training.alone")
    elif not any(rank.on_gpu for rank in ranks):
        yield NotApplicable("the ranks compute on CPUs")
    elif all(rank.others is None for rank in ranks):
        yield NotAvailable("nvidia-smi shows no processes where the ranks run")
    for rank, names in _foreign(node_name, alone, together).items():
        yield Finding(rank.part(), Quote(names), "no other process", code="in_use")


# -- all nodes


@revised(_not_hardware)
@check(
    "training.together",
    cause="ranks cannot reach each other, one crashes or hangs, or gradients are lost between nodes",
    hint="the first rank of the list; the nccl and ddp suites name the node or link",
    action=Action.MONITOR,
    each="worlds",
)
def together(world: tuple[PayloadResult, PayloadResult], config: TrainingConfig) -> Judgement:
    """Judge that all ranks of all nodes train together, with equal parameters and the loss curve of one node."""
    alone, result = world
    result.require_tasks(_ONE_NODE)
    yield from _unfinished(result.tasks, result, "together")
    unknown = set(range(result.ntasks)) - {task.task for task in result.tasks}
    yield from result.absent(unknown, _STEPS["together"])
    yield from _unequal(list(trained_in(result, "ddp").values()), nodes=True)
    for mode in ("ddp", "fsdp"):
        runs = list(trained_in(result, mode).values())
        groups = trained_by_node(alone, mode)
        references = [
            mean_curve(of_node)
            for node, of_node in groups.items()
            if node in result.nodes and runs and of_node[0].rank.model == runs[0].rank.model
        ]
        if len(runs) != result.ntasks or not references:
            continue
        middle = [statistics.median(values) for values in zip(*references, strict=True)]
        if (apart := distance(mean_curve(runs), middle)) > config.loss_tolerance:
            measured = Quantity(100 * apart, "%", f"losses {apart:.1%} from the one-node curve")
            yield Finding(named("mode", mode), measured, _within(config), code="loss_deviates")


@transport_check("training.transport")
def transport(node_name: str, reach: Reach, together: PayloadResult, profile: Profile, gpus: int) -> Judgement:
    """Judge that NCCL connects the ranks of the node by the transports of the profile, or faster ones."""
    if not gpus:
        raise NotApplicable("these nodes have no real GPUs")
    elif obstacle := reach.obstacle(node_name):
        yield obstacle
    else:
        yield from judge_transport(node_name, together.connections, profile, "training.together")


@between_check("training.between")
def between(node_name: str, reach: Reach, alone: PayloadResult, together: PayloadResult) -> Judgement:
    """Judge that the node trained together with other nodes, by DDP, to equal parameters on all ranks."""
    trained = trained_in(together, "ddp").values()
    whole = len(trained) == together.ntasks > 0 and len({run.after for run in trained}) == 1
    nodes = {run.rank.node for run in trained} if whole else set()
    if reach.selected < 2 and len(trained_on(alone, "ddp", node_name)) == alone.ntasks > 0:
        nodes = nodes or {node_name}  # a run of one node, all of whose ranks trained
    see = "training.together" if together.ntasks else "training.alone and training.replay"
    yield from judge_between(node_name, reach, nodes, see)


@check(
    "training.scaling",
    cause="the network between the nodes is slower than the training needs, or one rank slows all",
    hint="training.stragglers names a slow rank; pytest -m nccl for the network",
    action=Action.MONITOR,
    each="worlds",
)
def scaling(world: tuple[PayloadResult, PayloadResult]) -> Judgement:
    """Measure tokens/s per rank on all nodes relative to the nodes alone (weak scaling)."""
    alone, result = world
    measured = False
    for mode in ("ddp", "fsdp"):
        of_all = [run.rate for run in trained_in(result, mode).values()]
        of_one = [run.rate for run in trained_in(alone, mode).values() if run.rank.node in result.nodes]
        if of_all and of_one:
            measured, rate = True, statistics.median(of_all)
            yield Metric(f"training_{mode}_rate_all", rate, "tokens/s", better="higher")
            share = rate / statistics.median(of_one)
            yield Metric(f"training_{mode}_scaling", 100 * share, "%", better="higher")
    result.require_tasks(_ONE_NODE)
    if not measured:
        raise NotAvailable("not all ranks trained: see training.together")


@check(
    "training.checkpoint",
    cause="the shared storage loses or changes data, is not shared, is full, or is slow",
    hint="os.shared_storage on every node; the folder of training.checkpoint; the servers of the storage",
    action=Action.MONITOR,
    each="widest",
)
def checkpoint(result: PayloadResult, config: TrainingConfig) -> Judgement:
    """Judge that the state that a rank writes is read by a rank of the next node bit by bit, and then removed."""
    facts = result.by_rank("checkpoint")
    if config.checkpoint is None:
        raise NotApplicable("the cluster file does not set training.checkpoint")
    result.require_tasks(_NO_NODE)
    if not facts:
        raise NotAvailable("no rank wrote a checkpoint: see training.together")
    for rank, fact in facts.items():
        part = rank_part(rank, fact["node"])
        if fact["problem"]:
            expected = f"writes and reads in {config.checkpoint}"
            yield Finding(part, Quote(fact["problem"]), expected, code="failed")
        elif "restored" in fact and fact["written"] != fact["restored"]:
            writer = facts.get(int(fact["of"]), {}).get("node", "?")
            measured = f"other bits than rank {fact['of']} on {writer} wrote"
            yield Finding(part, measured, "equal bits", code="wrong_data")
        if not fact["removed"]:
            measured = f"could not remove its file in {fact['folder']}"
            yield Finding(part, measured, "removed", code="not_removed")
    whole = [fact for fact in facts.values() if "write" in fact and "read" in fact]
    if len(whole) == result.ntasks:
        yield from _storage_rates(whole)
    elif not any(fact["problem"] for fact in facts.values()):
        raise NotAvailable("a rank ended before its part was read: see training.together")


def _storage_rates(facts: Sequence[Fact]) -> Judgement:
    """Yield the rates of all ranks together: all bytes in the time of the slowest rank."""
    size = sum(int(fact["bytes"]) for fact in facts)
    yield Metric("training_checkpoint_size", size / 1e6, "MB", better="neither")
    rates = {name: size / 1e6 / max(float(fact[name]) for fact in facts) for name in ("write", "read")}
    for name, rate in rates.items():
        yield Metric(f"training_checkpoint_{name}", rate, "MB/s")


@check(
    "training.start",
    cause="the start of a job is slow: container, imports from network storage, rendezvous, first use of the GPUs",
    hint="the metrics name the part; put the environment on local storage; os.name_time",
    action=Action.CONFIGURE,
    each="widest",
)
def start(result: PayloadResult) -> Judgement:
    """Measure the time from the start of the job step to the end of its first training step."""
    done = result.by_rank("done")
    result.require_tasks(_NO_NODE)
    if not done:
        raise NotAvailable("no rank trained: see training.together")
    # without a clock that nodes share: srun's time less what followed the first step on the rank that was last
    seconds = result.seconds - min(float(fact["age"]) - float(fact["first"]) for fact in done.values())
    yield Metric("training_start", seconds, "s")
    for kind, name in (("loaded", "device"), ("joined", "group")):
        took = [float(fact["seconds"]) for fact in result.facts(kind)]
        yield Metric(f"training_start_{name}", max(took, default=math.nan), "s", detail=True)


# -- ranks that did not finish, or differ


def _unfinished(tasks: Sequence[PayloadTask], result: PayloadResult, step: str) -> Iterator[Finding]:
    """Yield ranks that did not end well: those with their own reason first, then those that waited."""
    ranks, done, nodes = ranks_of(result), result.by_rank("done"), step == "together"
    bad = {task.task: task.node for task in tasks if task.rc != 0 or task.task not in done}
    parts = {
        rank: ranks[rank].part(node=nodes) if rank in ranks else rank_part(rank, node if nodes else "")
        for rank, node in bad.items()
    }
    yield from result.absent(bad, _STEPS[step], parts)


def _unequal(runs: Sequence[TrainedMode], *, nodes: bool = False) -> Iterator[Finding]:
    """Yield ranks of one DDP group whose parameters differ, did not change, or whose loss is not a number."""
    votes = norm(((run.rank.node, run.after) for run in runs), "ranks")
    for run in runs:
        part = run.rank.part(node=nodes)
        for found in votes.judge_result(part, run.after, measured=f"parameters after training: {run.after}"):
            # what differs within one node is its fault, also without a majority
            yield found if nodes else replace(found, action=None)
        yield from untrained(part, run.before, run.after, run.losses)
