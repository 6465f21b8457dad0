"""Horovod works: its build has what is expected, and jobs over the nodes reduce, broadcast and train.

One step reads every node's build; each way (framework, controller, launcher) is one job, judged by four tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.kit.framework_config import HorovodConfig
from pytest_gpucluster.kit.framework_step import FrameworkStepRunner
from pytest_gpucluster.suites.horovod import checks
from pytest_gpucluster.suites.horovod.steps import Horovod, ways

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.plugin.expect import Expect
    from pytest_gpucluster.plugin.session import Node, ClusterSession
    from pytest_gpucluster.suites.horovod.checks import NodeBuild, Launch, World

pytestmark = [pytest.mark.horovod, pytest.mark.gloo, pytest.mark.usefixtures("claimed")]


@pytest.fixture(scope="session")
def claimed(cluster: Cluster) -> None:
    """Not applicable where the cluster file does not claim Horovod."""
    if cluster.horovod is None:
        pytest.skip("not applicable: cluster file does not claim Horovod (add `horovod:`)")


@pytest.fixture(scope="session")
def runner(claimed: None, gpucluster_session: ClusterSession, allocation: Allocation) -> Horovod:  # noqa: ARG001 - asked first
    """Horovod on the testable nodes of the first allocation."""
    session = gpucluster_session
    config = session.cluster.horovod
    assert config is not None  # `claimed` has skipped otherwise
    nodes = session.without_problem(allocation.nodes)
    steps = FrameworkStepRunner(
        allocation.slurm, allocation, session.cluster, config, "horovod", session.inventory, nodes
    )
    return Horovod(steps, config)


@pytest.fixture(scope="session")
def builds(runner: Horovod) -> Mapping[str, NodeBuild]:
    """What every node tells of its build, in one step."""
    return runner.builds


@pytest.fixture
def horovod_node(runner: Horovod, node: Node) -> str:
    """The item's node, where Horovod is run on it."""
    if node.name not in runner.steps.nodes:
        there = len(runner.steps.nodes)
        pytest.skip(f"not applicable: not among the {there} nodes of horovod.nodes or its partition")
    return node.name


@pytest.fixture
def world(runner: Horovod, builds: Mapping[str, NodeBuild], way: Launch) -> World:  # noqa: ARG001 - read first
    """The job of this way, run once."""
    return runner.world(way)


def test_build(runner: Horovod, builds: Mapping[str, NodeBuild], horovod_node: str, expect: Expect) -> None:
    """`horovodrun --check-build`: the frameworks, controllers and tensor operations that are expected."""
    config = runner.config
    expect(checks.build(builds[horovod_node], config.frameworks, config.controllers, runner.operations))


def test_versions(builds: Mapping[str, NodeBuild], horovod_node: str, expect: Expect) -> None:
    """The node has the same Horovod as the others."""
    expect(checks.version(horovod_node, builds))


def test_interface(
    runner: Horovod, builds: Mapping[str, NodeBuild], horovod_node: str, expect: Expect
) -> None:
    """The chosen network interface is there."""
    expect(checks.interface(builds[horovod_node], runner.config.interface))


def test_ranks(runner: Horovod, world: World, expect: Expect) -> None:
    """Every rank is there once, on its node, with its sizes, controller and device."""
    expect(checks.ranks(world, runner.config.interface))


def test_all_reduce(world: World, expect: Expect) -> None:
    """Sums over all ranks are right in every type."""
    expect(checks.all_reduce(world))


def test_broadcast(world: World, expect: Expect) -> None:
    """Every rank gets what the root sent."""
    expect(checks.broadcast(world))


def test_training(world: World, expect: Expect) -> None:
    """One training step leaves equal parameters on all ranks, and the right ones."""
    expect(checks.training(world))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item a way that the cluster file claims."""
    from pytest_gpucluster.plugin.fixtures import SESSION  # noqa: PLC0415 - only where a cluster was asked for

    if "way" in metafunc.fixturenames:
        config = metafunc.config.stash[SESSION].cluster.horovod or HorovodConfig()
        metafunc.parametrize("way", ways(config), ids=str, scope="session")
