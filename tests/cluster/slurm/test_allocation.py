"""Allocations on a real Slurm: had, explained, given back, and never leaked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sandbox_helpers import wait_for

from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.core.errors import AllocationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"), pytest.mark.thorough]


@pytest.fixture
def slurm(sandbox: Sandbox) -> Slurm:
    return Slurm(LocalTransport(sandbox.env))


def test_nodes_are_had_and_given_back_and_an_attached_allocation_is_left_alone(slurm: Slurm) -> None:
    with Allocation.request(slurm, AllocationRequest(nodes=("gpu03", "gpu01"))) as held:
        assert (held.nodes, held.alive) == (("gpu01", "gpu03"), True)
        with Allocation.attach(slurm, held.job_id, held.nodes) as attached:
            assert not attached.owned
        assert _queue(slurm) == [f"{held.job_id} RUNNING"]
    _nothing_is_left(slurm)
    held.release()


def test_a_cancelled_job_is_noticed(slurm: Slurm) -> None:
    held = Allocation.request(slurm, AllocationRequest(nodes=("gpu01",)))
    slurm.run("scancel", str(held.job_id))
    wait_for(lambda: not held.alive, "salloc has ended")
    wait_for(lambda: "revoked" in held.ended, "what salloc said is read")
    held.release()


def test_the_wait_has_an_end_and_says_what_for(slurm: Slurm) -> None:
    heard: list[str] = []
    request = AllocationRequest(nodes=("gpu01",), queue_wait=12)
    with Allocation.request(slurm, AllocationRequest(nodes=("gpu01",))) as held:
        with pytest.raises(AllocationError, match=r"no nodes within 12 s: .*(Resources|Priority)"):
            Allocation.request(slurm, request, progress=heard.append)
        assert _queue(slurm) == [f"{held.job_id} RUNNING"]
    assert any("waiting for job" in line for line in heard)


@pytest.mark.parametrize(
    ("request_", "telling"),
    [
        (AllocationRequest(partition="nosuch", count=1), "invalid partition specified: nosuch"),
        (AllocationRequest(count=999), "PartitionNodeLimit|fewer nodes"),
        (AllocationRequest(count=1, reservation="nosuch", constraint="nosuch"), "is invalid|Invalid"),
    ],
)
def test_a_refusal_is_one_clear_line(slurm: Slurm, request_: AllocationRequest, telling: str) -> None:
    with pytest.raises(AllocationError, match=telling) as caught:
        Allocation.request(slurm, request_)
    assert "\n" not in str(caught.value)
    _nothing_is_left(slurm)


def test_a_job_queued_without_salloc_is_cancelled(slurm: Slurm, sandbox: Sandbox, tmp_path: Path) -> None:
    """As when salloc is killed between its request and slurmctld's answer: the id of the job is unknown."""
    killed = tmp_path / "salloc"
    killed.write_text(
        "#!/bin/sh\nfor word; do case $word in --job-name=*) name=$word ;; esac; done\n"
        f'(sleep 1; sbatch --parsable "$name" --nodelist=gpu01 --exclusive --output=/dev/null --wrap "sleep 300") >{tmp_path}/job &\n'
        "kill -KILL $$\n"
    )
    killed.chmod(0o755)
    own = Slurm(LocalTransport({**sandbox.env, "PATH": f"{tmp_path}:{sandbox.env['PATH']}"}))
    with pytest.raises(AllocationError, match="salloc ended with exit 137"):
        Allocation.request(own, AllocationRequest(nodes=("gpu01",)))
    assert (tmp_path / "job").read_text().strip().isdecimal()
    _nothing_is_left(slurm)


def _queue(slurm: Slurm) -> list[str]:
    return slurm.run("squeue", "-h", "-o", "%i %T").splitlines()


def _nothing_is_left(slurm: Slurm, besides: Sequence[str] = ()) -> None:
    wait_for(lambda: {*_queue(slurm)} <= {*besides}, "the queue is empty")
