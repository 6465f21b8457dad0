"""Answers of the nodes for a drafted cluster file, and small allocations for commands on nodes."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import GpuClusterError, SlurmError
from pytest_gpucluster.core.registry import parts_of_suites
from pytest_gpucluster.kit.node import node_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpucluster.cluster.channel.channel import Fleet
    from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.config.models import Cluster, Group
    from pytest_gpucluster.core.finding import Explanation
    from pytest_gpucluster.core.probe import Answer
    from pytest_gpucluster.core.survey import Survey

HOLD = 300.0  # seconds of an allocation; the commands take a few
QUEUE = 15.0  # seconds that an idle node may take to be allocated
POLL = 0.3
ALL_GROUPS = 120.0  # seconds after which no further group is read
ATTEMPTS = 2  # idle nodes of a group that are tried
COMMAND = 60.0  # seconds for one command on the node that is read


def survey(cluster: Cluster, nodes: str | None, known: Survey, progress: Callable[[str], None]) -> Survey:
    """Return what is known with the answers of the nodes; GpuClusterError if no node answered.

    `nodes`: a hostlist of some of them; `progress` gets each step, and each node that was not queried with the reason.
    """
    probes = [probe for found in parts_of_suites(lambda suite: suite.draft_probes) for probe in found]
    commands = {probe.command: probe.timeout for probe in probes}
    answers: dict[str, dict[str, Answer]] = {command: {} for command in commands}
    lost: dict[str, Explanation] = {}
    for fleet in _fleets(cluster, nodes, progress):
        for command, timeout in commands.items():
            answers[command].update(fleet.ask(command, timeout=timeout))
        lost.update(fleet.lost)
    for node, why in lost.items():
        progress(f"{node} was not queried: {why}")
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


def read_nodes(cluster: Cluster, known: Survey, progress: Callable[[str], None], nodes: str | None = None) -> Survey:
    """Return what is known with hardware and software of one idle node per group, read in one short step each.

    A group that could not be read is in `unread` with the reason. `nodes`: a hostlist of the nodes to choose from.
    """
    from pytest_gpucluster.cluster.slurm.client import make_slurm  # slow to import

    hardware, software, unread = {}, {}, {}
    named = hostlist.expand(nodes or "")
    until = time.monotonic() + ALL_GROUPS
    slurm = make_slurm(cluster)
    if slurm is not None:
        slurm.retry_for = 0
    with contextlib.closing(slurm.transport) if slurm is not None else contextlib.nullcontext():
        for group in cluster.groups:
            chosen = [name for name in group.names if nodes is None or name in named]
            if not chosen:
                continue
            if time.monotonic() > until:
                unread[group.names[0]] = f"the nodes before took {ALL_GROUPS:g} s: --nodes names nodes to read"
                continue
            try:
                node, answers = _read_one(cluster, slurm, group, chosen, progress)
            except GpuClusterError as error:
                unread[group.names[0]] = str(error)
                progress(f"{group.nodes} was not read: {error}")
                continue
            hardware[node] = node_facts.read_hardware(*(answers[command] for command in node_facts.HARDWARE))
            with contextlib.suppress(GpuClusterError):
                software[node] = node_facts.SOFTWARE.parse(answers[node_facts.SOFTWARE.command])
    return replace(known, hardware=hardware, software=software, unread=unread)


def _read_one(
    cluster: Cluster, slurm: Slurm | None, group: Group, names: Sequence[str], progress: Callable[[str], None]
) -> tuple[str, dict[str, Answer]]:
    """Return an idle node of a group and its answers, {command: answer}; GpuClusterError without one that answers."""
    commands = (*node_facts.HARDWARE, node_facts.SOFTWARE.command)
    for node in idle_nodes(slurm, names)[:ATTEMPTS] if slurm is not None else names[:ATTEMPTS]:
        try:
            with _channel(cluster, slurm, group, node, progress) as fleet:
                answers = {command: fleet.ask_node(node, command, timeout=COMMAND) for command in commands}
        except GpuClusterError as failed:
            error = failed
            continue
        silent = [answer.problem for answer in answers.values() if answer.rc is None]
        if not silent:
            return node, answers
        error = GpuClusterError(silent[0])
    raise error


def idle_nodes(slurm: Slurm, names: Sequence[str]) -> list[str]:
    """Return those of the nodes that Slurm would allocate now; GpuClusterError with the reasons if there is none."""
    from pytest_gpucluster.cluster.plan import judge_node

    inventory = slurm.nodes()
    problems = {node: judge_node(node, inventory, wait=False) for node in names}
    idle = [node for node, found in problems.items() if found is None]
    if not idle:
        why = "; ".join(f"{node}: {found.text}" for node, found in list(problems.items())[:3] if found)
        raise GpuClusterError(f"no node of it is idle ({why})")
    return idle


@contextlib.contextmanager
def held_node(
    cluster: Cluster, slurm: Slurm, group: Group, node: str, progress: Callable[[str], None], *, seconds: float = HOLD
) -> Iterator[Allocation]:
    """Hold one node with its GPUs for a small job; it is idle again, not COMPLETING, when this ends."""
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.plugin.controller import make_request

    partition = group.partition or cluster.slurm.partition
    request = make_request(cluster.slurm, partition, slurm.nodes()[node].gpus, (node,))
    request = replace(request, exclusive=False, time=seconds, queue_wait=QUEUE)
    with Allocation.request(slurm, request, progress=progress) as held:
        yield held
    until = time.monotonic() + QUEUE
    with contextlib.suppress(SlurmError):  # squeue does not know the job any more
        while slurm.run("squeue", "-h", "-j", str(held.job_id), "-o", "%T").strip() and time.monotonic() < until:
            time.sleep(POLL)


@contextlib.contextmanager
def _channel(
    cluster: Cluster, slurm: Slurm | None, group: Group, node: str, progress: Callable[[str], None]
) -> Iterator[Fleet]:
    from pytest_gpucluster.cluster.channel.channel import Fleet  # slow to import
    from pytest_gpucluster.plugin.controller import open_over_ssh

    if slurm is None:
        with contextlib.closing(open_over_ssh(cluster, (node,))) as fleet:
            yield fleet
        return
    with held_node(cluster, slurm, group, node, progress) as held, Fleet.over_slurm(slurm, held) as fleet:
        yield fleet


def _fleets(cluster: Cluster, nodes: str | None, progress: Callable[[str], None]) -> Iterator[Fleet]:
    from pytest_gpucluster.cluster.channel.channel import Fleet  # slow to import
    from pytest_gpucluster.cluster.plan import Selection, make_plan
    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.cluster.slurm.client import make_slurm
    from pytest_gpucluster.plugin.controller import open_over_ssh

    slurm = make_slurm(cluster)
    if slurm is None:
        plan = make_plan(cluster, {}, Selection.parse(nodes, None))
        with contextlib.closing(open_over_ssh(cluster, plan.testable)) as fleet:
            yield fleet
        return
    slurm.retry_for = 0
    with contextlib.closing(slurm.transport):
        for request in requests(cluster, slurm, nodes, progress):
            try:
                with (
                    Allocation.request(slurm, request, progress=progress) as held,
                    Fleet.over_slurm(slurm, held) as fleet,
                ):
                    yield fleet
            except GpuClusterError as error:
                progress(f"{hostlist.fold(request.nodes)} was not queried: {error}")


def requests(
    cluster: Cluster, slurm: Slurm, nodes: str | None, problem: Callable[[str], None]
) -> Iterator[AllocationRequest]:
    """Yield a small request per partition and number of GPUs; `problem` gets the nodes that are out of service."""
    from pytest_gpucluster.cluster.plan import Selection, make_plan, shares
    from pytest_gpucluster.plugin.controller import make_request

    inventory = slurm.nodes()
    plan = make_plan(cluster, inventory, Selection.parse(nodes, None))
    for node, found in plan.problems.items():
        problem(f"{node} was not checked: {found.text}")
    for (partition, _gpus), names in shares(cluster, inventory, plan.testable).items():
        request = make_request(cluster.slurm, partition, 0, names)
        yield replace(request, exclusive=False, gpus_per_node=None, time=HOLD)
