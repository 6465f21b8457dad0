"""What the payloads find out, on this machine."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.suites.isolation import payload, payload_memory

if TYPE_CHECKING:
    from pathlib import Path

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
    assert found["age"] >= -1.0
    assert payload.mount_root("/proc") == "/"
    assert "No such file" in payload.folder_facts(str(tmp_path / "gone"), sudo=False)["error"]


def test_two_tasks_meet_only_while_both_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MEETING", 0.2)
    assert not payload.meets("alone", "first", "second")
    monkeypatch.setattr(payload, "MEETING", 20.0)
    found: list[bool] = []
    other = threading.Thread(target=lambda: found.append(payload.meets("both", "second", "first")))
    other.start()
    assert payload.meets("both", "first", "second")
    other.join()
    assert found == [True]


def reported(limit: int, most: int) -> dict[str, dict[str, Any]]:
    """Run the task that takes memory, in this process."""
    facts: dict[str, dict[str, Any]] = {}

    def report(kind: str, **fact: Any) -> None:
        facts[kind] = fact

    payload_memory.main(report, limit, most)
    return facts


def test_a_task_without_a_limit_keeps_its_memory() -> None:
    facts = reported(128 << 20, 48 << 20)
    assert facts.keys() == {"below", "held"}
    assert facts["below"]["bytes"] == 32 << 20, "a quarter of the limit"
    assert facts["held"]["taken"] == 48 << 20 <= facts["held"]["resident"]


def test_a_node_with_little_memory_is_left_alone() -> None:
    facts = reported(2**28, 2**60)
    assert facts.keys() == {"refused"}
    assert "MiB of free memory" in facts["refused"]["reason"]


def test_a_kernel_that_might_panic_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_memory, "number_in", lambda path, _pattern: 1 if "panic" in path else 2**40)
    assert payload_memory.why_refused(1) == "vm.panic_on_oom is 1: the kernel might panic"
