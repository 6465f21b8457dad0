"""A fabric of rails as functions: what pairs of nodes measure on each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.part import gpu, port
from pytest_gpucluster.kit.fabric.rails import RailPort
from pytest_gpucluster.kit.framework.between import Reach
from pytest_gpucluster.kit.nccl.measurement import Bound
from pytest_gpucluster.suites.rdma.results import RdmaResult, measure_rails

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpucluster.suites.rdma.results import Slot

BOUND = Bound(45.0, "90% of the port's 400 Gb/s")
GOOD, SLOW, USEC = 49.2, 29.5, 2.3
RAILS = ("0000:18:00.0 port 1", "0000:40:00.0 port 1")


def names(count: int) -> list[str]:
    return [f"gpu{n:02}" for n in range(1, count + 1)]


def rails_of(nodes: Sequence[str], locations: Sequence[str] = RAILS) -> dict[str, dict[str, RailPort]]:
    return {
        node: {it: RailPort(f"mlx5_{n}", 1, port(f"mlx5_{n}", 1, of=gpu(n)), n) for n, it in enumerate(locations)}
        for node in nodes
    }


def measured(
    nodes: Sequence[str],
    fault: Callable[[str, str, str, str], float | str | None],
    *,
    leaves: Mapping[str, str] | None = None,
    bound: Bound | None = BOUND,
    rails: Mapping[str, Mapping[str, RailPort]] | None = None,
    steps: list[int] | None = None,
) -> RdmaResult:
    """Return the result of all rounds on a fabric with a fault; `steps` gets the number of slots of each step."""

    def run(slots: Sequence[Slot]) -> list[list[dict[str, Any]]]:
        (steps if steps is not None else []).append(len(slots))
        return [_of_slot(slot, fault) for slot in slots]

    return measure_rails(rails or rails_of(nodes), leaves or {}, bound, run)


def _of_slot(slot: Slot, fault: Callable[[str, str, str, str], float | str | None]) -> list[dict[str, Any]]:
    facts: list[dict[str, Any]] = []
    for one, other in slot.pairs:
        for test in slot.tests:
            client, server = (other, one) if test == "send" else (one, other)
            for rail in slot.rails:
                value = fault(rail, client, server, test)
                fact: dict[str, Any] = {"rail": rail, "test": test, "client": client, "server": server}
                if isinstance(value, str):
                    fact["problem"] = value
                elif test == "read":
                    fact["latency"] = value or USEC
                else:
                    fact["bandwidth"] = value or GOOD
                facts.append(fact)
    return facts


def reach(nodes: int) -> Reach:
    return Reach("rdma", nodes, nodes)
