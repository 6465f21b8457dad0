"""MPI programs start, find each other and talk: by mpirun inside the allocation, by srun, in C and in Python.

A small program is made ready on every node and started once a launcher and language; many tests judge that run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.cluster.slurm.mpi_types import PMI_TYPES
from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.kit import mpi_world
from pytest_gpucluster.kit.mpi_config import MpiConfig
from pytest_gpucluster.kit.mpi_step import IN_CONTAINER, MPIRUN, Mpi
from pytest_gpucluster.suite import checks_as_tests, claimed, fact, probed
from pytest_gpucluster.suites.mpi import checks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.kit.mpi_facts import InstalledMpi, MpiRun
    from pytest_gpucluster.plugin.session import ClusterSession, Node

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("config")]

pmi_types = probed(PMI_TYPES)

config = claimed(MpiConfig, "MPI")


@pytest.fixture(scope="session")
def runners(
    config: MpiConfig,
    allocation: Allocation,  # not applicable without a scheduler
    gpucluster_session: ClusterSession,
) -> Iterator[list[Mpi]]:
    """One runner an allocation: its nodes share a partition and a number of GPUs."""
    channel = gpucluster_session.need_channel()
    made = Mpi.of_allocations(gpucluster_session, config, channel=channel)
    yield made
    for runner in made:
        runner.clean_up()


@pytest.fixture(scope="session")
def fleet_installed(runners: list[Mpi]) -> dict[str, InstalledMpi]:
    """What all nodes have: {node: facts}."""
    return {node: facts for runner in runners for node, facts in runner.installed.items()}


@pytest.fixture(scope="session")
def installed_norms(fleet_installed: dict[str, InstalledMpi]) -> dict[str, Norm[str]]:
    """What most nodes have, of each part."""
    return checks.norms(fleet_installed)


@pytest.fixture
def installed(fleet_installed: dict[str, InstalledMpi], node: Node) -> InstalledMpi:
    """What this item's node has."""
    if node.name not in fleet_installed:
        pytest.skip("not applicable: mpi.nodes leaves this node out")
    return fleet_installed[node.name]


@pytest.fixture
def runs(runners: list[Mpi], launcher: str, language: str) -> list[MpiRun]:
    """One run of the program by this launcher an allocation."""
    if launcher == MPIRUN and any(runner.in_container for runner in runners):
        pytest.skip(f"not applicable: {IN_CONTAINER}")
    usable = [runner for runner in runners if runner.usable(language)]
    if not usable:
        pytest.skip(f"not checked: no node has the MPI of {language} programs: see mpi.installed")
    return [runner.started(launcher, language) for runner in usable]


@pytest.fixture
def believed(runs: list[MpiRun]) -> list[MpiRun]:
    """Those that came up as one world; test_world says why where one did not."""
    judged = [(run, mpi_world.world(run)) for run in runs]
    sound = [run for run, verdict in judged if verdict.outcome is Outcome.PASSED]
    if not sound:
        why = judged[0][1].findings[0].measured
        pytest.skip(f"not checked: the world is not believed, see mpi.world: {why}")
    return sound


@pytest.fixture(scope="session")
def in_container(runners: list[Mpi]) -> bool:
    """Whether the programs run in a container."""
    return runners[0].in_container


@pytest.fixture
def host_installed(installed: InstalledMpi, in_container: bool) -> InstalledMpi:
    """What the node itself has; not applicable where the MPI of an image is used."""
    if in_container:
        pytest.skip(f"not applicable: {IN_CONTAINER}")
    return installed


@pytest.fixture(scope="session")
def conda_claimed(runners: list[Mpi]) -> bool:
    """Whether the cluster file claims a conda environment."""
    return any(runner.environment is not None and runner.environment.conda for runner in runners)


@pytest.fixture
def claimed_types(config: MpiConfig) -> list[str]:
    """The claimed types of srun's --mpi."""
    return [kind for launcher in config.launchers if (kind := launcher.partition("--mpi=")[2])]


@pytest.fixture
def timed(believed: list[MpiRun], language: str) -> list[MpiRun]:
    """The believed runs of the C program, which measures."""
    if language != "c":
        pytest.skip("not applicable: measured by the C program only")
    return believed


wanted_threads = fact(lambda cluster: cluster.mpi.threads)
max_latency = fact(lambda cluster: cluster.mpi.max_latency)
min_bandwidth = fact(lambda cluster: cluster.mpi.min_bandwidth)

globals().update(checks_as_tests(checks))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item a launcher and language of the cluster file."""
    from pytest_gpucluster.plugin.fixtures import SESSION  # only where a cluster was asked for

    if "launcher" in metafunc.fixturenames:
        claim = metafunc.config.stash[SESSION].cluster.section(MpiConfig)
        starts = (
            [(way, name) for way in claim.launchers for name in claim.languages] if claim else [("srun", "c")]
        )
        ids = [f"{way.replace(' --mpi=', '_')}-{name}" for way, name in starts]
        metafunc.parametrize(("launcher", "language"), starts, ids=ids)
