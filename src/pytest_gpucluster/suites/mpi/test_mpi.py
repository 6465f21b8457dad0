"""MPI programs start and communicate: by mpirun inside the allocation, by srun, in C and in Python.

One step prepares a small program on every node; one run per launcher and language is judged by many tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.mpi_types import PMI_TYPES
from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.kit.mpi import mpi_world
from pytest_gpucluster.kit.mpi.mpi_config import MpiConfig
from pytest_gpucluster.kit.mpi.mpi_step import IN_CONTAINER, MPIRUN, Mpi
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node, required_section
from pytest_gpucluster.suites.mpi import checks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.kit.mpi.mpi_facts import InstalledMpi, MpiRun
    from pytest_gpucluster.run.session import ClusterSession, Node


pmi_types = of_node(PMI_TYPES)

config = required_section(MpiConfig)
start = of_node(
    each=lambda cluster: {
        f"{launcher.replace(' --mpi=', '_')}-{name}": (launcher, name)
        for launcher, name in launches(cluster.section(MpiConfig) or MpiConfig())
    }
)
launcher = of_node(start)(lambda start: start[0])
language = of_node(start)(lambda start: start[1])


@of_fleet(config, given.allocation, given.session)
def runners(
    config: MpiConfig,
    allocation: Allocation,  # not applicable without a scheduler
    session: ClusterSession,
) -> Iterator[list[Mpi]]:
    """One runner per allocation."""
    channel = session.need_channel()
    made = Mpi.of_allocations(session, config, channel=channel)
    yield made
    for runner in made:
        runner.clean_up()


@of_fleet(runners)
def fleet_installed(runners: list[Mpi]) -> dict[str, InstalledMpi]:
    """The MPI of all nodes: {node: facts}."""
    return {node: facts for runner in runners for node, facts in runner.installed.items()}


@of_fleet(fleet_installed, config, given.session)
def all_norms(
    fleet_installed: dict[str, InstalledMpi], config: MpiConfig, session: ClusterSession
) -> dict[str, dict[str, Norm[str]]]:
    """{twins: the most common value of each part that the cluster file uses}."""
    groups = {node.twins for node in session.nodes.values()}
    return checks.norms_of_groups(fleet_installed, config, groups)


@of_node(all_norms, given.node)
def installed_norms(all_norms: dict[str, dict[str, Norm[str]]], node: Node) -> dict[str, Norm[str]]:
    """The most common value of each part on the nodes of the item's group, partition, architecture and operating system."""
    return all_norms[node.twins.nodes]


@of_node(fleet_installed, given.node)
def installed(fleet_installed: dict[str, InstalledMpi], node: Node) -> InstalledMpi:
    """The MPI of the item's node."""
    if node.name not in fleet_installed:
        raise NotApplicable("`mpi.nodes` of the cluster file selects fewer nodes")
    return fleet_installed[node.name]


@of_node(runners, given.node)
def own_runner(runners: list[Mpi], node: Node) -> Mpi:
    """The runner that has the item's node."""
    found = next((runner for runner in runners if node.name in runner.nodes), None)
    if found is None:
        raise NotApplicable("`mpi.nodes` of the cluster file selects fewer nodes")
    return found


reach = of_node(own_runner)(lambda own_runner: own_runner.reach)


@of_node(own_runner, config)
def own_runs(own_runner: Mpi, config: MpiConfig) -> list[MpiRun]:
    """The runs of the node's allocation, by each launcher in each language."""
    return [
        own_runner.started(launcher, language)
        for launcher, language in launches(config)
        if own_runner.usable(language) and not (launcher == MPIRUN and own_runner.in_container)
    ]


@of_node(runners, launcher, language)
def runs(runners: list[Mpi], launcher: str, language: str) -> list[MpiRun]:
    """One run of the program with this launcher per allocation."""
    if launcher == MPIRUN and any(runner.in_container for runner in runners):
        raise NotApplicable(f"{IN_CONTAINER}")
    usable = [runner for runner in runners if runner.usable(language)]
    if not usable:
        raise NotAvailable(f"no node has the MPI of {language} programs: see mpi.installed")
    return [runner.started(launcher, language) for runner in usable]


@of_node(runs)
def valid_runs(runs: list[MpiRun]) -> list[MpiRun]:
    """The runs whose ranks formed one world."""
    judged = [(run, mpi_world.world(run)) for run in runs]
    sound = [run for run, verdict in judged if verdict.outcome is Outcome.PASSED]
    if not sound:
        why = judged[0][1].findings[0].measured
        raise NotAvailable(f"the world is not valid, see mpi.world: {why}")
    return sound


in_container = of_fleet(runners)(lambda runners: runners[0].in_container)


@of_node(installed, in_container)
def host_installed(installed: InstalledMpi, in_container: bool) -> InstalledMpi:
    """The MPI of the node itself; not applicable if the programs run in an image."""
    if in_container:
        raise NotApplicable(f"{IN_CONTAINER}")
    return installed


@of_fleet(runners)
def conda_environment(runners: list[Mpi]) -> bool:
    """Whether the environment of the steps is a conda environment."""
    return any(runner.environment is not None and runner.environment.conda for runner in runners)


@of_node(config)
def required_types(config: MpiConfig) -> list[str]:
    """The required types of srun's --mpi."""
    return [pmi_type for launcher in config.launchers if (pmi_type := launcher.partition("--mpi=")[2])]


@of_node(valid_runs, language)
def timed(valid_runs: list[MpiRun], language: str) -> list[MpiRun]:
    """The valid runs of the C program, which measures."""
    if language != "c":
        raise NotApplicable("measured by the C program only")
    return valid_runs


wanted_threads = of_node(given.cluster)(lambda cluster: cluster.mpi.threads)
max_latency = of_node(given.cluster)(lambda cluster: cluster.mpi.max_latency)
min_bandwidth = of_node(given.cluster)(lambda cluster: cluster.mpi.min_bandwidth)

TESTS = Tests(checks, marks=("mpi",), needs=(config,))


def launches(config: MpiConfig) -> list[tuple[str, str]]:
    """Return every launcher with every language."""
    return [(launcher, name) for launcher in config.launchers for name in config.languages]
