"""Horovod works: its build has what is expected, and jobs over the nodes reduce, broadcast and train.

One step reads every node's build; each way (framework, controller, launcher) is one job, judged by four tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.suite import checks_as_tests, claimed, fact, taking_part
from pytest_gpucluster.suites.horovod import checks
from pytest_gpucluster.suites.horovod.config import HorovodConfig
from pytest_gpucluster.suites.horovod.steps import Horovod, ways

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
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


@pytest.fixture
def here(run: Horovod, node_name: str) -> NodeBuild:
    """What this item's node told of its build."""
    return run.builds[node_name]


@pytest.fixture
def known_builds(run: Horovod, builds: Mapping[str, NodeBuild]) -> Mapping[str, NodeBuild]:  # it takes part
    """The builds of all nodes, for a node that takes part."""
    return builds


@pytest.fixture
def operations(run: Horovod) -> Iterable[str]:
    """The tensor operations that the build should have."""
    return run.operations


frameworks = fact(lambda cluster: cluster.horovod.frameworks)
controllers = fact(lambda cluster: cluster.horovod.controllers)
wanted_interface = fact(lambda cluster: cluster.horovod.interface)

globals().update(checks_as_tests(checks))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item a way that the cluster file claims."""
    from pytest_gpucluster.plugin.fixtures import SESSION  # only where a cluster was asked for

    if "way" in metafunc.fixturenames:
        config = metafunc.config.stash[SESSION].cluster.section(HorovodConfig) or HorovodConfig()
        metafunc.parametrize("way", ways(config), ids=str, scope="session")
