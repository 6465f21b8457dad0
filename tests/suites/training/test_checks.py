"""Verdicts on facts that the payload reported on two virtual nodes with two CPU ranks each (torch 2.13, gloo)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import (
    CONFIGURE,
    DRAIN,
    MONITOR,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
    CounterExample,
    assert_as_expected,
    name,
)
from framework_helpers import imported, spelled
from judged import figures, judged
from paths import ROOT
from payload_helpers import connected, fabric
from training_helpers import NODES, NONE, Change, of_rank, recorded

from pytest_gpucluster import config as configs
from pytest_gpucluster.core.check import Action, Outcome
from pytest_gpucluster.kit.framework.between import Reach
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.training import checks, payload_model
from pytest_gpucluster.suites.training.config import TrainingConfig, TrainingLimit
from pytest_gpucluster.suites.training.facts import trained_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucluster.core.check import Check, Verdict

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


def found(verdict: Verdict) -> list[str]:
    return [f"{it.part}: {it.measured}" for it in verdict.findings]


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
            checks.speed(node, alone, CONFIG, (), ""),
            checks.together((alone, together), CONFIG),
            checks.checkpoint(together, CONFIG),
        ):
            assert judged(verdict) == (PASSED, [])
        assert checks.processes(node, alone, together).reason == "the ranks compute on CPUs"
    figures = {it.name for it in checks.speed("gpu01", alone, CONFIG, (), "").metrics}
    assert {"training_plain_rate", "training_ddp_flops", "training_fsdp_p95"} <= figures
    scaled = checks.scaling((alone, together), CONFIG)
    assert (judged(scaled)[0], len(scaled.metrics)) == (NOT_APPLICABLE, 4)
    assert judged(checks.start(together, CONFIG))[0] == NOT_APPLICABLE


def test_nothing_that_ran_is_never_a_pass() -> None:
    for verdict in (
        checks.alone("gpu01", NONE),
        checks.replay("gpu01", NONE),
        checks.loss("gpu01", NONE, CONFIG),
        checks.speed("gpu01", NONE, CONFIG, (), ""),
        checks.stragglers("gpu01", NONE, NONE, CONFIG),
        checks.processes("gpu01", NONE, NONE),
        checks.together((NONE, NONE), CONFIG),
        checks.scaling((NONE, NONE), CONFIG),
        checks.checkpoint(NONE, CONFIG),
        checks.start(NONE, CONFIG),
    ):
        assert judged(verdict)[0] == NOT_CHECKED


def test_gpu_with_other_bits_is_named_and_not_drained() -> None:
    other = {"digest": "00", "losses": ["5.5", "5.6", "5.7"]}
    bad = recorded("alone", of_rank(3, kind="replayed", runs=[other, other]))
    verdict = checks.replay("gpu02", bad)
    assert judged(verdict) == (MONITOR, ["rank 3"])
    assert figures(verdict.findings[0].measured + verdict.findings[0].expected[-30:]) == [0, 5.7, 3, 4]
    assert checks.replay("gpu01", bad).outcome is Outcome.PASSED
    runs = [{"digest": "a", "losses": ["1.0", "2.0"]}, {"digest": "b", "losses": ["1.0", "2.5"]}]
    itself = checks.replay("gpu02", recorded("alone", of_rank(2, kind="replayed", runs=runs)))
    assert (judged(itself)[1], figures(itself.findings[0].measured)) == (["rank 2"], [2])


def test_replays_that_differ_on_most_gpus_accuse_the_software() -> None:
    runs = [{"digest": "a", "losses": ["1.0"]}, {"digest": "b", "losses": ["1.0"]}]
    verdict = checks.replay("gpu02", recorded("alone", of_rank(0, 1, 2, kind="replayed", runs=runs)))
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED,
        "torch or a library is not deterministic: two replays differ on 3 of 4 ranks on such CPUs",
    )
    half = checks.replay("gpu02", recorded("alone", of_rank(2, 3, kind="replayed", runs=runs)))
    assert [it.part for it in half.findings] == ["rank 2", "rank 3"], (
        "two equal replays of four prove that the software can repeat itself"
    )


def eight_gpus_each(change: Callable[[Change], Change] = lambda fact: fact) -> PayloadResult:
    """Return two nodes of eight GPUs, whose facts are those of the recorded rank 0."""
    (first, *_) = recorded("alone", on_gpus).tasks
    tasks = []
    for rank in range(16):
        node = f"gpu0{1 + rank // 8}"
        facts = [{**fact, "rank": rank, "node": node} for fact in first.facts]
        tasks.append(replace(first, task=rank, node=node, facts=tuple(change(on_gpus(it)) for it in facts)))
    return PayloadResult("training", ("gpu01", "gpu02"), 16, tuple(tasks), seconds=20.0)


@pytest.mark.parametrize(
    ("bad", "action"), [((9, 10), Action.DRAIN), ((9, 10, 11), Action.MONITOR)], ids=["2 of 16", "3 of 16"]
)
def test_bits_of_more_than_one_gpu_in_eight_drain_no_node(bad: tuple[int, ...], action: Action) -> None:
    other = {"digest": "00", "losses": ["5.5", "5.6", "5.7"]}
    alone = eight_gpus_each(of_rank(*bad, kind="replayed", runs=[other, other]))
    verdict = checks.replay("gpu02", alone)
    assert (verdict.outcome, verdict.action) == (Outcome.FAILED, action)
    assert verdict.findings[0].part == "rank 9 (GPU 0000:09:00, GPU-9)"
    assert checks.replay("gpu01", alone).outcome is Outcome.PASSED


def test_torch_without_deterministic_algorithms_is_not_checked() -> None:
    bad = recorded("alone", of_rank(0, 1, kind="replayed", runs=[], reason="no deterministic x"))
    assert checks.replay("gpu01", bad).outcome is Outcome.NOT_CHECKED
    assert checks.replay("gpu02", bad).outcome is Outcome.PASSED


def test_rank_with_another_loss_is_named() -> None:
    wrong = [6.0] * 8
    bad = recorded("alone", of_rank(3, kind="trained", mode="plain", losses=wrong))
    assert [it.partition(" 8")[0] for it in found(checks.loss("gpu02", bad, CONFIG))] == [
        "rank 3: losses of one rank by itself"
    ]
    assert checks.loss("gpu01", bad, CONFIG).outcome is Outcome.PASSED
    fsdp = recorded("alone", of_rank(2, 3, kind="trained", mode="fsdp", losses=[*wrong[:7], float("nan")]))
    assert "fsdp: losses inf% from those of ddp" in found(checks.loss("gpu02", fsdp, CONFIG))


def test_slow_rank_is_named_by_its_own_work() -> None:
    """All ranks of a group have equal steps; only the time before the collective shows the slow one."""
    slow = recorded("together", of_rank(1, kind="trained", mode="ddp", compute=[0.5] * 6))
    alone = recorded("alone")
    assert found(checks.stragglers("gpu01", alone, slow, CONFIG)) == [
        "rank 1, ddp (all nodes): 500 ms of its own work per step"
    ]
    assert checks.stragglers("gpu02", alone, slow, CONFIG).outcome is Outcome.PASSED
    gpus = recorded(
        "alone", lambda fact: of_rank(2, kind="trained", mode="plain", compute=[0.2] * 6)(on_gpus(fact))
    )
    assert found(checks.stragglers("gpu02", gpus, NONE, CONFIG)) == [
        "rank 2 (GPU 0000:02:00, GPU-2), plain (alone): 200 ms of its own work per step"
    ]


def test_process_on_a_gpu_is_named_by_rank_and_explains_a_slow_one() -> None:
    def change(fact: Change) -> Change:
        fact = on_gpus(fact)
        fact = of_rank(2, kind="joined", others=["python3 (pid 4711)"])(fact)
        return of_rank(2, kind="trained", mode="plain", compute=[0.2] * 6, steps=[0.3] * 6)(fact)

    busy = recorded("alone", change)
    assert found(checks.processes("gpu02", busy, NONE)) == [
        "rank 2 (GPU 0000:02:00, GPU-2): python3 (pid 4711)"
    ]
    assert checks.processes("gpu01", busy, NONE).outcome is Outcome.PASSED
    for verdict in (
        checks.stragglers("gpu02", busy, NONE, CONFIG),
        checks.speed("gpu02", busy, CONFIG, limits(), "NVIDIA H200"),
    ):
        assert verdict.outcome is Outcome.FAILED
        assert verdict.cause.startswith(
            "others are at work on rank 2 (GPU 0000:02:00, GPU-2): python3 (pid 4711)"
        )


def test_mfu_is_judged_by_the_row_of_the_profile() -> None:
    def slow(fact: Change) -> Change:
        return of_rank(1, kind="trained", mode="ddp", steps=[0.2] * 6)(on_gpus(fact))

    good = recorded("alone", on_gpus)
    verdict = checks.speed("gpu01", good, CONFIG, limits(), "NVIDIA H200")
    assert verdict.outcome is Outcome.PASSED
    (mfu, *_) = (it.value for it in verdict.metrics if it.name == "training_plain_mfu")
    assert round(mfu, 1) == 59.1
    bad = checks.speed("gpu01", recorded("alone", slow), CONFIG, limits(), "NVIDIA H200")
    assert judged(bad) == (MONITOR, ["rank 1 (GPU 0000:01:00, GPU-1), ddp"])
    assert figures(bad.findings[0].measured) == [48.2, 477]
    other = checks.speed("gpu01", recorded("alone", slow), CONFIG, limits(), "NVIDIA H100 80GB HBM3")
    assert other.outcome is Outcome.PASSED
    eight = recorded("alone", lambda fact: of_rank(1, kind="joined", size=8)(slow(fact)))
    no_row = checks.speed("gpu01", eight, CONFIG, limits(), "NVIDIA H200")
    assert no_row.outcome is Outcome.PASSED, "no row for 8"
    stated = TrainingConfig(min_mfu={"ddp": 0.6})
    assert len(found(checks.speed("gpu02", good, stated, limits(), "NVIDIA H200"))) == 2


def test_lost_rank_is_named_before_those_that_waited() -> None:
    result = recorded(
        "together", lambda fact: None if (fact["rank"], fact["training"]) == (2, "done") else fact
    )
    first, second, third, fourth = result.tasks
    waited = {"training": "failed", "rank": 0, "node": "gpu01", "phase": "ddp"}
    waited["reason"] = "Connection closed by peer"
    first = replace(first, rc=1, facts=(*first.facts, waited))
    tasks = (first, second, replace(third, rc=137, signal=9), fourth)
    verdict = checks.together((recorded("alone"), replace(result, tasks=tasks)), CONFIG)
    assert [it.part for it in verdict.findings][:2] == ["rank 2 on gpu02", "rank 0 on gpu01"]
    assert figures(verdict.findings[0].measured) == [9]


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


def test_another_curve_than_one_node_fails() -> None:
    curve = recorded("together", of_rank(0, 1, 2, 3, kind="trained", mode="fsdp", losses=[5.0] * 8))
    assert found(checks.together((recorded("alone"), curve), CONFIG))[0].startswith(
        "fsdp on all nodes: losses 1"
    )


def test_scaling_checkpoint_and_start_are_judged_by_the_cluster_file() -> None:
    alone, together = recorded("alone"), recorded("together")
    strict = TrainingConfig(checkpoint="/shared", min_scaling=1.0, min_checkpoint="100 GB/s", max_start="1s")
    slow = recorded(
        "together", lambda fact: {**fact, "steps": [9.0] * 6} if "steps" in fact and "mode" in fact else fact
    )
    assert [it.partition(":")[0] for it in found(checks.scaling((alone, slow), strict))] == ["ddp", "fsdp"]
    assert found(checks.checkpoint(together, strict))[0].startswith("write: ")
    assert found(checks.start(together, strict))[0].startswith("first step: after ")
    other = recorded("together", of_rank(1, kind="checkpoint", restored="0"))
    assert found(checks.checkpoint(other, CONFIG)) == [
        "rank 1 on gpu01: other bits than rank 3 on gpu02 wrote"
    ]
    left = recorded("together", of_rank(1, kind="checkpoint", removed=False))
    assert "could not remove" in found(checks.checkpoint(left, CONFIG))[0]
    assert checks.checkpoint(together, TrainingConfig()).outcome is Outcome.NOT_APPLICABLE


def test_node_that_learns_nothing_fails() -> None:
    start = recorded("alone").by_rank("trained")[2]["before"]
    still = recorded("alone", of_rank(2, 3, kind="trained", mode="ddp", after=start))
    assert found(checks.alone("gpu02", still))[0] == "rank 2: training changed no parameter"
    assert checks.alone("gpu01", still).outcome is Outcome.PASSED


def test_missing_torch_is_named() -> None:
    task = PayloadTask(
        0, "gpu01", 0, None, ({"training": "found", "node": "gpu01", "error": "No module", "version": ""},)
    )
    result = PayloadResult("training", ("gpu01",), 1, (task,))
    assert spelled(checks.framework("gpu01", result))[2] == ["package torch: No module / installed"]
    assert checks.framework("gpu02", result).outcome is Outcome.FAILED


def test_memory_in_use_and_limits_drain_no_node() -> None:
    fact = {
        "training": "failed",
        "rank": 1,
        "node": "gpu01",
        "phase": "plain",
        "reason": "CUDA out of memory",
    }
    alone = recorded("alone")
    tasks = (alone.tasks[0], replace(alone.tasks[1], rc=1, facts=(fact,)), *alone.tasks[2:])
    verdict = checks.alone("gpu01", replace(alone, tasks=tasks))
    assert (verdict.action, "memory of the GPU" in verdict.cause) == (Action.MONITOR, True)


@pytest.mark.parametrize(
    ("name", "gib", "size"),
    [
        ("auto", 0, "tiny"),
        ("auto", 15, "small"),
        ("auto", 39.4, "medium"),
        ("auto", 139.8, "large"),
        ("small", 0, "small"),
    ],
)
def test_model_size_follows_the_memory(name: str, gib: float, size: str) -> None:
    assert payload_model.NAMES[payload_model.chosen(name, gib)] == size


def test_flops_are_those_of_the_measured_step() -> None:
    """shared figure: 1.87e9 parameters, 583 to 590 TFLOP/s at 162 to 164 ms."""
    flops = payload_model.flops_of(payload_model.SHAPES[-1], int(1.873e9))
    assert 583 < flops / 0.163 / 1e12 < 590


def test_step_figures_are_order_statistics() -> None:
    run = trained_in(recorded("alone"), "ddp")[0]
    steps = replace(run, steps=tuple(float(it) for it in range(1, 21)))
    assert (steps.median, steps.p95) == (10.5, 19.0)


def test_payload_imports_torch_alone() -> None:
    names = imported(ROOT / "src/pytest_gpucluster/suites/training/payload.py")
    assert "torch" in names
    assert "pytest_gpucluster" not in names


ONE, OTHER = {"digest": "a", "losses": ["1.0", "2.0"]}, {"digest": "b", "losses": ["1.0", "2.5"]}


def machine(
    check: Check[...], words: str, source: str, expected: str, *facts: Any, sick: bool = False
) -> CounterExample:
    return CounterExample(check.name, words, source, expected, lambda: check(*facts), sick)


def replays(*bad: int, runs: Any) -> PayloadResult:
    """Return two nodes of eight GPUs, of which these ranks replayed so."""
    return eight_gpus_each(of_rank(*bad, kind="replayed", runs=runs))


def trained(step: str, *ranks: int, mode: str = "ddp", **values: Any) -> PayloadResult:
    """Return a recorded step whose ranks trained so."""
    return recorded(step, of_rank(*ranks, kind="trained", mode=mode, **values))


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


def stored(**values: Any) -> PayloadResult:
    return recorded("together", of_rank(1, kind="checkpoint", **values))


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
NAN = float("nan")
SECOND = range(8, 16)  # the ranks of the second node of eight GPUs
ALONE, TOGETHER = recorded("alone"), recorded("together")
OF_ROW = (CONFIG, limits(), "NVIDIA H200")
NO_NUMBER = trained("alone", 0, mode="plain", losses=[5.5] * 7 + [NAN])
NO_FSDP = trained("together", *range(4), mode="fsdp", losses=[NAN] * 8)
TWO_MODELS = working(dict.fromkeys(SECOND, 240), tuple(SECOND))
SLOW_NODE = working(dict.fromkeys(SECOND, 200))
SCALES = TrainingConfig(min_scaling=0.9)
SLOW_STORAGE = recorded("together", of_rank(*range(4), kind="checkpoint", write=90.0))
FULL = stored(problem="OSError: No space left on device")
replay, loss, speed, slower = checks.replay, checks.loss, checks.speed, checks.stragglers
busy, together, scaling = checks.processes, checks.together, checks.scaling
checkpoint, transport = checks.checkpoint, checks.transport
COUNTER_EXAMPLES = [
    machine(
        replay, "not deterministic", RANDOM, NOT_CHECKED, "gpu02", replays(*range(16), runs=[ONE, OTHER])
    ),
    machine(replay, "another cuDNN on one node", RANDOM, MONITOR, "gpu02", replays(*SECOND, runs=[ONE, ONE])),
    machine(replay, "GPUs of two nodes differ", RANDOM, MONITOR, "gpu02", replays(0, 9, 10, runs=[ONE, ONE])),
    machine(replay, "a GPU repeats other bits", SDC, DRAIN, "gpu02", replays(11, runs=[ONE, ONE]), sick=True),
    machine(
        replay, "a GPU contradicts itself", SDC, DRAIN, "gpu02", replays(11, runs=[ONE, OTHER]), sick=True
    ),
    machine(checks.alone, "a rank warns on stderr and ends with 0", RANDOM, PASSED, "gpu01", ALONE),
    machine(checks.alone, "losses of ranks differ: their data do", RANDOM, PASSED, "gpu01", scaled(1.2, 1)),
    machine(checks.alone, "no node could be tested", RANDOM, NOT_CHECKED, "gpu01", NONE),
    machine(
        checks.alone, "other parameters", RANDOM, MONITOR, "gpu01", trained("alone", 1, after="x"), sick=True
    ),
    machine(checks.alone, "a loss is no number", RANDOM, MONITOR, "gpu01", NO_NUMBER, sick=True),
    machine(loss, "the order of sums moves 0.3%", RANDOM, PASSED, "gpu02", scaled(1.003, 2, 3), CONFIG),
    machine(loss, "a rank by itself is alone on its node", RANDOM, PASSED, "gpu01", ALONE, CONFIG),
    machine(loss, "one of sixteen is 6% off", SDC, MONITOR, "gpu02", plain([5.9] * 8), CONFIG, sick=True),
    machine(loss, "no number", SDC, MONITOR, "gpu02", plain([5.5] * 7 + [NAN]), CONFIG, sick=True),
    machine(speed, "1% above the row", H200, PASSED, "gpu01", on_h200(*[0.173] * 6), *OF_ROW),
    machine(speed, "no row", H200, PASSED, "gpu01", on_h200(*[0.5] * 6), CONFIG, limits(), "NVIDIA L40S"),
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
    machine(
        together,
        "parameters differ between two nodes: no majority names one",
        RANDOM,
        CONFIGURE,
        (ALONE, trained("together", 2, 3, after="x")),
        CONFIG,
        sick=True,
    ),
    machine(
        together,
        "one rank of four has other parameters",
        RANDOM,
        MONITOR,
        (ALONE, trained("together", 3, after="x")),
        CONFIG,
        sick=True,
    ),
    machine(together, "losses of FSDP are no numbers", FSDP, MONITOR, (ALONE, NO_FSDP), CONFIG, sick=True),
    machine(transport, "NVLink between nodes", H200, PASSED, *over("P2P/MNNVL")),
    machine(transport, "InfiniBand by NVIDIA's plugin", PLUGIN, PASSED, *over("NET/IBext_v9/0/GDRDMA")),
    machine(transport, "sockets", H200, MONITOR, *over("NET/Socket/0"), sick=True),
    machine(scaling, "97% of one node", H200, PASSED, faster(0.97), SCALES),
    machine(scaling, "faster than one node, which was disturbed", H200, PASSED, faster(1.1), SCALES),
    machine(scaling, "one node", H200, NOT_CHECKED, (ALONE, NONE), SCALES),
    machine(scaling, "60% of one node", H200, MONITOR, faster(0.6), SCALES, sick=True),
    machine(checkpoint, "slow storage without a stated limit", NFS, PASSED, SLOW_STORAGE, CONFIG),
    machine(checkpoint, "no folder is stated", NFS, NOT_APPLICABLE, TOGETHER, TrainingConfig()),
    machine(
        checkpoint, "another node reads other bits", NFS, MONITOR, stored(restored="0"), CONFIG, sick=True
    ),
    machine(checkpoint, "no space is left", NFS, MONITOR, FULL, CONFIG, sick=True),
    machine(checkpoint, "never read", NFS, NOT_CHECKED, recorded("together", never_read), CONFIG, sick=True),
]


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_machines_get_the_verdict_that_a_person_gives_them(example: CounterExample) -> None:
    assert_as_expected(example)


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
