"""Healthy runs of TensorFlow's strategies that look broken, and broken ones that look well (docs/five-rules.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import MONITOR, NOT_CHECKED, PASSED, CounterExample, assert_as_expected, name
from payload_helpers import each_rank, step

from pytest_gpucluster.kit.framework.payload_result import PayloadResult
from pytest_gpucluster.suites.tensorflow import checks

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Check

GUIDE = "https://www.tensorflow.org/guide/distributed_training"
WORKERS = "https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras"
WORK = (
    {"tensorflow": "loaded", "gpus": 1, "version": "2.21.0", "python": "/opt/tf/bin/python", "seconds": 9.0},
    {"tensorflow": "joined", "replicas": 4, "seconds": 3.0},
    {"tensorflow": "reduced", "wrong": 0},
    {"tensorflow": "trained", "before": "aaaa", "after": "bbbb", "losses": [2.0, 1.0]},
    {"tensorflow": "done"},
)


def work(**changed: Any) -> PayloadResult:
    return step("tensorflow", WORK, **changed)


def one(replicas: int = 8, **changed: Any) -> PayloadResult:
    """Return the step of one process per node with all its GPUs."""
    own = {"joined": {"replicas": replicas}, **changed.pop("r0", {})}
    return step("tensorflow", WORK, ranks=1, r0=own, **changed)


def machine(
    check: Check[...], words: str, source: str, expected: str, *facts: Any, sick: bool = False
) -> CounterExample:
    return CounterExample(check.name, words, source, expected, lambda: check(*facts), sick)


def trained(**values: Any) -> dict[str, Any]:
    return {"trained": values}


CUDNN = work(ends={1: {"error": "E0000 cuda_dnn.cc:8579] Unable to register cuDNN factory"}})
GONE = dict.fromkeys(("joined", "reduced", "trained", "done"))
ABSENT = work(r2={**GONE, "stuck": {"phase": "join", "seconds": 100}}, ends={2: {"rc": 137, "signal": 9}})
SINGLE = work(**each_rank({"joined": {"replicas": 1}}))
mirrored, workers, equal = checks.mirrored, checks.workers, checks.equal
COUNTER_EXAMPLES = (
    machine(mirrored, "eight replicas on eight GPUs", GUIDE, PASSED, "gpu01", one(), 8),
    machine(mirrored, "two replicas on logical CPUs", GUIDE, PASSED, "gpu01", one(2), 2),
    machine(mirrored, "the loss rises", GUIDE, PASSED, "gpu01", one(r0=trained(losses=[1.0, 3.0])), 8),
    machine(mirrored, "one GPU is not found", GUIDE, MONITOR, "gpu01", one(7), 8, sick=True),
    machine(mirrored, "replicas differ", GUIDE, MONITOR, "gpu01", one(r0=trained(after="")), 8, sick=True),
    machine(workers, "one worker joins late", WORKERS, PASSED, work(r3={"joined": {"seconds": 90.0}}), 1),
    machine(workers, "a worker warns on stderr and ends with 0", WORKERS, PASSED, CUDNN, 1),
    machine(workers, "a worker does not join", WORKERS, MONITOR, ABSENT, 1, sick=True),
    machine(workers, "each worker is alone", WORKERS, MONITOR, SINGLE, 1, sick=True),
    machine(equal, "losses differ: the data do", WORKERS, PASSED, work(r1=trained(losses=[0.5, 0.4]))),
    machine(equal, "no worker trained", WORKERS, NOT_CHECKED, work(**each_rank({"trained": None}))),
    machine(equal, "one worker differs", WORKERS, MONITOR, work(r1=trained(after="cccc")), sick=True),
    machine(equal, "no numbers", WORKERS, MONITOR, work(r1=trained(losses=[float("nan")])), sick=True),
)


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_runs_are_judged_as_a_person_would(example: CounterExample) -> None:
    assert_as_expected(example)
