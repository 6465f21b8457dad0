"""Kubernetes: the API server, its GPU nodes, their operators and labels, and short Jobs where `jobs: true`.

No node is allocated: three kubectl commands cover all nodes.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.inventory import names_of
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.majority import Norm, norm
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node, required_section
from pytest_gpucluster.suites.kubernetes import checks, job_checks
from pytest_gpucluster.suites.kubernetes.config import KubernetesConfig
from pytest_gpucluster.suites.kubernetes.facts import rdma_of
from pytest_gpucluster.suites.kubernetes.jobs import run_jobs
from pytest_gpucluster.suites.kubernetes.steps import Kubectl, query

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suites.kubernetes.facts import KubeFacts, KubeNode, Pod
    from pytest_gpucluster.suites.kubernetes.jobs import KubernetesJobs

config = required_section(KubernetesConfig)
DRIVER = "nvidia.com/cuda.driver-version.full"


ask = of_fleet(config)(lambda config: Kubectl(config).ask)


@of_fleet(ask, config, given.session)
def seen(ask: Callable[..., tuple[str, str]], config: KubernetesConfig, session: ClusterSession) -> KubeFacts:
    """The answers of the API server."""
    return query(ask, names_of(session.plan.selected, session.inventory), config.gpu_resource)


@of_node()
def today() -> dt.date:
    """The day in UTC."""
    return dt.datetime.now(dt.timezone.utc).date()


@of_node(seen, given.node, config)
def kube_node(seen: KubeFacts, node: Node, config: KubernetesConfig) -> KubeNode | None:
    """The item's node in Kubernetes, None where Kubernetes has none."""
    named, _ = config.own_nodes()
    if named and node.name not in named:
        raise NotApplicable("`kubernetes.nodes` of the cluster file does not name this node")
    return seen.nodes.get(node.name)


@of_node(seen, given.node)
def kube_pods(seen: KubeFacts, node: Node) -> tuple[Pod, ...]:
    """The pods of the item's node."""
    return seen.pods.get(node.name, ())


@of_node(seen, given.node, given.session)
def usual_software(seen: KubeFacts, node: Node, session: ClusterSession) -> dict[str, Norm[str]]:
    """{what: the values of the nodes of the group}."""
    mine = _alike(seen, node, session)
    software = {name: checks.software_of(found) for name, found in mine.items()}
    parts = next(iter(software.values()), {})
    return {
        what: norm(((name, found[what]) for name, found in software.items()), "nodes of its group") for what in parts
    }


@of_node(seen, given.node, given.session)
def usual_rdma(seen: KubeFacts, node: Node, session: ClusterSession) -> dict[str, Norm[str]]:
    """{resource for RDMA: the capacity of the nodes of the group}, without the nodes that do not offer devices yet."""
    alike = _alike(seen, node, session).items()
    found = {name: rdma_of(it) for name, it in alike if checks.has_rdma(it) or not checks.starting(it, seen)}
    return {
        resource: norm(((name, it.get(resource, "0")) for name, it in found.items()), "nodes of its group")
        for resource in sorted({resource for it in found.values() for resource in it})
    }


@of_node(seen, given.node, config, given.session)
def usual_labels(
    seen: KubeFacts, node: Node, config: KubernetesConfig, session: ClusterSession
) -> dict[str, Norm[str]]:
    """{label: the values of the nodes of the group}, of labels that no profile states."""
    mine = _alike(seen, node, session)
    return {
        key: norm(
            ((name, found.labels[key]) for name, found in mine.items() if key in found.labels), "nodes of its group"
        )
        for key in (DRIVER, f"{config.gpu_resource}.sharing-strategy")
    }


def _alike(seen: KubeFacts, node: Node, session: ClusterSession) -> dict[str, KubeNode]:
    return {name: found for name, found in seen.nodes.items() if session.nodes[name].peers == node.peers}


@of_fleet(config, seen, given.session)
def job_facts(config: KubernetesConfig, seen: KubeFacts, session: ClusterSession) -> KubernetesJobs | None:
    """The results of the Jobs, which run once; None without `jobs: true`."""
    if not config.jobs:
        return None
    named, _ = config.own_nodes()
    if session.in_worker and session.channel is None:
        # without a channel no worker waits for another, and each would run the Jobs
        raise NotAvailable("with -n, Jobs run only where Slurm or SSH reaches nodes too: leave -n out")
    nodes = [node for node in session.plan.judged if not named or node in named]
    infos = {node: info for node in nodes if (info := session.inventory.get(node)) is not None}
    # a job of this run's own allocation is no other user's
    held = {node for one in session.allocations for node in one.nodes}
    busy = {node: "jobs of Slurm use the node" for node, info in infos.items() if info.busy and node not in held}

    def report(why: str) -> None:
        session.messages.append(
            f"Jobs of this run may be left in namespace {config.namespace} until Kubernetes removes them: {why}"
        )

    nccl = session.cluster.stated("kubernetes.job_nccl") is not False
    return run_jobs(Kubectl(config), seen, nodes, busy, report, nccl=nccl)


@of_fleet(job_facts)
def uuid_owners(job_facts: KubernetesJobs | None) -> dict[str, tuple[str, ...]]:
    """{UUID of a GPU: the nodes whose pods list it}."""
    found: dict[str, list[str]] = defaultdict(list)
    for node, result in job_facts.gpus.items() if job_facts else ():
        for _, _, uuid in job_checks.GPU.findall(result.message):
            found[uuid].append(node)
    return {uuid: tuple(nodes) for uuid, nodes in found.items()}


TESTS = Tests(checks, job_checks, marks=("kubernetes", "inventory"))
