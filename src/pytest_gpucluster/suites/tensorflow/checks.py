"""TensorFlow's distribution strategies start, compute correct sums and keep their workers equal. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.core.text import listed
from pytest_gpucluster.kit.framework.between import judge_between
from pytest_gpucluster.kit.framework.payload_result import (
    between_check,
    framework_check,
    judge_package,
    rank_part,
    unequal,
    untrained,
    wrong_data,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.framework.between import Reach
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask

_SEE = "no node has tensorflow: see tensorflow.framework"
_ENDS = "joins, sums, trains and ends with 0"


@framework_check("tensorflow.framework", "tensorflow")
def framework(node_name: str, packages: PayloadResult, peers: Collection[str] | None = None) -> Judgement:
    """Judge that tensorflow is installed, in the version of the other nodes of its kind (`peers`)."""
    yield from judge_package(node_name, packages, "tensorflow", peers)


@check(
    "tensorflow.mirrored",
    cause="TensorFlow finds too few devices, or their sums are wrong",
    hint="tf.config.list_physical_devices('GPU') on the node; the nccl suite for the devices themselves",
    action=Action.MONITOR,
)
def mirrored(node_name: str, mirrored: PayloadResult, gpus: int) -> Judgement:
    """Judge MirroredStrategy within a node: a replica per GPU (two on CPUs), right sums, equal weights."""
    tasks = mirrored.tasks_of(node_name)
    mirrored.require_tasks(_SEE)
    if not tasks:
        yield mirrored.silent(node_name).finding(Part("task"), "starts")
    for task in tasks:
        yield from _judge_task(task, mirrored, gpus or 2, alone=True)
    for fact in mirrored.of_node(node_name, "loaded"):
        yield Metric("tensorflow_import", float(fact["seconds"]), "s")


@check(
    "tensorflow.config",
    cause="the tasks or nodes of the step are not the requested ones, or the site sets TF_CONFIG",
    hint="srun env | grep -E 'TF_CONFIG|SLURM_STEP'",
    action=Action.CONFIGURE,
    each="workers",
)
def config(result: PayloadResult) -> Judgement:
    """Judge TF_CONFIG: the same cluster on all workers, every index once, not set before."""
    result.require_tasks(_SEE)
    facts = result.facts("config")
    indices = sorted(int(fact["config"]["task"]["index"]) for fact in facts)
    if indices != list(range(result.ntasks)):
        expected = f"0 to {result.ntasks - 1}, once each"
        yield Finding(named("setting", "task.index"), listed(indices), expected, code="other_ranks")
    clusters = {tuple(fact["config"]["cluster"]["worker"]) for fact in facts}
    if len(clusters) > 1:
        measured = f"{len(clusters)} different lists of workers"
        yield Finding(named("setting", "cluster"), measured, "one", code="several_clusters")
    for fact in facts:
        if fact["given"]:
            part = Part("setting", name="TF_CONFIG", of=rank_part(int(fact["rank"]), fact["node"]))
            yield Finding(part, Quote(fact["given"][:120]), "not set", code="set_before")


@check(
    "tensorflow.workers",
    cause="workers cannot reach each other at the addresses of TF_CONFIG, or one did not start",
    hint="the first worker of the list; a firewall between nodes, or a proxy that gRPC uses (no_proxy)",
    action=Action.MONITOR,
    each="workers",
)
def workers(result: PayloadResult, per_task: int) -> Judgement:
    """Judge MultiWorkerMirroredStrategy: all workers, right sums, `per_task` replicas per worker."""
    result.require_tasks(_SEE)
    for task in result.causes_first(result.tasks):
        yield from _judge_task(task, result, result.ntasks * per_task)
    yield from result.absent(set(range(result.ntasks)) - {task.task for task in result.tasks}, _ENDS)
    if joined := result.facts("joined"):
        yield Metric("tensorflow_join", max(float(fact["seconds"]) for fact in joined), "s")


@check(
    "tensorflow.devices",
    cause="this tensorflow is a build for CPUs, or finds no driver, CUDA or cuDNN on the node",
    hint="python3 -c 'import tensorflow as tf; print(tf.config.list_physical_devices())'; name an environment with a GPU "
    "build under tensorflow.environment",
    action=Action.CONFIGURE,
)
def devices(node_name: str, mirrored: PayloadResult, own_workers: PayloadResult, gpus: int) -> Judgement:
    """Judge that tensorflow computes on the GPUs of the node, in the process with all of them and in each worker."""
    if not gpus:
        raise NotApplicable("the nodes have no real GPUs")
    for result, wanted in ((mirrored, gpus), (own_workers, 1)):
        loaded = result.of_node(node_name, "loaded")
        if not loaded:
            yield NotAvailable(
                "no process of the node loaded tensorflow: see tensorflow.mirrored and tensorflow.workers"
            )
        for fact in loaded:
            if int(fact["gpus"]) < wanted:
                where = f"rank {fact['rank']} computed on the CPU" if not fact["gpus"] else f"rank {fact['rank']}"
                raise NotAvailable(
                    f"{where}: tensorflow {fact['version']} of {fact['python']} finds {fact['gpus']} of {wanted} GPUs; "
                    "name an environment with a GPU build: tensorflow.environment"
                )


@between_check("tensorflow.between")
def between(node_name: str, reach: Reach, own_workers: PayloadResult) -> Judgement:
    """Judge that workers of the node summed and trained with workers of other nodes."""
    yield from judge_between(node_name, reach, own_workers.exchanged, "tensorflow.workers")


@check(
    "tensorflow.equal",
    cause="gradients are lost or wrong between workers",
    hint="run one worker per node, then pairs of nodes, to find the pair that differs",
    action=Action.MONITOR,
    each="workers",
)
def equal(result: PayloadResult) -> Judgement:
    """Judge that all workers have equal, changed weights after training."""
    result.require_tasks(_SEE)
    trained = result.by_rank("trained")
    if not trained:
        raise NotAvailable("no worker trained: see tensorflow.workers")
    for stage, what in (("before", "before training"), ("after", "after training")):
        values = {rank_part(rank, fact["node"]): str(fact[stage]) for rank, fact in trained.items()}
        yield from unequal(values, what, code=f"unequal_{stage}")
    for rank, fact in trained.items():
        yield from untrained(rank_part(rank, fact["node"]), fact["before"], fact["after"], fact["losses"])


def _judge_task(task: PayloadTask, result: PayloadResult, replicas: int, *, alone: bool = False) -> Judgement:
    part = rank_part(task.task, "" if alone else task.node)
    kinds = {fact[result.key]: fact for fact in task.facts}
    if "joined" in kinds and kinds["joined"]["replicas"] != replicas:
        measured, expected = Quantity(kinds["joined"]["replicas"], "replicas"), Quantity(replicas, "replicas")
        yield Finding(part, measured, expected, code="other_replicas")
    for fact in task.facts:
        if fact[result.key] == "reduced" and fact["wrong"]:
            yield wrong_data(part, int(fact["wrong"]), f"{fact['wrong']} elements of the sum wrong")
    if "done" not in kinds or task.rc != 0:
        yield result.why(task).finding(part, _ENDS)
    elif alone:
        trained = kinds["trained"]
        if not trained["after"]:
            yield Finding(part, "replicas differ after training", "equal weights", code="unequal_replicas")
        yield from untrained(part, trained["before"], trained["after"], trained["losses"])
