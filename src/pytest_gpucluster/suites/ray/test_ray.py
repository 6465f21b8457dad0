"""Ray works: on each node alone, then as a cluster of head and workers in steps of one allocation.

Two steps (each node alone; head with its driver, and workers beside it) are judged by many tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.suite import checks_as_tests, claimed, fact, taking_part
from pytest_gpucluster.suites.ray import checks
from pytest_gpucluster.suites.ray.config import RayConfig
from pytest_gpucluster.suites.ray.steps import Ray

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.plugin.session import ClusterSession, Node
    from pytest_gpucluster.suites.ray.checks import ClusterFacts, NodeFacts, Share

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("claim")]
claim = claimed(RayConfig, "Ray")


@pytest.fixture(scope="session")
def runs(
    claim: RayConfig,
    allocation: Allocation,  # not applicable without a scheduler
    gpucluster_session: ClusterSession,
) -> Iterator[list[Ray]]:
    """One run an allocation; whatever is left of it goes at the end."""
    channel = gpucluster_session.need_channel()
    made = Ray.of_allocations(gpucluster_session, claim, channel=channel)
    yield made
    for run in made:
        if run.commands:
            _ = run.left


@pytest.fixture
def run(runs: list[Ray], node: Node) -> Ray:
    """The run that this item's node takes part in."""
    return taking_part(runs, node.name, "ray")


@pytest.fixture
def lone(run: Ray, node: Node) -> NodeFacts:
    """What Ray told on the node by itself."""
    return run.alone[node.name]


@pytest.fixture
def formed(run: Ray) -> ClusterFacts:
    """Ray over all nodes of the node's allocation: what the driver and each node told."""
    return run.formed


@pytest.fixture(scope="session")
def clusters(runs: list[Ray]) -> list[ClusterFacts]:
    """The same of every allocation."""
    return [run.formed for run in runs]


@pytest.fixture
def left_behind(run: Ray, formed: ClusterFacts) -> Mapping[str, str]:  # once both steps have ended
    """What is left on each node."""
    return run.left


@pytest.fixture
def left_here(left_behind: Mapping[str, str], node_name: str) -> str | None:
    """What is left on this item's node; None where it did not tell."""
    return left_behind.get(node_name)


@pytest.fixture
def share(run: Ray, node_name: str) -> Share:
    """The CPUs and GPUs that Ray has on the node."""
    return run.shares[node_name]


tune_claimed = fact(lambda cluster: cluster.ray.tune)
token_claimed = fact(lambda cluster: cluster.ray.token)

globals().update(checks_as_tests(checks))
