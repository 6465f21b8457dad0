"""Horovod works: its build has what is expected, and jobs over the nodes reduce, broadcast and train.

One step reads every node's build; each way (framework, controller, launcher) is one job, judged by four tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.check import combined
from pytest_gpucluster.suite import claimed, taking_part
from pytest_gpucluster.suites.horovod import checks
from pytest_gpucluster.suites.horovod.config import HorovodConfig
from pytest_gpucluster.suites.horovod.steps import Horovod, ways

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.plugin.expect import Expect
    from pytest_gpucluster.plugin.session import ClusterSession, Node
    from pytest_gpucluster.suites.horovod.checks import Launch, NodeBuild, World

pytestmark = [pytest.mark.horovod, pytest.mark.gloo, pytest.mark.usefixtures("claim")]
claim = claimed(HorovodConfig, "Horovod")


@pytest.fixture(scope="session")
def runs(
    claim: HorovodConfig,
    allocation: Allocation,  # not applicable without a scheduler
    gpucluster_session: ClusterSession,
) -> list[Horovod]:
    """One run an allocation."""
    return Horovod.of_allocations(gpucluster_session, claim)


@pytest.fixture
def run(runs: list[Horovod], node: Node) -> Horovod:
    """The run that this item's node takes part in."""
    found = taking_part(runs, node.name, "horovod")
    _ = found.builds  # here: what breaks is an error, not a verdict on the node
    return found


@pytest.fixture(scope="session")
def builds(runs: list[Horovod]) -> Mapping[str, NodeBuild]:
    """What every node of every allocation told of its build."""
    return {node: build for run in runs for node, build in run.builds.items()}


@pytest.fixture
def worlds(runs: list[Horovod], builds: Mapping[str, NodeBuild], way: Launch) -> list[World]:  # read first
    """The job of this way in every allocation, run once."""
    return [run.world(way) for run in runs]


def test_build(run: Horovod, node: Node, expect: Expect) -> None:
    """`horovodrun --check-build`: the frameworks, controllers and tensor operations that are expected."""
    config = run.config
    expect(checks.build(run.builds[node.name], config.frameworks, config.controllers, run.operations))


def test_versions(
    run: Horovod, builds: Mapping[str, NodeBuild], node: Node, expect: Expect
) -> None:  # the node takes part
    """The node has the same Horovod as the others."""
    expect(checks.version(node.name, builds))


def test_interface(run: Horovod, node: Node, expect: Expect) -> None:
    """The chosen network interface is there."""
    expect(checks.interface(run.builds[node.name], run.config.interface))


def test_ranks(claim: HorovodConfig, worlds: list[World], expect: Expect) -> None:
    """Every rank is there once, on its node, with its sizes, controller and device."""
    expect(combined(checks.ranks(world, claim.interface) for world in worlds))


def test_all_reduce(worlds: list[World], expect: Expect) -> None:
    """Sums over all ranks are right in every type."""
    expect(combined(checks.all_reduce(world) for world in worlds))


def test_broadcast(worlds: list[World], expect: Expect) -> None:
    """Every rank gets what the root sent."""
    expect(combined(checks.broadcast(world) for world in worlds))


def test_training(worlds: list[World], expect: Expect) -> None:
    """One training step leaves equal parameters on all ranks, and the right ones."""
    expect(combined(checks.training(world) for world in worlds))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item a way that the cluster file claims."""
    from pytest_gpucluster.plugin.fixtures import SESSION  # only where a cluster was asked for

    if "way" in metafunc.fixturenames:
        config = metafunc.config.stash[SESSION].cluster.section(HorovodConfig) or HorovodConfig()
        metafunc.parametrize("way", ways(config), ids=str, scope="session")
