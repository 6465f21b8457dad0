"""Driver, CUDA, NCCL, OFED, Enroot, Pyxis, container toolkit and Slurm are not older than stated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.kit.container import enroot
from pytest_gpucluster.kit.gpu import nvidia_smi
from pytest_gpucluster.suite import Tests, given, of_node
from pytest_gpucluster.suites.versions import checks
from pytest_gpucluster.suites.versions.config import COMPONENTS, VersionsConfig
from pytest_gpucluster.suites.versions.facts import VERSIONS
from pytest_gpucluster.suites.versions.known import KNOWN

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.probe import Probe
    from pytest_gpucluster.run.session import ClusterSession, Node
    from pytest_gpucluster.suites.versions.facts import NodeVersions


def probes(cluster: Cluster) -> list[Probe[Any]]:
    """Return the probes that the rows need; that of Pyxis calls scontrol on each node."""
    rows = cluster.section(VersionsConfig).pyxis
    return [VERSIONS, nvidia_smi.GPUS, *([enroot.PYXIS] if rows else [])]


@of_node(given.node, given.cluster, given.session, probes=lambda cluster, _: probes(cluster))
def installed(node: Node, cluster: Cluster, session: ClusterSession) -> NodeVersions:
    """The versions of the item's node."""
    found: NodeVersions = session.facts(node.name, VERSIONS)
    try:
        found = found.with_gpus(session.facts(node.name, nvidia_smi.GPUS))
    except ProbeError as error:
        found = found.without(("driver",), str(error))
    if enroot.PYXIS not in probes(cluster):
        return found
    try:
        return found.with_pyxis(session.facts(node.name, enroot.PYXIS))
    except ProbeError as error:
        return found.without(["pyxis"], str(error))


@of_node(given.cluster)
def stated_minima(cluster: Cluster) -> checks.Rows:
    """The rows of the cluster file."""
    section = cluster.section(VersionsConfig)
    return {name: section.rows(name) for name in COMPONENTS}


shipped_minima = of_node()(lambda: {name: KNOWN.get(name, ()) for name in COMPONENTS})

TESTS = Tests(checks, marks=("versions", "nccl"))
