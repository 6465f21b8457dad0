"""One measured stage and its validity: what its step, its tasks and their logs prove about each node. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import Action, Finding, Outcome, Verdict
from pytest_gpucluster.core.complaint import first_complaint
from pytest_gpucluster.core.finding import Quote
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.kit.framework.payload_result import signal_name
from pytest_gpucluster.kit.nccl import nccl_validation as validation
from pytest_gpucluster.kit.nccl.nccl_failures import rank_failures
from pytest_gpucluster.kit.nccl.nccl_step import output_of
from pytest_gpucluster.kit.nccl.nccl_tests import NcclOutput
from pytest_gpucluster.kit.nccl.nccl_transport import log_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pytest_gpucluster.cluster.slurm.result import TaskResult
    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.kit.nccl.nccl_log import NcclLog
    from pytest_gpucluster.kit.nccl.nccl_step import NcclMeasurement
    from pytest_gpucluster.kit.nccl.nccl_tests import NcclRun

ALONE = "all_reduce"
OUT_OF_MEMORY = "out_of_memory"  # the code of that failure in kit/mpi/mpi_errors.py
CANCELLED = (signal.SIGKILL, signal.SIGTERM)  # how Slurm ends the tasks of a step that is cancelled
MAX_SHOWN = 8
SOUND_NODES = 2  # with the same right sums, so that a node with wrong sums is the exception


@dataclass(frozen=True)
class Stage:
    """One measured stage: the step, the validation of each node ('': of the whole), and the valid tables.

    `size`: the number of nodes in one table.
    """

    measured: NcclMeasurement
    verdicts: Mapping[str, Verdict]
    runs: Mapping[str, NcclRun] = field(default_factory=dict)
    size: int = 1


def alone_stage(
    measured: NcclMeasurement,
    spec: validation.RunSpec,
    profile: Profile,
    lost: Mapping[str, str],
    other_processes: Callable[[str], str],
) -> Stage:
    """Validate all-reduce within each node of `spec`, all nodes in one step.

    `lost`: {node: why}. `other_processes` returns a text about processes of others on the GPUs of a node.
    """
    tasks = {node: tasks_of(measured, node) for node in spec.nodes}
    outputs = {node: output_of(tasks[node], ALONE) for node in spec.nodes}
    logs = {node: log_of(tasks[node]) for node in spec.nodes}
    validity = _validate_each(measured, outputs, logs, spec, profile)
    for node, valid in validity.items():
        verdict = with_endings(valid, measured, node)
        first = verdict.findings[0].code if verdict.findings else ""
        if first == OUT_OF_MEMORY:
            verdict = because(verdict, other_processes(node))
        if first and first not in validation.SLOWER_TRANSPORT:
            verdict = because(verdict, logs[node].set_by)
        verdict = unless_misplaced(with_hang(verdict, measured, node), measured, (node,))
        validity[node] = with_loss(verdict, (node,), lost)
    validity = with_corruption(validity)
    passed = (node for node, verdict in validity.items() if verdict.outcome is Outcome.PASSED)
    return Stage(measured, validity, {node: outputs[node].runs[0] for node in passed})


def _validate_each(
    measured: NcclMeasurement,
    outputs: Mapping[str, NcclOutput],
    logs: Mapping[str, NcclLog],
    spec: validation.RunSpec,
    profile: Profile,
) -> dict[str, Verdict]:
    # all tables together show two nodes on one device; failures count for their node
    together = NcclOutput(tuple(run for output in outputs.values() for run in output.runs))
    label = {str(task.rank): task.node for task in measured.tasks}
    validity = validation.validate_nodes(together, label, spec, profile, logs)
    for node, output in outputs.items():
        if output.problems:
            ranks = dict.fromkeys(range(spec.gpus_per_node), node)  # each node counts its ranks from 0
            node_spec = replace(spec, nodes=(node,), log=logs[node], node_of_rank=ranks)
            validity[node] = validation.validate_run(output, node_spec, profile)
    return validity


def whole_stage(
    measured: NcclMeasurement, spec: validation.RunSpec, profile: Profile, lost: Mapping[str, str]
) -> Stage:
    """Validate one collective over all nodes of `spec`; `lost` names those that were lost meanwhile, {node: why}."""
    nodes = tuple(node for node in spec.nodes if node not in lost) or spec.nodes
    log, where = measured.log if spec.logged else None, measured.node_of_rank or None
    ran = replace(spec, nodes=nodes, node_of_rank=where, log=log, logged=True)
    verdict = with_endings(validation.validate_run(measured.output, ran, profile), measured, "")
    verdict = unless_misplaced(with_hang(verdict, measured, ""), measured, nodes)
    runs = {"": measured.output.runs[0]} if verdict.outcome is Outcome.PASSED else {}
    return Stage(measured, {"": with_loss(verdict, spec.nodes, lost)}, runs, len(nodes))


def without_lost_nodes(
    measure: Callable[[tuple[str, ...]], NcclMeasurement],
    nodes: tuple[str, ...],
    lost: Mapping[str, str],
    *,
    apart: bool = False,
) -> NcclMeasurement:
    """Measure; if nodes are lost meanwhile, which ends the step for all, measure again without them.

    `lost` grows while `measure` runs. `apart`: each node is a separate world, and the results of nodes whose tasks ended
    by themselves are valid.
    """
    while True:
        before = len(lost)
        usable = tuple(node for node in nodes if node not in lost) or nodes
        measured = measure(usable)
        left = set(usable) - lost.keys()
        if len(lost) == before or not left or (apart and ended_nodes(measured) >= left):
            return measured


def tasks_of(measured: NcclMeasurement, node: str) -> list[TaskResult]:
    """Return the tasks on a node."""
    return [task for task in measured.tasks if task.node == node]


def ended_nodes(measured: NcclMeasurement) -> set[str]:
    """Return the nodes all of whose tasks ended by themselves."""
    running = {task.node for task in _running(measured.tasks)}
    return {task.node for task in measured.tasks} - running


def _running(tasks: Iterable[TaskResult]) -> list[TaskResult]:
    return [task for task in tasks if task.rc is None or task.signal in CANCELLED]


# --- what a verdict gains from the step


def because(verdict: Verdict, *reasons: str) -> Verdict:
    """Put known reasons of a failure before its usual cause."""
    return replace(verdict, cause="; ".join(filter(None, (*reasons, verdict.cause))))


def with_loss(verdict: Verdict, nodes: Iterable[str], lost: Mapping[str, str]) -> Verdict:
    """Put the loss of nodes, {node: why}, before the findings of the others."""
    names = list(nodes)
    gone = [node for node in names if node in lost]
    if not gone:
        return verdict
    findings = [
        Finding(Part("node", name=node), f"lost: {lost[node]}", "the node takes part to the end", code="lost")
        for node in gone
    ]
    others = () if len(gone) == len(names) else verdict.findings
    return Verdict(
        verdict.check,
        Outcome.FAILED,
        (*findings, *others),
        cause="the node or its slurmd died or hangs since this run began",
        hint=f"scontrol show node {hostlist.fold(gone)}; its console and dmesg; "
        "`systemctl status slurmd` and slurmd's log there",
        action=Action.DRAIN,
        never_healthy="the node answered when the run began and neither its tasks nor a repeated step answer since",
    )


def with_corruption(verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Let nodes whose own sums are wrong leave service, if at least two others computed the same sums right."""
    sound = sum(verdict.outcome is Outcome.PASSED for verdict in verdicts.values())
    reason = "all_reduce within one node adds the same small numbers on all nodes, and other nodes of this step add them right"
    return {
        node: replace(verdict, action=Action.DRAIN, never_healthy=reason)
        if sound >= SOUND_NODES
        and verdict.findings
        and all(it.code in validation.WRONG_DATA for it in verdict.findings)
        else verdict
        for node, verdict in verdicts.items()
    }


def unless_misplaced(verdict: Verdict, measured: NcclMeasurement, nodes: Iterable[str]) -> Verdict:
    """Return a failure if tasks of these nodes did not run where the step states: what they printed is no result."""
    found = {node: measured.misplaced[node] for node in nodes if node in measured.misplaced}
    stated = "tasks in the stated container, in the stated number"
    findings = tuple(Finding(Part("node", name=node), why, stated, code="misplaced") for node, why in found.items())
    if not findings:
        return verdict
    return Verdict(
        verdict.check,
        Outcome.FAILED,
        findings,
        cause="the step did not run as the cluster file states",
        hint="plugstack.conf and the log of slurmd on the node; the container suite (-m container)",
        action=Action.CONFIGURE,
    )


def with_endings(verdict: Verdict, measured: NcclMeasurement, node: str) -> Verdict:
    """If only exit statuses are known, return one finding per task: the others ended because one was killed."""
    tasks = tasks_of(measured, node) if node else measured.tasks
    cancelled = CANCELLED if measured.problem else ()
    bad = [task for task in tasks if task.rc not in (0, None) and task.signal not in cancelled]
    if not bad or not all(finding.code == "exit_code" for finding in verdict.findings):
        return verdict
    findings = tuple(
        Finding(
            Part("task", name=f"task {task.rank} on {task.node}", nodes=(task.node,)),
            Quote(f"{_ending(task)}{_complaint(task)}"),
            "ends with 0",
            code="exit_status" if task.signal is None else "signal",
        )
        for task in bad[:MAX_SHOWN]
    )
    return replace(
        verdict,
        findings=findings,
        cause="a process was killed or crashed, and the processes that waited for it ended with it",
        hint="dmesg -T | grep -i -e oom -e segfault -e xid on the node; the end of the step's log has their output",
    )


def _ending(task: TaskResult) -> str:
    if task.signal is None:
        return f"exit status {task.rc}"
    return f"ended by signal {task.signal} ({signal_name(task.signal)})"


def _complaint(task: TaskResult) -> str:
    said = first_complaint(rank_failures(f"{task.stderr}\n{task.stdout}").shown)
    return f"; first complaint: {said}" if said else ""


def with_hang(verdict: Verdict, measured: NcclMeasurement, node: str) -> Verdict:
    """Add a finding that a node ('': the whole) hung if the step was cancelled before its tasks ended.

    It is the first finding unless another one explains it: a rank that failed, or a slow transport, blocks the others.
    """
    tasks = tasks_of(measured, node) if node else measured.tasks
    running = _running(tasks)
    if not measured.problem or (tasks and not running):
        return verdict
    where = sorted({task.node for task in running if task.node})
    what = f"{len(running)} of {len(tasks)} tasks never ended" if running else measured.problem
    name = node or hostlist.fold(where)
    part = Part("node", name=name, nodes=tuple(where)) if name else Part("step", name="step")
    hang = Finding(part, f"hangs: {what}", "every task ends by itself", code="hangs")
    if verdict.findings and not validation.rank_of_cause(verdict.findings[0]):
        return replace(verdict, findings=(*verdict.findings, hang))
    return Verdict(
        verdict.check,
        Outcome.FAILED,
        (hang, *verdict.findings),
        cause="a GPU, a link or a peer does not answer, or a rank died",
        hint="dmesg and nvidia-smi on the node; test the node alone",
        action=verdict.action,
    )


# --- what several nodes show


def differing_settings(tasks: Iterable[TaskResult], nodes: Iterable[str]) -> str:
    """Return a text about NCCL variables that are set on some nodes only: such ranks hang or are slow; '' for none."""
    known = list(tasks)
    logs = {node: log_of(task for task in known if task.node == node) for node in nodes}
    found = {node: log.foreign for node, log in logs.items() if log.hosts}
    everywhere = frozenset.intersection(*found.values()) if found else frozenset()
    differing = sorted({setting for settings in found.values() for setting in settings - everywhere})
    where = [hostlist.fold([node for node in found if setting in found[node]]) for setting in differing]
    words = [f"{setting} ({nodes})" for setting, nodes in zip(differing, where, strict=True)]
    return f"not set on all nodes: {', '.join(words[:MAX_SHOWN])}" if words else ""
