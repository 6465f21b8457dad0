"""Steps of payloads with facts that a test states: two nodes with two ranks each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.slurm.result import TaskResult
from pytest_gpucluster.config.models import FabricProfile, Profile
from pytest_gpucluster.core.hostlist import fold
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.kit.nccl.nccl_transport import Connections, connections
from pytest_gpucluster.kit.payloads.rendezvous import failure_row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NODES = ("gpu01", "gpu02")
RANKS = 4
NCCL_LOG = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"


def rank_row(rank: int, text: str, code: str = "", *, node: str = "n01", limits: str = "") -> str:
    """Return what the collective payload prints of a failed rank."""
    return failure_row(rank, node, "0000:00:07", code, text, limits)


def step(
    key: str,
    kinds: Sequence[Mapping[str, Any]],
    *,
    ranks: int = RANKS,
    ends: Mapping[int, Mapping[str, Any]] | None = None,
    **changed: Any,
) -> PayloadResult:
    """Return a step whose ranks report these facts.

    A value of `rN` (N: a rank) replaces those of this rank: {kind: values}, or {kind: None} without this fact. `ends`:
    {rank: rc, signal, error}; `result`: values of the step.
    """
    tasks = []
    for rank in range(ranks):
        own: Mapping[str, Any] = changed.get(f"r{rank}", {})
        facts = [
            {"rank": rank, "node": NODES[rank // 2], **fact} for fact in kinds if own.get(fact[key], fact) is not None
        ]
        facts = [{**fact, **own.get(fact[key], {})} for fact in facts]
        more = [
            {"rank": rank, "node": NODES[rank // 2], key: kind, **values}
            for kind, values in own.items()
            if values is not None and kind not in {it[key] for it in kinds}
        ]
        end = {"rc": 0, "signal": None, "error": "", **(ends or {}).get(rank, {})}
        tasks.append(PayloadTask(rank, NODES[rank // 2], end["rc"], end["signal"], (*facts, *more), end["error"]))
    return PayloadResult(key, NODES[: (ranks + 1) // 2], ranks, tuple(tasks), **changed.get("result", {}))


def connected(between: str, within: str = "P2P/CUMEM", nodes: Sequence[str] = NODES) -> Connections:
    """Return the connections of a ring of two ranks per node, as NCCL logs them."""
    size = 2 * len(nodes)
    lines = {}
    for rank in range(size):
        after = (rank + 1) % size
        how = within if nodes[rank // 2] == nodes[after // 2] else between
        head = f"{nodes[rank // 2]}:31:31 [{rank % 2}] NCCL INFO"
        lines[rank] = (
            f"{head} ncclCommInitRank comm 0x1 rank {rank} nranks {size} cudaDev {rank % 2} nvmlDev {rank % 2} busId {rank % 2 + 1}000 commId 0x1 - Init COMPLETE\n"
            f"{head} Channel 00/0 : {rank}[{rank % 2}] -> {after}[{after % 2}]{'' if how.startswith('P2P') else ' [send]'} via {how}\n"
        )
    return connections(TaskResult(rank, nodes[rank // 2], 0, stderr=text) for rank, text in lines.items())


def fabric(transport: str | None) -> Profile:
    """Return a profile that names this transport."""
    return Profile(name="p", description=f"of {fold(NODES)}", source="test", fabric=FabricProfile(transport=transport))
