"""The fleet channel over a real srun on the sandbox's virtual nodes."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.cluster.channel.channel import Fleet
from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.transport import LocalTransport

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.thorough


@pytest.fixture
def held(sandbox: Sandbox) -> Iterator[Allocation]:
    request = AllocationRequest(nodes=tuple(sandbox.nodes), gpus_per_node=8)
    with Allocation.request(Slurm(LocalTransport(sandbox.env)), request) as allocation:
        yield allocation


@pytest.fixture
def fleet(held: Allocation) -> Iterator[Fleet]:
    with Fleet.over_slurm(held.slurm, held, ping_timeout=6.0, grace=1.0) as channel:
        yield channel


def test_a_dead_agent_is_named_and_the_others_go_on(fleet: Fleet, held: Allocation) -> None:
    """The agents lead the process groups of what they run; the nodes share this machine."""
    found = fleet.ask("set -- $(cat /proc/$PPID/stat); set -- $(cat /proc/$4/stat); echo $5")
    dead = held.nodes[1]
    os.kill(int(found[dead].out), signal.SIGKILL)
    answers = fleet.ask("echo after")
    assert "task ended: Killed" in answers[dead].problem
    assert {answer.out for node, answer in answers.items() if node != dead} == {"after\n"}
    assert list(fleet.lost) == [dead]
    assert not fleet.disconnected


def test_a_killed_srun_is_the_fault_of_no_node(held: Allocation, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    spawn = LocalTransport.spawn

    def noted(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(spawn(*args, **options))
        return started[-1]

    monkeypatch.setattr(LocalTransport, "spawn", noted)
    with Fleet.over_slurm(held.slurm, held) as fleet:
        fleet.ask("true")
        os.killpg(started[0].pid, signal.SIGKILL)
        assert {answer.rc for answer in fleet.ask("echo after").values()} == {None}
        assert all("srun ended (exit -9)" in why for why in fleet.lost.values())
        assert fleet.disconnected == set(fleet.lost) == set(held.nodes)
