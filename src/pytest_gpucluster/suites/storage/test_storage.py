"""File systems under the load of all nodes: rates, latency, metadata, visibility, locks, integrity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.kit.framework.framework_step import framework_runner, framework_runners
from pytest_gpucluster.suite import Tests, fact, fleet_probed, peer_probed, probed, required_section
from pytest_gpucluster.suites.storage import checks
from pytest_gpucluster.suites.storage.config import StorageConfig
from pytest_gpucluster.suites.storage.facts import mounts as mounts_probe
from pytest_gpucluster.suites.storage.facts import quotas as quotas_probe
from pytest_gpucluster.suites.storage.facts import types_of, usual_mounts
from pytest_gpucluster.suites.storage.steps import Storage

if TYPE_CHECKING:
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult

config = required_section(StorageConfig)
runners = framework_runners(Storage)
runner = framework_runner(Storage, first="result")
mounts = probed(mounts_probe)
quotas = probed(quotas_probe)
usual = peer_probed(mounts_probe, usual_mounts)
types = fleet_probed(mounts_probe, types_of)


@fact
def peers(cluster: Cluster, node_name: str) -> frozenset[str]:
    """The nodes of the node's group; an allocation may have others, with other adapters."""
    return frozenset(cluster.group_of(node_name).names)


@fact
def result(runner: Storage) -> PayloadResult:
    """The step of the node's allocation."""
    return runner.result


@fact
def results(runners: list[Storage]) -> list[PayloadResult]:
    """The step of every allocation."""
    return [runner.result for runner in runners]


TESTS = Tests(checks, marks=("storage",))
