"""The order of proof: each node alone, then pairs, then the whole; and where that is bad, which part it is.

Every stage is measured once, when it is first asked for, and judged by many checks.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from pytest_gpucluster.config.baseline import Key
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import Action, Finding, Outcome, Verdict, with_contention
from pytest_gpucluster.core.errors import GpuClusterError, ProbeError, SlurmError
from pytest_gpucluster.core.topology import parse_slurm_topology
from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.kit import nccl_validation as beliefs
from pytest_gpucluster.kit import nvidia_smi
from pytest_gpucluster.kit.gpu_processes import unexpected_processes
from pytest_gpucluster.kit.nccl_step import log_of, output_of
from pytest_gpucluster.kit.nccl_tests import NcclOutput
from pytest_gpucluster.kit.pairing import circle
from pytest_gpucluster.kit.payload_result import signal_name
from pytest_gpucluster.suites.nccl import bandwidth as nccl_bandwidth
from pytest_gpucluster.suites.nccl import fleet as nccl_fleet
from pytest_gpucluster.suites.nccl.fleet import STANDS_APART
from pytest_gpucluster.suites.nccl.localization import Kind, Localisation, Localiser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.result import TaskResult
    from pytest_gpucluster.config.models import NcclThreshold, Profile
    from pytest_gpucluster.kit.nccl_step import NcclMeasurement
    from pytest_gpucluster.kit.nccl_tests import NcclRun
    from pytest_gpucluster.suites.nccl.localization import Measurement
    from pytest_gpucluster.suites.nccl.steps import Nccl

PAIR = 2
OUT_OF_MEMORY = "out of memory"  # the kind of failure that kit/mpi_errors.py knows
REPEATS = 5  # of a baseline
CANCELLED = (signal.SIGKILL, signal.SIGTERM)  # how Slurm ends the tasks of a step that is cancelled
MAX_STRANGERS = 4
MAX_SHOWN = 8
MAX_ROUNDS = 63  # of further pairs: all of 64 nodes, and some minutes on more
ALONE = "all_reduce"


@dataclass(frozen=True)
class Stage:
    """One measured stage: the step, the belief of each node (or '' for the whole), and the believed tables."""

    measured: NcclMeasurement
    belief: Mapping[str, Verdict]
    runs: Mapping[str, NcclRun] = field(default_factory=dict)


class NcclProof:
    """The proof of the nodes of one allocation that share a profile."""

    def __init__(
        self,
        runner: Nccl,
        nodes: tuple[str, ...],
        profile: Profile,
        own_rows: Iterable[NcclThreshold],
        slurm: Slurm,
    ) -> None:
        self.runner, self.nodes, self.profile, self._slurm = runner, nodes, profile, slurm
        self.rows = (*own_rows, *profile.nccl)
        self._whole: dict[str, Stage] = {}
        self.repeats: dict[Key, list[float]] = {}

    @cached_property
    def env(self) -> dict[str, str]:
        """The variables that conditions of thresholds are held against: ours, which srun passes on, and the exports."""
        cluster = self.runner.config
        environment = self.runner.environment
        return {**os.environ, **(environment.exports if environment else {}), **cluster.exports}

    def sizes(self, collective: str, nodes: int) -> tuple[int, ...]:
        """Return the sizes that thresholds name for a run; () where none fits."""
        try:
            return nccl_bandwidth.sizes_for(
                self.rows, collective=collective, nodes=nodes, gpus_per_node=self.runner.gpus, env=self.env
            )
        except GpuClusterError:
            return ()

    # --- each node alone

    @cached_property
    def alone(self) -> Stage:
        """All-reduce within each node, all nodes in one step."""
        measured = self._without_fallen(
            lambda nodes: self.runner.alone(nodes, self.sizes(ALONE, 1)), self.nodes, apart=True
        )
        outputs = {node: output_of(_of_node(measured, node), ALONE) for node in self.nodes}
        # one reading of all the tables, so that two nodes on one device are seen; failures stay with their node
        together = NcclOutput(tuple(run for output in outputs.values() for run in output.runs))
        label = {str(task.rank): task.node for task in measured.tasks}
        logged = self.runner.logs_transports
        asked = beliefs.RunSpec(self.nodes, self.runner.gpus, collective=ALONE, logged=logged)
        logs = {node: log_of(_of_node(measured, node)) for node in self.nodes}
        belief = beliefs.validate_nodes(together, label, asked, self.profile, logs)
        for node, output in outputs.items():
            if output.problems:
                here = dict.fromkeys(range(self.runner.gpus), node)  # each node counts its ranks from 0
                own = replace(asked, nodes=(node,), log=logs[node], node_of_rank=here)
                belief[node] = beliefs.validate_run(output, own, self.profile)
            told = _with_endings(belief[node], measured, node)
            if told.cause == OUT_OF_MEMORY:
                told = _because(told, self._strangers(node))
            if told.outcome is Outcome.FAILED and logs[node].set_by not in told.cause:
                told = _because(told, logs[node].set_by)
            belief[node] = self.with_loss(_with_problem(told, measured, node), (node,))
        runs = {
            node: outputs[node].runs[0]
            for node, verdict in belief.items()
            if verdict.outcome is Outcome.PASSED
        }
        self._keep(ALONE, 1, runs.values())
        return Stage(measured, belief, runs)

    def _without_fallen(
        self,
        measure: Callable[[tuple[str, ...]], NcclMeasurement],
        nodes: tuple[str, ...],
        *,
        apart: bool = False,
    ) -> NcclMeasurement:
        """Measure; where nodes go away meanwhile, which ends the step for all, measure again without them.

        `apart`: each node is a world of its own, and what the others have ended by themselves stands.
        """
        while True:
            before = len(self.runner.lost_nodes)
            there = tuple(node for node in nodes if node not in self.runner.lost_nodes) or nodes
            measured = measure(there)
            left = set(there) - self.runner.lost_nodes.keys()
            if len(self.runner.lost_nodes) == before or not left or (apart and _ended(measured) >= left):
                return measured

    def with_loss(self, verdict: Verdict, nodes: tuple[str, ...]) -> Verdict:
        """Say first of nodes that went away that they did, whatever the others measured without them."""
        lost = [
            Finding(node, f"lost: {self.runner.lost_nodes[node]}", "the node takes part to the end")
            for node in nodes
            if node in self.runner.lost_nodes
        ]
        if not lost:
            return verdict
        others = () if {it.part for it in lost} == {*nodes} else verdict.findings
        return Verdict(
            verdict.check,
            Outcome.FAILED,
            (*lost, *others),
            cause="the node or its slurmd died or hangs since this run began",
            hint=f"scontrol show node {hostlist.fold([it.part for it in lost])}; its console and dmesg; "
            "`systemctl status slurmd` and slurmd's log there",
            action=Action.DRAIN,
        )

    def alone_bandwidth(self, node: str) -> Verdict:
        """Judge one node's own bandwidth at the sizes of its thresholds; where it is slow, say what may be why."""
        verdict = self._bandwidth(self.alone.runs[node], nodes=1)
        if verdict.outcome is not Outcome.FAILED:
            return verdict
        log = log_of(_of_node(self.alone.measured, node))
        said = log.summary(dict.fromkeys(log.hosts, node)) if log.channels else ""
        known = {f"{name}={value}" for row in self.rows for name, value in row.conditions.items()}
        if log.slowing - known:  # a setting, and no part of the node
            verdict = replace(verdict, action=Action.MONITOR)
        return _because(with_contention(verdict, self._strangers(node)), said, self._most_are_slow)

    @cached_property
    def _most_are_slow(self) -> str:
        """Say that most nodes alone are below their hard limit, where they are; '' otherwise."""
        verdicts = [self._bandwidth(run, nodes=1) for run in self.alone.runs.values()]
        slow = sum(verdict.action is Action.DRAIN for verdict in verdicts)
        if not 1 < len(verdicts) < 2 * slow:
            return ""
        return (
            f"{slow} of {len(verdicts)} nodes are below their hard limit: look first for a setting or a driver that "
            "they share"
        )

    def _strangers(self, node: str) -> str:
        """Say who else is at work on the node's GPUs, now that our processes have ended; '' where nobody is seen."""
        answer = self.runner.survey(node)
        try:
            gpus, apps = nvidia_smi.GPUS.parse(answer), nvidia_smi.APPS.parse(answer)
        except GpuClusterError:
            return ""
        if all(gpu.lost for gpu in gpus):
            return ""
        found = islice(unexpected_processes(gpus, apps), MAX_STRANGERS)
        who = "; ".join(f"{gpu}: {process}" for gpu, process in found)
        return f"others are at work on GPUs of {node}: {who}" if who else ""

    def alone_values(self) -> tuple[dict[str, float], str]:
        """Return {node: GB/s} of all believed nodes at the largest size, and what that is."""
        sizes = [run.rows[-1].size for run in self.alone.runs.values() if run.rows]
        if not sizes:
            return {}, "no believed run"
        size = max(sizes)
        found = {node: nccl_bandwidth.measured(run, size) for node, run in self.alone.runs.items()}
        return {
            node: value for node, value in found.items() if value
        }, f"all_reduce alone, {format_size(size)}"

    # --- pairs

    @property
    def usable(self) -> tuple[str, ...]:
        """The nodes whose own ranks could be believed: the others would only hang or spoil what they join."""
        believed = (node for node in self.nodes if self.alone.belief[node].outcome is Outcome.PASSED)
        return tuple(node for node in believed if node not in self.runner.lost_nodes)

    @cached_property
    def localised(self) -> tuple[Localisation, tuple[Measurement, ...]]:
        """Rounds of pairs until the bad part is named or cannot be; more where all are fine and the whole is not.

        A node that goes away meanwhile is named for that; the others are then measured with each other anew.
        """
        while True:
            before = len(self.runner.lost_nodes)
            found = self._localise()
            if len(self.runner.lost_nodes) == before or len(self.usable) < PAIR:
                return found

    def pairs(self, node: str) -> Verdict:
        """Judge a node by its measurements with partners; where it is bad, say what may be why."""
        found, measured = self.localised
        verdict = nccl_fleet.pairs(node, found, measured, self.runner.config.pair_size, self._pair_limit)
        if verdict.outcome is Outcome.FAILED:
            verdict = _because(with_contention(verdict, self._strangers(node)), self._settings())
        return self.with_loss(verdict, (node,))

    def _settings(self) -> str:
        """Say which NCCL variables are set on some nodes alone: ranks that disagree hang or slow each other down."""
        steps = (self.alone.measured, *(stage.measured for stage in self._whole.values()))
        tasks = [*self.runner.paired, *(task for step in steps for task in step.tasks)]
        logs = {node: log_of(task for task in tasks if task.node == node) for node in self.nodes}
        found = {node: log.foreign for node, log in logs.items() if log.hosts}
        everywhere = frozenset.intersection(*found.values()) if found else frozenset()
        odd = sorted({setting for settings in found.values() for setting in settings - everywhere})
        where = [hostlist.fold([node for node in found if setting in found[node]]) for setting in odd]
        words = [f"{setting} ({nodes})" for setting, nodes in zip(odd, where, strict=True)]
        return f"not set alike on all nodes: {', '.join(words[:MAX_SHOWN])}" if words else ""

    def links(self) -> Verdict:
        """Judge the links between the nodes; where one is bad, say what is set on some nodes alone."""
        verdict = nccl_fleet.links(*self.localised, self.usable)
        return _because(verdict, self._settings()) if verdict.outcome is Outcome.FAILED else verdict

    def _localise(self) -> tuple[Localisation, tuple[Measurement, ...]]:
        if len(self.usable) < PAIR:
            return Localisation(), ()
        plan = self._localiser(self.runner.config.min_relative, self._expected())
        if not self._drive(plan):
            return Localisation(), ()
        found, measured = plan.verdict(), plan.measurements
        if not found.clean or len(self.usable) == PAIR or not self._whole_is_bad():
            return found, measured
        closer, circled = self._look_closer()
        again = closer.verdict()
        return replace(
            again,
            rounds=found.rounds + again.rounds + circled,
            steps=found.steps + again.steps + bool(circled),
        ), (*measured, *closer.measurements)

    def _localiser(self, distance: float, expected: Mapping[str, float] | None = None) -> Localiser:
        return Localiser(
            self.usable,
            leaves=self._leaves,
            expected=expected,
            gpus_per_node=self.runner.gpus if self.runner.can_re_form else 1,
            alone=False,
            min_distance=distance,
        )

    def _look_closer(self) -> tuple[Localiser, int]:
        """Where all pairs are fine and the whole is not: pairs anew, and all others in one step; also how many rounds.

        They are held against the fleet more narrowly: one adapter of eight makes a pair slow by an eighth. And a slow
        link may be among the pairs that no round has used.
        """
        plan = self._localiser(STANDS_APART)
        if not self._drive(plan) or not plan.verdict().clean:
            return plan, 0
        used = {frozenset(it.members) for it in plan.measurements}
        rest = [[pair for pair in groups if frozenset(pair) not in used] for groups in circle(plan.nodes)]
        wanted = [groups for groups in rest if groups][:MAX_ROUNDS]
        if wanted:
            plan.feed(self.runner.rounds(plan.nodes, wanted))
            self._drive(plan)
        return plan, len(wanted)

    def _drive(self, plan: Localiser) -> bool:
        """Measure what is planned; False where a node of the plan went away, so that it has to be planned anew."""
        while not self.runner.lost_nodes.keys() & set(plan.nodes):
            if not (batch := plan.next_rounds()):
                return True
            plan.feed(self.runner.rounds(plan.nodes, batch))
        return False

    def _whole_is_bad(self) -> bool:
        if not self.whole(ALONE).runs:
            return True
        try:
            return self._judge_whole(ALONE).outcome is Outcome.FAILED
        except GpuClusterError:
            return False  # no threshold: nothing says that it is bad

    @cached_property
    def _leaves(self) -> dict[str, str]:
        """{node: leaf switch}, from Slurm."""
        try:
            return parse_slurm_topology(self._slurm.run("scontrol", "show", "topology", "-o"))
        except (SlurmError, ProbeError):
            return {}  # a site without a topology file: no leaf is known

    def _expected(self) -> dict[str, float]:
        config = self.runner.config
        if config.pair_busbw is not None:
            return {Kind.WITHIN.value: config.pair_busbw}
        return (
            {Kind.WITHIN.value: self._pair_row.bound} if self._pair_row else {}
        )  # else the fleet judges itself

    @property
    def _pair_limit(self) -> float | None:
        """The hard limit of a pair, GB/s."""
        own = self.runner.config.pair_drain_below
        return own if own is not None or self._pair_row is None else self._pair_row.drain_below

    @cached_property
    def _pair_row(self) -> NcclThreshold | None:
        """The threshold of a pair, None where no row fits."""
        size, gpus = self.runner.config.pair_size, self.runner.gpus
        try:
            return nccl_bandwidth.threshold_for(
                self.rows, collective=ALONE, nodes=PAIR, gpus_per_node=gpus, size=size, env=self.env
            ).row
        except GpuClusterError:
            return None

    # --- the whole

    def whole(self, collective: str) -> Stage:
        """One collective over all usable nodes."""
        if collective not in self._whole:
            self._whole[collective] = self._measure_whole(collective)
        return self._whole[collective]

    def _measure_whole(self, collective: str) -> Stage:
        nodes = self.usable[: self.runner.config.nodes]
        measured = self._without_fallen(
            lambda there: self.runner.whole(there, collective, self.sizes(collective, len(there))), nodes
        )
        asked_for, nodes = nodes, tuple(node for node in nodes if node not in self.runner.lost_nodes) or nodes
        asked = beliefs.RunSpec(
            nodes,
            self.runner.gpus,
            collective=collective,
            node_of_rank=measured.node_of_rank or None,
            log=measured.log if self.runner.logs_transports else None,
        )
        belief = _with_endings(beliefs.validate_run(measured.output, asked, self.profile), measured, "")
        belief = _with_problem(belief, measured, "")
        runs = {"": measured.output.runs[0]} if belief.outcome is Outcome.PASSED else {}
        self._keep(collective, len(nodes), runs.values())
        return Stage(measured, {"": self.with_loss(belief, asked_for)}, runs)

    def whole_belief(self, collective: str) -> Verdict:
        """Return whether the whole is believed; where it failed, which part the rounds of pairs name."""
        stage = self.whole(collective)
        believed = stage.belief[""]
        if all(finding.part == beliefs.TRANSPORT for finding in believed.findings):
            return believed  # it ran well, and did not say by which way: no part is to be named for that
        return believed if stage.runs else self._explained(believed)  # what went away is named already

    def whole_bandwidth(self, collective: str) -> Verdict:
        """Judge the speed of a believed whole; where it is slow, say which part the rounds of pairs name."""
        return self._explained(self._judge_whole(collective))

    def _explained(self, verdict: Verdict) -> Verdict:
        if verdict.outcome is not Outcome.FAILED or len(self.usable) < PAIR:
            return verdict
        found, measured = self.localised
        where = nccl_fleet.whereabouts(found, measured, self.usable)
        if lost := [f"{node} is lost: {why}" for node, why in self.runner.lost_nodes.items()]:
            where = "; ".join(lost) + ("" if found.clean else f"; {where}")  # pairs are fine without it
        others = map(self._strangers, found.bad_nodes[:MAX_STRANGERS])
        return _because(verdict, where, *others, self._settings())

    def _judge_whole(self, collective: str) -> Verdict:
        """Judge a believed whole; thresholds are those of the number of nodes that were to be used."""
        nodes = len(self.nodes[: self.runner.config.nodes])
        stage = self.whole(collective)
        verdict = self._bandwidth(stage.runs[""], nodes=nodes, counted=stage.measured.log.nodes)
        if verdict.outcome is not Outcome.FAILED or not stage.measured.log.channels:
            return verdict
        return _because(verdict, stage.measured.log.summary(stage.measured.node_of_rank))

    # --- thresholds and baselines

    def _bandwidth(self, run: NcclRun, *, nodes: int, counted: int = 0) -> Verdict:
        gpus = self.runner.gpus
        nvls = self.env.get("NCCL_NVLS_ENABLE") != "0"
        limit = nccl_bandwidth.ceiling(
            run.collective, nodes=nodes, gpus_per_node=gpus, profile=self.profile, nvls=nvls, counted=counted
        )
        return nccl_bandwidth.bandwidth(
            run, self.rows, nodes=nodes, gpus_per_node=gpus, env=self.env, limit=limit
        )

    def _keep(self, collective: str, nodes: int, runs: Iterable[NcclRun]) -> None:
        for run in runs:
            for row in run.rows:
                # below the asked sizes stands the latency: its bus bandwidth is printed too coarsely to be a threshold
                if row.out_of_place.busbw and row.size >= self.runner.sweep.begin:
                    key = Key(collective, nodes, self.runner.gpus, row.size, self._conditions())
                    self.repeats.setdefault(key, []).append(row.out_of_place.busbw)

    def _conditions(self) -> tuple[tuple[str, str], ...]:
        names = ("NCCL_NVLS_ENABLE", "NCCL_HOSTID")
        return tuple((name, self.env[name]) for name in names if name in self.env)

    def repeat(self, collectives: Iterable[str]) -> dict[Key, list[float]]:
        """Measure everything REPEATS times, for a baseline."""
        asked = tuple(collectives)
        for _ in range(REPEATS):
            self.__dict__.pop("alone", None)
            self._whole.clear()
            if self.runner.gpus > 1:
                _ = self.alone
            for collective in asked if len(self.nodes) > 1 else ():
                self.whole(collective)
        return self.repeats


def _because(verdict: Verdict, *reasons: str) -> Verdict:
    """Put what is known of a failure before its usual cause."""
    return replace(verdict, cause="; ".join(filter(None, (*reasons, verdict.cause))))


def _of_node(measured: NcclMeasurement, node: str) -> list[TaskResult]:
    return [task for task in measured.tasks if task.node == node]


def _ended(measured: NcclMeasurement) -> set[str]:
    """Return the nodes all of whose tasks ended by themselves."""
    still = {task.node for task in measured.tasks if task.rc is None or task.signal in CANCELLED}
    return {task.node for task in measured.tasks} - still


def _with_endings(verdict: Verdict, measured: NcclMeasurement, node: str) -> Verdict:
    """Where nothing but exit statuses is known, tell that of each task: one was killed, and the others followed."""
    tasks = _of_node(measured, node) if node else measured.tasks
    ours = CANCELLED if measured.problem else ()
    bad = [task for task in tasks if task.rc not in (0, None) and task.signal not in ours]
    if not bad or not all(finding.measured.startswith("exit code") for finding in verdict.findings):
        return verdict
    findings = tuple(
        Finding(f"task {task.rank} on {task.node}", _ending(task), "ends with 0") for task in bad[:MAX_SHOWN]
    )
    return replace(
        verdict,
        findings=findings,
        cause="a process was killed or crashed, and those that waited for it ended with it",
        hint="dmesg -T | grep -i -e oom -e segfault -e xid on the node; the log of the step has their last words",
    )


def _ending(task: TaskResult) -> str:
    if task.signal is None:
        return f"exit status {task.rc}"
    return f"ended by signal {task.signal} ({signal_name(task.signal)})"


def _with_problem(verdict: Verdict, measured: NcclMeasurement, node: str) -> Verdict:
    """Where a step had to be cancelled, say so of every node ('': of the whole) that had not ended by then.

    It comes first, unless it is known why: a rank that failed, or a slow transport, keeps the others waiting.
    """
    tasks = _of_node(measured, node) if node else measured.tasks
    still = [task for task in tasks if task.rc is None or task.signal in CANCELLED]
    if not measured.problem or (tasks and not still):
        return verdict
    where = sorted({task.node for task in still if task.node})
    what = f"{len(still)} of {len(tasks)} tasks never ended" if still else measured.problem
    hang = Finding(node or hostlist.fold(where) or "step", f"hangs: {what}", "every task ends by itself")
    if any(_explains(finding) for finding in verdict.findings[:1]):
        return replace(verdict, findings=(*verdict.findings, hang))
    return Verdict(
        verdict.check,
        Outcome.FAILED,
        (hang, *verdict.findings),
        cause="a GPU, a link or a peer does not answer, or a rank died",
        hint="look at dmesg and nvidia-smi of the node, and test it alone",
        action=verdict.action,
    )


def _explains(finding: Finding) -> bool:
    """Tell whether a finding says why a step did not end, and not only that it did not."""
    return not beliefs.is_consequence(finding) and not finding.measured.startswith("timeout:")
