"""The stages of the nccl suite: each node alone, then pairs, then all nodes, and the bad part if one of them fails.

Every stage is measured once, at its first use, and judged by many checks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Outcome, Verdict, with_contention
from pytest_gpucluster.core.errors import GpuClusterError, NotAvailable, ProbeError, SlurmError
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.hostlist import fold
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.core.topology import parse_slurm_topology
from pytest_gpucluster.kit.gpu import nvidia_smi
from pytest_gpucluster.kit.gpu.gpu_processes import unexpected_processes
from pytest_gpucluster.kit.nccl import nccl_validation as validation
from pytest_gpucluster.kit.nccl.measurement import slowest_pair
from pytest_gpucluster.kit.nccl.nccl_log import NcclLog
from pytest_gpucluster.kit.nccl.nccl_step import DOMAIN
from pytest_gpucluster.kit.nccl.nccl_transport import log_of
from pytest_gpucluster.suites.nccl import alone
from pytest_gpucluster.suites.nccl import fleet as nccl_fleet
from pytest_gpucluster.suites.nccl.at_times import (
    FEWEST_NODES,
    RepeatedPairs,
    at_times,
    measure_until,
    measurements_for,
)
from pytest_gpucluster.suites.nccl.bandwidth import may_be_linked
from pytest_gpucluster.suites.nccl.pair_rounds import PairRounds
from pytest_gpucluster.suites.nccl.stage import (
    ALONE,
    Stage,
    alone_stage,
    because,
    differing_settings,
    tasks_of,
    whole_stage,
    with_loss,
    without_lost_nodes,
)
from pytest_gpucluster.suites.nccl.thresholds import PAIR, BandwidthJudge, lowest_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.config.models import Profile
    from pytest_gpucluster.core.probe import Answer
    from pytest_gpucluster.kit.nccl.measurement import Bound, Localisation, Measurement
    from pytest_gpucluster.kit.nccl.nccl_step import NcclMeasurement
    from pytest_gpucluster.suites.nccl.baseline import Key
    from pytest_gpucluster.suites.nccl.steps import NcclRunner
    from pytest_gpucluster.suites.nccl.thresholds import Thresholds

MAX_OTHERS = 4
NO_DOMAIN = "NVLink does not join the nodes of this run (NCCL's log): nccl.whole measured their network"
EACH_ALONE = "alone"  # the key of that stage beside those of the collectives


@dataclass(eq=False)
class NcclStages:
    """The stages of the nodes of one allocation that share a profile.

    `measured`: {collective of a run over all nodes, or EACH_ALONE: stage}.
    """

    runner: NcclRunner
    nodes: tuple[str, ...]
    thresholds: Thresholds
    slurm: Slurm
    measured: dict[str, Stage] = field(default_factory=dict)

    @cached_property
    def judge(self) -> BandwidthJudge:
        """Judges the bandwidth of valid runs."""
        return BandwidthJudge(self.thresholds, self.runner.floor, self.runner.route)

    @property
    def profile(self) -> Profile:
        """The profile of the nodes."""
        return self.thresholds.profile

    @property
    def lost(self) -> dict[str, str]:
        """{node that was lost since the run began: why}; it grows with each step."""
        return self.runner.lost_nodes

    # --- each node alone

    @property
    def alone(self) -> Stage:
        """All-reduce within each node, all nodes in one step."""
        if EACH_ALONE not in self.measured:
            self.measured[EACH_ALONE] = self._measure_alone()
        return self.measured[EACH_ALONE]

    def _measure_alone(self) -> Stage:
        sizes = self.thresholds.sizes(ALONE, 1)
        measured = without_lost_nodes(lambda nodes: self.runner.alone(nodes, sizes), self.nodes, self.lost, apart=True)
        logged = self.runner.logs_transports
        spec = validation.RunSpec(self.nodes, self.runner.gpus, collective=ALONE, logged=logged)
        return alone_stage(measured, spec, self.profile, self.lost, self._other_processes)

    def shown(self, verdict: Verdict, nodes: Sequence[str], collective: str = ALONE, size: int = 0) -> Verdict:
        """Return a failure with the command that measures these nodes again; `size` in bytes, 0: the largest that is judged."""
        if verdict.outcome is not Outcome.FAILED or not nodes:
            return verdict
        largest = max(self.thresholds.sizes(collective, len(nodes)), default=self.runner.sweep.end)
        return replace(verdict, shown_by=self.runner.shown_by(nodes, collective, size or largest))

    def alone_bandwidth(self, node: str) -> Verdict:
        """Judge the bandwidth of one node at the sizes of its thresholds; add possible causes if it is slow."""
        verdict = self.shown(self.judge.alone(self.alone.runs[node], node), (node,))
        if verdict.outcome is not Outcome.FAILED:
            return verdict
        log = log_of(tasks_of(self.alone.measured, node))
        known, others = self.thresholds.settings, self._other_processes(node)
        return alone.explained(verdict, node, log, slow=self._slow_alone, known_settings=known, others=others)

    @cached_property
    def _slow_alone(self) -> list[bool]:
        """Whether each node alone is below its hard limit."""
        verdicts = [self.judge.alone(run, node) for node, run in self.alone.runs.items()]
        return [verdict.action is Action.DRAIN for verdict in verdicts]

    def _is_slow_alone(self, node: str) -> bool:
        """Return whether a node misses a bound alone that most nodes reach."""
        if self.runner.gpus < PAIR:
            return False
        verdicts = {name: self.judge.alone(run, name) for name, run in self.alone.runs.items()}
        slow = {name: verdict.outcome is Outcome.FAILED for name, verdict in verdicts.items()}
        return slow.get(node, False) and alone.most_reach(list(slow.values()))

    def _other_processes(self, node: str) -> str:
        return other_processes(node, self.runner.survey(node))

    # --- pairs

    @property
    def usable(self) -> tuple[str, ...]:
        """The nodes with a valid run alone: the others would hang or fail every group with them."""
        valid = (node for node in self.nodes if self.alone.verdicts[node].outcome is Outcome.PASSED)
        return tuple(node for node in valid if node not in self.lost)

    @property
    def why_alone(self) -> str:
        """Why fewer than two nodes could be used together, and what to do; '' where at least two could."""
        return nccl_fleet.why_alone(self.nodes, lambda: self.usable)

    @cached_property
    def localised(self) -> tuple[Localisation, tuple[Measurement, ...]]:
        """The bad parts and the measurements of pairs. If a node is lost meanwhile, the others are measured again."""
        while True:
            before = len(self.lost)
            found = self._pair_rounds().localise(self._whole_is_bad)
            if len(self.lost) == before or len(self.usable) < PAIR:
                return found

    def _pair_rounds(self) -> PairRounds:
        return PairRounds(
            self.usable,
            self.runner.rounds,
            self.lost,
            leaves=self._leaves,
            expected=self.thresholds.expected_of_pairs,
            least=self._pair_floor,
            gpus_per_node=self.runner.gpus if self.runner.can_re_form else 1,
            min_distance=self.runner.config.min_relative,
        )

    def pairs(self, node: str) -> Verdict:
        """Judge a node by its measurements with partners; add possible causes if it is bad."""
        found, measured = self.localised
        size, hard = self.runner.config.pair_size, self.thresholds.hard_limit_of_pairs
        verdict = nccl_fleet.pairs(node, found, measured, size, hard, self._is_slow_alone(node))
        if verdict.outcome is Outcome.FAILED:
            verdict = because(with_contention(verdict, self._other_processes(node)), self._settings())
            verdict = self.shown(verdict, slowest_pair(measured, node), size=size)
        return with_loss(verdict, (node,), self.lost)

    def _settings(self) -> str:
        """Return a text about NCCL variables that are set on some nodes only."""
        stages = {EACH_ALONE: self.alone, **self.measured}
        tasks = [task for stage in stages.values() for task in stage.measured.tasks]
        return differing_settings([*self.runner.paired, *tasks], self.nodes)

    def links(self) -> Verdict:
        """Judge the links between the nodes; if one is bad, add the settings that differ between nodes."""
        found, measured = self.localised
        verdict = nccl_fleet.links(found, measured, self.usable)
        if verdict.outcome is not Outcome.FAILED:
            return verdict
        ends = found.bad_links[0] if found.bad_links else slowest_pair(measured)
        return self.shown(because(verdict, self._settings()), ends, size=self.runner.config.pair_size)

    def at_times(self, confidence: float) -> Verdict:
        """Measure pairs until each usable node is decided, and judge the nodes by how often they were slow."""
        if not self.runner.can_re_form:
            rounds = measurements_for(confidence)
            why = f"nccl-tests needs one Slurm step per pair, {rounds} and more for each node: set nccl.runner: payload"
            return Verdict("", Outcome.NOT_CHECKED, reason=why)
        bad = self.localised[0].bad_nodes
        nodes = tuple(node for node in self.usable if node not in bad)
        if len(nodes) < FEWEST_NODES:
            why = f"fewer than {FEWEST_NODES} sound nodes: both nodes of a pair are in each slow measurement"
            return Verdict("", Outcome.NOT_APPLICABLE, reason=why)
        plan = RepeatedPairs(nodes, self._leaves, confidence)
        try:
            judged = measure_until(plan, self.runner.rounds, self.lost)
        except NotAvailable as error:
            return Verdict("", Outcome.NOT_CHECKED, reason=str(error))
        return at_times(judged, confidence)

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
            return parse_slurm_topology(self.slurm.run("scontrol", "show", "topology", "-o"))
        except (SlurmError, ProbeError):
            return {}  # no topology file

    @cached_property
    def _pair_floor(self) -> Bound | None:
        """The floor of a pair at pair_size, of the slowest node; None if it is unknown."""
        log = log_of(self.alone.measured.tasks)  # no pair was measured yet
        route = self.runner.route(self.profile, NcclLog(network=log.network, interfaces=log.interfaces))
        size = self.runner.config.pair_size
        return lowest_bound(self.runner.floor(ALONE, size, (node, node), route) for node in self.usable)

    # --- the whole

    def whole(self, collective: str) -> Stage:
        """One collective over all usable nodes."""
        if collective not in self.measured:
            self.measured[collective] = self._measure_whole(collective)
        return self.measured[collective]

    def _measure_whole(self, collective: str) -> Stage:
        nodes = self.usable

        def measure(usable: tuple[str, ...]) -> NcclMeasurement:
            return self.runner.whole(usable, collective, self.thresholds.sizes(collective, len(usable)))

        measured = without_lost_nodes(measure, nodes, self.lost)
        logged = self.runner.logs_transports
        spec = validation.RunSpec(nodes, self.runner.gpus, collective=collective, logged=logged)
        return whole_stage(measured, spec, self.profile, self.lost)

    def whole_validity(self, collective: str) -> Verdict:
        """Return whether the run over all nodes is valid; if it failed, add the part that the rounds of pairs found."""
        stage = self.whole(collective)
        verdict = stage.verdicts[""]
        if all(finding.code == validation.UNLOGGED for finding in verdict.findings):
            return verdict  # only the transport is unknown: no part is at fault
        return verdict if stage.runs else self._with_suspects(self.shown(verdict, self.usable, collective))

    def whole_bandwidth(self, collective: str) -> Verdict:
        """Judge the speed of a valid run over all nodes; if it is slow, add the part that the rounds of pairs found."""
        return self._with_suspects(self.shown(self._judge_whole(collective), self.usable, collective))

    def _with_suspects(self, verdict: Verdict) -> Verdict:
        if verdict.outcome is not Outcome.FAILED or len(self.usable) < PAIR:
            return verdict
        found, measured = self.localised
        where = nccl_fleet.suspected_parts(found, measured, self.usable)
        if lost := [f"{node} is lost: {why}" for node, why in self.lost.items()]:
            where = "; ".join(lost) + ("" if found.clean else f"; {where}")
        others = map(self._other_processes, found.bad_nodes[:MAX_OTHERS])
        return because(verdict, where, *others, self._settings())

    def _judge_whole(self, collective: str) -> Verdict:
        """Judge a valid run over all nodes with the thresholds of the number of nodes that took part."""
        stage = self.whole(collective)
        if not stage.runs:
            return Verdict("", Outcome.NOT_CHECKED, reason="the run is not valid: see nccl.whole")
        verdict = self.judge.whole(stage.runs[""], self.usable, stage.measured)
        if missing := [node for node in self.nodes if node not in self.usable]:
            parts = f"{len(self.usable)} of {len(self.nodes)}, without {fold(missing)}: see nccl.alone"
            measured = Quantity(len(self.usable), "nodes", parts)
            whole = Quantity(len(self.nodes), "nodes", "all")
            without = Advisory(Part("run", name="nodes of the run"), measured, whole, code="fewer_nodes")
            verdict = replace(verdict, advisories=(*verdict.advisories, without))
        if verdict.outcome is not Outcome.FAILED or not stage.measured.log.channels:
            return verdict
        return because(verdict, stage.measured.log.summary(stage.measured.node_of_rank))

    # --- the network beside an NVLink domain

    def joined(self, collective: str) -> bool:
        """Return whether NVLink carried the traffic between the nodes of the run over all nodes, by NCCL's log."""
        log, nodes = self.whole(collective).measured.log, len(self.usable)
        between = log.paths(self.whole(collective).measured.node_of_rank).between
        return 0 < log.nodes < nodes or any(it.startswith("P2P") for it in between)

    @cached_property
    def over_network(self) -> NcclStages:
        """These stages with the NVLink domain switched off: the same runs, and pairs, over the adapters."""
        known = {EACH_ALONE: self.alone}
        return NcclStages(self.runner.without_domain(), self.nodes, self.thresholds.without_domain(), self.slurm, known)

    def whole_network(self, collective: str) -> Verdict:
        """Judge the collective over all nodes with the NVLink domain switched off."""
        if not (self.profile.fabric.hcas and may_be_linked(self.profile)):
            why = "the profile states no NVSwitches outside of the node, or no adapters beside them"
            return Verdict("", Outcome.NOT_APPLICABLE, reason=why)
        if not self.whole(collective).runs:
            return Verdict("", Outcome.NOT_CHECKED, reason="the run is not valid: see nccl.whole")
        if not self.joined(collective):
            return Verdict("", Outcome.NOT_APPLICABLE, reason=NO_DOMAIN)
        stages = self.over_network
        valid = stages.whole_validity(collective)
        if valid.outcome is not Outcome.PASSED:
            return valid
        if stages.joined(collective):
            return Verdict("", Outcome.NOT_CHECKED, reason=f"{DOMAIN}=0 did not switch NVLink between nodes off")
        return stages.whole_bandwidth(collective)

    # --- a baseline

    def figures(self) -> dict[Key, list[float]]:
        """Return the bus bandwidths (GB/s) of all valid runs that were measured, by what a threshold row is for."""
        found: dict[Key, list[float]] = {}
        for name, stage in self.measured.items():
            collective = ALONE if name == EACH_ALONE else name
            least = self.runner.sweep.begin
            figures = self.thresholds.figures(stage.runs.values(), collective, stage.size, least)
            for key, values in figures.items():
                found.setdefault(key, []).extend(values)
        return found

    def unmeasured(self) -> NcclStages:
        """Return these stages with nothing measured."""
        return NcclStages(self.runner, self.nodes, self.thresholds, self.slurm)


def other_processes(node: str, survey: Answer) -> str:
    """Return a text about processes of others on the node's GPUs; '' if there are none. This run's have ended."""
    try:
        gpus, apps = nvidia_smi.GPUS.parse(survey), nvidia_smi.APPS.parse(survey)
    except GpuClusterError:
        return ""
    if all(gpu.lost for gpu in gpus):
        return ""
    found = islice(unexpected_processes(gpus, apps), MAX_OTHERS)
    names = "; ".join(f"{gpu}: {process}" for gpu, process in found)
    return f"processes of others on GPUs of {node}: {names}" if names else ""
