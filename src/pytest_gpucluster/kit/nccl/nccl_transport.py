"""The transport of the ranks of a framework, from NCCL's log of its step, against that of the profile. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.kit.nccl import nccl_log
from pytest_gpucluster.kit.nccl.nccl_validation import UNLOGGED, RunSpec, transport_findings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.cluster.slurm.result import TaskResult
    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.kit.nccl.nccl_log import NcclLog

# for the environment of a step: the log names the connection of each pair of ranks
LOGGED = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV", "NCCL_DEBUG_FILE": "/dev/stderr"}


@dataclass(frozen=True)
class Connections:
    """NCCL's log of a step, and the node of each rank."""

    log: NcclLog
    nodes: Mapping[int, str]


def log_of(tasks: Iterable[TaskResult]) -> NcclLog:
    """Return NCCL's log of these tasks: nccl-tests logs to stdout, the payload to stderr.

    A last line that is not terminated is left out: it may be cut.
    """
    texts = (text for task in tasks for text in (task.stdout, task.stderr))
    return nccl_log.read("".join(text[: text.rfind("\n") + 1] for text in texts))


def connections(tasks: Iterable[TaskResult]) -> Connections:
    """Return the connections that the tasks of a step logged; a task is a rank."""
    known = list(tasks)
    return Connections(log_of(known), {task.rank: task.node for task in known})


def judge_transport(node: str, found: Connections | None, profile: Profile, see: str) -> Judgement:
    """Judge the connections of the ranks of a node. found: None if the step did not run; see: the check that says why."""
    if found is None or not found.log.ranks:
        wrapped = "; does the image, or a wrapper, set NCCL_DEBUG, NCCL_DEBUG_SUBSYS or NCCL_DEBUG_FILE?"
        yield NotAvailable(f"NCCL logged nothing: see {see}{wrapped if found else ''}")
        return
    here = frozenset(
        it for it in found.log.channels if node in (found.nodes.get(it.source), found.nodes.get(it.target))
    )
    nodes = tuple(dict.fromkeys(found.nodes.values()))
    if len(nodes) > 1 and profile.fabric.transport is None:
        yield NotApplicable("the profile names no transport between nodes (fabric.transport)")
    per_node = max(1, len(found.nodes) // max(1, len(nodes)))
    spec = RunSpec(nodes, per_node, node_of_rank=found.nodes, log=replace(found.log, channels=here))
    for finding in transport_findings(spec, profile):
        if finding.code == UNLOGGED:  # the connections of this node are not in the log
            yield NotAvailable(f"{finding.measured}: see {see}")
        else:
            yield finding
