"""torch.distributed starts, finds its ranks and talks: rank variables, process groups, a training step, a lost rank.

One cheap step looks around on all nodes; the nodes that are fit by that then work together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.check import combined
from pytest_gpucluster.suite import claimed, taking_part
from pytest_gpucluster.suites.ddp import checks
from pytest_gpucluster.suites.ddp.config import DdpConfig
from pytest_gpucluster.suites.ddp.steps import Ddp

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.kit.payload_result import PayloadResult
    from pytest_gpucluster.plugin.expect import Expect
    from pytest_gpucluster.plugin.session import ClusterSession, Node

pytestmark = [pytest.mark.ddp]
BACKENDS = ("gloo", "nccl")
claim = claimed(DdpConfig, "torch.distributed")


@pytest.fixture(scope="session")
def runs(
    claim: DdpConfig, allocation: Allocation, gpucluster_session: ClusterSession
) -> list[Ddp]:  # not applicable without a scheduler
    """One run an allocation."""
    return Ddp.of_allocations(gpucluster_session, claim)


@pytest.fixture
def run(runs: list[Ddp], node: Node) -> Ddp:
    """The run that this item's node takes part in."""
    found = taking_part(runs, node.name, "ddp")
    _ = found.placed  # here: what breaks is an error, not a verdict on the node
    return found


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, runs: list[Ddp]) -> str:
    """The backend of the process group; nccl only where nodes have GPUs."""
    if not any(request.param in run.backends for run in runs):
        pytest.skip("not applicable: NCCL needs GPUs, and these nodes have no real ones")
    return str(request.param)


@pytest.fixture
def worked(runs: list[Ddp], backend: str) -> list[PayloadResult]:
    """The step that works, of every allocation."""
    return [run.worked(backend) for run in runs if backend in run.backends]


@pytest.fixture
def under_torchrun(runs: list[Ddp]) -> list[PayloadResult]:
    """The step that works, started by torchrun, of every allocation."""
    return [run.torchrun for run in runs]


@pytest.fixture
def lost(runs: list[Ddp], backend: str) -> list[PayloadResult]:
    """The step that loses a rank, of every allocation."""
    several = [run for run in runs if backend in run.backends and len(run.nodes) * run.ranks_per_node > 1]
    if not several:
        pytest.skip("not applicable: one rank alone")
    return [run.lost(backend) for run in several]


@pytest.fixture
def on_gpus(run: Ddp, node: Node, expect: Expect) -> PayloadResult:
    """The step that works by NCCL, where this node takes part in it."""
    if "nccl" not in run.backends:
        expect.not_applicable("these nodes have no real GPUs")
    if node.name not in run.fit:
        expect.not_checked("the node is not fit for it: see its other items")
    return run.worked("nccl")


def test_framework(run: Ddp, node: Node, expect: Expect) -> None:
    """Torch is there for the python of every task, in the fleet's version."""
    expect(checks.framework(node.name, run.placed))


def test_environment(run: Ddp, node: Node, expect: Expect) -> None:
    """WORLD_SIZE, RANK and LOCAL_RANK are exact in every task; what the site promises to set is set."""
    for fact in run.placed.of_node(node.name, "place")[:1]:
        who = {name: checks.who_set(name, fact, run.setters) for name in checks.VARIABLES}
        print("\n".join(f"{name}: set by {setter}" for name, setter in who.items()))  # shown by -rP
    expect(checks.environment(node.name, run.placed, run.setters, run.config.provided))


def test_master_addr(run: Ddp, node: Node, expect: Expect) -> None:
    """MASTER_ADDR is the same in every task and resolves on this node as on the others."""
    expect(checks.master_addr(node.name, run.placed))


def test_interface(run: Ddp, node: Node, expect: Expect) -> None:
    """The network interfaces that variables name are there."""
    expect(checks.interface(node.name, run.placed))


def test_master_port(runs: list[Ddp], expect: Expect) -> None:
    """MASTER_PORT is the same in every task, and free on the node of rank 0."""
    expect(combined(checks.master_port(run.placed) for run in runs))


def test_devices(on_gpus: PayloadResult, node: Node, expect: Expect) -> None:
    """Each rank has a GPU of its own."""
    expect(checks.devices(node.name, on_gpus))


def test_group(worked: list[PayloadResult], expect: Expect) -> None:
    """All ranks form one process group, started by srun."""
    expect(combined(checks.group(told) for told in worked))


def test_all_reduce(worked: list[PayloadResult], expect: Expect) -> None:
    """The sum over all ranks is right in every element."""
    expect(combined(checks.all_reduce(told) for told in worked))


def test_training(worked: list[PayloadResult], expect: Expect) -> None:
    """Training with DistributedDataParallel leaves equal parameters on all ranks."""
    expect(combined(checks.training(told) for told in worked))


def test_torchrun(runs: list[Ddp], under_torchrun: list[PayloadResult], expect: Expect) -> None:
    """The same with torchrun (c10d) as the launcher: ranks once each, right sum, equal parameters."""
    told = zip(runs, under_torchrun, strict=True)
    expect(combined(checks.torchrun(it, run.ranks_per_node) for run, it in told))


def test_lost_rank(lost: list[PayloadResult], claim: DdpConfig, expect: Expect) -> None:
    """A job whose rank is killed ends within its deadline, and not with 0."""
    expect(combined(checks.lost_rank(told, claim.lost_rank) for told in lost))
