"""Isolation of jobs: CPUs, GPUs, memory, /tmp, logins; and a terminal by srun --pty.

Two steps that run at the same time on all nodes try to reach what is not theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.majority import decides
from pytest_gpucluster.suite import Tests, fact, fleet_probed, probed
from pytest_gpucluster.suites.isolation import SUITE, checks
from pytest_gpucluster.suites.isolation.config import IsolationConfig
from pytest_gpucluster.suites.isolation.pam import PAM
from pytest_gpucluster.suites.isolation.settings import shared_resources
from pytest_gpucluster.suites.isolation.steps import Isolation, step_pairs_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suites.isolation.logins import Login
    from pytest_gpucluster.suites.isolation.pam import PamFacts
    from pytest_gpucluster.suites.isolation.steps import MemoryStep, PtyResult, StepPair

pam = probed(PAM)
pams = fleet_probed(PAM)
info = fact(lambda node: node.info)


@fact(once=True)
def section(cluster: Cluster) -> IsolationConfig:
    """The section of the cluster file, with its defaults."""
    return cluster.section(IsolationConfig)


@fact(once=True)
def isolation_slurm(gpucluster_session: ClusterSession) -> Slurm:
    """The client; not applicable without a scheduler."""
    return gpucluster_session.need_slurm()


@fact(once=True)
def shared(isolation_slurm: Slurm, cluster: Cluster) -> Mapping[str, str]:
    """The resources that Slurm leaves to all jobs: {resource: setting}."""
    return shared_resources(isolation_slurm.config(), cluster)


@fact(once=True)
def prolog_flags(isolation_slurm: Slurm) -> str:
    """PrologFlags of slurm.conf."""
    return isolation_slurm.config().get("PrologFlags", "")


@fact(once=True)
def step_pairs(
    allocation: Allocation,
    gpucluster_session: ClusterSession,
    section: IsolationConfig,
    shared: Mapping[str, str],
) -> dict[str, StepPair]:  # must be held
    """Two steps that run at the same time, on all nodes of every allocation, by node."""
    return step_pairs_of(gpucluster_session, section, shared)


@fact
def step_pair(step_pairs: dict[str, StepPair], node: Node) -> StepPair | None:
    """The two steps of the item's node, None if they were not run."""
    return step_pairs.get(node.name)


@fact(once=True)
def memory_steps(
    allocation: Allocation,
    gpucluster_session: ClusterSession,
    section: IsolationConfig,
    shared: Mapping[str, str],
) -> dict[str, MemoryStep]:  # must be held
    """A task per node that exceeds its memory, in every allocation, by node; {} if that is not tested."""
    found: dict[str, MemoryStep] = {}
    if "memory" not in shared:
        for one in Isolation.of_allocations(gpucluster_session, section):
            found |= dict.fromkeys(one.nodes, one.exceed_memory())
    return found


@fact
def memory_step(memory_steps: dict[str, MemoryStep], node: Node) -> MemoryStep | None:
    """The task of the item's node, None if none was run."""
    return memory_steps.get(node.name)


@fact(once=True)
def ptys(
    allocation: Allocation, gpucluster_session: ClusterSession, section: IsolationConfig
) -> list[PtyResult]:  # must be held
    """`srun --pty` on the first node of every allocation."""
    return [one.open_terminal() for one in Isolation.of_allocations(gpucluster_session, section)]


@fact
def adopting(
    pams: Mapping[str, PamFacts], node: Node, cluster: Cluster, gpucluster_session: ClusterSession
) -> str:
    """Why logins need not be adopted on the item's node; '' if they must."""
    if cluster.stated("isolation.pam_slurm_adopt"):
        return ""
    nodes = gpucluster_session.nodes
    alike = [bool(found.adopts) for name, found in pams.items() if nodes[name].group == node.group]
    if decides(sum(alike), len(alike)):
        return ""
    return (
        "most nodes of the group have no pam_slurm_adopt: `required: [isolation.pam_slurm_adopt]` requires it"
    )


@fact(once=True)
def logins(gpucluster_session: ClusterSession) -> Mapping[str, Login]:
    """The logins before the nodes were allocated: {node: login}."""
    return gpucluster_session.outcome(SUITE) or {}


@fact
def login_without_job(logins: Mapping[str, Login], node: Node) -> Login | None:
    """The login to the item's node, None if none was tried."""
    return logins.get(node.name)


@fact
def refused(logins: Mapping[str, Login], node: Node, gpucluster_session: ClusterSession) -> bool:
    """Whether most nodes of the item's group refused the user without a job."""
    nodes = gpucluster_session.nodes
    decided = [
        bool(one.refusal)
        for name, one in logins.items()
        if nodes[name].group == node.group and not one.problem
    ]
    return decides(sum(decided), len(decided))


TESTS = Tests(
    checks,
    marks=(
        "isolation",
        "slurm",
    ),
    needs=("isolation_slurm",),
)
