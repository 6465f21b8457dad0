"""Facts that the training payload reported on two virtual nodes with two CPU ranks each (torch 2.13, gloo)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paths import TESTS

from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask, read_facts

if TYPE_CHECKING:
    from collections.abc import Callable

NODES = ("gpu01", "gpu02")
NONE = PayloadResult("training", (), 0)
Change = dict[str, Any]


def recorded(step: str, change: Callable[[Change], Change | None] = lambda fact: fact) -> PayloadResult:
    """Return the recorded step with changed facts; None leaves a fact out."""
    facts = read_facts((TESTS / "data" / "training" / f"{step}.jsonl").read_text(), "training")
    tasks = []
    for rank in range(4):
        mine = (change(dict(fact)) for fact in facts if fact["rank"] == rank)
        known = tuple(fact for fact in mine if fact is not None)
        tasks.append(PayloadTask(rank, NODES[rank // 2], 0, None, known))
    return PayloadResult("training", NODES, 4, tuple(tasks), seconds=20.0)


def of_rank(*ranks: int, kind: str, mode: str = "", **values: Any) -> Callable[[Change], Change]:
    """Return a change of one kind of fact of some ranks."""

    def change(fact: Change) -> Change:
        wanted = fact["rank"] in ranks and fact["training"] == kind and fact.get("mode", "") == mode
        return {**fact, **values} if wanted else fact

    return change
