"""Data and unique id of the payload of nccl_examples for real, and its checks on plain facts."""

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
from framework_helpers import Table, rows_of, told
from nccl_examples_helpers import toolchain
from sandbox_helpers import free_port

from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.kit.framework.payload_step import command, sent
from pytest_gpucluster.suites.nccl_examples import checks, payload, payload_compile
from pytest_gpucluster.suites.nccl_examples.config import NcclExamplesConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict


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


def reported(**changes: dict[str, dict[str, Any]]) -> PayloadResult:
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
    base = reported()
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
RIGHT = "right sums on every device"
ONCE = "0 to 1 of 2, once each"


def of_toolchain(*facts: dict[str, Any], silent: bool = False) -> PayloadResult:
    """Return what one node reported of its toolchain."""
    lines = tuple({"rank": 0, "node": "gpu01", "error": "", **fact} for fact in facts)
    rc = 137 if silent else 0
    task = PayloadTask(0, "gpu01", rc, None, lines)
    return PayloadResult("nccl_examples", ("gpu01",), 1, (task,))


BUILT = {"nccl_examples": "built", "tool": "nvcc", "seconds": 6.0}
RAN = {"nccl_examples": "ran", "tool": "nvcc", "devices": 8, "wrong": 0}
ONLY = NcclExamplesConfig(toolchain=("nvcc",))


CASES: Table = {
    checks.compiled: [
        ("passed: nvcc [6]", "gpu01", of_toolchain(BUILT, RAN), ONLY),
        ("configure: nvcc", "gpu01", of_toolchain({**BUILT, "error": "no nvcc"}), ONLY),
        ("configure: nvcc [0, 137]", "gpu01", of_toolchain(silent=True), ONLY),
    ],
    checks.compiled_run: [
        ("passed", "gpu01", of_toolchain(BUILT, RAN), ONLY, 8),
        ("not checked", "gpu01", of_toolchain({**BUILT, "error": "no nvcc"}), ONLY, 8),
        ("not checked", "gpu01", of_toolchain(silent=True), ONLY, 8),
        ("monitor: program of nvcc [3, 8, 0, 8]", "gpu01", of_toolchain(BUILT, {**RAN, "wrong": 3}), ONLY, 8),
        (
            "monitor: program of nvcc [0, 7, 0, 8]",
            "gpu01",
            of_toolchain(BUILT, {**RAN, "devices": 7}),
            ONLY,
            8,
        ),
        ("monitor: program of nvcc [1]", "gpu01", of_toolchain(BUILT, {**RAN, "error": "exit 1"}), ONLY, 8),
        ("not applicable", "gpu01", of_toolchain(BUILT, RAN), ONLY, 0),
    ],
    checks.one_device: [
        ("passed [2, 1]", reported()),
        ("monitor: tasks", replace(reported(), tasks=())),
        ("monitor: tasks", replace(reported(), tasks=(), problem="refused")),
        ("monitor: task 1 (gpu02) [7, 2, 1]", ended(LOADED, WRONG, {"nccl_examples": "done"}, rc=7)),
        ("monitor: task 1 (gpu02) [0, 2]", ended(LOADED, rc=0)),
        ("monitor: task 1 (gpu02) [1]", ended(FAILED)),
        ("monitor: task 1 (gpu02) [60, 1]", ended(STUCK)),
        ("monitor: task 1 (gpu02) [11, 1]", ended(rc=None, signal=11)),
        ("monitor: ranks [1, 2, 1, 2, 0, 1, 2, 2, 1]", reported(task0=ranks((1, 2)))),
        ("monitor: ranks [0, 1, 0, 1, 0, 1, 2, 2, 1]", reported(task0=ranks((0, 1)), task1=ranks((0, 1)))),
        ("monitor: ranks [0, 1, 2, 2, 1]", reported(task0=ranks(), task1=ranks())),
        (
            "monitor: ranks [0, 9, 1, 2, 1, 9, 2, 9, 3, 9, 4, 9, 5, 9, 6, 9, 0, 1, 2, 2, 1]",
            reported(task0=ranks(*((rank, 9) for rank in range(9)))),
        ),
        ("monitor: GPU gpu01 0000:06:00.0 [2, 2, 1]", reported(task1={"loaded": {"node": "gpu01"}})),
        ("passed [2, 3.5]", reported(task1={"reduced": {"init": 3.5}})),
    ],
    checks.one_process: [
        ("passed [1, 1]", "gpu01", reported(task0=ranks((0, 1)))),
        ("monitor: tasks", "gpu03", reported()),
    ],
    checks.many_devices: [("not checked", reported(task1=LACKS))],
}


def compiled(folder: Path, tools: str = "nvcc,cmake", limit: str = "20", **env: str) -> list[dict[str, Any]]:
    """Run the payload as a step does; return its facts without the last, and check that no folder stays."""
    temporary = folder / "tmp"
    temporary.mkdir()
    done = subprocess.run(
        command(sys.executable, Path(payload_compile.__file__), tools, limit, "1"),
        env={"TMPDIR": str(temporary), **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert not list(temporary.iterdir())
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    assert facts.pop()["nccl_examples"] == "done"
    return facts


def test_the_example_is_compiled_and_run_by_both_tools(tmp_path: Path) -> None:
    facts = compiled(tmp_path, **toolchain(tmp_path))
    assert [(fact["nccl_examples"], fact["tool"], fact["error"]) for fact in facts] == [
        ("built", "nvcc", ""),
        ("ran", "nvcc", ""),
        ("built", "cmake", ""),
        ("ran", "cmake", ""),
    ]
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


def test_an_absent_tool_or_header_is_named(tmp_path: Path) -> None:
    env = toolchain(tmp_path)
    (tmp_path / "bin" / "cmake").unlink()
    (fact,) = compiled(tmp_path, "cmake", **{**env, "PATH": f"{tmp_path}/bin"})
    assert fact["error"].startswith("cmake cannot be run: ")
    (tmp_path / "tmp").rmdir()
    (tmp_path / "include" / "nccl.h").unlink()
    facts = compiled(tmp_path, "nvcc", **env)
    if "no nccl.h in " not in facts[0]["error"]:
        pytest.skip("this machine has nccl.h")
    (tmp_path / "tmp").rmdir()
    (fact,) = compiled(tmp_path, "nvcc", PATH="/nonexistent")
    if not fact["error"].startswith("no nvcc"):
        pytest.skip("this machine has nvcc")


@pytest.mark.parametrize(("check", "given", "expected"), rows_of(CASES))
def test_each_case_has_its_verdict(check: Callable[..., Verdict], given: list[Any], expected: str) -> None:
    assert told(check(*given)) == expected
