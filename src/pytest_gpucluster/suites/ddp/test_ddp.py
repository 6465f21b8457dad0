"""torch.distributed starts, finds its ranks and talks: rank variables, process groups, a training step, a lost rank.

One cheap step looks around on all nodes; the nodes that are fit by that then work together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.suite import checks_as_tests, claimed, taking_part
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
def under_torchrun(runs: list[Ddp]) -> list[tuple[PayloadResult, int]]:
    """The step that works, started by torchrun, of every allocation, and the ranks per node."""
    return [(run.torchrun, run.ranks_per_node) for run in runs]


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


@pytest.fixture
def placed(run: Ddp) -> PayloadResult:
    """What the cheap step found on the nodes of the node's allocation."""
    return run.placed


@pytest.fixture
def all_placed(runs: list[Ddp]) -> list[PayloadResult]:
    """The same of every allocation."""
    return [run.placed for run in runs]


@pytest.fixture
def setters(run: Ddp, placed: PayloadResult, node_name: str) -> checks.Setters:
    """Who sets the variables of the ranks; -rP shows it."""
    for place in placed.of_node(node_name, "place")[:1]:
        who = {name: checks.who_set(name, place, run.setters) for name in checks.VARIABLES}
        print("\n".join(f"{name}: set by {setter}" for name, setter in who.items()))
    return run.setters


@pytest.fixture
def provided(run: Ddp) -> tuple[str, ...]:
    """The variables that the site promises to set."""
    return tuple(run.config.provided)


@pytest.fixture
def lost_rank_deadline(claim: DdpConfig) -> float:
    """Seconds within which a job must end whose rank was killed."""
    return claim.lost_rank


globals().update(checks_as_tests(checks))
