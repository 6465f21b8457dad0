"""Ray works: on each node alone, then as a cluster of head and workers in steps of one allocation.

Two steps (each node alone; head with its driver, and workers beside it) are judged by many tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.kit.framework_step import FrameworkStepRunner
from pytest_gpucluster.suites.ray import checks
from pytest_gpucluster.suites.ray.steps import Ray

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.plugin.expect import Expect
    from pytest_gpucluster.plugin.session import Node, ClusterSession
    from pytest_gpucluster.suites.ray.checks import ClusterFacts, NodeFacts

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("claimed")]


@pytest.fixture(scope="session")
def claimed(cluster: Cluster) -> None:
    """Not applicable where the cluster file does not claim Ray."""
    if cluster.ray is None:
        pytest.skip("not applicable: cluster file does not claim Ray (add `ray:`)")


@pytest.fixture(scope="session")
def ray_run(claimed: None, gpucluster_session: ClusterSession, allocation: Allocation) -> Iterator[Ray]:  # noqa: ARG001 - asked first
    """Ray on the testable nodes of the first allocation; whatever is left of it goes at the end."""
    session = gpucluster_session
    config = session.cluster.ray
    assert config is not None  # `claimed` has skipped otherwise
    nodes = session.without_problem(allocation.nodes)
    steps = FrameworkStepRunner(
        allocation.slurm, allocation, session.cluster, config, "ray", session.inventory, nodes
    )
    run = Ray(steps, config, session.need_channel())
    yield run
    if run.steps.commands:
        _ = run.left


@pytest.fixture
def ray_node(ray_run: Ray, node: Node) -> str:
    """The item's node, where Ray is run on it."""
    if node.name not in ray_run.steps.nodes:
        pytest.skip(
            f"not applicable: not among the {len(ray_run.steps.nodes)} nodes of ray.nodes or its partition"
        )
    return node.name


@pytest.fixture(scope="session")
def lone(ray_run: Ray) -> Mapping[str, NodeFacts]:
    """Ray on every node by itself: {node: what it told}."""
    return ray_run.alone


@pytest.fixture(scope="session")
def formed(ray_run: Ray) -> ClusterFacts:
    """Ray over all nodes: what the driver and each node told."""
    return ray_run.cluster


@pytest.fixture(scope="session")
def left_behind(ray_run: Ray, formed: ClusterFacts) -> Mapping[str, str]:  # noqa: ARG001 - once both steps have ended
    """What is left on each node."""
    return ray_run.left


def test_alone(ray_run: Ray, lone: Mapping[str, NodeFacts], ray_node: str, expect: Expect) -> None:
    """On the node by itself: Ray starts, sees its CPUs and GPUs, runs a task and an actor, and ends."""
    expect(checks.alone(ray_node, lone[ray_node], ray_run.shares[ray_node]))


def test_nodes(formed: ClusterFacts, expect: Expect) -> None:
    """The alive nodes are exactly the asked ones, with their CPUs and GPUs."""
    expect(checks.nodes(formed))


def test_tasks(formed: ClusterFacts, ray_node: str, expect: Expect) -> None:
    """A task runs on the node."""
    expect(checks.tasks(ray_node, formed))


def test_actors(formed: ClusterFacts, ray_node: str, expect: Expect) -> None:
    """An actor lives on the node and keeps its state."""
    expect(checks.actors(ray_node, formed))


def test_objects(formed: ClusterFacts, ray_node: str, expect: Expect) -> None:
    """An object of 8 MiB arrives whole from the head on the node, and back."""
    expect(checks.objects(ray_node, formed))


def test_gpus(formed: ClusterFacts, expect: Expect) -> None:
    """One actor a GPU, all at once, each on a device of its own."""
    expect(checks.gpus(formed))


def test_tune(formed: ClusterFacts, ray_run: Ray, expect: Expect) -> None:
    """Ray Tune with ASHA finds the known best trial and stops worse ones early."""
    expect(checks.tune(formed, claimed=ray_run.config.tune))


def test_token(formed: ClusterFacts, ray_run: Ray, expect: Expect) -> None:
    """Who has no token is refused, and the token is on no command line."""
    expect(checks.token(formed, claimed=ray_run.config.token))


def test_head_lost(formed: ClusterFacts, ray_node: str, expect: Expect) -> None:
    """When the head is lost, the worker on the node leaves."""
    expect(checks.head_lost(ray_node, formed))


def test_left(left_behind: Mapping[str, str], ray_node: str, expect: Expect) -> None:
    """Neither processes nor folders of Ray are left on the node."""
    expect(checks.left(left_behind.get(ray_node)))
