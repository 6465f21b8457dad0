"""NCCL's three example programs: one process with many devices, one device per process, many devices per process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig
from pytest_gpucluster.kit.nccl.nccl_config import NcclConfig
from pytest_gpucluster.suite import Tests, fact, framework_run, required_section
from pytest_gpucluster.suites.nccl_examples import checks
from pytest_gpucluster.suites.nccl_examples.config import NcclExamplesConfig
from pytest_gpucluster.suites.nccl_examples.steps import NcclExamples

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.plugin.session import ClusterSession, Node


@fact(once=True)
def all_runs(
    cluster: Cluster, allocation: Allocation, gpucluster_session: ClusterSession
) -> list[NcclExamples]:
    """The programs per allocation; not applicable without a scheduler."""
    config = FrameworkConfig.model_validate(cluster.section(NcclConfig), from_attributes=True)
    return NcclExamples.of_allocations(gpucluster_session, config)


@fact(once=True)
def runs(all_runs: list[NcclExamples]) -> list[NcclExamples]:
    """The programs per allocation with real GPUs."""
    known = all_runs
    if found := [run for run in known if run.real_gpus]:
        return found
    why = "simulated GPUs run no NCCL" if any(run.gpus for run in known) else "no profile has GPUs"
    raise NotApplicable(why)


toolchain = required_section(NcclExamplesConfig)


@fact
def node_run(toolchain: NcclExamplesConfig, all_runs: list[NcclExamples], node: Node) -> NcclExamples:
    """The programs of the allocation that has the item's node with its toolchain."""
    if not toolchain.toolchain:
        raise NotApplicable("nccl_examples.toolchain of the cluster file is null")
    found = next((run for run in all_runs if node.name in run.with_toolchain(toolchain)), None)
    if found is None:
        raise NotApplicable("the node has no GPUs, or `nccl_examples.nodes` or `nccl.nodes` leaves it out")
    return found


run = framework_run(NcclExamples, without="the node has no GPUs, or `nccl.nodes` selects fewer nodes")
within = fact(lambda run: run.result("one-process"))
one_each = fact(lambda runs: [run.result("one-device") for run in runs])
built = fact(lambda node_run, toolchain: node_run.compiled(toolchain))
devices = fact(lambda node_run: node_run.devices)
many_each = fact(lambda runs: [run.result("many-devices") for run in runs])

TESTS = Tests(checks, marks=("nccl_examples",))
