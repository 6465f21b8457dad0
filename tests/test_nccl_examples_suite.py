"""The nccl_examples suite: data and unique id of the payload for real, verdicts on plain facts, and no GPUs."""

from __future__ import annotations

import array
import ctypes
import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import spelled
from plugin_helpers import free_port, on, run_pytest

from pytest_gpucluster.core.check import Outcome, Verdict
from pytest_gpucluster.kit.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.kit.payload_step import sent
from pytest_gpucluster.suites.nccl_examples import checks, payload

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.sandbox import Sandbox

SUITE = Path(__file__).parents[1] / "suites" / "nccl_examples" / "test_nccl_examples.py"


# -- the payload --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 8, 31, 32, 70])
def test_the_closed_form_is_the_sum_of_all_ranks(size: int) -> None:
    count = 100
    ranks = [array.array("f", payload.data(rank, count)) for rank in range(size)]
    sums = array.array("f", payload.summed(size, count))
    assert list(sums) == [sum(column) for column in zip(*ranks, strict=True)]
    assert len(sums) == count


def test_every_wrong_element_is_counted() -> None:
    good = payload.summed(4, 100)
    bad = array.array("f", good)
    bad[7] += 1
    bad[99] = float("nan")
    assert payload.wrong_elements(good, good) == 0
    assert payload.wrong_elements(bad.tobytes(), good) == 2


def test_the_unique_id_reaches_every_task_that_asks() -> None:
    unique = bytes(range(payload.ID_BYTES))
    port = free_port()
    got: list[bytes] = []
    asking = [
        threading.Thread(target=lambda: got.append(payload.fetch("127.0.0.1", port, 20))) for _ in range(3)
    ]
    for thread in asking:  # before there is anything to ask
        thread.start()
    payload.share("127.0.0.1", port, unique, 3, 20)
    for thread in asking:
        thread.join(20)
    assert got == [unique] * 3


def test_a_task_that_never_asks_is_counted() -> None:
    port = free_port()
    with pytest.raises(RuntimeError, match="only 0 of 2 other tasks"):
        payload.share("127.0.0.1", port, b"", 2, 0.3)


def test_the_unique_id_goes_by_value_in_its_full_length() -> None:
    assert ctypes.sizeof(payload.UniqueId) == 128


def test_without_a_driver_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", sent(Path(payload.__file__)), "one-process"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode == 0:
        pytest.skip("this machine has GPUs")
    (fact,) = (json.loads(line) for line in done.stdout.splitlines())
    assert fact["nccl_examples"] == "failed"
    assert fact["phase"] == "load the libraries"
    assert done.returncode == payload.EXIT_FAILED


# -- verdicts -----------------------------------------------------------------------------------------------------


def told(**changes: dict[str, dict[str, Any]]) -> PayloadResult:
    """Return two tasks on two nodes, one GPU each; `task1={kind: facts}` changes one."""
    tasks = []
    for number, node in enumerate(("gpu01", "gpu02")):
        facts: dict[str, dict[str, Any]] = {
            "loaded": {"devices": 1, "buses": ["0000:06:00.0"]},
            "reduced": {"ranks": [{"rank": number, "size": 2}], "wrong": [0], "init": 1.0},
            "done": {},
        }
        for kind, change in changes.get(f"task{number}", {}).items():
            facts[kind] = {**facts.get(kind, {}), **change}
        lines = tuple(
            {"nccl_examples": kind, "rank": number, "node": node, **fact} for kind, fact in facts.items()
        )
        tasks.append(PayloadTask(number, node, 0, None, lines))
    return PayloadResult("nccl_examples", ("gpu01", "gpu02"), 2, tuple(tasks))


def found(verdict: Verdict) -> str:
    return " | ".join(f"{x.part}: {x.measured}" for x in verdict.findings)


def test_a_healthy_run_passes() -> None:
    verdict = checks.one_device(told())
    assert verdict.outcome is Outcome.PASSED, verdict


def test_wrong_data_singletons_and_shared_devices_fail() -> None:
    wrong = told(task1={"reduced": {"wrong": [5]}})
    wrong = replace(wrong, tasks=(wrong.tasks[0], replace(wrong.tasks[1], rc=payload.EXIT_WRONG)))
    assert found(checks.one_device(wrong)) == "task 1 (gpu02): 5 elements wrong"
    alone = {"reduced": {"ranks": [{"rank": 0, "size": 1}]}}
    assert found(checks.one_device(told(task0=alone, task1=alone))) == "ranks: 0 of 1, 0 of 1"
    shared = told(task1={"loaded": {"node": "gpu01"}})
    assert found(checks.one_device(shared)) == "GPU gpu01 0000:06:00.0: 2 ranks"


def test_a_hang_and_a_crash_are_named() -> None:
    base = told()
    stuck = {"nccl_examples": "stuck", "rank": 0, "node": "gpu01", "phase": "all-reduce", "seconds": 60.0}
    crash = replace(base.tasks[1], facts=(), rc=139, signal=11)
    broken = replace(base, tasks=(replace(base.tasks[0], rc=4, facts=(stuck,)), crash))
    said = found(checks.many_devices(broken))
    assert "task 0 (gpu01): all-reduce: no end after 60 s" in said
    assert "task 1 (gpu02): ended by signal 11 (SIGSEGV)" in said


def test_without_libnccl_nothing_is_checked() -> None:
    lacks = {
        "failed": {"phase": "load libnccl", "reason": "cannot open shared object file", "library": False}
    }
    verdict = checks.one_device(told(task1=lacks))
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert verdict.reason.startswith("no libnccl.so.2 on gpu02")


def test_silence_is_a_failure() -> None:
    silent = replace(told(), tasks=())
    assert checks.one_process("gpu01", silent).outcome is Outcome.FAILED
    assert checks.one_device(silent).outcome is Outcome.FAILED


EXACT: list[tuple[Callable[[], Verdict], str, str, list[str], list[str]]] = [
    (
        lambda: checks.one_device(told()),
        "passed",
        "",
        [],
        ["nccl_examples_devices 2 GPUs", "nccl_examples_init 1 s"],
    ),
    (
        lambda: checks.one_process(
            "gpu01", replace(told(task0={"reduced": {"ranks": [{"rank": 0, "size": 1}]}}))
        ),
        "passed",
        "",
        [],
        ["nccl_examples_devices 1 GPUs", "nccl_examples_init 1 s"],
    ),
    (
        lambda: checks.one_process("gpu03", told()),
        "failed",
        "",
        ["tasks: no task started there / every task starts"],
        [],
    ),
    (
        lambda: checks.one_device(replace(told(), tasks=())),
        "failed",
        "",
        ["tasks: none started / every task starts"],
        [],
    ),
    (
        lambda: checks.one_device(replace(told(), tasks=(), problem="refused")),
        "failed",
        "",
        ["tasks: refused / every task starts"],
        [],
    ),
    (
        lambda: checks.many_devices(
            told(task1={"failed": {"phase": "load libnccl", "reason": "cannot open", "library": False}})
        ),
        "not checked",
        "no libnccl.so.2 on gpu02: cannot open (NCCL_HOME names its folder)",
        [],
        [],
    ),
    (
        lambda: checks.one_device(
            replace(
                told(task1={"reduced": {"wrong": [5, 2]}}),
                tasks=(told().tasks[0], replace(told(task1={"reduced": {"wrong": [5, 2]}}).tasks[1], rc=1)),
            )
        ),
        "failed",
        "",
        ["task 1 (gpu02): 7 elements wrong / right sums on every device"],
        ["nccl_examples_devices 2 GPUs", "nccl_examples_init 1 s"],
    ),
    (
        lambda: checks.one_device(
            replace(
                told(), tasks=(told().tasks[0], replace(told().tasks[1], facts=told().tasks[1].facts[:1]))
            )
        ),
        "failed",
        "",
        ["task 1 (gpu02): exit status 0 / right sums on every device"],
        ["nccl_examples_devices 2 GPUs"],
    ),
    (
        lambda: checks.one_device(
            replace(
                told(),
                tasks=(
                    told().tasks[0],
                    replace(
                        told().tasks[1],
                        rc=4,
                        facts=({"nccl_examples": "failed", "phase": "init", "reason": "no GPU"},),
                    ),
                ),
            )
        ),
        "failed",
        "",
        ["task 1 (gpu02): init: no GPU / right sums on every device"],
        ["nccl_examples_devices 1 GPUs"],
    ),
    (
        lambda: checks.one_device(
            replace(
                told(),
                tasks=(
                    told().tasks[0],
                    replace(
                        told().tasks[1],
                        rc=4,
                        facts=({"nccl_examples": "stuck", "phase": "init", "seconds": 60.0},),
                    ),
                ),
            )
        ),
        "failed",
        "",
        ["task 1 (gpu02): init: no end after 60 s / right sums on every device"],
        ["nccl_examples_devices 1 GPUs"],
    ),
    (
        lambda: checks.one_device(
            replace(told(), tasks=(told().tasks[0], replace(told().tasks[1], rc=None, signal=11, facts=())))
        ),
        "failed",
        "",
        ["task 1 (gpu02): ended by signal 11 (SIGSEGV) / right sums on every device"],
        ["nccl_examples_devices 1 GPUs"],
    ),
    (
        lambda: checks.one_device(told(task0={"reduced": {"ranks": [{"rank": 1, "size": 2}]}})),
        "failed",
        "",
        ["ranks: 1 of 2, 1 of 2 / 0 to 1 of 2, once each"],
        ["nccl_examples_devices 2 GPUs", "nccl_examples_init 1 s"],
    ),
    (
        lambda: checks.one_device(told(task0={"reduced": {"ranks": []}}, task1={"reduced": {"ranks": []}})),
        "failed",
        "",
        ["ranks: none / 0 to 1 of 2, once each"],
        ["nccl_examples_devices 2 GPUs", "nccl_examples_init 1 s"],
    ),
    (
        lambda: checks.one_device(
            told(task0={"reduced": {"ranks": [{"rank": n, "size": 9} for n in range(9)]}})
        ),
        "failed",
        "",
        ["ranks: 0 of 9, 1 of 2, 1 of 9, 2 of 9, 3 of 9, 4 of 9, 5 of 9, 6 of 9 / 0 to 1 of 2, once each"],
        ["nccl_examples_devices 2 GPUs", "nccl_examples_init 1 s"],
    ),
    (
        lambda: checks.one_device(told(task1={"loaded": {"node": "gpu01"}})),
        "failed",
        "",
        ["GPU gpu01 0000:06:00.0: 2 ranks / one rank"],
        ["nccl_examples_devices 2 GPUs", "nccl_examples_init 1 s"],
    ),
    (
        lambda: checks.one_device(told(task1={"reduced": {"init": 3.5}})),
        "passed",
        "",
        [],
        ["nccl_examples_devices 2 GPUs", "nccl_examples_init 3.5 s"],
    ),
]


@pytest.mark.parametrize(("judge", "outcome", "reason", "findings", "metrics"), EXACT)
def test_verdicts_to_the_letter(
    judge: Callable[[], Verdict], outcome: str, reason: str, findings: list[str], metrics: list[str]
) -> None:
    assert spelled(judge()) == (outcome, reason, findings, metrics)


def test_simulated_gpus_are_not_applicable(sandbox: Sandbox, tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path, on(sandbox), "-p", "no:cacheprovider", "-v", "--nodes=gpu[01-02]", where=(str(SUITE),)
    )
    assert set(done.outcomes.values()) == {"not applicable"}
    assert "simulated GPUs run no NCCL" in done.out
