"""torch.distributed: rank variables, process groups, a training step, a lost rank.

One short step examines all nodes; the nodes that pass it compute together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.kit.framework.framework_step import framework_runner, framework_runners
from pytest_gpucluster.suite import Tests, given, of_node, required_section
from pytest_gpucluster.suites.ddp import checks
from pytest_gpucluster.suites.ddp.config import DdpConfig
from pytest_gpucluster.suites.ddp.steps import Ddp

if TYPE_CHECKING:
    from pytest_gpucluster.kit.framework.payload_result import PayloadResult
    from pytest_gpucluster.run.session import Node

BACKENDS = ("gloo", "nccl")
config = required_section(DdpConfig)
runners = framework_runners(Ddp, config)
runner = framework_runner(Ddp, runners, first="placement")
reach = of_node(runner)(lambda runner: runner.reach)


each_backend = of_node(each=lambda _cluster: {name: name for name in BACKENDS})


@of_node(each_backend, runners)
def backend(each_backend: str, runners: list[Ddp]) -> str:
    """The backend of the process group; nccl only if nodes have GPUs."""
    if not any(each_backend in runner.backends for runner in runners):
        raise NotApplicable("NCCL needs GPUs, and these nodes have no real ones")
    return each_backend


@of_node(runners, backend)
def work_results(runners: list[Ddp], backend: str) -> list[PayloadResult]:
    """The result of the work in every allocation."""
    return [runner.work(backend) for runner in runners if backend in runner.backends]


own_results = of_node(runner)(lambda runner: [runner.work(backend) for backend in runner.backends])


@of_node(runners)
def torchrun_results(runners: list[Ddp]) -> list[tuple[PayloadResult, int]]:
    """The result of the work under torchrun in every allocation, and the ranks per node."""
    return [(runner.torchrun, runner.ranks_per_node) for runner in runners]


@of_node(runners, backend)
def lost_rank_results(runners: list[Ddp], backend: str) -> list[PayloadResult]:
    """The result of the step that loses a rank in every allocation."""
    several = [
        runner for runner in runners if backend in runner.backends and len(runner.nodes) * runner.ranks_per_node > 1
    ]
    if not several:
        raise NotApplicable("there is only one rank")
    return [runner.lose_rank(backend) for runner in several]


@of_node(runner, given.node)
def nccl_work(runner: Ddp, node: Node) -> PayloadResult:
    """The result of the work with NCCL, for a node that takes part in it."""
    if "nccl" not in runner.backends:
        raise NotApplicable("these nodes have no real GPUs")
    if node.name not in runner.fit_nodes:
        raise NotAvailable("the node cannot take part: see its other items")
    return runner.work("nccl")


placement = of_node(runner)(lambda runner: runner.placement)


placements = of_node(runners)(lambda runners: [runner.placement for runner in runners])


@of_node(runner, placement, given.node_name)
def setters(runner: Ddp, placement: PayloadResult, node_name: str) -> checks.Setters:
    """The possible origins of the rank variables; -rP shows the origin of each."""
    for facts in placement.of_node(node_name, "place")[:1]:
        who = {name: checks.who_set(name, facts, runner.setters) for name in checks.VARIABLES}
        print("\n".join(f"{name}: set by {setter}" for name, setter in who.items()))
    return runner.setters


lost_rank_deadline = of_node(config)(lambda config: config.lost_rank)


TESTS = Tests(checks, marks=("ddp",))
