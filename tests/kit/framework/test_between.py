"""What a distributed suite proves between nodes, by the same rule in each suite."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import spelled

from pytest_gpucluster.core.check import Action, Verdict, check
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.kit.framework.between import NOTHING, ONE_NODE_RUN, Reach, judge_between
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.kit.mpi.mpi_facts import MpiRank, MpiRun, MpiWorld
from pytest_gpucluster.suites.ddp import checks as ddp
from pytest_gpucluster.suites.horovod import checks as horovod
from pytest_gpucluster.suites.mpi import checks as mpi
from pytest_gpucluster.suites.ray import checks as ray
from pytest_gpucluster.suites.tensorflow import checks as tensorflow

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Judgement

TWO = ("gpu01", "gpu02")
REACH = Reach("ddp", selected=2, allocated=2)


@check("ddp.example", cause="c", hint="h", action=Action.CONFIGURE)
def example(node: str, reach: Reach, exchanged: tuple[str, ...]) -> Judgement:
    """Judge."""
    yield from judge_between(node, reach, exchanged, "ddp.group")


@pytest.mark.parametrize(
    ("reach", "exchanged", "outcome", "reason"),
    [
        (REACH, TWO, "passed", ""),
        (REACH, ("gpu02",), "not checked", "the ranks of gpu01 exchanged no data: see ddp.group"),
        (REACH, ("gpu01",), "not checked", f"{NOTHING} with gpu01: see ddp.group"),
        (REACH, (), "not checked", "the ranks of gpu01 exchanged no data: see ddp.group"),
        (replace(REACH, limit=1), ("gpu01",), "not checked", f"{NOTHING}: ddp.nodes is 1"),
        (replace(REACH, allocated=1), ("gpu01",), "not checked", f"{NOTHING}: no other node of the run"),
        # a rerun on one node proves that node, if it did anything
        (Reach("ddp", 1, 1), ("gpu01",), "not applicable", ONE_NODE_RUN),
        (Reach("ddp", 1, 1), (), "not checked", "the ranks of gpu01 exchanged no data: see ddp.group"),
    ],
)
def test_a_lone_node_is_unproved(reach: Reach, exchanged: tuple[str, ...], outcome: str, reason: str) -> None:
    verdict = example("gpu01", reach, exchanged)
    assert (judged(verdict), verdict.findings) == (outcome, ())
    assert verdict.reason.startswith(reason)


def step(key: str, *facts: dict[str, Any], ranks: int = 0, **more: Any) -> PayloadResult:
    """Return a step whose ranks, one a node, reported a fact each."""
    nodes = tuple(str(fact["node"]) for fact in facts)
    tasks = (PayloadTask(n, it, 0, None, (facts[n],)) for n, it in enumerate(nodes))
    return PayloadResult(key, nodes, ranks or len(facts), tuple(tasks), **more)


def result(key: str = "ddp", wrong: int = 0, ranks: int = 4, last: str = "trained") -> PayloadResult:
    """Return a step of two ranks on each of two nodes, all of which reported sums and training but the last one."""
    tasks = []
    for rank in range(ranks):
        node = TWO[rank // 2]
        kinds = ("reduced", "trained") if rank < 3 or last == "trained" else ("reduced",)
        fact = {"rank": rank, "node": node, "wrong": wrong if rank == 1 else 0}
        tasks.append(PayloadTask(rank, node, 0, None, tuple({key: kind, **fact} for kind in kinds)))
    return PayloadResult(key, TWO, 4, tuple(tasks))


def judged(verdict: Verdict) -> str:
    return verdict.outcome.value


def test_a_sum_that_is_wrong_or_missing_proves_nothing() -> None:
    assert judged(ddp.between("gpu01", REACH, [result(), result()])) == "passed"
    for bad in (result(wrong=1), result(ranks=3), result(last="reduced"), PayloadResult("ddp", (), 0)):
        assert judged(ddp.between("gpu02", REACH, [result(), bad])) == "not checked"
    assert judged(tensorflow.between("gpu01", REACH, result("tensorflow"))) == "passed"
    assert judged(tensorflow.between("gpu01", REACH, result("tensorflow", wrong=2))) == "not checked"


def test_tensorflow_on_the_cpu_of_a_gpu_node_is_not_proved() -> None:
    def loaded(gpus: int) -> PayloadResult:
        fact = {"tensorflow": "loaded", "rank": 0, "node": "gpu01", "gpus": gpus, "version": "2", "python": "/p"}
        return step("tensorflow", fact)

    verdict = tensorflow.devices("gpu01", loaded(0), loaded(0), 1)
    assert judged(verdict) == "not checked"
    assert "tensorflow 2 of /p finds 0 of 1 GPUs" in verdict.reason
    assert judged(tensorflow.devices("gpu01", loaded(2), loaded(0), 2)) == "not checked"
    assert judged(tensorflow.devices("gpu01", loaded(2), loaded(1), 2)) == "passed"
    assert judged(tensorflow.devices("gpu01", loaded(0), loaded(0), 0)) == "not applicable"


def test_a_job_of_horovod_is_valid_on_several_nodes() -> None:
    launch = horovod.Launch("pytorch", "gloo", "srun")

    def world(wrong: int = 0, **more: Any) -> horovod.World:
        places = ({"rank": n, "node": node, "size": 2, "cross_rank": n, "cross_size": 2} for n, node in enumerate(TWO))
        local = {"local_rank": 0, "local_size": 1, "wrong": {"float32": wrong}, "trained": {}}
        ranks = tuple({**place, **local} for place in places)
        return horovod.World(launch, TWO, ranks, nodes=TWO, **more)

    assert judged(horovod.between("gpu01", REACH, [world()])) == "passed"
    assert judged(horovod.between("gpu01", REACH, [world(), world(wrong=1)])) == "not checked"
    hung = world(problem=Explanation("timed_out", "it hung"))
    assert judged(horovod.between("gpu01", REACH, [world(), hung])) == "not checked"
    without = horovod.World(launch, obstacle=NotAvailable("horovodrun -H needs ssh between nodes"))
    assert judged(horovod.between("gpu01", REACH, [world(), without])) == "passed"
    assert judged(horovod.between("gpu01", REACH, [without])) == "not checked"
    assert spelled(horovod.ranks(without))[:2] == ("not checked", "horovodrun -H needs ssh between nodes")


def test_a_world_of_mpi_is_valid_on_several_nodes() -> None:
    def run(wrong: int = 0, **more: Any) -> MpiRun:
        ranks = tuple(MpiRank(n, 2, "h", TWO[n], "single", wrong, 8, "Open MPI") for n in range(2))
        return MpiRun("srun", "c", TWO, 1, MpiWorld(ranks, ()), **more)

    assert judged(mpi.between("gpu02", REACH, [run(), run()])) == "passed"
    assert judged(mpi.between("gpu02", REACH, [run(), run(wrong=1)])) == "not checked"
    assert judged(mpi.between("gpu02", REACH, [run(rc=1)])) == "not checked"


def test_ray_needs_a_cluster_of_several_nodes() -> None:
    facts = ray.ClusterFacts({"gpu01": ray.Share(1, 0)}, "gpu01")
    alone = replace(facts, obstacle=replace(REACH, allocated=1).obstacle("gpu01"))
    for judge in (ray.tasks, ray.actors, ray.objects, ray.head_lost):
        assert judged(judge("gpu01", alone)) == "not checked"
        assert judged(judge("gpu01", facts)) == "not applicable"
    assert judged(ray.nodes(alone)) == "not applicable"


def test_torch_is_compared_with_nodes_of_the_same_kind_only() -> None:
    def placed(*versions: str) -> PayloadResult:
        torch = ({"error": "", "version": version} for version in versions)
        return step(
            "ddp", *({"ddp": "place", "rank": n, "node": f"gpu0{n + 1}", "torch": it} for n, it in enumerate(torch))
        )

    found = placed("2.9.0", "2.9.0", "2.9.0", "2.7.0a0+gh200")
    assert judged(ddp.framework("gpu04", found, ("gpu04",))) == "passed"
    verdict = ddp.framework("gpu04", found, ("gpu01", "gpu02", "gpu03", "gpu04"))
    assert [str(it.measured) for it in verdict.findings] == ["2.7.0a0+gh200"]
