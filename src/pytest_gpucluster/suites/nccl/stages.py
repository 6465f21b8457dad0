"""The stages of the nccl suite: each node alone, then pairs, then all nodes, and the bad part if one of them fails.

Every stage is measured once, at its first use, and judged by many checks.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.environment import variables
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import Action, Finding, Outcome, Verdict, with_contention
from pytest_gpucluster.core.errors import GpuClusterError, ProbeError, SlurmError
from pytest_gpucluster.core.majority import decides
from pytest_gpucluster.core.topology import parse_slurm_topology
from pytest_gpucluster.core.units import format_size
from pytest_gpucluster.kit.framework.payload_result import signal_name
from pytest_gpucluster.kit.gpu import nvidia_smi
from pytest_gpucluster.kit.gpu.gpu_processes import unexpected_processes
from pytest_gpucluster.kit.nccl import nccl_validation as validation
from pytest_gpucluster.kit.nccl.nccl_floor import Floor, Route
from pytest_gpucluster.kit.nccl.nccl_log import NcclLog
from pytest_gpucluster.kit.nccl.nccl_step import log_of, output_of
from pytest_gpucluster.kit.nccl.nccl_tests import NcclOutput
from pytest_gpucluster.kit.nccl.pairing import circle
from pytest_gpucluster.suites.nccl import bandwidth as nccl_bandwidth
from pytest_gpucluster.suites.nccl import fleet as nccl_fleet
from pytest_gpucluster.suites.nccl.baseline import REPEATS, Key
from pytest_gpucluster.suites.nccl.fleet import OUTLIER_DISTANCE
from pytest_gpucluster.suites.nccl.localization import Localiser
from pytest_gpucluster.suites.nccl.measurement import Bound, GroupKind, Localisation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.result import TaskResult
    from pytest_gpucluster.config.models import BandwidthThreshold, Profile
    from pytest_gpucluster.kit.nccl.nccl_step import NcclMeasurement
    from pytest_gpucluster.kit.nccl.nccl_tests import NcclRun
    from pytest_gpucluster.suites.nccl.measurement import Measurement
    from pytest_gpucluster.suites.nccl.steps import NcclRunner

PAIR = 2
OUT_OF_MEMORY = "out of memory"  # the kind of failure that kit/mpi/mpi_errors.py knows
CANCELLED = (signal.SIGKILL, signal.SIGTERM)  # how Slurm ends the tasks of a step that is cancelled
MAX_OTHERS = 4
MAX_SHOWN = 8
MAX_ROUNDS = 63  # of further pairs: all pairs of 64 nodes; on more nodes some minutes
ALONE = "all_reduce"


@dataclass(frozen=True)
class Stage:
    """One measured stage: the step, the validation of each node ('': of the whole), and the valid tables."""

    measured: NcclMeasurement
    verdicts: Mapping[str, Verdict]
    runs: Mapping[str, NcclRun] = field(default_factory=dict)


class NcclStages:
    """The stages of the nodes of one allocation that share a profile."""

    def __init__(
        self,
        runner: NcclRunner,
        nodes: tuple[str, ...],
        profile: Profile,
        own_rows: Iterable[BandwidthThreshold],
        slurm: Slurm,
        *,
        recording: bool = False,
    ) -> None:
        """`recording`: new rows are measured: the sizes are those of the known ones, and the floor judges."""
        self.runner, self.nodes, self.profile, self._slurm = runner, nodes, profile, slurm
        self.rows, self._recording = (*own_rows, *profile.nccl), recording
        self._whole: dict[str, Stage] = {}
        self.floors: dict[
            tuple[str, int], list[tuple[float, Floor]]
        ] = {}  # (collective, nodes) -> GB/s, floor
        self.repeats: dict[Key, list[float]] = {}

    @cached_property
    def env(self) -> dict[str, str]:
        """The variables with which conditions of thresholds are compared: those that the cluster file gives the steps."""
        return {**variables(self.runner.environment), **self.runner.config.exports}

    def sizes(self, collective: str, nodes: int) -> tuple[int, ...]:
        """Return the sizes that thresholds name for a run; () if none fits."""
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
        measured = self._without_lost_nodes(
            lambda nodes: self.runner.alone(nodes, self.sizes(ALONE, 1)), self.nodes, apart=True
        )
        outputs = {node: output_of(_of_node(measured, node), ALONE) for node in self.nodes}
        # all tables together show two nodes on one device; failures count for their node
        together = NcclOutput(tuple(run for output in outputs.values() for run in output.runs))
        label = {str(task.rank): task.node for task in measured.tasks}
        logged = self.runner.logs_transports
        spec = validation.RunSpec(self.nodes, self.runner.gpus, collective=ALONE, logged=logged)
        logs = {node: log_of(_of_node(measured, node)) for node in self.nodes}
        validity = validation.validate_nodes(together, label, spec, self.profile, logs)
        for node, output in outputs.items():
            if output.problems:
                ranks = dict.fromkeys(range(self.runner.gpus), node)  # each node counts its ranks from 0
                node_spec = replace(spec, nodes=(node,), log=logs[node], node_of_rank=ranks)
                validity[node] = validation.validate_run(output, node_spec, self.profile)
            verdict = _with_endings(validity[node], measured, node)
            if verdict.cause == OUT_OF_MEMORY:
                verdict = _because(verdict, self._other_processes(node))
            if verdict.outcome is Outcome.FAILED and logs[node].set_by not in verdict.cause:
                verdict = _because(verdict, logs[node].set_by)
            verdict = _where_stated(_with_problem(verdict, measured, node), measured, (node,))
            validity[node] = self.with_loss(verdict, (node,))
        validity = _with_corruption(validity)
        runs = {
            node: outputs[node].runs[0]
            for node, verdict in validity.items()
            if verdict.outcome is Outcome.PASSED
        }
        self._record(ALONE, 1, runs.values())
        return Stage(measured, validity, runs)

    def _without_lost_nodes(
        self,
        measure: Callable[[tuple[str, ...]], NcclMeasurement],
        nodes: tuple[str, ...],
        *,
        apart: bool = False,
    ) -> NcclMeasurement:
        """Measure; if nodes are lost meanwhile, which ends the step for all, measure again without them.

        `apart`: each node is a separate world, and the results of nodes whose tasks ended by themselves are valid.
        """
        while True:
            before = len(self.runner.lost_nodes)
            usable = tuple(node for node in nodes if node not in self.runner.lost_nodes) or nodes
            measured = measure(usable)
            left = set(usable) - self.runner.lost_nodes.keys()
            if len(self.runner.lost_nodes) == before or not left or (apart and _ended(measured) >= left):
                return measured

    def with_loss(self, verdict: Verdict, nodes: tuple[str, ...]) -> Verdict:
        """Put the loss of nodes before the findings of the others."""
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
            never_healthy="the node answered when the run began and neither its tasks nor a repeated step answer since",
        )

    def alone_bandwidth(self, node: str) -> Verdict:
        """Judge the bandwidth of one node at the sizes of its thresholds; add possible causes if it is slow."""
        verdict = self._bandwidth(self.alone.runs[node], (node,), nodes=1)
        if verdict.outcome is not Outcome.FAILED:
            return verdict
        log = log_of(_of_node(self.alone.measured, node))
        summary = log.summary(dict.fromkeys(log.hosts, node)) if log.channels else ""
        known = {f"{name}={value}" for row in self.rows for name, value in row.conditions.items()}
        if log.slowing - known or not self._most_reach:  # a setting is the cause, no part of the node
            mild = tuple(replace(finding, action=None) for finding in verdict.findings)
            verdict = replace(verdict, findings=mild, action=Action.MONITOR)
        return _because(with_contention(verdict, self._other_processes(node)), summary, self._most_are_slow)

    @cached_property
    def _most_reach(self) -> bool:
        """Whether at least three nodes were measured alone, and two thirds of them are above their hard limit."""
        slow = self._slow_alone
        return len(slow) > PAIR and decides(slow.count(False), len(slow))

    @cached_property
    def _slow_alone(self) -> list[bool]:
        """Whether each node alone is below its hard limit."""
        verdicts = [self._bandwidth(run, (node,), nodes=1) for node, run in self.alone.runs.items()]
        return [verdict.action is Action.DRAIN for verdict in verdicts]

    @cached_property
    def _most_are_slow(self) -> str:
        """A hint if most nodes alone are below their hard limit; else ''."""
        slow = sum(self._slow_alone)
        if not 1 < len(self._slow_alone) < 2 * slow:
            return ""
        return (
            f"{slow} of {len(self._slow_alone)} nodes are below their hard limit: first check the settings and the driver that "
            "they share"
        )

    def _other_processes(self, node: str) -> str:
        """Return a text about processes of others on the node's GPUs; '' if there are none. This run's have ended."""
        answer = self.runner.survey(node)
        try:
            gpus, apps = nvidia_smi.GPUS.parse(answer), nvidia_smi.APPS.parse(answer)
        except GpuClusterError:
            return ""
        if all(gpu.lost for gpu in gpus):
            return ""
        found = islice(unexpected_processes(gpus, apps), MAX_OTHERS)
        names = "; ".join(f"{gpu}: {process}" for gpu, process in found)
        return f"processes of others on GPUs of {node}: {names}" if names else ""

    def alone_values(self) -> tuple[dict[str, float], str]:
        """Return {node: GB/s} of all valid runs at the largest size, and the name of that measurement."""
        sizes = [run.rows[-1].size for run in self.alone.runs.values() if run.rows]
        if not sizes:
            return {}, "no valid run"
        size = max(sizes)
        found = {node: nccl_bandwidth.measured(run, size) for node, run in self.alone.runs.items()}
        return {
            node: value for node, value in found.items() if value
        }, f"all_reduce alone, {format_size(size)}"

    # --- pairs

    @property
    def requested(self) -> tuple[str, ...]:
        """The nodes of a run over all nodes."""
        return self.nodes[: self.runner.config.nodes]

    @property
    def usable(self) -> tuple[str, ...]:
        """The nodes with a valid run alone: the others would hang or fail every group with them."""
        valid = (node for node in self.nodes if self.alone.verdicts[node].outcome is Outcome.PASSED)
        return tuple(node for node in valid if node not in self.runner.lost_nodes)

    @property
    def why_alone(self) -> str:
        """Why fewer than two nodes could be used together, and what to do; '' where at least two could."""
        nodes = hostlist.fold(self.nodes)
        if len(self.nodes) < PAIR:
            return (
                f"nothing between nodes was proved: no other node shares partition and GPU count with {nodes}; "
                "test it with another node of its kind, or waive the check"
            )
        if self.runner.config.nodes is not None and self.runner.config.nodes < PAIR:
            return "nothing between nodes was proved: nccl.nodes is 1; set it to 2 or more, or remove it"
        if len(self.usable) < PAIR:
            bad = hostlist.fold([node for node in self.nodes if node not in self.usable])
            return f"nothing between nodes was proved: fewer than two have a valid run alone: see nccl.alone of {bad}"
        return ""

    @cached_property
    def localised(self) -> tuple[Localisation, tuple[Measurement, ...]]:
        """Rounds of pairs until the bad part is found or cannot be; further rounds if only the whole is bad.

        If a node is lost meanwhile, the others are measured again without it.
        """
        while True:
            before = len(self.runner.lost_nodes)
            found = self._localise()
            if len(self.runner.lost_nodes) == before or len(self.usable) < PAIR:
                return found

    def pairs(self, node: str) -> Verdict:
        """Judge a node by its measurements with partners; add possible causes if it is bad."""
        found, measured = self.localised
        verdict = nccl_fleet.pairs(node, found, measured, self.runner.config.pair_size, self._pair_limit)
        if verdict.outcome is Outcome.FAILED:
            verdict = _because(with_contention(verdict, self._other_processes(node)), self._settings())
        return self.with_loss(verdict, (node,))

    def _settings(self) -> str:
        """Return a text about NCCL variables that are set on some nodes only: such ranks hang or are slow."""
        steps = (self.alone.measured, *(stage.measured for stage in self._whole.values()))
        tasks = [*self.runner.paired, *(task for step in steps for task in step.tasks)]
        logs = {node: log_of(task for task in tasks if task.node == node) for node in self.nodes}
        found = {node: log.foreign for node, log in logs.items() if log.hosts}
        everywhere = frozenset.intersection(*found.values()) if found else frozenset()
        differing = sorted({setting for settings in found.values() for setting in settings - everywhere})
        where = [hostlist.fold([node for node in found if setting in found[node]]) for setting in differing]
        words = [f"{setting} ({nodes})" for setting, nodes in zip(differing, where, strict=True)]
        return f"not set on all nodes: {', '.join(words[:MAX_SHOWN])}" if words else ""

    def links(self) -> Verdict:
        """Judge the links between the nodes; if one is bad, add the settings that differ between nodes."""
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
        refined, further = self._refine()
        again = refined.verdict()
        return replace(
            again,
            rounds=found.rounds + again.rounds + further,
            steps=found.steps + again.steps + bool(further),
        ), (*measured, *refined.measurements)

    def _localiser(self, distance: float, expected: Mapping[str, float] | None = None) -> Localiser:
        return Localiser(
            self.usable,
            leaves=self._leaves,
            expected=expected,
            least=self._pair_floor,
            gpus_per_node=self.runner.gpus if self.runner.can_re_form else 1,
            alone=False,
            min_distance=distance,
        )

    def _refine(self) -> tuple[Localiser, int]:
        """Measure pairs again, then all remaining pairs in one step; return the plan and the number of further rounds.

        The distance from the fleet's median is smaller: one slow adapter of eight makes a pair slower by an eighth. A
        slow link may be in a pair that was not measured before.
        """
        plan = self._localiser(OUTLIER_DISTANCE)
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
        """Run all rounds of a plan; return False if one of its nodes was lost, so that a new plan is necessary."""
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
            return False  # no threshold

    @cached_property
    def _leaves(self) -> dict[str, str]:
        """{node: leaf switch}, from Slurm."""
        try:
            return parse_slurm_topology(self._slurm.run("scontrol", "show", "topology", "-o"))
        except (SlurmError, ProbeError):
            return {}  # no topology file

    def _expected(self) -> dict[str, float]:
        config = self.runner.config
        if config.pair_busbw is not None:
            return {GroupKind.WITHIN.value: config.pair_busbw}
        return {GroupKind.WITHIN.value: self._pair_row.bound} if self._pair_row else {}

    @property
    def _route_of_pairs(self) -> Route:
        """The route between nodes as far as the runs alone name it: no pair was measured yet."""
        log = log_of(self.alone.measured.tasks)
        return self.runner.route(self.profile, NcclLog(network=log.network, interfaces=log.interfaces))

    @cached_property
    def _pair_floor(self) -> Bound | None:
        """The floor of a pair at pair_size, of the slowest node; None if it is unknown."""
        size, route = self.runner.config.pair_size, self._route_of_pairs
        found = [self.runner.floor(ALONE, size, (node, node), route) for node in self.usable]
        known = [one for one in found if isinstance(one, Floor)]
        lowest = min(known, key=lambda one: one.bound, default=None)
        return Bound(lowest.bound, str(lowest)) if lowest else None

    @property
    def _pair_limit(self) -> float | None:
        """The hard limit of a pair, GB/s."""
        own = self.runner.config.pair_drain_below
        return own if own is not None or self._pair_row is None else self._pair_row.drain_below

    @cached_property
    def _pair_row(self) -> BandwidthThreshold | None:
        """The threshold of a pair, None if no row fits."""
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
        measured = self._without_lost_nodes(
            lambda usable: self.runner.whole(usable, collective, self.sizes(collective, len(usable))), nodes
        )
        requested, nodes = nodes, tuple(node for node in nodes if node not in self.runner.lost_nodes) or nodes
        spec = validation.RunSpec(
            nodes,
            self.runner.gpus,
            collective=collective,
            node_of_rank=measured.node_of_rank or None,
            log=measured.log if self.runner.logs_transports else None,
        )
        verdict = _with_endings(validation.validate_run(measured.output, spec, self.profile), measured, "")
        verdict = _where_stated(_with_problem(verdict, measured, ""), measured, nodes)
        runs = {"": measured.output.runs[0]} if verdict.outcome is Outcome.PASSED else {}
        self._record(collective, len(nodes), runs.values())
        return Stage(measured, {"": self.with_loss(verdict, requested)}, runs)

    def whole_validity(self, collective: str) -> Verdict:
        """Return whether the run over all nodes is valid; if it failed, add the part that the rounds of pairs found."""
        stage = self.whole(collective)
        verdict = stage.verdicts[""]
        if all(finding.part == validation.TRANSPORT for finding in verdict.findings):
            return verdict  # only the transport is unknown: no part is at fault
        return verdict if stage.runs else self._explained(verdict)

    def whole_bandwidth(self, collective: str) -> Verdict:
        """Judge the speed of a valid run over all nodes; if it is slow, add the part that the rounds of pairs found."""
        return self._explained(self._judge_whole(collective))

    def _explained(self, verdict: Verdict) -> Verdict:
        if verdict.outcome is not Outcome.FAILED or len(self.usable) < PAIR:
            return verdict
        found, measured = self.localised
        where = nccl_fleet.suspected_parts(found, measured, self.usable)
        if lost := [f"{node} is lost: {why}" for node, why in self.runner.lost_nodes.items()]:
            where = "; ".join(lost) + ("" if found.clean else f"; {where}")
        others = map(self._other_processes, found.bad_nodes[:MAX_OTHERS])
        return _because(verdict, where, *others, self._settings())

    def _judge_whole(self, collective: str) -> Verdict:
        """Judge a valid run over all nodes with the thresholds of the requested number of nodes."""
        requested, stage = self.requested, self.whole(collective)
        if not stage.runs:
            return Verdict("", Outcome.NOT_CHECKED, reason="the run is not valid: see nccl.whole")
        verdict = self._bandwidth(stage.runs[""], requested, nodes=len(requested), log=stage.measured)
        if verdict.outcome is not Outcome.FAILED or not stage.measured.log.channels:
            return verdict
        return _because(verdict, stage.measured.log.summary(stage.measured.node_of_rank))

    # --- thresholds and baselines

    def _bandwidth(
        self, run: NcclRun, members: tuple[str, ...], *, nodes: int, log: NcclMeasurement | None = None
    ) -> Verdict:
        gpus, counted = self.runner.gpus, log.log.nodes if log else 0
        rows = () if self._recording else self.rows
        route = self.runner.route(self.profile, log.log, log.node_of_rank) if log else Route()

        def floor(size: int) -> Floor | str:
            found = self.runner.floor(run.collective, size, members, route)
            value = nccl_bandwidth.measured(run, size)
            if isinstance(found, Floor) and value is not None:
                self.floors.setdefault((run.collective, nodes), []).append((value, found))
            return found

        nvls = self.env.get("NCCL_NVLS_ENABLE") != "0"
        limit = nccl_bandwidth.ceiling(
            run.collective, nodes=nodes, gpus_per_node=gpus, profile=self.profile, nvls=nvls, counted=counted
        )
        return nccl_bandwidth.bandwidth(
            run, rows, nodes=nodes, gpus_per_node=gpus, env=self.env, limit=limit, floor=floor
        )

    def _record(self, collective: str, nodes: int, runs: Iterable[NcclRun]) -> None:
        for run in runs:
            for row in run.rows:
                # smaller sizes measure the latency: their bus bandwidth is printed with too few digits
                if row.out_of_place.busbw and row.size >= self.runner.sweep.begin:
                    key = Key(collective, nodes, self.runner.gpus, row.size, self._conditions())
                    self.repeats.setdefault(key, []).append(row.out_of_place.busbw)

    def _conditions(self) -> tuple[tuple[str, str], ...]:
        names = ("NCCL_NVLS_ENABLE", "NCCL_HOSTID")
        return tuple((name, self.env[name]) for name in names if name in self.env)

    def judged_by_floor(self, collective: str, nodes: int) -> tuple[str, str] | None:
        """Return the lowest figure and its floor, and what the floor is; None if a threshold judged these runs."""
        found = self.floors.get((collective, nodes))
        if not found or self._recording:
            return None
        value, lowest = min(found, key=lambda one: one[0])
        return f"{value:.4g} GB/s, floor {lowest.bound:.4g}", str(lowest)

    def repeat(self, collectives: Iterable[str]) -> dict[Key, list[float]]:
        """Measure everything REPEATS times, for a baseline."""
        repeated = tuple(collectives)
        for _ in range(REPEATS):
            self.__dict__.pop("alone", None)
            self._whole.clear()
            if self.runner.gpus > 1:
                _ = self.alone
            for collective in repeated if len(self.nodes) > 1 else ():
                self.whole(collective)
        return self.repeats


def _with_corruption(verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Let nodes whose own sums are wrong leave service, if at least two others computed the same sums right."""
    sound = sum(verdict.outcome is Outcome.PASSED for verdict in verdicts.values())
    reason = "all_reduce within one node adds the same small numbers on all nodes, and other nodes of this step add them right"
    return {
        node: replace(verdict, action=Action.DRAIN, never_healthy=reason)
        if sound >= PAIR and verdict.findings and all(_is_wrong_data(it) for it in verdict.findings)
        else verdict
        for node, verdict in verdicts.items()
    }


def _is_wrong_data(finding: Finding) -> bool:
    return finding.measured.endswith((" wrong elements", " values out of bounds"))


def _because(verdict: Verdict, *reasons: str) -> Verdict:
    """Put known reasons of a failure before its usual cause."""
    return replace(verdict, cause="; ".join(filter(None, (*reasons, verdict.cause))))


def _where_stated(verdict: Verdict, measured: NcclMeasurement, nodes: Iterable[str]) -> Verdict:
    """Return a failure if tasks of these nodes did not run where the step states: what they printed is no result."""
    findings = tuple(
        Finding(node, measured.misplaced[node], "tasks in the stated container, in the stated number")
        for node in nodes
        if node in measured.misplaced
    )
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


def _of_node(measured: NcclMeasurement, node: str) -> list[TaskResult]:
    return [task for task in measured.tasks if task.node == node]


def _ended(measured: NcclMeasurement) -> set[str]:
    """Return the nodes all of whose tasks ended by themselves."""
    running = {task.node for task in measured.tasks if task.rc is None or task.signal in CANCELLED}
    return {task.node for task in measured.tasks} - running


def _with_endings(verdict: Verdict, measured: NcclMeasurement, node: str) -> Verdict:
    """If only exit statuses are known, return one finding per task: the others ended because one was killed."""
    tasks = _of_node(measured, node) if node else measured.tasks
    cancelled = CANCELLED if measured.problem else ()
    bad = [task for task in tasks if task.rc not in (0, None) and task.signal not in cancelled]
    if not bad or not all(finding.measured.startswith("exit code") for finding in verdict.findings):
        return verdict
    findings = tuple(
        Finding(f"task {task.rank} on {task.node}", _ending(task), "ends with 0") for task in bad[:MAX_SHOWN]
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


def _with_problem(verdict: Verdict, measured: NcclMeasurement, node: str) -> Verdict:
    """Add a finding that a node ('': the whole) hung if the step was cancelled before its tasks ended.

    It is the first finding unless another one explains it: a rank that failed, or a slow transport, blocks the others.
    """
    tasks = _of_node(measured, node) if node else measured.tasks
    running = [task for task in tasks if task.rc is None or task.signal in CANCELLED]
    if not measured.problem or (tasks and not running):
        return verdict
    where = sorted({task.node for task in running if task.node})
    what = f"{len(running)} of {len(tasks)} tasks never ended" if running else measured.problem
    hang = Finding(node or hostlist.fold(where) or "step", f"hangs: {what}", "every task ends by itself")
    if any(_explains(finding) for finding in verdict.findings[:1]):
        return replace(verdict, findings=(*verdict.findings, hang))
    return Verdict(
        verdict.check,
        Outcome.FAILED,
        (hang, *verdict.findings),
        cause="a GPU, a link or a peer does not answer, or a rank died",
        hint="dmesg and nvidia-smi on the node; test the node alone",
        action=verdict.action,
    )


def _explains(finding: Finding) -> bool:
    """Return whether a finding is the reason why a step did not end."""
    return not validation.is_consequence(finding) and not finding.measured.startswith("timeout:")
