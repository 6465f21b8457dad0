"""Data and unique id of the payload of nccl_examples for real, and its checks on plain facts."""

from __future__ import annotations

import array
import ctypes
import json
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from constants import with_constants
from counter_examples import CounterExample
from framework_helpers import Table, decided
from nccl_examples_helpers import toolchain
from sandbox_helpers import free_port
from suite_helpers import considered

from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.kit.framework.payload_step import command, sent
from pytest_gpucluster.suites.nccl_examples import checks, payload, payload_compile
from pytest_gpucluster.suites.nccl_examples.config import NcclExamplesConfig

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict


# -- the payload --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 31, 32, 70])
def test_the_closed_form_is_the_sum_of_all_ranks(size: int) -> None:
    count = 100
    ranks = [array.array("f", payload.summed([rank], count)) for rank in range(size)]
    sums = array.array("f", payload.summed(range(size), count))
    assert list(sums) == [sum(column) for column in zip(*ranks, strict=True)]
    assert len(sums) == count


def test_every_wrong_element_is_counted() -> None:
    good = payload.summed(range(4), 100)
    bad = array.array("f", good)
    bad[7] += 1
    bad[99] = float("nan")
    assert payload.wrong_elements(good, good) == 0
    assert payload.wrong_elements(bad.tobytes(), good) == 2


def test_the_unique_id_reaches_every_task_that_asks() -> None:
    unique = bytes(range(payload.ID_BYTES))
    port = free_port()
    got: list[bytes] = []
    asking = [threading.Thread(target=lambda: got.append(payload.fetch("127.0.0.1", port))) for _ in range(3)]
    for thread in asking:  # before there is anything to ask
        thread.start()
    payload.share(port, unique, 3)
    for thread in asking:
        thread.join(20)
    assert got == [unique] * 3
    assert ctypes.sizeof(payload.UniqueId) == 128  # it goes by value in its full length


def test_without_a_driver_it_says_so() -> None:
    words = [sys.executable, "-c", sent(Path(payload.__file__)), "one-process", "127.0.0.1", "60"]
    done = subprocess.run(words, capture_output=True, check=False)
    if done.returncode == 0:
        pytest.skip("this machine has GPUs")
    (fact,) = (json.loads(line) for line in done.stdout.splitlines())
    assert (fact["nccl_examples"], fact["phase"], done.returncode) == ("failed", "load the libraries", 1)


# -- verdicts -----------------------------------------------------------------------------------------------------


NODES = ("gpu01", "gpu02")


def run(
    per_task: int = 1, *, tasks: int = 2, rc: int = 0, wrong: int = 0, drop: str = "", of: int = 0, shared: bool = False
) -> PayloadResult:
    """Return a run of tasks with `per_task` GPUs each.

    All ranks are in order, unless `of` gives each task ranks of its own; `shared`: all tasks of a node have one GPU.
    """
    found = []
    for task in range(tasks):
        place = task * per_task % 8
        ranks = [[n if of else task * per_task + n, of or tasks * per_task] for n in range(per_task)]
        facts: dict[str, dict[str, Any]] = {
            "loaded": {
                "devices": per_task,
                "buses": [f"0000:{6 if shared else place + n:02x}:00.0" for n in range(per_task)],
            },
            "reduced": {"ranks": ranks, "wrong": [wrong] + [0] * (per_task - 1), "init": 1.0},
            "done": {},
        }
        node = NODES[task * len(NODES) // tasks]
        common = {"rank": task, "node": node}
        lines = tuple({"nccl_examples": kind, **common, **it} for kind, it in facts.items() if kind != drop)
        found.append(PayloadTask(task, node, rc, None, lines))
    return PayloadResult("nccl_examples", NODES, tasks, tuple(found))


def ended(*facts: dict[str, Any], rc: int | None = 4, signal: int | None = None) -> PayloadResult:
    """Return two tasks, of which the second printed only these facts."""
    base = run()
    lines = tuple({"rank": 1, "node": "gpu02", **fact} for fact in facts)
    return replace(base, tasks=(base.tasks[0], replace(base.tasks[1], facts=lines, rc=rc, signal=signal)))


def ranks(*of_tasks: list[tuple[int, int]]) -> PayloadResult:
    """Return two tasks that reduced as these ranks, each (rank, size)."""
    base = run()
    tasks = []
    for task, seen in zip(base.tasks, of_tasks, strict=True):
        facts = [
            {**fact, "ranks": [list(one) for one in seen]} if fact["nccl_examples"] == "reduced" else fact
            for fact in task.facts
        ]
        tasks.append(replace(task, facts=tuple(facts)))
    return replace(base, tasks=tuple(tasks))


LOADED = {"nccl_examples": "loaded", "devices": 1, "buses": ["0000:06:00.0"]}
WRONG = {"nccl_examples": "reduced", "ranks": [[1, 2]], "wrong": [5, 2], "init": 1.0}
STUCK = {"nccl_examples": "stuck", "phase": "init", "seconds": 60.0}
LACKS = {"nccl_examples": "no_library", "reason": "cannot open shared object file"}


def of_toolchain(*facts: dict[str, Any], rc: int = 0) -> PayloadResult:
    """Return what one node reported of its toolchain."""
    lines = tuple({"rank": 0, "node": "gpu01", "error": "", **fact} for fact in facts)
    return PayloadResult("nccl_examples", ("gpu01",), 1, (PayloadTask(0, "gpu01", rc, None, lines),))


BUILT = {"nccl_examples": "built", "tool": "nvcc", "seconds": 6.0}
RAN = {"nccl_examples": "ran", "tool": "nvcc", "devices": 8, "wrong": 0}
ONLY = with_constants(NcclExamplesConfig, {"toolchain": ("nvcc",)})
NOT_BUILT, SILENT = of_toolchain({**BUILT, "error": "no nvcc", "what": "absent"}), of_toolchain(rc=137)


def ran(**changed: Any) -> PayloadResult:
    return of_toolchain(BUILT, {**RAN, **changed})


CASES: Table = {
    checks.compiled: [
        ("passed: nvcc [6]", "gpu01", ran(), ONLY),
        ("configure: nvcc absent", "gpu01", NOT_BUILT, ONLY),
        ("configure: nvcc exit_status [0, 137]", "gpu01", SILENT, ONLY),
    ],
    checks.compiled_run: [
        ("passed", "gpu01", ran(), ONLY, 8),
        ("not checked", "gpu01", NOT_BUILT, ONLY, 8),
        ("monitor: program of nvcc wrong_data [3, 8]", "gpu01", ran(wrong=3), ONLY, 8),
        ("monitor: program of nvcc other_devices [7, 8]", "gpu01", ran(devices=7), ONLY, 8),
        ("monitor: program of nvcc failed [1]", "gpu01", ran(error="exit 1", what="failed"), ONLY, 8),
    ],
    checks.one_device: [
        ("passed [2, 1]", run()),
        ("monitor: tasks not_started", replace(run(), tasks=())),
        ("monitor: gpu02 task 1 wrong_data [7, 2, 1]", ended(LOADED, WRONG, {"nccl_examples": "done"}, rc=7)),
        ("monitor: gpu02 task 1 no_message [2]", ended(LOADED, rc=0)),
        ("monitor: gpu02 task 1 stuck [60, 1]", ended(STUCK)),
        ("monitor: gpu02 task 1 killed [11, 1]", ended(rc=None, signal=11)),
    ],
    checks.one_process: [("passed [1, 1]", "gpu01", run(tasks=1)), ("monitor: tasks no_task", "gpu03", run())],
    checks.many_devices: [("not checked", ended(LACKS))],
}


def compiled(folder: Path, tools: str = "nvcc,cmake", limit: str = "20", **env: str) -> list[dict[str, Any]]:
    """Run the payload as a step does; return its facts without the last, and check that no folder stays."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    argv = command(sys.executable, Path(payload_compile.__file__), tools, limit, "1")
    printed = subprocess.check_output(argv, env={"TMPDIR": str(temporary), **env}, text=True)
    assert not list(temporary.iterdir())
    facts = [json.loads(line) for line in printed.splitlines()]
    assert facts.pop()["nccl_examples"] == "done"
    return facts


def test_the_example_is_compiled_and_run_by_both_tools(tmp_path: Path) -> None:
    facts = compiled(tmp_path, **toolchain(tmp_path))
    told = [(fact["tool"], fact["nccl_examples"], fact["error"]) for fact in facts]
    assert told == [(tool, kind, "") for tool in ("nvcc", "cmake") for kind in ("built", "ran")]
    assert (facts[1]["devices"], facts[1]["wrong"]) == (8, 0)


@pytest.mark.parametrize(
    ("case", "error"),
    [
        ("echo 'example.cu(9): error: no ncclComm_t'; exit 2", "exit 2: example.cu(9): error: no ncclComm_t"),
        ("sleep 100 & wait", "nvcc did not end within 1 s"),
    ],
)
def test_what_nvcc_reports_is_the_error(tmp_path: Path, case: str, error: str) -> None:
    (fact,) = compiled(tmp_path, "nvcc", "1", **toolchain(tmp_path, case))
    assert fact["error"].endswith(error)


test_each_case_has_its_verdict = decided(CASES)


# -- healthy runs that look broken, and broken ones that look well (docs/how-it-decides.md) ---------------------------

EXAMPLES = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/examples.html"
SUM = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html"
FORWARD = "https://docs.nvidia.com/deploy/cuda-compatibility/"
OLD = "CUDA driver version is insufficient for CUDA runtime version"
of_gpu01 = partial(checks.one_process, "gpu01")


def ran_on(devices: int, **changed: Any) -> Verdict:
    return checks.compiled_run("gpu01", ran(**changed), ONLY, devices)


# machine, source, expected, check, what it is given
ROWS: list[tuple[Any, ...]] = [
    ("a node with one GPU", EXAMPLES, "passed", of_gpu01, run(tasks=1)),
    ("no libnccl on the node", EXAMPLES, "not checked", checks.one_process, "gpu02", ended(LACKS)),
    ("one element is wrong", EXAMPLES, "monitor", of_gpu01, run(8, tasks=1, wrong=1, drop="done")),
    ("the same PCI addresses on both nodes", EXAMPLES, "passed", checks.one_device, run(tasks=16)),
    ("two tasks of a node share a GPU", SUM, "monitor", checks.one_device, run(tasks=4, shared=True)),
    ("each task has a communicator of its own", SUM, "monitor", checks.one_device, run(of=1)),
    ("two nodes with eight GPUs", EXAMPLES, "passed", checks.many_devices, run(8)),
    ("all sums are wrong, and each ends with 0", SUM, "monitor", checks.many_devices, run(8, wrong=3)),
    ("a process did not end its work", SUM, "monitor", checks.many_devices, run(8, drop="reduced", rc=1)),
    ("right on all GPUs", FORWARD, "passed", ran_on, 8),
    ("simulated GPUs", EXAMPLES, "not applicable", ran_on, 0),
    ("the driver is too old", FORWARD, "monitor", partial(ran_on, error=OLD, what="failed"), 8),
]
COUNTER_EXAMPLES = [
    CounterExample(check(*given).check, machine, source, expected, partial(check, *given), sick=expected == "monitor")
    for machine, source, expected, check, *given in ROWS
]
test_runs_are_judged_as_a_person_would = considered(COUNTER_EXAMPLES)
