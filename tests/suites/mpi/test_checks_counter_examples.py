"""Healthy MPI runs that look broken, and broken ones that look well (docs/five-rules.md)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from counter_examples import MONITOR, NOT_APPLICABLE, PASSED, CounterExample, assert_as_expected, name

from pytest_gpucluster.kit.mpi import mpi_world
from pytest_gpucluster.kit.mpi.mpi_facts import MpiRun, read_world, with_nodes
from pytest_gpucluster.suites.mpi import checks

NODES = ("gpu01", "gpu02", "gpu03")
HOSTS = {f"{node}.example.org": node for node in NODES}
MPIRUN = "https://docs.open-mpi.org/en/v5.0.x/launching-apps/slurm.html"
UCX = "https://openucx.readthedocs.io/en/master/faq.html"
PMI = "https://slurm.schedmd.com/mpi_guide.html"
OSU = "https://mvapich.cse.ohio-state.edu/benchmarks/"


def run(
    *pairs: tuple[float, float],
    before: str = "",
    nodes: tuple[str, ...] = NODES,
    size: int | None = None,
    drop: int = 0,
    **changed: Any,
) -> MpiRun:
    """Return a run of one rank per node; pairs: (microseconds, GB/s) between neighbours of the ring; `rN`: values of a rank."""
    lines = [before] if before else []
    for rank, node in enumerate(nodes[: len(nodes) - drop]):
        fact = {
            "kind": "rank", "rank": rank, "size": size or len(nodes), "host": f"{node}.example.org", "node": node, "threads": "multiple",
            "wrong": 0, "of": 1024, "library": "Open MPI v5.0.8", **changed.pop(f"r{rank}", {}),
        }  # fmt: skip
        lines.append("gpucluster-mpi " + json.dumps(fact))
    for first, (latency, bandwidth) in enumerate(pairs):
        fact = {
            "kind": "pair",
            "ranks": [first, (first + 1) % len(nodes)],
            "latency": latency * 1e-6,
            "bandwidth": bandwidth * 1e9,
        }
        lines.append("gpucluster-mpi " + json.dumps(fact))
    world = with_nodes(read_world("\n".join(lines) + "\n"), HOSTS)
    return MpiRun("mpirun", "c", nodes, 1, world, **changed)


def machine(
    check: str, name: str, source: str, expected: str, judged: Any, *, sick: bool = False
) -> CounterExample:
    return CounterExample(f"mpi.{check}", name, source, expected, judged, sick=sick)


WARNED = (
    "[1700000000.123456] [gpu01:4711 :0]  parser.c:2036 UCX  WARN  unused environment variables: UCX_HOME"
)
EACH: dict[str, Any] = {f"r{n}": {"rank": 0} for n in range(3)}
COUNTER_EXAMPLES = (
    machine("world", "host names with a domain", MPIRUN, PASSED, lambda: mpi_world.world(run())),
    machine("world", "UCX warns on stdout", UCX, PASSED, lambda: mpi_world.world(run(before=WARNED))),
    machine("world", "one rank on one node", MPIRUN, PASSED, lambda: mpi_world.world(run(nodes=("gpu01",)))),
    machine("world", "each program is a world of its own, exit 0", PMI, MONITOR,
        lambda: mpi_world.world(run(size=1, **EACH)), sick=True),
    machine("world", "a rank on a node that was not requested", MPIRUN, MONITOR, lambda: mpi_world.world(run(r2={"host": "gpu09", "node": "gpu09"})), sick=True),
    machine("world", "all ranks reported, and mpirun failed", MPIRUN, MONITOR, lambda: mpi_world.world(run(rc=139)), sick=True),
    machine("allreduce", "right on all ranks", MPIRUN, PASSED, lambda: mpi_world.allreduce(run())),
    machine("allreduce", "one rank", MPIRUN, PASSED, lambda: mpi_world.allreduce(run(nodes=("gpu01",)))),
    machine("allreduce", "three elements of one rank", UCX, MONITOR, lambda: mpi_world.allreduce(run(r1={"wrong": 3})), sick=True),
    machine("latency", "within the limit, one pair over a further switch", OSU, PASSED, lambda: checks.latency(run((1.9, 24), (2.6, 24), (2.0, 24)), 3.0)),
    machine("latency", "no limit is stated", OSU, NOT_APPLICABLE, lambda: checks.latency(run((45, 2), (44, 2), (46, 2)), None)),
    machine("latency", "one node", OSU, NOT_APPLICABLE, lambda: checks.latency(run(nodes=("gpu01",)), 3.0)),
    machine("latency", "TCP instead of InfiniBand", UCX, MONITOR, lambda: checks.latency(run((45, 2), (44, 2), (46, 2)), 3.0), sick=True),
    machine("latency", "a time of zero", OSU, MONITOR, lambda: checks.latency(run((0.0, 24), (2.0, 24), (2.0, 24)), 3.0), sick=True),
    machine("bandwidth", "above the limit", OSU, PASSED, lambda: checks.bandwidth(run((2, 24.1), (2, 23.8), (2, 24.0)), 20.0)),
    machine("bandwidth", "no limit is stated", OSU, NOT_APPLICABLE, lambda: checks.bandwidth(run((2, 1), (2, 1), (2, 1)), None)),
    machine("bandwidth", "one node below with both neighbours", OSU, MONITOR, lambda: checks.bandwidth(run((2, 9), (2, 9.5), (2, 24)), 20.0), sick=True),
    machine("bandwidth", "no number", OSU, MONITOR, lambda: checks.bandwidth(run((2, float("nan")), (2, 24), (2, 24)), 20.0), sick=True),
)  # fmt: skip


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_runs_are_judged_as_a_person_would(example: CounterExample) -> None:
    assert_as_expected(example)
