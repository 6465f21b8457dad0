"""Isolation of jobs: CPUs, GPUs, memory, /tmp, logins; and a terminal by srun --pty.

Two steps that run at the same time on all nodes try to reach what is not theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.majority import decides
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node
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

pam = of_node(PAM)
pams = of_fleet(PAM)
info = of_node(given.node)(lambda node: node.info)


section = of_fleet(given.cluster)(lambda cluster: cluster.section(IsolationConfig))


isolation_slurm = of_fleet(given.session)(lambda session: session.need_slurm())


@of_fleet(isolation_slurm, given.cluster)
def shared(isolation_slurm: Slurm, cluster: Cluster) -> Mapping[str, str]:
    """The resources that Slurm leaves to all jobs: {resource: setting}."""
    return shared_resources(isolation_slurm.config(), cluster)


@of_fleet(isolation_slurm)
def prolog_flags(isolation_slurm: Slurm) -> str:
    """PrologFlags of slurm.conf."""
    return isolation_slurm.config().get("PrologFlags", "")


@of_fleet(given.allocation, given.session, section, shared)
def step_pairs(
    allocation: Allocation, session: ClusterSession, section: IsolationConfig, shared: Mapping[str, str]
) -> dict[str, StepPair]:  # must be held
    """Two steps that run at the same time, on all nodes of every allocation, by node."""
    return step_pairs_of(session, section, shared)


@of_node(step_pairs, given.node)
def step_pair(step_pairs: dict[str, StepPair], node: Node) -> StepPair | None:
    """The two steps of the item's node, None if they were not run."""
    return step_pairs.get(node.name)


@of_fleet(given.allocation, given.session, section, shared)
def memory_steps(
    allocation: Allocation, session: ClusterSession, section: IsolationConfig, shared: Mapping[str, str]
) -> dict[str, MemoryStep]:  # must be held
    """A task per node that exceeds its memory, in every allocation, by node; {} if that is not tested."""
    found: dict[str, MemoryStep] = {}
    if "memory" not in shared:
        for one in Isolation.of_allocations(session, section):
            found |= dict.fromkeys(one.nodes, one.exceed_memory())
    return found


@of_node(memory_steps, given.node)
def memory_step(memory_steps: dict[str, MemoryStep], node: Node) -> MemoryStep | None:
    """The task of the item's node, None if none was run."""
    return memory_steps.get(node.name)


@of_fleet(given.allocation, given.session, section)
def ptys(allocation: Allocation, session: ClusterSession, section: IsolationConfig) -> list[PtyResult]:  # must be held
    """`srun --pty` on the first node of every allocation."""
    return [one.open_terminal() for one in Isolation.of_allocations(session, section)]


@of_node(pams, given.node, given.cluster, given.session)
def adopting(pams: Mapping[str, PamFacts], node: Node, cluster: Cluster, session: ClusterSession) -> str:
    """Why logins need not be adopted on the item's node; '' if they must."""
    if cluster.stated("isolation.pam_slurm_adopt"):
        return ""
    nodes = session.nodes
    alike = [bool(found.adopts) for name, found in pams.items() if nodes[name].group == node.group]
    if decides(sum(alike), len(alike)):
        return ""
    return "most nodes of the group have no pam_slurm_adopt: `required: [isolation.pam_slurm_adopt]` requires it"


logins = of_fleet(given.session)(lambda session: session.outcome(SUITE) or {})


@of_node(logins, given.node)
def login_without_job(logins: Mapping[str, Login], node: Node) -> Login | None:
    """The login to the item's node, None if none was tried."""
    return logins.get(node.name)


@of_node(logins, given.node, given.session)
def refused(logins: Mapping[str, Login], node: Node, session: ClusterSession) -> bool:
    """Whether most nodes of the item's group refused the user without a job."""
    nodes = session.nodes
    decided = [bool(one.refusal) for name, one in logins.items() if nodes[name].group == node.group and not one.problem]
    return decides(sum(decided), len(decided))


TESTS = Tests(checks, marks=("isolation", "slurm"), needs=(isolation_slurm,))
