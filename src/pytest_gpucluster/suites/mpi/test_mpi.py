"""MPI programs start, find each other and talk: by mpirun inside the allocation, by srun, in C and in Python.

A small program is made ready on every node and started once a launcher and language; many tests judge that run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.cluster.slurm.mpi_types import PMI_TYPES
from pytest_gpucluster.core.check import Outcome, combined
from pytest_gpucluster.kit import mpi_world
from pytest_gpucluster.kit.mpi_config import MpiConfig
from pytest_gpucluster.kit.mpi_step import IN_CONTAINER, MPIRUN, Mpi
from pytest_gpucluster.suite import claimed, probed
from pytest_gpucluster.suites.mpi import checks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.kit.mpi_facts import InstalledMpi, MpiRun
    from pytest_gpucluster.plugin.expect import Expect
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


def test_installed(runners: list[Mpi], installed: InstalledMpi, config: MpiConfig, expect: Expect) -> None:
    """The node has the launcher, and programs compile and start."""
    expect(checks.installed(installed, config, in_container=runners[0].in_container))


def test_path(runners: list[Mpi], installed: InstalledMpi, config: MpiConfig, expect: Expect) -> None:
    """The first mpirun on PATH is the site's, and no conda environment's."""
    if runners[0].in_container:
        expect.not_applicable(IN_CONTAINER)
    claimed = any(runner.environment is not None and runner.environment.conda for runner in runners)
    expect(checks.path(installed, config, conda_claimed=claimed))


def test_matches(runners: list[Mpi], installed: InstalledMpi, config: MpiConfig, expect: Expect) -> None:
    """The launcher and the library of the programs are of one MPI."""
    if runners[0].in_container:
        expect.not_applicable(IN_CONTAINER)
    expect(checks.matches(installed, config))


def test_alike(installed: InstalledMpi, installed_norms: dict[str, Norm[str]], expect: Expect) -> None:
    """The node has the MPI of most nodes."""
    expect(checks.alike(installed, installed_norms))


def test_pmi(pmi_types: tuple[str, ...], installed: InstalledMpi, config: MpiConfig, expect: Expect) -> None:
    """Slurm on the node has the claimed types of --mpi, and the MPI understands them."""
    claimed = [kind for launcher in config.launchers if (kind := launcher.partition("--mpi=")[2])]
    expect(checks.pmi(pmi_types, claimed, installed))


def test_world(runs: list[MpiRun], expect: Expect) -> None:
    """Every rank once, in one world, on the nodes asked for."""
    expect(combined(mpi_world.world(run) for run in runs))


def test_allreduce(believed: list[MpiRun], expect: Expect) -> None:
    """The sum over all ranks is that of the closed form."""
    expect(combined(mpi_world.allreduce(run) for run in believed))


def test_threads(believed: list[MpiRun], config: MpiConfig, expect: Expect) -> None:
    """The MPI provides the thread level that programs need."""
    expect(combined(checks.threads(run, config.threads) for run in believed))


def test_latency(believed: list[MpiRun], language: str, config: MpiConfig, expect: Expect) -> None:
    """Small messages between neighbouring nodes are quick."""
    if language != "c":
        expect.not_applicable("measured by the C program only")
    expect(combined(checks.latency(run, config.max_latency) for run in believed))


def test_bandwidth(believed: list[MpiRun], language: str, config: MpiConfig, expect: Expect) -> None:
    """Large messages between neighbouring nodes are fast."""
    if language != "c":
        expect.not_applicable("measured by the C program only")
    expect(combined(checks.bandwidth(run, config.min_bandwidth) for run in believed))


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
