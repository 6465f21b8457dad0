"""What the payloads find out, on this machine."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.kit.framework.payload_step import command
from pytest_gpucluster.suites.isolation import payload, payload_memory, steps

if TYPE_CHECKING:
    import pytest


def test_a_process_reaches_the_cpus_that_it_requests() -> None:
    before = os.sched_getaffinity(0)
    try:
        reach = payload.reachable_cpus()
    finally:
        os.sched_setaffinity(0, before)
    assert before <= set(reach)
    assert 1 <= payload.cores_of(reach) <= len(reach)
    assert payload.cores_of([1 << 20]) == 0, "a CPU that the kernel does not show"


def test_the_error_of_a_device_file(tmp_path: Path) -> None:
    assert payload.opened("/dev/null") == 0
    assert payload.opened(str(tmp_path / "nvidia0")) == errno.ENOENT


def test_where_a_folder_comes_from(tmp_path: Path) -> None:
    found = payload.folder_facts(str(tmp_path), sudo=False)
    assert (found["error"], found["root"]) == ("", None), "nothing is mounted there"
    assert found["own"] == payload.identity(str(tmp_path))
    assert found["age"] < 3600 or found["age"] == -1.0
    assert payload.mount_root("/proc") == "/"
    assert "No such file" in payload.folder_facts(str(tmp_path / "gone"), sudo=False)["error"]


def test_two_tasks_meet_only_while_both_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MEETING", 0.5)
    assert not payload.meets("alone", "first", "second")
    monkeypatch.setattr(payload, "MEETING", 20.0)
    found: list[bool] = []
    other = threading.Thread(target=lambda: found.append(payload.meets("both", "second", "first")))
    other.start()
    assert payload.meets("both", "first", "second")
    other.join()
    assert found == [True]


def run(name: str, *words: str) -> list[dict[str, Any]]:
    argv = command(sys.executable, Path(steps.__file__).with_name(name), *words)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_task_without_a_limit_keeps_its_memory() -> None:
    limit = 64 << 20
    facts = {fact["isolation"]: fact for fact in run("payload_memory.py", str(limit), str(2 * limit))}
    assert facts.keys() == {"below", "held"}
    assert facts["below"]["bytes"] == limit // 4
    assert facts["held"]["taken"] == 2 * limit <= facts["held"]["resident"]


def test_a_node_with_little_memory_is_left_alone() -> None:
    (fact,) = run("payload_memory.py", str(2**28), str(2**60))
    assert fact["isolation"] == "refused"
    assert "MiB of free memory" in fact["reason"]


def test_a_kernel_that_might_panic_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_memory, "number_in", lambda path, _pattern: 1 if "panic" in path else 2**40)
    assert payload_memory.why_refused(1) == "vm.panic_on_oom is 1: the kernel might panic"
