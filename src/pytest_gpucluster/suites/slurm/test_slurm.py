"""Slurm knows every node, can schedule jobs on it, allocates its GPUs, and runs steps and jobs.

Many tests judge one step on all nodes and three short batch jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.kit.node.peers import Peers
from pytest_gpucluster.suite import Tests, fact
from pytest_gpucluster.suites.slurm import SUITE, checks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.cluster.slurm.result import StepResult
    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suites.slurm.diagnostic_step import JobFacts, NodeDiagnostic


@fact(once=True)
def slurm(gpucluster_session: ClusterSession) -> Slurm:
    """The client; not applicable without a scheduler."""
    return gpucluster_session.need_slurm()


@fact(once=True)
def diagnostics(
    allocation: Allocation, gpucluster_session: ClusterSession
) -> dict[str, NodeDiagnostic]:  # must be held
    """One step on all nodes of every allocation: {node: reports and exits of its tasks}."""
    found: dict[str, NodeDiagnostic] = gpucluster_session.begin(SUITE).result()
    return found


@fact
def diagnostic(diagnostics: dict[str, NodeDiagnostic], node: Node) -> NodeDiagnostic:
    """The diagnostic of this item's node."""
    return diagnostics[node.name]


@fact(once=True)
def jobs(slurm: Slurm, gpucluster_session: ClusterSession) -> JobFacts:  # not applicable without one
    """The results of the batch jobs that were submitted before the nodes were allocated."""
    return finished(gpucluster_session)


def finished(session: ClusterSession) -> JobFacts:
    """Return the results of the batch jobs; skip the item if none was submitted."""
    found: JobFacts | None = session.outcome(SUITE)
    if found is None:
        raise NotAvailable("no batch job was submitted before the nodes were allocated")
    return found


@fact(once=True)
def shown_nodes(inventory: Mapping[str, NodeInfo]) -> Peers[NodeInfo]:
    """All nodes as Slurm shows them, for the comparison within a group."""
    return Peers(inventory)


@fact(once=True)
def config(slurm: Slurm) -> dict[str, str]:
    """The current configuration of slurmctld."""
    return slurm.config()


info = fact(lambda node: node.info)
node_profile = fact(lambda profile: profile.node)
slurm_version = fact(lambda config: config.get("SLURM_VERSION", ""))
usual_cpus = fact(lambda node, shown_nodes: shown_nodes.of(node.peers, "cpus"))
usual_memory = fact(lambda node, shown_nodes: shown_nodes.of(node.peers, "memory"))
usual_version = fact(lambda node, shown_nodes: shown_nodes.of(node.peers, "version"))
virtual = fact(lambda cluster: cluster.sandbox)
released = fact(lambda: False)  # while items run
max_job_start = fact(lambda cluster: cluster.slurm.job_start)
stated_limits = fact(lambda cluster: cluster.limits)
partitions = fact(lambda slurm, stated_limits: slurm.partitions() if stated_limits else {})


@fact
def diagnostic_if_any(node_name: str, gpucluster_session: ClusterSession) -> NodeDiagnostic | None:
    """The diagnostic, None on a node that is not allocated since it was drained. It requires no allocation."""
    if not gpucluster_session.allocation_of(node_name):
        return None
    found: dict[str, NodeDiagnostic] = gpucluster_session.begin(SUITE).result()
    return found.get(node_name)


@fact
def overrun(allocation: Allocation, srun: Callable[..., StepResult]) -> StepResult:
    """A step that outlives its time limit of one minute."""
    # slurmctld checks every 30 s in whole minutes: no faster method was found on 22.05
    return srun(["sleep", "300"], nodes=allocation.nodes[:1], ntasks_per_node=1, time_limit=1, timeout=280)


TESTS = Tests(checks, marks=("slurm",), needs=("slurm",))
