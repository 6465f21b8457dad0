"""Pyxis and Enroot work on every node: images, names, mounts, home, root, environment.

Each node imports the image once; many tests judge a few steps that re-use it by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.environment import variables
from pytest_gpucluster.core.errors import ConfigError, NotApplicable
from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.kit.container import enroot
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node, required_section
from pytest_gpucluster.suites.container import checks
from pytest_gpucluster.suites.container.config import ContainerConfig
from pytest_gpucluster.suites.container.containers import NamedContainers
from pytest_gpucluster.suites.container.steps import ContainerSteps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.plugin.fixtures import LiveLine
    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suites.container.facts import ContainerFacts


room = of_node(enroot.SPACE)
names_before = of_node(enroot.NAMES)

config = required_section(ContainerConfig)


@of_fleet(given.session, given.allocation, config, given.live_line)
def all_found(
    session: ClusterSession,
    allocation: Allocation,  # not applicable without a scheduler
    config: ContainerConfig,
    live_line: LiveLine,
) -> Iterator[dict[str, ContainerFacts]]:
    """{node: the facts of its steps}; the imported images are removed at the end."""
    environment = session.cluster.environment(config.environment, "container.environment")
    image = config.image or (environment.container_image if environment else None)
    if image is None:
        raise ConfigError(
            f"cluster {session.cluster.name}: the cluster file lacks container.image: a .sqsh path or a registry image"
        )
    facts: dict[str, ContainerFacts] = {}
    stores = []
    for held in session.allocations:
        nodes = session.without_problem(held.nodes)[: config.nodes]
        profiles = {session.nodes[node].profile.gpu is not None for node in nodes}
        gpus = min((session.inventory[node].gpus for node in nodes), default=0) if profiles == {True} else 0
        store = NamedContainers(
            held.slurm,
            held,
            session.need_channel(),
            deadline=config.deadline,
            env=variables(environment),
            report=lambda line: live_line.write_line(f"container: {line}"),
        )
        stores.append(store)
        try:
            if nodes:
                steps = ContainerSteps(held.slurm, held, store, config, image, nodes, gpus)
                facts |= steps.found
        except BaseException:
            store.close()
            raise
    yield facts
    for store in stores:
        store.close()


@of_node(all_found, given.node)
def found(all_found: dict[str, ContainerFacts], node: Node) -> ContainerFacts:
    """The facts of the steps on this node."""
    if node.name not in all_found:
        raise NotApplicable("container.nodes leaves this node out")
    return all_found[node.name]


@of_fleet(given.session, given.allocation)
def live_jobs(session: ClusterSession, allocation: Allocation) -> set[int]:
    """The jobs that Slurm knows."""
    slurm = allocation.slurm
    listed = slurm.run("squeue", "-h", "-a", "-o", "%A").split()
    return {int(job) for job in listed if job.isdigit()} | {held.job_id for held in session.allocations}


@of_node(all_found, given.peers)
def usual_release(all_found: dict[str, ContainerFacts], peers: frozenset[str]) -> Norm[str]:
    """The os-release in the containers of most nodes of the kind."""
    return norm(
        (node, one.step("plain").facts.get("release", ""))
        for node, one in all_found.items()
        if one.contained and node in peers
    )


TESTS = Tests(checks, marks=("container",), needs=(config,))
