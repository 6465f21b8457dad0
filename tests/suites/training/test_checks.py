"""Verdicts on facts that the payload reported on two virtual nodes with two CPU ranks each (torch 2.13, gloo)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import CONFIGURE, DRAIN, MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED
from judged import figures, judged
from payload_helpers import connected, fabric
from suite_helpers import considered, machine
from training_helpers import NODES, NONE, Change, of_rank, recorded

from pytest_gpucluster import config as configs
from pytest_gpucluster.core.check import Action, Outcome
from pytest_gpucluster.kit.framework.between import Reach
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.training import checks, payload_model
from pytest_gpucluster.suites.training.config import TrainingConfig, TrainingLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


CONFIG = TrainingConfig(checkpoint="/shared")


def on_gpus(fact: Change) -> Change:
    """Return a fact of an H200 that trains the large model at 59% of its peak, by the measured step."""
    if fact["training"] == "loaded":
        device = {"name": "NVIDIA H200", "uuid": f"GPU-{fact['rank']}", "bus": f"0000:0{fact['rank']}:00"}
        return {**fact, "device": device}
    if fact["training"] == "joined":
        return {**fact, "model": "large", "dtype": "bfloat16", "others": []}
    if fact["training"] == "trained":
        return {**fact, "flops": 95.4e12, "tokens": 8192, "steps": [0.163] * 6, "compute": [0.16] * 6}
    return fact


def limits() -> tuple[TrainingLimit, ...]:
    return configs.load_profile("h200-8").rows(TrainingLimit)


def test_recorded_healthy_facts_pass() -> None:
    alone, together = recorded("alone"), recorded("together")
    for node in NODES:
        for verdict in (
            checks.alone(node, alone),
            checks.replay(node, alone),
            checks.loss(node, alone, CONFIG),
            checks.stragglers(node, alone, together, CONFIG),
            checks.speed(node, alone, (), ""),
            checks.together((alone, together), CONFIG),
            checks.checkpoint(together, CONFIG),
        ):
            assert judged(verdict) == (PASSED, [])
        assert checks.processes(node, alone, together).reason == "the ranks compute on CPUs"
    figures = {it.name for it in checks.speed("gpu01", alone, (), "").metrics}
    assert {"training_plain_rate", "training_ddp_flops", "training_fsdp_p95"} <= figures
    scaled = checks.scaling((alone, together))
    assert (judged(scaled)[0], len(scaled.metrics)) == (PASSED, 4)
    assert judged(checks.start(together))[0] == PASSED


def test_nothing_that_ran_is_never_a_pass() -> None:
    for verdict in (
        checks.alone("gpu01", NONE),
        checks.replay("gpu01", NONE),
        checks.loss("gpu01", NONE, CONFIG),
        checks.speed("gpu01", NONE, (), ""),
        checks.stragglers("gpu01", NONE, NONE, CONFIG),
        checks.processes("gpu01", NONE, NONE),
        checks.together((NONE, NONE), CONFIG),
        checks.scaling((NONE, NONE)),
        checks.checkpoint(NONE, CONFIG),
        checks.start(NONE),
    ):
        assert judged(verdict)[0] == NOT_CHECKED


def eight_gpus_each(change: Callable[[Change], Change] = lambda fact: fact) -> PayloadResult:
    """Return two nodes of eight GPUs, whose facts are those of the recorded rank 0."""
    (first, *_) = recorded("alone", on_gpus).tasks
    tasks = []
    for rank in range(16):
        node = f"gpu0{1 + rank // 8}"
        facts = [{**fact, "rank": rank, "node": node} for fact in first.facts]
        tasks.append(replace(first, task=rank, node=node, facts=tuple(change(on_gpus(it)) for it in facts)))
    return PayloadResult("training", ("gpu01", "gpu02"), 16, tuple(tasks), seconds=20.0)


def trained(step: str, *ranks: int, mode: str = "ddp", **values: Any) -> PayloadResult:
    """Return a recorded step whose ranks trained so."""
    return recorded(step, of_rank(*ranks, kind="trained", mode=mode, **values))


def replayed(*ranks: int, runs: Any) -> PayloadResult:
    return recorded("alone", of_rank(*ranks, kind="replayed", runs=runs, reason=""))


def stored(**values: Any) -> PayloadResult:
    return recorded("together", of_rank(1, kind="checkpoint", **values))


def others(fact: Change) -> Change:
    """Return a fact of GPUs of which another process uses one, which is slow."""
    fact = of_rank(2, kind="joined", others=["python3 (pid 4711)"])(on_gpus(fact))
    return of_rank(2, kind="trained", mode="plain", compute=[0.2] * 6, steps=[0.3] * 6)(fact)


ONE, OTHER = {"digest": "a", "losses": ["1.0", "2.0"]}, {"digest": "b", "losses": ["1.0", "2.5"]}
NAN = float("nan")
ALONE, TOGETHER = recorded("alone"), recorded("together")
BUSY = recorded("alone", others)
OF_ROW = (limits(), "NVIDIA H200")
TWO, THREE = (eight_gpus_each(of_rank(*it, kind="replayed", runs=[ONE, ONE])) for it in ((9, 10), (9, 10, 11)))
NINE, TEN, ELEVEN = (f"GPU-{n} (0000:0{n}:00) rank {n} differs_from_peers" for n in (9, 10, 11))
SECOND_GPU = "GPU-2 (0000:02:00) rank 2"
NO_NUMBER = trained("alone", 2, 3, mode="fsdp", losses=[6.0] * 7 + [NAN])
SLOW = trained("together", 1, compute=[0.5] * 6)
SLOW_GPU = recorded("alone", lambda f: of_rank(2, kind="trained", mode="plain", compute=[0.2] * 6)(on_gpus(f)))
CURVE = trained("together", 0, 1, 2, 3, mode="fsdp", losses=[5.0] * 8)
UNLIKE = replayed(2, 3, runs=[ONE, OTHER])
STILL = trained("alone", 2, 3, after=ALONE.by_rank("trained")[2]["before"])
LACKING = {"training": "found", "node": "gpu01", "error": "No module", "version": ""}
NO_TORCH = PayloadResult("training", ("gpu01",), 1, (PayloadTask(0, "gpu01", 0, None, (LACKING,)),))
CASES: list[tuple[Any, str, list[str], tuple[Any, ...]]] = [
    # on CPUs
    (checks.replay, MONITOR, ["rank 3 differs_from_peers"], ("gpu02", replayed(3, runs=[OTHER, OTHER]))),
    (checks.replay, NOT_CHECKED, [], ("gpu02", replayed(0, 1, 2, runs=[ONE, OTHER]))),  # the software differs
    (checks.replay, MONITOR, [f"rank {it} not_repeatable" for it in (2, 3)], ("gpu02", UNLIKE)),
    (checks.replay, DRAIN, [NINE, TEN], ("gpu02", TWO)),  # of sixteen: one in eight
    (checks.replay, MONITOR, [NINE, TEN, ELEVEN], ("gpu02", THREE)),
    (checks.replay, PASSED, [], ("gpu01", TWO)),
    (checks.loss, MONITOR, ["fsdp no_majority", "fsdp modes_differ"], ("gpu02", NO_NUMBER, CONFIG)),
    # all ranks of a group have equal steps; only the time before the collective shows the slow one
    (checks.stragglers, MONITOR, ["rank 1 slower"], ("gpu01", ALONE, SLOW, CONFIG)),
    (checks.stragglers, PASSED, [], ("gpu02", ALONE, SLOW, CONFIG)),
    (checks.stragglers, MONITOR, [f"{SECOND_GPU} slower"], ("gpu02", SLOW_GPU, NONE, CONFIG)),
    (checks.processes, MONITOR, [f"{SECOND_GPU} in_use"], ("gpu02", BUSY, NONE)),
    (checks.together, MONITOR, ["fsdp loss_deviates"], ((ALONE, CURVE), CONFIG)),
    (checks.checkpoint, MONITOR, ["gpu01 rank 1 not_removed"], (stored(removed=False), CONFIG)),
    (checks.alone, MONITOR, ["rank 2 unchanged", "rank 3 unchanged"], ("gpu02", STILL)),
    (checks.alone, PASSED, [], ("gpu01", STILL)),
    (checks.framework, CONFIGURE, ["package torch not_installed"], ("gpu01", NO_TORCH)),
    (checks.framework, CONFIGURE, ["python no_task"], ("gpu02", NO_TORCH)),
]


@pytest.mark.parametrize(("check", "expected", "named", "facts"), CASES)
def test_each_case_has_its_verdict_and_names_its_parts(
    check: Any, expected: str, named: list[str], facts: tuple[Any, ...]
) -> None:
    verdict = check(*facts)
    assert (judged(verdict)[0], [f"{it.part} {it.code}" for it in verdict.findings]) == (expected, named)


def test_a_process_on_a_gpu_explains_a_slow_one() -> None:
    for verdict in (checks.stragglers("gpu02", BUSY, NONE, CONFIG), checks.speed("gpu02", BUSY, *OF_ROW)):
        assert judged(verdict)[0] == MONITOR
        assert "rank 2 (GPU 0000:02:00, GPU-2): python3 (pid 4711)" in verdict.cause


def test_mfu_is_judged_by_the_row_of_the_profile() -> None:
    def slow(fact: Change) -> Change:
        return of_rank(1, kind="trained", mode="ddp", steps=[0.2] * 6)(on_gpus(fact))

    good, bad = recorded("alone", on_gpus), recorded("alone", slow)
    verdict = checks.speed("gpu01", good, *OF_ROW)
    assert judged(verdict) == (PASSED, [])
    (mfu, *_) = (it.value for it in verdict.metrics if it.name == "training_plain_mfu")
    assert round(mfu, 1) == 59.1
    low = checks.speed("gpu01", bad, *OF_ROW)
    assert judged(low) == (MONITOR, ["GPU-1 (0000:01:00) rank 1"])
    (found,) = low.findings
    assert (found.code, found.relation, figures(str(found.measured))) == ("below_bound", "<", [48.2, 477])
    eight = recorded("alone", lambda fact: of_rank(1, kind="joined", size=8)(slow(fact)))
    assert judged(checks.speed("gpu01", eight, *OF_ROW)) == (PASSED, []), "no row for 8"
    assert judged(checks.speed("gpu01", bad, limits(), "NVIDIA H100 80GB HBM3")) == (PASSED, [])


def test_lost_rank_is_named_before_those_that_waited() -> None:
    result = recorded("together", lambda it: None if (it["rank"], it["training"]) == (2, "done") else it)
    first, second, third, fourth = result.tasks
    waited = {"training": "failed", "rank": 0, "node": "gpu01", "phase": "ddp"}
    waited["reason"] = "Connection closed by peer"
    first = replace(first, rc=1, facts=(*first.facts, waited))
    tasks = (first, second, replace(third, rc=137, signal=9), fourth)
    verdict = checks.together((recorded("alone"), replace(result, tasks=tasks)), CONFIG)
    ends = [f"{it.part} {it.code}" for it in verdict.findings]
    assert ends[:2] == ["gpu02 rank 2 killed", "gpu01 rank 0 peer_lost"]
    assert figures(str(verdict.findings[0].measured)) == [9]


def test_nodes_that_share_a_gpu_are_no_fault_of_the_network() -> None:
    """The words of torch 2.11 with NCCL 2.28.9 on two virtual nodes with one H100."""
    shared = (
        "DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, invalid usage (run with "
        "NCCL_DEBUG=WARN for details), NCCL version 2.28.9 ncclInvalidUsage: This usually reflects invalid usage of NCCL "
        "library. Last error: Duplicate GPU detected : rank {} and rank {} both on CUDA device 60"
    )
    result = recorded("together", lambda fact: fact if fact["training"] == "loaded" else None)
    tasks = []
    for task in result.tasks:
        failed = {"training": "failed", "rank": task.task, "node": task.node, "phase": "process group"}
        failed["reason"] = shared.format(task.task, (task.task + 2) % 4)
        tasks.append(replace(task, rc=1, facts=(*task.facts, failed)))
    verdict = checks.together((recorded("alone"), replace(result, tasks=tuple(tasks))), CONFIG)
    assert verdict.cause == "duplicate GPU: settings or software of the node, not its GPU"
    assert "each rank needs its own GPU" in verdict.hint


def test_memory_in_use_and_limits_drain_no_node() -> None:
    it = {"training": "failed", "rank": 1, "node": "gpu01", "phase": "plain", "reason": "CUDA out of memory"}
    alone = recorded("alone")
    tasks = (alone.tasks[0], replace(alone.tasks[1], rc=1, facts=(it,)), *alone.tasks[2:])
    verdict = checks.alone("gpu01", replace(alone, tasks=tasks))
    assert (verdict.action, "memory of the GPU" in verdict.cause) == (Action.MONITOR, True)


@pytest.mark.parametrize(
    ("name", "gib", "size"), [("auto", 0, "tiny"), ("auto", 15, "small"), ("auto", 140, "large"), ("small", 0, "small")]
)
def test_model_size_follows_the_memory(name: str, gib: float, size: str) -> None:
    assert payload_model.NAMES[payload_model.chosen(name, gib)] == size


def test_flops_are_those_of_the_measured_step() -> None:
    """shared figure: 1.87e9 parameters, 583 to 590 TFLOP/s at 162 to 164 ms."""
    flops = payload_model.flops_of(payload_model.SHAPES[-1], int(1.873e9))
    assert 583 < flops / 0.163 / 1e12 < 590


def replays(*bad: int, runs: Any) -> PayloadResult:
    """Return two nodes of eight GPUs, of which these ranks replayed so."""
    return eight_gpus_each(of_rank(*bad, kind="replayed", runs=runs))


def plain(losses: list[float]) -> PayloadResult:
    """Return two nodes of eight GPUs, of which one rank has these losses by itself."""
    return eight_gpus_each(of_rank(11, kind="trained", mode="plain", losses=losses))


def scaled(factor: float, *ranks: int) -> PayloadResult:
    """Return the recorded step of each node alone; the losses of these ranks are multiplied."""

    def change(fact: Change) -> Change:
        mine = fact["rank"] in ranks and "losses" in fact
        return {**fact, "losses": [factor * loss for loss in fact["losses"]]} if mine else fact

    return recorded("alone", change)


def on_h200(*steps: float) -> PayloadResult:
    """Return the recorded step on H200s, of which rank 0 by itself takes these seconds per step."""
    own = of_rank(0, kind="trained", mode="plain", steps=list(steps), compute=list(steps))
    return recorded("alone", lambda fact: own(on_gpus(fact)))


def working(times: Mapping[int, float], other_model: tuple[int, ...] = ()) -> PayloadResult:
    """Return two nodes of eight GPUs; times: milliseconds of a rank's own work per step, else 160."""

    def change(fact: Change) -> Change:
        rank = fact["rank"]
        if fact["training"] == "trained" and fact["mode"] in ("plain", "ddp"):
            seconds = times.get(rank, 160 + rank % 3) / 1e3
            return {**fact, "compute": [seconds] * 6, "steps": [seconds] * 6}
        return {**fact, "alike": "other"} if fact["training"] == "joined" and rank in other_model else fact

    return eight_gpus_each(change)


def beside(kind: str, others: list[str] | None, *ranks: int) -> PayloadResult:
    """Return GPUs on which these ranks see processes of others, when they join or when they are done."""
    return recorded("alone", lambda fact: of_rank(*ranks, kind=kind, others=others)(on_gpus(fact)))


def faster(factor: float) -> tuple[PayloadResult, PayloadResult]:
    """Return runs on the nodes alone that take `factor` of the time of the run on all nodes, and that run."""
    whole = recorded("together")
    times = {(fact["rank"], fact["mode"]): fact["steps"] for fact in whole.facts("trained")}

    def change(fact: Change) -> Change:
        steps = times.get((fact["rank"], fact.get("mode")))
        return {**fact, "steps": [factor * one for one in steps]} if steps else fact

    return recorded("alone", change), whole


def over(between: str) -> tuple[Any, ...]:
    result = replace(recorded("together"), connections=connected(between))
    return "gpu01", Reach("training", 2, 2, None), result, fabric("NET/IB/GDRDMA"), 8


def never_read(fact: Change) -> Change:
    mine = fact["training"] == "checkpoint" and fact["rank"] == 1
    return {key: fact[key] for key in fact if key not in ("read", "restored")} if mine else fact


RANDOM = "https://docs.pytorch.org/docs/stable/notes/randomness.html"
FSDP = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
MPS = "https://docs.nvidia.com/deploy/mps/index.html"
NO_SMI = "https://github.com/NVIDIA/nvidia-container-toolkit"
NFS = "https://nfs.sourceforge.net/"
H200 = "https://www.nvidia.com/en-us/data-center/h200/"
PLUGIN = "https://github.com/Mellanox/nccl-rdma-sharp-plugins"
SDC = "silent data corruption"
HALF, ONE_OF_FOUR = trained("together", 2, 3, after="x"), trained("together", 3, after="x")
SECOND = range(8, 16)  # the ranks of the second node of eight GPUs
NAN_LOSS = trained("alone", 0, mode="plain", losses=[5.5] * 7 + [NAN])
NO_FSDP = trained("together", *range(4), mode="fsdp", losses=[NAN] * 8)
TWO_MODELS = working(dict.fromkeys(SECOND, 240), tuple(SECOND))
SLOW_NODE = working(dict.fromkeys(SECOND, 200))
SLOW_STORAGE = recorded("together", of_rank(*range(4), kind="checkpoint", write=90.0))
FULL = stored(problem="OSError: No space left on device")
replay, loss, speed, slower = checks.replay, checks.loss, checks.speed, checks.stragglers
busy, together, scaling = checks.processes, checks.together, checks.scaling
checkpoint, transport = checks.checkpoint, checks.transport
COUNTER_EXAMPLES = [
    machine(replay, "random bits", RANDOM, NOT_CHECKED, "gpu02", replays(*range(16), runs=[ONE, OTHER])),
    machine(replay, "another cuDNN on one node", RANDOM, MONITOR, "gpu02", replays(*SECOND, runs=[ONE, ONE])),
    machine(replay, "GPUs of two nodes differ", RANDOM, MONITOR, "gpu02", replays(0, 9, 10, runs=[ONE, ONE])),
    machine(replay, "a GPU repeats other bits", SDC, DRAIN, "gpu02", replays(11, runs=[ONE, ONE]), sick=True),
    machine(replay, "a GPU is unlike itself", SDC, DRAIN, "gpu02", replays(11, runs=[ONE, OTHER]), sick=True),
    machine(checks.alone, "a rank warns on stderr and ends with 0", RANDOM, PASSED, "gpu01", ALONE),
    machine(checks.alone, "losses of ranks differ: their data do", RANDOM, PASSED, "gpu01", scaled(1.2, 1)),
    machine(checks.alone, "parameters", RANDOM, MONITOR, "gpu01", trained("alone", 1, after="x"), sick=True),
    machine(checks.alone, "a loss is no number", RANDOM, MONITOR, "gpu01", NAN_LOSS, sick=True),
    machine(loss, "the order of sums moves 0.3%", RANDOM, PASSED, "gpu02", scaled(1.003, 2, 3), CONFIG),
    machine(loss, "a rank by itself is alone on its node", RANDOM, PASSED, "gpu01", ALONE, CONFIG),
    machine(loss, "one of sixteen is 6% off", SDC, MONITOR, "gpu02", plain([5.9] * 8), CONFIG, sick=True),
    machine(loss, "no number", SDC, MONITOR, "gpu02", plain([5.5] * 7 + [NAN]), CONFIG, sick=True),
    machine(speed, "1% above the row", H200, PASSED, "gpu01", on_h200(*[0.173] * 6), *OF_ROW),
    machine(speed, "no row", H200, PASSED, "gpu01", on_h200(*[0.5] * 6), limits(), "NVIDIA L40S"),
    machine(speed, "one slow step of six", H200, PASSED, "gpu01", on_h200(*[0.163] * 5, 0.9), *OF_ROW),
    machine(speed, "half of the speed", H200, MONITOR, "gpu01", on_h200(*[0.32] * 6), *OF_ROW, sick=True),
    machine(slower, "within 2% of each other", H200, PASSED, "gpu02", working({11: 163.5}), NONE, CONFIG),
    machine(slower, "two models of GPUs, one slower", H200, PASSED, "gpu02", TWO_MODELS, NONE, CONFIG),
    machine(slower, "a faster GPU", H200, PASSED, "gpu02", working({11: 120}), NONE, CONFIG),
    machine(slower, "a quarter longer", H200, MONITOR, "gpu02", working({11: 200}), NONE, CONFIG, sick=True),
    machine(slower, "a whole node is slower", H200, MONITOR, "gpu02", SLOW_NODE, NONE, CONFIG, sick=True),
    machine(busy, "none", MPS, PASSED, "gpu01", beside("joined", [], *range(4)), NONE),
    machine(busy, "no nvidia-smi", NO_SMI, NOT_CHECKED, "gpu01", beside("joined", None, *range(4)), NONE),
    machine(busy, "an earlier job", MPS, MONITOR, "gpu01", beside("joined", ["python3"], 1), NONE, sick=True),
    machine(busy, "one that began later", MPS, MONITOR, "gpu01", beside("done", ["x"], 1), NONE, sick=True),
    machine(together, "0.2% from one node", RANDOM, PASSED, (scaled(1.002, *range(4)), TOGETHER), CONFIG),
    machine(together, "one node: nothing runs together", RANDOM, NOT_CHECKED, (ALONE, NONE), CONFIG),
    machine(together, "two nodes differ: no majority", RANDOM, CONFIGURE, (ALONE, HALF), CONFIG, sick=True),
    machine(together, "one rank of four differs", RANDOM, MONITOR, (ALONE, ONE_OF_FOUR), CONFIG, sick=True),
    machine(together, "losses of FSDP are no numbers", FSDP, MONITOR, (ALONE, NO_FSDP), CONFIG, sick=True),
    machine(transport, "NVLink between nodes", H200, PASSED, *over("P2P/MNNVL")),
    machine(transport, "InfiniBand by NVIDIA's plugin", PLUGIN, PASSED, *over("NET/IBext_v9/0/GDRDMA")),
    machine(transport, "sockets", H200, MONITOR, *over("NET/Socket/0"), sick=True),
    machine(scaling, "97% of one node", H200, PASSED, faster(0.97)),
    machine(scaling, "faster than one node, which was disturbed", H200, PASSED, faster(1.1)),
    machine(scaling, "one node", H200, NOT_CHECKED, (ALONE, NONE)),
    machine(scaling, "no rank trained", H200, NOT_CHECKED, (NONE, NONE), sick=True),
    machine(checkpoint, "slow storage without a stated limit", NFS, PASSED, SLOW_STORAGE, CONFIG),
    machine(checkpoint, "no folder is stated", NFS, NOT_APPLICABLE, TOGETHER, TrainingConfig()),
    machine(checkpoint, "another node reads others", NFS, MONITOR, stored(restored="0"), CONFIG, sick=True),
    machine(checkpoint, "no space is left", NFS, MONITOR, FULL, CONFIG, sick=True),
    machine(checkpoint, "never read", NFS, NOT_CHECKED, recorded("together", never_read), CONFIG, sick=True),
]
test_machines_get_the_verdict_that_a_person_gives_them = considered(COUNTER_EXAMPLES)


def test_training_between_nodes_needs_all_ranks_and_equal_parameters() -> None:
    reach = Reach("training", selected=2, allocated=2)
    alone, together = recorded("alone"), recorded("together")

    def ends(whole: PayloadResult, place: Reach = reach) -> set[Outcome]:
        return {checks.between(node, place, alone, whole).outcome for node in NODES}

    def without_the_last(fact: Change) -> Change | None:
        return None if (fact["rank"], fact["training"]) == (3, "trained") else fact

    assert ends(together) == {Outcome.PASSED}
    assert ends(NONE) == {Outcome.NOT_CHECKED}
    assert ends(recorded("together", without_the_last)) == {Outcome.NOT_CHECKED}
    differs = of_rank(3, kind="trained", mode="ddp", after="other")
    assert ends(recorded("together", differs)) == {Outcome.NOT_CHECKED}
    assert ends(together, replace(reach, allocated=1)) == {Outcome.NOT_CHECKED}
    one = PayloadResult("training", NODES[:1], 2, alone.tasks[:2])
    of_one_node = checks.between(NODES[0], Reach("training", 1, 1), one, NONE)
    assert of_one_node.outcome is Outcome.NOT_APPLICABLE
