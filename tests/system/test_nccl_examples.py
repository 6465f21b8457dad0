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
from paths import ROOT
from plugin_helpers import free_port, on, run_pytest

from pytest_gpucluster.kit.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.kit.payload_step import sent
from pytest_gpucluster.suites.nccl_examples import checks, payload

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.sandbox import Sandbox

SUITE = ROOT / "suites" / "nccl_examples" / "test_nccl_examples.py"


# -- the payload --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 8, 31, 32, 70])
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


def test_the_unique_id_goes_by_value_in_its_full_length() -> None:
    assert ctypes.sizeof(payload.UniqueId) == 128


def test_without_a_driver_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", sent(Path(payload.__file__)), "one-process", "127.0.0.1", "60"],
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
    assert done.returncode == 1


# -- verdicts -----------------------------------------------------------------------------------------------------


def told(**changes: dict[str, dict[str, Any]]) -> PayloadResult:
    """Return two tasks on two nodes, one GPU each; `task1={kind: facts}` changes one."""
    tasks = []
    for number, node in enumerate(("gpu01", "gpu02")):
        facts: dict[str, dict[str, Any]] = {
            "loaded": {"devices": 1, "buses": ["0000:06:00.0"]},
            "reduced": {"ranks": [[number, 2]], "wrong": [0], "init": 1.0},
            "done": {},
        }
        for kind, change in changes.get(f"task{number}", {}).items():
            facts[kind] = {**facts.get(kind, {}), **change}
        lines = tuple(
            {"nccl_examples": kind, "rank": number, "node": node, **fact} for kind, fact in facts.items()
        )
        tasks.append(PayloadTask(number, node, 0, None, lines))
    return PayloadResult("nccl_examples", ("gpu01", "gpu02"), 2, tuple(tasks))


def ended(*facts: dict[str, Any], rc: int | None = 4, signal: int | None = None) -> PayloadResult:
    """Return two tasks, of which the second printed only these facts."""
    base = told()
    lines = tuple({"rank": 1, "node": "gpu02", **fact} for fact in facts)
    return replace(base, tasks=(base.tasks[0], replace(base.tasks[1], facts=lines, rc=rc, signal=signal)))


def ranks(*seen: tuple[int, int]) -> dict[str, Any]:
    """Return what a task reduced, with its ranks as (rank, size)."""
    return {"reduced": {"ranks": [list(one) for one in seen]}}


LOADED = {"nccl_examples": "loaded", "devices": 1, "buses": ["0000:06:00.0"]}
WRONG = {"nccl_examples": "reduced", "ranks": [[1, 2]], "wrong": [5, 2], "init": 1.0}
FAILED = {"nccl_examples": "failed", "phase": "init", "reason": "no GPU"}
STUCK = {"nccl_examples": "stuck", "phase": "init", "seconds": 60.0}
LACKS = {"no_library": {"reason": "cannot open"}}
ONE, TWO = (f"nccl_examples_devices {count} GPUs" for count in (1, 2))
INIT = "nccl_examples_init 1 s"
RIGHT = "right sums on every device"
ONCE = "0 to 1 of 2, once each"
EXACT: list[tuple[Callable[[], Verdict], str, str, list[str], list[str]]] = [
    (lambda: checks.one_device(told()), "passed", "", [], [TWO, INIT]),
    (lambda: checks.one_process("gpu01", told(task0=ranks((0, 1)))), "passed", "", [], [ONE, INIT]),
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
        lambda: checks.many_devices(told(task1=LACKS)),
        "not checked",
        "no libnccl.so.2 on gpu02: cannot open (NCCL_HOME names its folder)",
        [],
        [],
    ),
    (
        lambda: checks.one_device(ended(LOADED, WRONG, {"nccl_examples": "done"}, rc=7)),
        "failed",
        "",
        [f"task 1 (gpu02): 7 elements wrong / {RIGHT}"],
        [TWO, INIT],
    ),
    (
        lambda: checks.one_device(ended(LOADED, rc=0)),
        "failed",
        "",
        [f"task 1 (gpu02): exit status 0 / {RIGHT}"],
        [TWO],
    ),
    (
        lambda: checks.one_device(ended(FAILED)),
        "failed",
        "",
        [f"task 1 (gpu02): init: no GPU / {RIGHT}"],
        [ONE],
    ),
    (
        lambda: checks.one_device(ended(STUCK)),
        "failed",
        "",
        [f"task 1 (gpu02): init: no end after 60 s / {RIGHT}"],
        [ONE],
    ),
    (
        lambda: checks.one_device(ended(rc=None, signal=11)),
        "failed",
        "",
        [f"task 1 (gpu02): ended by signal 11 (SIGSEGV) / {RIGHT}"],
        [ONE],
    ),
    (
        lambda: checks.one_device(told(task0=ranks((1, 2)))),
        "failed",
        "",
        [f"ranks: 1 of 2, 1 of 2 / {ONCE}"],
        [TWO, INIT],
    ),
    (
        lambda: checks.one_device(told(task0=ranks((0, 1)), task1=ranks((0, 1)))),
        "failed",
        "",
        [f"ranks: 0 of 1, 0 of 1 / {ONCE}"],
        [TWO, INIT],
    ),
    (
        lambda: checks.one_device(told(task0=ranks(), task1=ranks())),
        "failed",
        "",
        [f"ranks: none / {ONCE}"],
        [TWO, INIT],
    ),
    (
        lambda: checks.one_device(told(task0=ranks(*((rank, 9) for rank in range(9))))),
        "failed",
        "",
        [f"ranks: 0 of 9, 1 of 2, 1 of 9, 2 of 9, 3 of 9, 4 of 9, 5 of 9, 6 of 9 / {ONCE}"],
        [TWO, INIT],
    ),
    (
        lambda: checks.one_device(told(task1={"loaded": {"node": "gpu01"}})),
        "failed",
        "",
        ["GPU gpu01 0000:06:00.0: 2 ranks / one rank"],
        [TWO, INIT],
    ),
    (
        lambda: checks.one_device(told(task1={"reduced": {"init": 3.5}})),
        "passed",
        "",
        [],
        [TWO, "nccl_examples_init 3.5 s"],
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
