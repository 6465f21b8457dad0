"""NCCL's three example programs: one process with many devices, one device per process, many devices per process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig
from pytest_gpucluster.kit.framework.framework_step import framework_runner
from pytest_gpucluster.kit.nccl.nccl_config import NcclConfig
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node, required_section
from pytest_gpucluster.suites.nccl_examples import checks
from pytest_gpucluster.suites.nccl_examples.config import NcclExamplesConfig
from pytest_gpucluster.suites.nccl_examples.steps import NcclExamples

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.run.session import ClusterSession, Node


@of_fleet(given.cluster, given.allocation, given.session)
def all_runners(cluster: Cluster, allocation: Allocation, session: ClusterSession) -> list[NcclExamples]:
    """The programs per allocation; not applicable without a scheduler."""
    config = FrameworkConfig.model_validate(cluster.section(NcclConfig), from_attributes=True)
    return NcclExamples.of_allocations(session, config)


@of_fleet(all_runners)
def runners(all_runners: list[NcclExamples]) -> list[NcclExamples]:
    """The programs per allocation with real GPUs."""
    known = all_runners
    if found := [runner for runner in known if runner.real_gpus]:
        return found
    why = "simulated GPUs run no NCCL" if any(runner.gpus for runner in known) else "no profile has GPUs"
    raise NotApplicable(why)


toolchain = required_section(NcclExamplesConfig)


@of_node(toolchain, all_runners, given.node)
def node_run(toolchain: NcclExamplesConfig, all_runners: list[NcclExamples], node: Node) -> NcclExamples:
    """The programs of the allocation that has the item's node with its toolchain."""
    found = next((runner for runner in all_runners if node.name in runner.with_gpus), None)
    if found is None:
        raise NotApplicable("the node has no GPUs")
    return found


runner = framework_runner(NcclExamples, runners, without="the node has no GPUs")
within = of_node(runner)(lambda runner: runner.result("one-process"))
one_each = of_node(runners)(lambda runners: [runner.result("one-device") for runner in runners])
built = of_node(node_run, toolchain)(lambda node_run, toolchain: node_run.compiled(toolchain))
devices = of_node(node_run)(lambda node_run: node_run.real_gpus)
many_each = of_node(runners)(lambda runners: [runner.result("many-devices") for runner in runners])

TESTS = Tests(checks, marks=("nccl_examples",))
