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

    from pytest_gpucluster.core.check import Verdict

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
        assert checks.alone(node, alone).outcome is Outcome.PASSED
        assert checks.replay(node, alone).outcome is Outcome.PASSED
        assert checks.loss(node, alone, CONFIG).outcome is Outcome.PASSED
        assert checks.stragglers(node, alone, together, CONFIG).outcome is Outcome.PASSED
        assert checks.processes(node, alone, together).reason == "the ranks compute on CPUs"
        figures = checks.speed(node, alone, CONFIG, (), "")
        assert figures.outcome is Outcome.PASSED
        assert {"training_plain_rate", "training_ddp_flops", "training_fsdp_p95"} <= {
            it.name for it in figures.metrics
        }
    assert checks.together((alone, together), CONFIG).outcome is Outcome.PASSED
    assert checks.checkpoint(together, CONFIG).outcome is Outcome.PASSED
    scaled = checks.scaling((alone, together), CONFIG)
    assert (scaled.outcome, len(scaled.metrics)) == (Outcome.NOT_APPLICABLE, 4)
    assert checks.start(together, CONFIG).outcome is Outcome.NOT_APPLICABLE


def test_nothing_that_ran_is_never_a_pass() -> None:
    verdicts = [
        checks.alone("gpu01", NONE), checks.replay("gpu01", NONE), checks.loss("gpu01", NONE, CONFIG),
        checks.speed("gpu01", NONE, CONFIG, (), ""), checks.stragglers("gpu01", NONE, NONE, CONFIG),
        checks.processes("gpu01", NONE, NONE), checks.together((NONE, NONE), CONFIG),
        checks.scaling((NONE, NONE), CONFIG), checks.checkpoint(NONE, CONFIG), checks.start(NONE, CONFIG),
    ]  # fmt: skip
    assert {verdict.outcome for verdict in verdicts} == {Outcome.NOT_CHECKED}


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
    waited = {
        "training": "failed",
        "rank": 0,
        "node": "gpu01",
        "phase": "ddp",
        "reason": "Connection closed by peer",
    }
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


def replays(
    machine: str, source: str, expected: str, *bad: int, runs: Any, sick: bool = False
) -> CounterExample:
    """Return the second of two nodes of eight GPUs, of which these ranks replayed so."""

    def judged() -> Verdict:
        return checks.replay("gpu02", eight_gpus_each(of_rank(*bad, kind="replayed", runs=runs)))

    return CounterExample("training.replay", machine, source, expected, judged, sick)


def example(
    name: str, machine: str, source: str, expected: str, judged: Callable[[], Verdict], *, sick: bool = False
) -> CounterExample:
    return CounterExample(f"training.{name}", machine, source, expected, judged, sick)


def trained(step: str, *ranks: int, mode: str = "ddp", **values: Any) -> PayloadResult:
    """Return a recorded step whose ranks trained so."""
    return recorded(step, of_rank(*ranks, kind="trained", mode=mode, **values))


def scaled(factor: float, *ranks: int) -> PayloadResult:
    """Return the recorded step of each node alone; the losses of these ranks are multiplied."""

    def change(fact: Change) -> Change:
        mine = fact["rank"] in ranks and "losses" in fact
        return {**fact, "losses": [factor * loss for loss in fact["losses"]]} if mine else fact

    return recorded("alone", change)


def on_h200(**steps: list[float]) -> PayloadResult:
    """Return the recorded step on H200s; `rN`: the steps of a rank in the mode plain."""

    def change(fact: Change) -> Change:
        found, own = on_gpus(fact), steps.get(f"r{fact['rank']}")
        return {**found, "steps": own, "compute": own} if own and fact.get("mode") == "plain" else found

    return recorded("alone", change)


def working(times: Mapping[int, float], other_model: tuple[int, ...] = ()) -> PayloadResult:
    """Return two nodes of eight GPUs; times: milliseconds of a rank's own work per step, else 160."""

    def change(fact: Change) -> Change:
        rank = fact["rank"]
        if fact["training"] == "trained" and fact["mode"] in ("plain", "ddp"):
            seconds = times.get(rank, 160 + rank % 3) / 1e3
            return {**fact, "compute": [seconds] * 6, "steps": [seconds] * 6}
        return {**fact, "alike": "other"} if fact["training"] == "joined" and rank in other_model else fact

    return eight_gpus_each(change)


def beside(kind: str, *others: str) -> PayloadResult:
    return recorded("alone", lambda fact: of_rank(1, kind=kind, others=list(others))(on_gpus(fact)))


def over(between: str) -> PayloadResult:
    return replace(recorded("together"), connections=connected(between))


def judged_speed(result: PayloadResult, gpu: str = "NVIDIA H200") -> Callable[[], Verdict]:
    return lambda: checks.speed("gpu01", result, CONFIG, limits(), gpu)


def outliers_of(result: PayloadResult) -> Callable[[], Verdict]:
    return lambda: checks.stragglers("gpu02", result, NONE, CONFIG)


def scaling_of(factor: float, together: PayloadResult | None = None) -> Callable[[], Verdict]:
    """Return the check of recorded runs on the nodes alone that take `factor` of the time of the run on all nodes."""
    whole = recorded("together") if together is None else together
    times = {(fact["rank"], fact["mode"]): fact["steps"] for fact in whole.facts("trained")}

    def change(fact: Change) -> Change:
        steps = times.get((fact["rank"], fact.get("mode")))
        return {**fact, "steps": [factor * one for one in steps]} if steps else fact

    return lambda: checks.scaling((recorded("alone", change), whole), TrainingConfig(min_scaling=0.9))


def transported(between: str) -> Callable[[], Verdict]:
    return lambda: checks.transport(
        "gpu01", Reach("training", 2, 2, None), over(between), fabric("NET/IB/GDRDMA"), 8
    )


TORCH = "https://docs.pytorch.org/docs/stable/notes/randomness.html"
FSDP = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
MPS = "https://docs.nvidia.com/deploy/mps/index.html"
NFS = "https://nfs.sourceforge.net/"
H200 = "https://www.nvidia.com/en-us/data-center/h200/"
NAN = float("nan")


COUNTER_EXAMPLES = [
    replays("a library that is not deterministic", "two replays differ on most GPUs", NOT_CHECKED, *range(16), runs=[ONE, OTHER]),
    replays("a node with another cuDNN", "all GPUs of the node differ alike", MONITOR, *range(8, 16), runs=[ONE, ONE]),
    replays("GPUs of several nodes differ", "more than one in eight: no single GPU", MONITOR, 0, 9, 10, runs=[ONE, ONE]),
    replays("a GPU of sixteen that repeats other bits", "silent data corruption", DRAIN, 11, runs=[ONE, ONE], sick=True),
    replays("a GPU of sixteen that contradicts itself", "silent data corruption", DRAIN, 11, runs=[ONE, OTHER], sick=True),
    example("alone", "a rank warns on stderr and ends with 0", TORCH, PASSED, lambda: checks.alone("gpu01", recorded("alone"))),
    example("alone", "losses of the ranks of a node differ: their data do", TORCH, PASSED, lambda: checks.alone("gpu01", scaled(1.2, 1))),
    example("alone", "no node could be tested", TORCH, NOT_CHECKED, lambda: checks.alone("gpu01", NONE)),
    example("alone", "ranks of the node have other parameters after DDP", TORCH, MONITOR, lambda: checks.alone("gpu01", trained("alone", 1, after="x")), sick=True),
    example("alone", "a loss is no number", TORCH, MONITOR, lambda: checks.alone("gpu01", trained("alone", 0, mode="plain", losses=[5.5] * 7 + [NAN])), sick=True),
    example("loss", "the order of sums moves the losses by 0.3%", TORCH, PASSED, lambda: checks.loss("gpu02", scaled(1.003, 2, 3), CONFIG)),
    example("loss", "a rank by itself is alone on its node", TORCH, PASSED, lambda: checks.loss("gpu01", recorded("alone"), CONFIG)),
    example("loss", "one rank of sixteen is 6% off", TORCH, MONITOR,
            lambda: checks.loss("gpu02", eight_gpus_each(of_rank(11, kind="trained", mode="plain", losses=[5.9] * 8)), CONFIG), sick=True),
    example("loss", "one rank of sixteen has a loss that is no number", TORCH, MONITOR,
            lambda: checks.loss("gpu02", eight_gpus_each(of_rank(11, kind="trained", mode="plain", losses=[5.5] * 7 + [NAN])), CONFIG), sick=True),
    example("speed", "1% above the row of the profile", H200, PASSED, judged_speed(on_h200(r0=[0.173] * 6))),
    example("speed", "a model of GPU without a row", H200, PASSED, judged_speed(on_h200(r0=[0.5] * 6), "NVIDIA L40S")),
    example("speed", "one slow step of six", H200, PASSED, judged_speed(on_h200(r0=[0.163] * 5 + [0.9]))),
    example("speed", "half of the speed", H200, MONITOR, judged_speed(on_h200(r0=[0.32] * 6)), sick=True),
    example("stragglers", "within 2% of each other", H200, PASSED, outliers_of(working({11: 163.5}))),
    example("stragglers", "two models of GPUs, one slower", H200, PASSED, outliers_of(working(dict.fromkeys(range(8, 16), 240), tuple(range(8, 16))))),
    example("stragglers", "a GPU is faster than the others", H200, PASSED, outliers_of(working({11: 120}))),
    example("stragglers", "a GPU takes a quarter longer", H200, MONITOR, outliers_of(working({11: 200})), sick=True),
    example("stragglers", "a whole node takes a quarter longer", H200, MONITOR, outliers_of(working(dict.fromkeys(range(8, 16), 200))), sick=True),
    example("processes", "none", MPS, PASSED, lambda: checks.processes("gpu01", recorded("alone", lambda fact: of_rank(*range(4), kind="joined", others=[])(on_gpus(fact))), NONE)),
    example("processes", "the container has no nvidia-smi", "https://github.com/NVIDIA/nvidia-container-toolkit", NOT_CHECKED,
            lambda: checks.processes("gpu01", recorded("alone", lambda fact: of_rank(*range(4), kind="joined", others=None)(on_gpus(fact))), NONE)),
    example("processes", "python of an earlier job, before the training", MPS, MONITOR, lambda: checks.processes("gpu01", beside("joined", "python3 (pid 4711)"), NONE), sick=True),
    example("processes", "a process that began during the training", MPS, MONITOR, lambda: checks.processes("gpu01", beside("done", "python3 (pid 4712)"), NONE), sick=True),
    example("together", "the loss of all nodes is 0.2% from that of one", TORCH, PASSED, lambda: checks.together((scaled(1.002, *range(4)), recorded("together")), CONFIG)),
    example("together", "one node: nothing runs together", TORCH, NOT_CHECKED, lambda: checks.together((recorded("alone"), NONE), CONFIG)),
    example("together", "parameters differ between two nodes: no majority names one", TORCH, CONFIGURE,
            lambda: checks.together((recorded("alone"), trained("together", 2, 3, after="x")), CONFIG), sick=True),
    example("together", "one rank of four has other parameters", TORCH, MONITOR, lambda: checks.together((recorded("alone"), trained("together", 3, after="x")), CONFIG), sick=True),
    example("together", "the losses of FSDP are no numbers on all ranks", FSDP, MONITOR,
            lambda: checks.together((recorded("alone"), trained("together", *range(4), mode="fsdp", losses=[NAN] * 8)), CONFIG), sick=True),
    example("transport", "NVLink between nodes", H200, PASSED, transported("P2P/MNNVL")),
    example("transport", "InfiniBand by NVIDIA's plugin", "https://github.com/Mellanox/nccl-rdma-sharp-plugins", PASSED, transported("NET/IBext_v9/0/GDRDMA")),
    example("transport", "sockets", H200, MONITOR, transported("NET/Socket/0"), sick=True),
    example("scaling", "97% of one node", H200, PASSED, scaling_of(0.97)),
    example("scaling", "faster than one node, which was disturbed", H200, PASSED, scaling_of(1.1)),
    example("scaling", "one node", H200, NOT_CHECKED, scaling_of(1.0, NONE)),
    example("scaling", "60% of one node", H200, MONITOR, scaling_of(0.6), sick=True),
    example("checkpoint", "slow storage without a stated limit", NFS, PASSED, lambda: checks.checkpoint(recorded("together", of_rank(*range(4), kind="checkpoint", write=90.0)), CONFIG)),
    example("checkpoint", "the cluster file names no folder", NFS, NOT_APPLICABLE, lambda: checks.checkpoint(recorded("together"), TrainingConfig())),
    example("checkpoint", "another node reads other bits", NFS, MONITOR, lambda: checks.checkpoint(recorded("together", of_rank(1, kind="checkpoint", restored="0")), CONFIG), sick=True),
    example("checkpoint", "no space is left", NFS, MONITOR, lambda: checks.checkpoint(recorded("together", of_rank(1, kind="checkpoint", problem="OSError: No space left on device")), CONFIG), sick=True),
    example("checkpoint", "a rank's part was never read", NFS, NOT_CHECKED,
            lambda: checks.checkpoint(recorded("together", lambda fact: {k: v for k, v in fact.items() if k not in ("read", "restored")} if fact["training"] == "checkpoint" and fact["rank"] == 1 else fact), CONFIG), sick=True),
]  # fmt: skip


@pytest.mark.parametrize("machine", COUNTER_EXAMPLES, ids=name)
def test_machines_get_the_verdict_that_a_person_gives_them(machine: CounterExample) -> None:
    assert_as_expected(machine)


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
