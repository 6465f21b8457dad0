"""Slurm knows every node, can schedule jobs on it, allocates its GPUs, and runs steps and jobs.

Many tests judge one step on all nodes and three short batch jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.kit.node.peers import Peers
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node
from pytest_gpucluster.suites.slurm import SUITE, checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.result import StepResult
    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suites.slurm.diagnostic_step import JobFacts, NodeDiagnostic


slurm = of_fleet(given.session)(lambda session: session.need_slurm())


@of_fleet(given.allocation, given.session)
def diagnostics(allocation: Allocation, session: ClusterSession) -> dict[str, NodeDiagnostic]:  # must be held
    """One step on all nodes of every allocation: {node: reports and exits of its tasks}."""
    found: dict[str, NodeDiagnostic] = session.begin(SUITE).result()
    return found


@of_node(diagnostics, given.node)
def diagnostic(diagnostics: dict[str, NodeDiagnostic], node: Node) -> NodeDiagnostic:
    """The diagnostic of this item's node."""
    return diagnostics[node.name]


@of_fleet(slurm, given.session)
def jobs(slurm: Slurm, session: ClusterSession) -> JobFacts:  # not applicable without one
    """The results of the batch jobs that were submitted before the nodes were allocated."""
    return finished(session)


def finished(session: ClusterSession) -> JobFacts:
    """Return the results of the batch jobs; skip the item if none was submitted."""
    found: JobFacts | None = session.outcome(SUITE)
    if found is None:
        raise NotAvailable("no batch job was submitted before the nodes were allocated")
    return found


shown_nodes = of_fleet(given.inventory)(Peers)


config = of_fleet(slurm)(lambda slurm: slurm.config())


info = of_node(given.node)(lambda node: node.info)
node_profile = of_node(given.profile)(lambda profile: profile.node)
slurm_version = of_node(config)(lambda config: config.get("SLURM_VERSION", ""))
usual_cpus = of_node(given.node, shown_nodes)(lambda node, shown: shown.of(node.peers, "cpus"))
usual_memory = of_node(given.node, shown_nodes)(lambda node, shown: shown.of(node.peers, "memory"))
usual_version = of_node(given.node, shown_nodes)(lambda node, shown: shown.of(node.peers, "version"))
virtual = of_node(given.cluster)(lambda cluster: cluster.sandbox)
released = of_node()(lambda: False)  # while items run
max_job_start = of_node(given.cluster)(lambda cluster: cluster.slurm.job_start)
stated_limits = of_node(given.cluster)(lambda cluster: cluster.limits)
partitions = of_node(slurm, stated_limits)(lambda slurm, limits: slurm.partitions() if limits else {})


@of_node(given.node_name, given.session)
def diagnostic_if_any(node_name: str, session: ClusterSession) -> NodeDiagnostic | None:
    """The diagnostic, None on a node that is not allocated since it was drained. It requires no allocation."""
    if not session.allocation_of(node_name):
        return None
    found: dict[str, NodeDiagnostic] = session.begin(SUITE).result()
    return found.get(node_name)


@of_node(given.allocation, given.srun)
def overrun(allocation: Allocation, srun: Callable[..., StepResult]) -> StepResult:
    """A step that outlives its time limit of one minute."""
    # slurmctld checks every 30 s in whole minutes: no faster method was found on 22.05
    return srun(["sleep", "300"], nodes=allocation.nodes[:1], ntasks_per_node=1, time_limit=1, timeout=280)


TESTS = Tests(checks, marks=("slurm",), needs=(slurm,))
