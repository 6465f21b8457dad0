"""The suite of a site: pytest --cluster=prod examples/site_suite.

Four tests of a node: a plain test, a number with a bound, a probe with a check, and a payload that runs on the node.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.api import (
    Action,
    Finding,
    Metric,
    Part,
    Probe,
    ProbeError,
    Quantity,
    StepError,
    StepRequest,
    check,
    payload_command,
    run_step,
    text_of,
)

if TYPE_CHECKING:
    from pytest_gpucluster.api import Allocation, Answer, ItemView, Judgement, NodeView, RunView, TaskResult


# 1. A stock testinfra test. It runs once per node; each command runs on all nodes in one round trip.
def test_shell_of_root(host: Any) -> None:
    """Root has a shell to log in with."""
    assert host.user("root").shell.endswith("sh")


# 2. A number with a bound. The bound may come from `settings` of the cluster file, which a site defines.
def test_entropy(gpucluster: RunView, gpucluster_node: NodeView, gpucluster_item: ItemView) -> None:
    """The kernel has enough entropy for TLS handshakes."""
    least = gpucluster.cluster.settings.get("min_entropy", 200)
    available = int(gpucluster_node.host.check_output("cat /proc/sys/kernel/random/entropy_avail"))
    gpucluster_item.at_least("entropy", available, least, "bits", hint="systemctl start rngd")


# 3. A probe and a check: both do no I/O, so tests can use recorded output.
def read_open_files(answer: Answer) -> tuple[int, int]:
    """Return the open files of the host and their maximum, of /proc/sys/fs/file-nr."""
    match = re.fullmatch(r"(\d+)\s+\d+\s+(\d+)\s*", text_of(answer))
    if not match:
        raise ProbeError(f"file-nr: not understood: {answer.out[:40]!r}")
    return int(match[1]), int(match[2])


@check(
    "site.open_files",
    cause="a process leaks file descriptors",
    hint="lsof | awk '{print $1}' | sort | uniq -c | sort -n | tail",
    action=Action.MONITOR,
)
def judge_open_files(counts: tuple[int, int]) -> Judgement:
    """At most half of the possible files are open."""
    used, most = counts
    yield Metric("open_files", used, "files")
    if used > most / 2:
        measured = Quantity(used, "files", f"{used} of {most}")
        limit = Quantity(most // 2, "files", f"at most {most // 2}")
        yield Finding(Part("setting", name="open files"), measured, limit, code="above_limit")


OPEN_FILES = Probe("open files", "cat /proc/sys/fs/file-nr", read_open_files)


def test_open_files(gpucluster_node: NodeView, gpucluster_item: ItemView) -> None:
    """File descriptors do not run out."""
    gpucluster_item.expect(judge_open_files(gpucluster_node.facts(OPEN_FILES)))


# 4. A payload: a program that one step runs on all nodes at once. It travels on the command line.
PAYLOAD = Path(__file__).with_name("copy_speed.py")


@pytest.fixture(scope="session")
def copies(gpucluster_allocation: Allocation) -> dict[str, TaskResult]:
    """The result of the payload on each node."""
    allocation = gpucluster_allocation
    request = StepRequest(payload_command("python3", PAYLOAD), allocation.nodes, ntasks_per_node=1, timeout=60)
    return {task.node: task for task in run_step(allocation.slurm, allocation, request).tasks}


@pytest.fixture
def copy_speed(copies: dict[str, TaskResult], gpucluster_node: NodeView) -> float:
    """GB/s of a copy within the node's memory; a broken step is an error, not a verdict on the node."""
    task = copies.get(gpucluster_node.name)
    if task is None or not task.ok:
        raise StepError(
            f"{gpucluster_node.name}: copy_speed.py: {task.stderr[-200:] if task else 'no task of the step'}"
        )
    return float(json.loads(task.stdout)["gb_per_s"])


def test_copy_speed(copy_speed: float, gpucluster: RunView, gpucluster_item: ItemView) -> None:
    """One thread copies memory as fast as the site expects."""
    least = gpucluster.cluster.settings.get("min_copy_speed", 0.02)
    gpucluster_item.at_least("copy_speed", copy_speed, least, "GB/s")
