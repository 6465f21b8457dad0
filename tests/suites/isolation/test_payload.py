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


def test_cpus_device_files_and_folders_of_this_machine(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    try:
        reach = payload.reachable_cpus()
    finally:
        os.sched_setaffinity(0, before)
    assert before <= set(reach)
    assert 1 <= payload.cores_of(reach) <= len(reach)
    assert payload.cores_of([1 << 20]) == 0, "a CPU that the kernel does not show"
    assert payload.opened("/dev/null") == 0
    assert payload.opened(str(tmp_path / "nvidia0")) == errno.ENOENT
    found = payload.folder_facts(str(tmp_path), sudo=False)
    assert (found["error"], found["root"]) == ("", None), "nothing is mounted there"
    assert found["own"] == payload.identity(str(tmp_path))
    assert found["age"] >= -1.0
    assert payload.mount_root("/proc") == "/"
    assert "No such file" in payload.folder_facts(str(tmp_path / "gone"), sudo=False)["error"]


def test_two_tasks_meet_only_while_both_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MEETING", 0.2)
    assert not payload.meets(f"alone-{os.getpid()}", "first", "second")
    monkeypatch.setattr(payload, "MEETING", 20.0)
    found: list[bool] = []
    other = threading.Thread(target=lambda: found.append(payload.meets(f"both-{os.getpid()}", "second", "first")))
    other.start()
    assert payload.meets(f"both-{os.getpid()}", "first", "second")
    other.join()
    assert found == [True]


def reported(limit: int, most: int) -> dict[str, dict[str, Any]]:
    """Run the task that takes memory, in this process."""
    facts: dict[str, dict[str, Any]] = {}

    def report(kind: str, **fact: Any) -> None:
        facts[kind] = fact

    payload_memory.main(report, limit, most)
    return facts


def test_a_task_takes_no_memory_that_the_node_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = reported(128 << 20, 48 << 20)
    assert facts.keys() == {"below", "held"}
    assert facts["below"]["bytes"] == 32 << 20, "a quarter of the limit"
    assert facts["held"]["taken"] == 48 << 20 <= facts["held"]["resident"]
    facts = reported(2**28, 2**60)
    assert facts.keys() == {"refused"}
    assert "MiB of free memory" in facts["refused"]["reason"]
    monkeypatch.setattr(payload_memory, "number_in", lambda path, _pattern: 1 if "panic" in path else 2**40)
    assert payload_memory.why_refused(1) == "vm.panic_on_oom is 1: the kernel might panic"
