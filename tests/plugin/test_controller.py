"""A node that starts no task as a run begins: requested once more, then left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from plugin_helpers import a_cluster, a_session

from pytest_gpucluster.cluster.channel import channel
from pytest_gpucluster.cluster.slurm import leftovers
from pytest_gpucluster.cluster.slurm.allocation import Allocation
from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.plugin.controller import Controller

if TYPE_CHECKING:
    from collections.abc import Sequence

NODES = ("gpu01", "gpu02", "gpu03")
TIMED_OUT = Explanation("starts_no_task", "its slurmd starts no task (Socket timed out)")


class Fleet:
    """The agents of one allocation, without those of `failed`."""

    def __init__(self, nodes: tuple[str, ...], failed: Sequence[str]) -> None:
        self.nodes = nodes
        self.launch_failed = self.lost = {node: TIMED_OUT for node in failed if node in nodes}

    def wait_started(self) -> None:
        """They have."""

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("failures", "left_out", "requests"),
    [
        ([], (), 1),
        ([("gpu02",)], (), 2),
        ([("gpu02",), ("gpu02",)], ("gpu02",), 3),
        ([("gpu02",), ("gpu03",)], (), 3),
        ([("gpu02", "gpu03"), ("gpu02",)], ("gpu02",), 3),
    ],
)
def test_a_node_is_left_out_when_it_starts_no_task_twice(
    monkeypatch: pytest.MonkeyPatch, failures: list[tuple[str, ...]], left_out: tuple[str, ...], requests: int
) -> None:
    inventory = {node: NodeInfo(node, "IDLE") for node in NODES}
    opened: list[tuple[str, ...]] = []

    def request(_slurm: Any, asked: Any, progress: Any) -> Any:
        opened.append(asked.nodes)
        return SimpleNamespace(job_id=str(len(opened)), nodes=asked.nodes, alive=True, release=lambda: None)

    def over_slurm(_slurm: Any, held: Any) -> Fleet:
        return Fleet(held.nodes, (*failures, *[()] * 9)[len(opened) - 1])

    monkeypatch.setattr(leftovers, "jobs", lambda _: ())
    monkeypatch.setattr(leftovers, "folders", tuple)
    monkeypatch.setattr(Allocation, "request", request)
    monkeypatch.setattr(channel.Fleet, "over_slurm", over_slurm)
    monkeypatch.setattr(Controller, "read_inventory", lambda *_: inventory)
    session = a_session(a_cluster(",".join(NODES)), inventory=inventory, slurm=SimpleNamespace())
    said: list[str] = []
    session.allocate(said.append, ())
    session.jobs.close()
    assert len(opened) == requests
    assert tuple(session.plan.problems) == left_out
    assert opened[-1] == tuple(node for node in NODES if node not in left_out)
    assert all(problem.code == "starts_no_task" for problem in session.plan.problems.values())
    once = {node for failed in failures for node in failed}
    assert [line.split(":")[0] for line in said if line.endswith("requesting it once more")] == sorted(once)
