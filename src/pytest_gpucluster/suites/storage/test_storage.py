"""File systems under the load of all nodes: rates, latency, metadata, visibility, locks, integrity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.kit.framework.framework_step import framework_runner, framework_runners
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node, of_peers, required_section
from pytest_gpucluster.suites.storage import checks
from pytest_gpucluster.suites.storage.config import StorageConfig
from pytest_gpucluster.suites.storage.facts import mounts as mounts_probe
from pytest_gpucluster.suites.storage.facts import quotas as quotas_probe
from pytest_gpucluster.suites.storage.facts import types_of, usual_mounts
from pytest_gpucluster.suites.storage.steps import Storage

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import Cluster

config = required_section(StorageConfig)
runners = framework_runners(Storage, config)
runner = framework_runner(Storage, runners, first="result")
mounts = of_node(mounts_probe)
quotas = of_node(quotas_probe)
usual = of_peers(mounts_probe)(usual_mounts)
types = of_fleet(mounts_probe)(types_of)


@of_node(given.cluster, given.node_name)
def peers(cluster: Cluster, node_name: str) -> frozenset[str]:
    """The nodes of the node's group; an allocation may have others, with other adapters."""
    return frozenset(cluster.group_of(node_name).names)


result = of_node(runner)(lambda runner: runner.result)


results = of_node(runners)(lambda runners: [runner.result for runner in runners])


TESTS = Tests(checks, marks=("storage",))
