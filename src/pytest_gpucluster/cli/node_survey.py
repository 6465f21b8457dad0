"""Answers of the nodes for a drafted cluster file, and small allocations for commands on nodes."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.registry import suites

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpucluster.cluster.channel.channel import Fleet
    from pytest_gpucluster.cluster.slurm.allocation import AllocationRequest
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.probe import Answer
    from pytest_gpucluster.core.survey import Survey

HOLD = 300.0  # seconds of an allocation; the commands take a few


def survey(cluster: Cluster, nodes: str | None, known: Survey, say: Callable[[str], None]) -> Survey:
    """Return what is known with the answers of the nodes; GpuClusterError if no node answered.

    `nodes`: a hostlist of some of them; `say` gets progress, and each node that was not queried with the reason.
    """
    probes = [probe for suite in suites() if suite.draft_probes for probe in suite.load(suite.draft_probes)]
    commands = {probe.command: probe.timeout for probe in probes}
    answers: dict[str, dict[str, Answer]] = {command: {} for command in commands}
    lost: dict[str, str] = {}
    for fleet in _fleets(cluster, nodes, say):
        for command, timeout in commands.items():
            answers[command].update(fleet.ask(command, timeout=timeout))
        lost.update(fleet.lost)
    for node, why in lost.items():
        say(f"{node} was not queried: {why}")
    queried = set().union(*answers.values()) - lost.keys()
    if not queried:
        raise GpuClusterError("no node was queried: leave out --from-nodes, or name other nodes with --nodes")
    groups = (tuple(name for name in group.names if name in queried) for group in cluster.groups)
    return replace(
        known,
        groups=tuple(filter(None, groups)),
        answers={
            command: {node: answer for node, answer in found.items() if node in queried}
            for command, found in answers.items()
        },
        in_step=cluster.access != "ssh",
    )


def _fleets(cluster: Cluster, nodes: str | None, say: Callable[[str], None]) -> Iterator[Fleet]:
    from pytest_gpucluster.cluster.channel.channel import Fleet  # slow to import
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import make_slurm
    from pytest_gpucluster.plugin.controller import open_over_ssh
    from pytest_gpucluster.plugin.plan import Selection, make_plan

    slurm = make_slurm(cluster)
    if slurm is None:
        plan = make_plan(cluster, {}, Selection.parse(nodes, None))
        with contextlib.closing(open_over_ssh(cluster, plan.testable)) as fleet:
            yield fleet
        return
    slurm.retry_for = 0
    with contextlib.closing(slurm.transport):
        for request in requests(cluster, slurm, nodes, say):
            try:
                with (
                    Allocation.request(slurm, request, say=say) as held,
                    Fleet.over_slurm(slurm, held) as fleet,
                ):
                    yield fleet
            except GpuClusterError as error:
                say(f"{hostlist.fold(request.nodes)} was not queried: {error}")


def requests(
    cluster: Cluster, slurm: Slurm, nodes: str | None, problem: Callable[[str], None]
) -> Iterator[AllocationRequest]:
    """Yield a small request per partition and number of GPUs; `problem` gets the nodes that are out of service."""
    from pytest_gpucluster.plugin.controller import make_request
    from pytest_gpucluster.plugin.plan import Selection, make_plan, shares

    inventory = slurm.nodes()
    plan = make_plan(cluster, inventory, Selection.parse(nodes, None))
    for node, found in plan.problems.items():
        problem(f"{node} was not checked: {found.text}")
    for (partition, _gpus), names in shares(cluster, inventory, plan.testable).items():
        request = make_request(cluster.slurm, partition, 0, names)
        yield replace(request, exclusive=False, gpus_per_node=None, time=HOLD)
