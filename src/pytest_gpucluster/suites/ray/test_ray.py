"""Ray works: on each node alone, then as a cluster of head and workers in steps of one allocation.

Two steps (each node alone; head with its driver, and workers beside it) are judged by many tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.check import combined
from pytest_gpucluster.suite import claimed, taking_part
from pytest_gpucluster.suites.ray import checks
from pytest_gpucluster.suites.ray.config import RayConfig
from pytest_gpucluster.suites.ray.steps import Ray

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.plugin.expect import Expect
    from pytest_gpucluster.plugin.session import ClusterSession, Node
    from pytest_gpucluster.suites.ray.checks import ClusterFacts, NodeFacts

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


def test_alone(run: Ray, lone: NodeFacts, node: Node, expect: Expect) -> None:
    """On the node by itself: Ray starts, sees its CPUs and GPUs, runs a task and an actor, and ends."""
    expect(checks.alone(node.name, lone, run.shares[node.name]))


def test_nodes(clusters: list[ClusterFacts], expect: Expect) -> None:
    """The alive nodes are exactly the asked ones, with their CPUs and GPUs."""
    expect(combined(map(checks.nodes, clusters)))


def test_tasks(formed: ClusterFacts, node: Node, expect: Expect) -> None:
    """A task runs on the node."""
    expect(checks.tasks(node.name, formed))


def test_actors(formed: ClusterFacts, node: Node, expect: Expect) -> None:
    """An actor lives on the node and keeps its state."""
    expect(checks.actors(node.name, formed))


def test_objects(formed: ClusterFacts, node: Node, expect: Expect) -> None:
    """An object of 8 MiB arrives whole from the head on the node, and back."""
    expect(checks.objects(node.name, formed))


def test_gpus(clusters: list[ClusterFacts], expect: Expect) -> None:
    """One actor a GPU, all at once, each on a device of its own."""
    expect(combined(map(checks.gpus, clusters)))


def test_tune(clusters: list[ClusterFacts], claim: RayConfig, expect: Expect) -> None:
    """Ray Tune with ASHA finds the known best trial and stops worse ones early."""
    expect(combined(checks.tune(formed, claimed=claim.tune) for formed in clusters))


def test_token(clusters: list[ClusterFacts], claim: RayConfig, expect: Expect) -> None:
    """Who has no token is refused, and the token is on no command line."""
    expect(combined(checks.token(formed, claimed=claim.token) for formed in clusters))


def test_head_lost(formed: ClusterFacts, node: Node, expect: Expect) -> None:
    """When the head is lost, the worker on the node leaves."""
    expect(checks.head_lost(node.name, formed))


def test_left(left_behind: Mapping[str, str], node: Node, expect: Expect) -> None:
    """Neither processes nor folders of Ray are left on the node."""
    expect(checks.left(left_behind.get(node.name)))
