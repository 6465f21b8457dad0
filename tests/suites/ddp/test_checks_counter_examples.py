"""Healthy runs of torch.distributed that look broken, and broken ones that look well (docs/five-rules.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import MONITOR, PASSED, CounterExample, assert_as_expected, name
from payload_helpers import NCCL_LOG, NODES, connected, each_rank, fabric, step

from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.ddp import checks

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict

TORCH = "https://docs.pytorch.org/docs/stable/distributed.html"
ELASTIC = "https://docs.pytorch.org/docs/stable/elastic/run.html"
SRUN = "https://slurm.schedmd.com/srun.html"
WORK = (
    {"ddp": "loaded", "seconds": 4.0},
    {"ddp": "joined", "seconds": 1.0, "size": 4, "group_rank": 0},
    {"ddp": "reduced", "seconds": 0.01, "wrong": 0, "elements": 4096},
    {"ddp": "trained", "seconds": 1.0, "synced": "aaaa", "after": "bbbb", "losses": [2.0, 1.5]},
    {"ddp": "done"},
)


def work(**changed: Any) -> PayloadResult:
    placed: dict[str, Any] = {f"r{rank}": {**changed.pop(f"r{rank}", {})} for rank in range(4)}
    for rank in range(4):
        own = placed[f"r{rank}"]
        if own.get("joined", {}) is not None:
            own["joined"] = {"group_rank": rank, **own.get("joined", {})}
    return step("ddp", WORK, **placed, **changed)


def launched(
    ranks: tuple[int, ...] = (0, 1, 2, 3), locals_: tuple[int, ...] = (0, 1, 0, 1), **changed: Any
) -> tuple[PayloadResult, int]:
    """Return a run of torchrun: a task is an agent, whose ranks have the facts."""
    agents = []
    for agent in range(2):
        facts = []
        for place in (0, 1):
            rank = ranks[2 * agent + place]
            given = {
                "RANK": str(rank),
                "LOCAL_RANK": str(locals_[2 * agent + place]),
                "WORLD_SIZE": "4",
                "MASTER_ADDR": "gpu01",
                "MASTER_PORT": "29400",
            }
            own = changed.get(f"r{rank}", {})
            facts += [{"ddp": "given", "rank": rank, "node": NODES[agent], "given": given}]
            facts += [
                {**fact, "rank": rank, "node": NODES[agent], **own.get(fact["ddp"], {})} for fact in WORK
            ]
        agents.append(facts)
    tasks = tuple(
        PayloadTask(n, NODES[n], 0, None, tuple(facts), changed.get("error", ""))
        for n, facts in enumerate(agents)
    )
    return PayloadResult("ddp", NODES, 2, tasks), 2


KILLED = {"rc": 137, "signal": 9}
TERMINATED = {"rc": 143, "signal": 15}
RAISED = {"rc": 1, "error": "RuntimeError: Connection closed by peer"}


def others(end: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return how the ranks ended that were not killed."""
    return {rank: end for rank in range(3)}  # noqa: C420 (the same mapping, which nothing changes)


def lost(ends: dict[int, dict[str, Any]], **changed: Any) -> Verdict:
    changed = {"result": {"rc": 137}, "r3": {"lost": {}, "noticed": None}, **changed}
    found = step("ddp", ({"ddp": "noticed", "seconds": 3.0},), ends={3: KILLED, **ends}, **changed)
    return checks.lost_rank(found, 60.0)


def machine(
    check: str, name: str, source: str, expected: str, judged: Any, *, sick: bool = False
) -> CounterExample:
    return CounterExample(f"ddp.{check}", name, source, expected, judged, sick=sick)


def transport(between: str, wanted: str, within: str = "P2P/CUMEM") -> Any:
    result = step("ddp", WORK, result={"connections": connected(between, within)})
    return lambda: checks.transport("gpu01", result, fabric(wanted))


COUNTER_EXAMPLES = (
    machine(
        "group",
        "one rank imports torch for two minutes",
        TORCH,
        PASSED,
        lambda: checks.group(work(r2={"loaded": {"seconds": 124.0}})),
    ),
    machine(
        "group",
        "a task ends with an error after its work",
        TORCH,
        PASSED,
        lambda: checks.group(work(ends={1: RAISED})),
    ),
    machine(
        "group",
        "a rank is missing",
        TORCH,
        MONITOR,
        lambda: checks.group(work(r3={"joined": None}, ends={3: RAISED})),
        sick=True,
    ),
    machine(
        "group",
        "two groups of two ranks",
        TORCH,
        MONITOR,
        lambda: checks.group(work(**each_rank({"joined": {"size": 2}}))),
        sick=True,
    ),
    machine(
        "training",
        "the loss rises in one step",
        TORCH,
        PASSED,
        lambda: checks.training(work(**each_rank({"trained": {"losses": [1.0, 4.0]}}))),
    ),
    machine(
        "training",
        "losses of the ranks differ: their data do",
        TORCH,
        PASSED,
        lambda: checks.training(work(r1={"trained": {"losses": [0.1, 0.05]}})),
    ),
    machine(
        "training",
        "one rank has other parameters",
        TORCH,
        MONITOR,
        lambda: checks.training(work(r1={"trained": {"after": "cccc"}})),
        sick=True,
    ),
    machine(
        "training",
        "a loss is no number",
        TORCH,
        MONITOR,
        lambda: checks.training(work(r1={"trained": {"losses": [1.0, float("nan")]}})),
        sick=True,
    ),
    machine(
        "torchrun",
        "ranks are not in the order of the nodes",
        ELASTIC,
        PASSED,
        lambda: checks.torchrun(launched((2, 3, 0, 1))),
    ),
    machine(
        "torchrun",
        "an agent warns of the rendezvous at its end",
        "https://github.com/pytorch/pytorch/issues/67616",
        PASSED,
        lambda: checks.torchrun(
            launched(
                error="failed to shutdown the rendezvous due to an error of type RendezvousConnectionError"
            )
        ),
    ),
    machine(
        "torchrun",
        "two ranks with one LOCAL_RANK",
        ELASTIC,
        MONITOR,
        lambda: checks.torchrun(launched(locals_=(0, 0, 0, 1))),
        sick=True,
    ),
    machine(
        "torchrun",
        "training changed nothing",
        ELASTIC,
        MONITOR,
        lambda: checks.torchrun(launched(**each_rank({"trained": {"after": "aaaa"}}))),
        sick=True,
    ),
    machine(
        "torchrun",
        "a loss is no number",
        ELASTIC,
        MONITOR,
        lambda: checks.torchrun(launched(r1={"trained": {"losses": [float("inf"), 1.0]}})),
        sick=True,
    ),
    machine(
        "lost_rank",
        "srun ends the other ranks",
        SRUN,
        PASSED,
        lambda: lost(others(TERMINATED), r0={"noticed": None}, r1={"noticed": None}, r2={"noticed": None}),
    ),
    machine("lost_rank", "the other ranks raise an error", TORCH, PASSED, lambda: lost(others(RAISED))),
    machine(
        "lost_rank",
        "NCCL's watchdog aborts the other ranks",
        TORCH,
        PASSED,
        lambda: lost(others({"rc": 134, "signal": 6})),
    ),
    machine(
        "lost_rank",
        "one rank ends with 0",
        SRUN,
        MONITOR,
        lambda: lost({0: RAISED, 1: RAISED, 2: {"rc": 0}}),
        sick=True,
    ),
    machine(
        "lost_rank",
        "one rank still waits",
        TORCH,
        MONITOR,
        lambda: lost(
            {0: RAISED, 1: RAISED, 2: KILLED},
            r2={"noticed": None, "stuck": {"phase": "all_reduce", "seconds": 60}},
        ),
        sick=True,
    ),
    machine(
        "lost_rank",
        "one rank hung until Slurm ended the step",
        SRUN,
        MONITOR,
        lambda: lost(
            {0: RAISED, 1: RAISED, 2: KILLED},
            r2={"noticed": None},
            result={"rc": 137, "problem": "exceeded the time limit of 70 s"},
        ),
        sick=True,
    ),
    machine(
        "transport",
        "InfiniBand by NVIDIA's plugin",
        "https://github.com/Mellanox/nccl-rdma-sharp-plugins",
        PASSED,
        transport("NET/IBext_v8/0/GDRDMA", "NET/IB/GDRDMA"),
    ),
    machine(
        "transport",
        "EFA by libfabric",
        "https://github.com/aws/aws-ofi-nccl",
        PASSED,
        transport("NET/Libfabric/0/GDRDMA", "NET/Libfabric/GDRDMA"),
    ),
    machine(
        "transport",
        "NVLink between nodes instead of the network",
        NCCL_LOG,
        PASSED,
        transport("P2P/MNNVL", "NET/IB/GDRDMA"),
    ),
    machine(
        "transport",
        "GPUDirect over PCIe, as NCCL 2.27 names it",
        NCCL_LOG,
        PASSED,
        transport("NET/IB/0/GDRDMA(PCI)", "NET/IB/GDRDMA"),
    ),
    machine("transport", "sockets", NCCL_LOG, MONITOR, transport("NET/Socket/0", "NET/IB/GDRDMA"), sick=True),
    machine(
        "transport",
        "InfiniBand without GPUDirect",
        NCCL_LOG,
        MONITOR,
        transport("NET/IB/0", "NET/IB/GDRDMA"),
        sick=True,
    ),
    machine(
        "transport",
        "the plugin without GPUDirect",
        NCCL_LOG,
        MONITOR,
        transport("NET/IBext_v8/0", "NET/IB/GDRDMA"),
        sick=True,
    ),
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_runs_are_judged_as_a_person_would(example: CounterExample) -> None:
    assert_as_expected(example)
