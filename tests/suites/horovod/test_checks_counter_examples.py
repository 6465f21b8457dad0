"""Healthy Horovod jobs that look broken, and broken ones that look well (docs/five-rules.md)."""

from __future__ import annotations

from typing import Any

import pytest
from counter_examples import (
    MONITOR,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
    CounterExample,
    assert_as_expected,
    name,
)
from payload_helpers import NCCL_LOG, NODES, connected, each_rank, fabric

from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.suites.horovod import checks
from pytest_gpucluster.suites.horovod.checks import Launch, World

DOCS = "https://horovod.readthedocs.io/en/stable/"
TYPES = ("float32", "float64", "float16", "int32", "int64")
FACT = {
    "size": 4,
    "local_size": 2,
    "cross_size": 2,
    "controller": "gloo",
    "interface": "ib0",
    "device": "GPU-0",
    "seconds": 0.01,
    "wrong": dict.fromkeys(TYPES, 0),
    "sent": {"0": 0, "3": 0},
    "trained": {"before": "aaaa", "after": "bbbb", "error": 3e-8},
}


def world(
    launcher: str = "srun", *, gpus: bool = True, between: str = "NET/IB/0/GDRDMA", **changed: Any
) -> World:
    """Return a job of four ranks; `rN`: values of a rank."""
    ranks = tuple(
        {
            **FACT,
            "rank": n,
            "node": NODES[n // 2],
            "local_rank": n % 2,
            "cross_rank": n // 2,
            "device": f"GPU-{n}",
            **changed.pop(f"r{n}", {}),
        }
        for n in range(4)
    )
    hosts = tuple(NODES[n // 2] for n in range(4))
    known = {
        "ranks": ranks,
        "hosts": hosts,
        "nodes": NODES,
        "gpus": gpus,
        "connections": connected(between),
        **changed,
    }
    return World(Launch("pytorch", "gloo", launcher), **known)


def trained(**values: Any) -> dict[str, Any]:
    return {"trained": {**FACT["trained"], **values}}  # type: ignore[dict-item]


def machine(
    check: str, name: str, source: str, expected: str, judged: Any, *, sick: bool = False
) -> CounterExample:
    return CounterExample(f"horovod.{check}", name, source, expected, judged, sick=sick)


COUNTER_EXAMPLES = (
    machine(
        "all_reduce",
        "one rank is a thousand times slower",
        f"{DOCS}timeline_include.html",
        PASSED,
        lambda: checks.all_reduce(world(r2={"seconds": 9.0})),
    ),
    machine(
        "all_reduce",
        "the build lacks a type: none of its elements is wrong",
        f"{DOCS}install_include.html",
        PASSED,
        lambda: checks.all_reduce(world(**each_rank({"wrong": {"float32": 0}}))),
    ),
    machine(
        "all_reduce",
        "a rank does not report",
        f"{DOCS}troubleshooting_include.html",
        NOT_CHECKED,
        lambda: checks.all_reduce(world(ranks=world().ranks[:3])),
        sick=True,
    ),
    machine(
        "all_reduce",
        "one element of one type is wrong",
        f"{DOCS}troubleshooting_include.html",
        MONITOR,
        lambda: checks.all_reduce(world(r1={"wrong": {**dict.fromkeys(TYPES, 0), "float16": 1}})),
        sick=True,
    ),
    machine(
        "broadcast", "all received", f"{DOCS}concepts_include.html", PASSED, lambda: checks.broadcast(world())
    ),
    machine(
        "broadcast",
        "the launcher is not offered here",
        f"{DOCS}running_include.html",
        NOT_APPLICABLE,
        lambda: checks.broadcast(
            world("horovodrun", obstacle=NotApplicable("ssh leads out of the container"))
        ),
    ),
    machine(
        "broadcast",
        "the data of the last rank are wrong on one rank",
        f"{DOCS}concepts_include.html",
        MONITOR,
        lambda: checks.broadcast(world(r0={"sent": {"0": 0, "3": 12}})),
        sick=True,
    ),
    machine(
        "training",
        "the order of the sum changes the last bits of the mean",
        "https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html",
        PASSED,
        lambda: checks.training(world(**each_rank(trained(error=2e-7)))),
    ),
    machine(
        "training",
        "all ranks step to the same parameters",
        f"{DOCS}pytorch.html",
        PASSED,
        lambda: checks.training(world()),
    ),
    machine(
        "training",
        "one rank keeps gradients of its own",
        f"{DOCS}pytorch.html",
        MONITOR,
        lambda: checks.training(world(r1=trained(after="cccc", error=0.4))),
        sick=True,
    ),
    machine(
        "training",
        "the error is no number on all ranks",
        f"{DOCS}pytorch.html",
        MONITOR,
        lambda: checks.training(world(**each_rank(trained(error=float("nan"))))),
        sick=True,
    ),
    machine(
        "transport",
        "jobs without GPUs",
        f"{DOCS}gpus_include.html",
        NOT_APPLICABLE,
        lambda: checks.transport("gpu01", (world(gpus=False),), fabric("NET/IB")),
    ),
    machine(
        "transport",
        "InfiniBand by NVIDIA's plugin",
        "https://github.com/Mellanox/nccl-rdma-sharp-plugins",
        PASSED,
        lambda: checks.transport("gpu01", (world(between="NET/IBext_v8/0/GDRDMA"),), fabric("NET/IB/GDRDMA")),
    ),
    machine(
        "transport",
        "horovodrun's job logs nothing, srun's does",
        f"{DOCS}running_include.html",
        PASSED,
        lambda: checks.transport(
            "gpu01", (world("horovodrun", connections=None), world()), fabric("NET/IB/GDRDMA")
        ),
    ),
    machine(
        "transport",
        "sockets",
        NCCL_LOG,
        MONITOR,
        lambda: checks.transport("gpu01", (world(between="NET/Socket/0"),), fabric("NET/IB/GDRDMA")),
        sick=True,
    ),
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_jobs_are_judged_as_a_person_would(example: CounterExample) -> None:
    assert_as_expected(example)
