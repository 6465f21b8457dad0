"""Lanes on a real Slurm: loads never overlap on a node, crashes lose no verdict."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from plugin_helpers import jobs_so_far, names, on, run_pytest
from sandbox_helpers import left_in_queue

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.alone  # it loads all cores

NO_JOBS = ("-m", "not nothing")  # without any, jobs for the slurm suite would go first

STAMPS = """
import os, time
from pathlib import Path

import pytest


class stamped:
    def __init__(self, kind, nodes):
        self.kind, self.nodes = kind, nodes

    def __enter__(self):
        self.begin = time.monotonic()

    def __exit__(self, *_):
        with Path("stamps").open("a") as file:
            for node in self.nodes:
                words = (node, self.kind, self.begin, time.monotonic(), os.environ.get("PYTEST_XDIST_WORKER", "main"))
                file.write(" ".join(map(str, words)) + chr(10))


def test_reads(host, gpucluster_node):
    with stamped("reads", [gpucluster_node.name]):
        assert host.run("true").rc == 0


@pytest.mark.lane
def test_marked(gpucluster_node):
    with stamped("lane", [gpucluster_node.name]):
        time.sleep(0.5 if gpucluster_node.name == "gpu04" else 0.1)  # a lane that ends late: the others have to wait for it


def test_step(gpucluster_node, gpucluster_srun):
    with stamped("lane", [gpucluster_node.name]):
        assert gpucluster_srun(["sleep", "0.1"]).rc == 0


def test_with_neighbours(gpucluster_node, gpucluster_lane_nodes):
    assert gpucluster_node.name in gpucluster_lane_nodes
    with stamped("lane", gpucluster_lane_nodes):
        time.sleep(0.05)


@pytest.fixture(scope="session")
def measured(gpucluster_allocation):
    with stamped("measure", gpucluster_allocation.nodes):
        time.sleep(0.2)


def test_measured(measured, gpucluster_node):
    pass


def test_measured_all(measured, gpucluster_fleet):
    with stamped("all", gpucluster_fleet.nodes):
        time.sleep(0.1)


@pytest.mark.exclusive
def test_exclusive(gpucluster_fleet):
    with stamped("all", gpucluster_fleet.nodes):
        time.sleep(0.2)


def test_reads_more(host, gpucluster_node):
    with stamped("reads", [gpucluster_node.name]):
        time.sleep(0.02)
"""

CRASHES = """
import os, signal
import pytest


def test_reads(host):
    assert host.run("true").rc == 0


def test_exit(host, gpucluster_node):
    if gpucluster_node.name == "gpu03":
        os._exit(3)


def test_load(gpucluster_node, gpucluster_srun):
    if gpucluster_node.name == "gpu02":
        gpucluster_srun(["sh", "-c", f"sleep 300 & kill -9 {os.getpid()}; wait"])
    assert gpucluster_srun(["true"]).rc == 0


@pytest.fixture(scope="session")
def measured(gpucluster_allocation):
    return len(gpucluster_allocation.nodes)


def test_measured(measured, gpucluster_node):
    if gpucluster_node.name == "gpu01":
        os.kill(os.getpid(), signal.SIGKILL)
    assert measured == 4


@pytest.mark.exclusive
def test_nothing_is_left_there(gpucluster_allocation):
    listed = gpucluster_allocation.slurm.run("squeue", "-s", "-h", "-j", str(gpucluster_allocation.job_id), "-o", "%i").split()
    numbers = [step.rpartition(".")[2] for step in listed]
    assert [number for number in numbers if number.isdigit()] == ["0"], "the channel alone"
"""

Stamp = tuple[str, float, float, str]


def stamps(folder: Path) -> dict[str, list[Stamp]]:
    """Return what was done on each node: kind, begin, end in seconds, worker."""
    found: dict[str, list[Stamp]] = defaultdict(list)
    for line in (folder / "stamps").read_text().splitlines():
        node, kind, begin, end, worker = line.split()
        found[node].append((kind, float(begin), float(end), worker))
    return found


def overlaps(of_node: list[Stamp]) -> list[tuple[Stamp, Stamp]]:
    """Return the pairs that were on a node at once, where one of them was a load."""
    return [
        (one, other)
        for at, one in enumerate(of_node)
        for other in of_node[at + 1 :]
        if (one[0], other[0]) != ("reads", "reads") and one[1] < other[2] and other[1] < one[2]
    ]


def test_loads_never_overlap_on_a_node(sandbox: Sandbox, tmp_path: Path) -> None:
    before = jobs_so_far(sandbox)
    run = run_pytest(tmp_path, on(sandbox), "-n2", "--dist=worksteal", *NO_JOBS, files={"test_stamps.py": STAMPS})
    assert run.rc == 0, run.out
    found = stamps(tmp_path)
    assert set(found) == {"gpu01", "gpu02", "gpu03", "gpu04"}
    for node, of_node in found.items():
        assert overlaps(of_node) == [], node
        assert len({worker for kind, *_, worker in of_node if kind == "lane"}) == 1, "one worker owns a lane"
        assert sum(kind == "measure" for kind, *_ in of_node) == 1, "measured once, whatever the workers"
    owners = {worker for of_node in found.values() for kind, *_, worker in of_node if kind == "lane"}
    assert len(owners) == 2, "the lanes are run beside each other"
    assert jobs_so_far(sandbox) == before + 1
    assert left_in_queue(sandbox) == []


def test_a_crash_loses_the_verdict_of_no_other_item(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_pytest(tmp_path, on(sandbox), "-n2", *NO_JOBS, files={"test_crashes.py": CRASHES})
    assert run.rc == 1
    crashed = ["test_exit[gpu03]", "test_load[gpu02]", "test_measured[gpu01]"]
    assert names(run.outcomes, "error") == crashed, run.out
    assert len(run.outcomes) == len(run.cases) == 17
    assert len(names(run.outcomes, "passed")) == 14, run.out
    for event in run.events:
        if event.get("outcome") == "error":
            assert "crashed" in event["message"] + event["text"]
    assert left_in_queue(sandbox) == []
