"""Healthy runs of NCCL's examples that look broken, and broken ones that look well (docs/five-rules.md)."""

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
from payload_helpers import NODES

from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.suites.nccl_examples import checks
from pytest_gpucluster.suites.nccl_examples.config import NcclExamplesConfig

EXAMPLES = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/examples.html"
SUM = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html"
FORWARD = "https://docs.nvidia.com/deploy/cuda-compatibility/"


def run(
    per_task: int,
    *,
    tasks: int = 2,
    rc: int = 0,
    wrong: int = 0,
    drop: str = "",
    buses: tuple[str, ...] = (),
    of: int = 0,
) -> PayloadResult:
    """Return a run of tasks with `per_task` GPUs each: all ranks in order, unless `of` gives each task ranks of its own."""
    found = []
    for task in range(tasks):
        node = NODES[task * len(NODES) // tasks]
        own = buses or tuple(f"0000:{task * per_task % 8 + n:02x}:00.0" for n in range(per_task))
        ranks = [[n if of else task * per_task + n, of or tasks * per_task] for n in range(per_task)]
        facts = [
            {"nccl_examples": "loaded", "rank": task, "node": node, "devices": per_task, "buses": list(own)},
            {"nccl_examples": "reduced", "rank": task, "node": node, "ranks": ranks, "wrong": [wrong] + [0] * (per_task - 1), "init": 2.0},
            {"nccl_examples": "done", "rank": task, "node": node},
        ]  # fmt: skip
        found.append(
            PayloadTask(task, node, rc, None, tuple(it for it in facts if it["nccl_examples"] != drop))
        )
    return PayloadResult("nccl_examples", NODES, tasks, tuple(found))


def none() -> PayloadResult:
    task = PayloadTask(
        0,
        "gpu01",
        1,
        None,
        (
            {
                "nccl_examples": "no_library",
                "rank": 0,
                "node": "gpu01",
                "reason": "cannot open shared object file",
            },
        ),
    )
    return PayloadResult("nccl_examples", NODES, 2, (task,))


def compiled(devices: int = 8, on: int = 8, **ran: Any) -> Any:
    fact = {
        "nccl_examples": "ran",
        "tool": "nvcc",
        "node": "gpu01",
        "error": "",
        "devices": on,
        "wrong": 0,
        **ran,
    }
    built = PayloadResult("nccl_examples", NODES, 1, (PayloadTask(0, "gpu01", 0, None, (fact,)),))
    return lambda: checks.compiled_run("gpu01", built, NcclExamplesConfig(toolchain=("nvcc",)), devices)


def machine(
    check: str, name: str, source: str, expected: str, judged: Any, *, sick: bool = False
) -> CounterExample:
    return CounterExample(f"nccl_examples.{check}", name, source, expected, judged, sick=sick)


COUNTER_EXAMPLES = (
    machine("one_process", "a node with one GPU", EXAMPLES, PASSED, lambda: checks.one_process("gpu01", run(1, tasks=1))),
    machine("one_process", "no libnccl on the node", EXAMPLES, NOT_CHECKED, lambda: checks.one_process("gpu01", none())),
    machine("one_process", "one element is wrong", EXAMPLES, MONITOR, lambda: checks.one_process("gpu01", run(8, tasks=1, wrong=1, drop="done")), sick=True),
    machine("one_device", "the same PCI addresses on both nodes", EXAMPLES, PASSED, lambda: checks.one_device(run(1, tasks=16))),
    machine("one_device", "two nodes with a GPU each", EXAMPLES, PASSED, lambda: checks.one_device(run(1))),
    machine("one_device", "two tasks of a node share a GPU", SUM, MONITOR, lambda: checks.one_device(run(1, tasks=4, buses=("0000:1a:00.0",))), sick=True),
    machine("one_device", "each task has a communicator of its own", SUM, MONITOR, lambda: checks.one_device(run(1, of=1)), sick=True),
    machine("many_devices", "two nodes with eight GPUs", EXAMPLES, PASSED, lambda: checks.many_devices(run(8))),
    machine("many_devices", "two nodes with four GPUs", EXAMPLES, PASSED, lambda: checks.many_devices(run(4))),
    machine("many_devices", "all sums are wrong, and each process ends with 0", SUM, MONITOR, lambda: checks.many_devices(run(8, wrong=3)), sick=True),
    machine("many_devices", "a process did not end its work", SUM, MONITOR, lambda: checks.many_devices(run(8, drop="reduced", rc=1)), sick=True),
    machine("compiled_run", "right on all GPUs", FORWARD, PASSED, compiled()),
    machine("compiled_run", "simulated GPUs", EXAMPLES, NOT_APPLICABLE, compiled(0)),
    machine("compiled_run", "it did not compile", FORWARD, NOT_CHECKED, compiled(tool="cmake")),
    machine("compiled_run", "the driver is too old", FORWARD, MONITOR, compiled(error="CUDA driver version is insufficient for CUDA runtime version"), sick=True),
    machine("compiled_run", "it ran on seven of eight GPUs", FORWARD, MONITOR, compiled(on=7), sick=True),
)  # fmt: skip


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_runs_are_judged_as_a_person_would(example: CounterExample) -> None:
    assert_as_expected(example)
