"""Healthy Horovod jobs that look broken, and broken ones that look well (docs/five-rules.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Check

TYPES = ("float32", "float64", "float16", "int32", "int64")
FACT: dict[str, Any] = {
    "size": 4,
    "local_size": 2,
    "cross_size": 2,
    "controller": "gloo",
    "interface": "ib0",
    "seconds": 0.01,
    "wrong": dict.fromkeys(TYPES, 0),
    "sent": {"0": 0, "3": 0},
    "trained": {"before": "aaaa", "after": "bbbb", "error": 3e-8},
}


def world(
    launcher: str = "srun", *, gpus: bool = True, between: str = "NET/IB/0/GDRDMA", **changed: Any
) -> World:
    """Return a job of four ranks; `rN`: values of a rank."""
    hosts = tuple(NODES[n // 2] for n in range(4))
    places = [
        {"rank": n, "node": hosts[n], "local_rank": n % 2, "cross_rank": n // 2, "device": f"GPU-{n}"}
        for n in range(4)
    ]
    ranks = tuple({**FACT, **place, **changed.pop(f"r{n}", {})} for n, place in enumerate(places))
    known: dict[str, Any] = {"ranks": ranks, "hosts": hosts, "nodes": NODES, "gpus": gpus}
    known |= {"connections": connected(between), **changed}
    return World(Launch("pytorch", "gloo", launcher), **known)


def trained(**values: Any) -> dict[str, Any]:
    return {"trained": {**FACT["trained"], **values}}


def machine(
    check: Check[...], words: str, source: str, expected: str, *facts: Any, sick: bool = False
) -> CounterExample:
    return CounterExample(check.name, words, source, expected, lambda: check(*facts), sick)


def page(name: str) -> str:
    return f"https://horovod.readthedocs.io/en/stable/{name}.html"


SUMS = "https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html"
PLUGIN = "https://github.com/Mellanox/nccl-rdma-sharp-plugins"
TROUBLE, CONCEPTS, TORCH = page("troubleshooting_include"), page("concepts_include"), page("pytorch")
IB = fabric("NET/IB/GDRDMA")
FEW_TYPES = world(**each_rank({"wrong": {"float32": 0}}))
WRONG = world(r1={"wrong": {**dict.fromkeys(TYPES, 0), "float16": 1}})
NOT_OFFERED = world("horovodrun", obstacle=NotApplicable("ssh leads out of the container"))
QUIET = (world("horovodrun", connections=None), world())
NO_NUMBER = world(**each_rank(trained(error=float("nan"))))
reduce, broadcast, training, transport = (
    checks.all_reduce,
    checks.broadcast,
    checks.training,
    checks.transport,
)
COUNTER_EXAMPLES = (
    machine(reduce, "one slow rank", page("timeline_include"), PASSED, world(r2={"seconds": 9.0})),
    machine(reduce, "the build lacks a type", page("install_include"), PASSED, FEW_TYPES),
    machine(reduce, "a rank is silent", TROUBLE, NOT_CHECKED, world(ranks=world().ranks[:3]), sick=True),
    machine(reduce, "one element of one type is wrong", TROUBLE, MONITOR, WRONG, sick=True),
    machine(broadcast, "all received", CONCEPTS, PASSED, world()),
    machine(
        broadcast, "a launcher that is not offered", page("running_include"), NOT_APPLICABLE, NOT_OFFERED
    ),
    machine(broadcast, "wrong data", CONCEPTS, MONITOR, world(r0={"sent": {"0": 0, "3": 12}}), sick=True),
    machine(training, "the order of the sum", SUMS, PASSED, world(**each_rank(trained(error=2e-7)))),
    machine(training, "all ranks step to the same parameters", TORCH, PASSED, world()),
    machine(training, "own gradients", TORCH, MONITOR, world(r1=trained(after="c", error=0.4)), sick=True),
    machine(training, "the error is no number on all ranks", TORCH, MONITOR, NO_NUMBER, sick=True),
    machine(transport, "no GPUs", page("gpus_include"), NOT_APPLICABLE, "gpu01", (world(gpus=False),), IB),
    machine(transport, "plugin", PLUGIN, PASSED, "gpu01", (world(between="NET/IBext_v8/0/GDRDMA"),), IB),
    machine(transport, "one job logs nothing", page("running_include"), PASSED, "gpu01", QUIET, IB),
    machine(
        transport, "sockets", NCCL_LOG, MONITOR, "gpu01", (world(between="NET/Socket/0"),), IB, sick=True
    ),
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_jobs_are_judged_as_a_person_would(example: CounterExample) -> None:
    assert_as_expected(example)
