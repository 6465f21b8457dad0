"""Healthy runs of torch.distributed that look broken, and broken ones that look well (docs/five-rules.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import MONITOR, PASSED, CounterExample, assert_as_expected, name
from payload_helpers import NCCL_LOG, NODES, connected, each_rank, fabric, step

from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.ddp import checks

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Check

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
            place_of = {"RANK": f"{rank}", "LOCAL_RANK": f"{locals_[2 * agent + place]}", "WORLD_SIZE": "4"}
            given = {**place_of, "MASTER_ADDR": "gpu01", "MASTER_PORT": "29400"}
            own = changed.get(f"r{rank}", {})
            who = {"rank": rank, "node": NODES[agent]}
            facts += [{"ddp": "given", **who, "given": given}]
            facts += [{**fact, **who, **own.get(fact["ddp"], {})} for fact in WORK]
        agents.append(facts)
    error = changed.get("error", "")
    tasks = tuple(PayloadTask(n, NODES[n], 0, None, tuple(facts), error) for n, facts in enumerate(agents))
    return PayloadResult("ddp", NODES, 2, tasks), 2


KILLED = {"rc": 137, "signal": 9}
TERMINATED, ABORTED = {"rc": 143, "signal": 15}, {"rc": 134, "signal": 6}
RAISED = {"rc": 1, "error": "RuntimeError: Connection closed by peer"}


def others(end: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return how the ranks ended that were not killed."""
    return {rank: end for rank in range(3)}  # noqa: C420 (the same mapping, which nothing changes)


def lost(ends: dict[int, dict[str, Any]], **changed: Any) -> PayloadResult:
    changed = {"result": {"rc": 137}, "r3": {"lost": {}, "noticed": None}, **changed}
    return step("ddp", ({"ddp": "noticed", "seconds": 3.0},), ends={3: KILLED, **ends}, **changed)


def machine(
    check: Check[...], words: str, source: str, expected: str, *facts: Any, sick: bool = False
) -> CounterExample:
    return CounterExample(check.name, words, source, expected, lambda: check(*facts), sick)


def over(between: str) -> PayloadResult:
    return step("ddp", WORK, result={"connections": connected(between)})


NAN, INF = float("nan"), float("inf")
group, training, torchrun, transport = checks.group, checks.training, checks.torchrun, checks.transport
LATE, MISSING = work(r2={"loaded": {"seconds": 124.0}}), work(r3={"joined": None}, ends={3: RAISED})
APART = work(**each_rank({"joined": {"size": 2}}))
RISES = work(**each_rank({"trained": {"losses": [1.0, 4.0]}}))
OWN_DATA = work(r1={"trained": {"losses": [0.1, 0.05]}})
OTHER, NO_NUMBER = work(r1={"trained": {"after": "c"}}), work(r1={"trained": {"losses": [1.0, NAN]}})
WARNS = launched(error="failed to shutdown the rendezvous due to an error of type RendezvousConnectionError")
NOTHING = launched(**each_rank({"trained": {"after": "aaaa"}}))
INFINITE = launched(r1={"trained": {"losses": [INF, 1.0]}})
UNNOTICED = {f"r{rank}": {"noticed": None} for rank in range(3)}
TWO = {0: RAISED, 1: RAISED, 2: KILLED}
STUCK = lost(TWO, r2={"noticed": None, "stuck": {"phase": "all_reduce", "seconds": 60}})
HUNG = lost(TWO, r2={"noticed": None}, result={"rc": 137, "problem": "exceeded the time limit of 70 s"})
PLUGIN, EFA = "https://github.com/Mellanox/nccl-rdma-sharp-plugins", "https://github.com/aws/aws-ofi-nccl"
IB, LIBFABRIC = fabric("NET/IB/GDRDMA"), fabric("NET/Libfabric/GDRDMA")
HOOK = "https://github.com/pytorch/pytorch/issues/67616"
COUNTER_EXAMPLES = (
    machine(group, "one rank imports torch for two minutes", TORCH, PASSED, LATE),
    machine(group, "a task ends with an error after its work", TORCH, PASSED, work(ends={1: RAISED})),
    machine(group, "a rank is missing", TORCH, MONITOR, MISSING, sick=True),
    machine(group, "two groups of two ranks", TORCH, MONITOR, APART, sick=True),
    machine(training, "the loss rises in one step", TORCH, PASSED, RISES),
    machine(training, "losses of the ranks differ: their data do", TORCH, PASSED, OWN_DATA),
    machine(training, "one rank has other parameters", TORCH, MONITOR, OTHER, sick=True),
    machine(training, "a loss is no number", TORCH, MONITOR, NO_NUMBER, sick=True),
    machine(torchrun, "ranks are not in the order of nodes", ELASTIC, PASSED, launched((2, 3, 0, 1))),
    machine(torchrun, "an agent warns of the rendezvous at its end", HOOK, PASSED, WARNS),
    machine(torchrun, "one LOCAL_RANK twice", ELASTIC, MONITOR, launched(locals_=(0, 0, 0, 1)), sick=True),
    machine(torchrun, "training changed nothing", ELASTIC, MONITOR, NOTHING, sick=True),
    machine(torchrun, "a loss is no number", ELASTIC, MONITOR, INFINITE, sick=True),
    machine(
        checks.lost_rank, "srun ends the others", SRUN, PASSED, lost(others(TERMINATED), **UNNOTICED), 60.0
    ),
    machine(checks.lost_rank, "the others raise an error", TORCH, PASSED, lost(others(RAISED)), 60.0),
    machine(checks.lost_rank, "NCCL's watchdog aborts them", TORCH, PASSED, lost(others(ABORTED)), 60.0),
    machine(checks.lost_rank, "one ends with 0", SRUN, MONITOR, lost({**TWO, 2: {"rc": 0}}), 60.0, sick=True),
    machine(checks.lost_rank, "one rank still waits", TORCH, MONITOR, STUCK, 60.0, sick=True),
    machine(checks.lost_rank, "one hung until Slurm ended the step", SRUN, MONITOR, HUNG, 60.0, sick=True),
    machine(transport, "NVIDIA's plugin", PLUGIN, PASSED, "gpu01", over("NET/IBext_v8/0/GDRDMA"), IB),
    machine(transport, "EFA", EFA, PASSED, "gpu01", over("NET/Libfabric/0/GDRDMA"), LIBFABRIC),
    machine(transport, "NVLink between nodes", NCCL_LOG, PASSED, "gpu01", over("P2P/MNNVL"), IB),
    machine(transport, "GPUDirect by PCIe", NCCL_LOG, PASSED, "gpu01", over("NET/IB/0/GDRDMA(PCI)"), IB),
    machine(transport, "sockets", NCCL_LOG, MONITOR, "gpu01", over("NET/Socket/0"), IB, sick=True),
    machine(transport, "no GPUDirect", NCCL_LOG, MONITOR, "gpu01", over("NET/IB/0"), IB, sick=True),
    machine(transport, "nor the plugin", NCCL_LOG, MONITOR, "gpu01", over("NET/IBext_v8/0"), IB, sick=True),
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_runs_are_judged_as_a_person_would(example: CounterExample) -> None:
    assert_as_expected(example)
