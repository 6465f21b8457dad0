"""NCCL moves data correctly and fast: in each node alone, in pairs of nodes, over all nodes; a bad part is identified.

Ranks, devices, transports and data are validated before a bandwidth is judged.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Outcome, Verdict, combined
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.text import count
from pytest_gpucluster.kit.nccl.nccl_config import NcclConfig
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node
from pytest_gpucluster.suites.nccl import alone, environment
from pytest_gpucluster.suites.nccl import baseline as nccl_baseline
from pytest_gpucluster.suites.nccl import fleet as checks
from pytest_gpucluster.suites.nccl.at_times import confidence_of
from pytest_gpucluster.suites.nccl.bandwidth import scope_of
from pytest_gpucluster.suites.nccl.environment_facts import ENVIRONMENT
from pytest_gpucluster.suites.nccl.image_environment import image_environment
from pytest_gpucluster.suites.nccl.stage import ALONE
from pytest_gpucluster.suites.nccl.stages import NcclStages
from pytest_gpucluster.suites.nccl.steps import NcclRunner, image_of
from pytest_gpucluster.suites.nccl.thresholds import PAIR, Thresholds

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.config.models import BandwidthThreshold, Cluster
    from pytest_gpucluster.run.session import ClusterSession, Node

FLOORS = "nccl: no threshold, judged by the floor of the links"


@of_fleet(given.pytestconfig)
def baseline(pytestconfig: pytest.Config) -> tuple[BandwidthThreshold, ...]:
    """The rows of --baseline=FILE; none without it, or while a baseline is recorded."""
    option = pytestconfig.option.baseline
    return nccl_baseline.load(Path(option)) if option and option != "record" else ()


@dataclass
class AllStages:
    """The stages of each allocation, and {node: why it has none}."""

    each: list[NcclStages] = field(default_factory=list)
    without: dict[str, str] = field(default_factory=dict)

    def judged(self, judge: Callable[[NcclStages], Verdict], nothing: str) -> Verdict:
        """Return one verdict on what several nodes do together; `nothing`: why no two nodes of the run can.

        An allocation of a single node has no part in it: nccl.pairs of that node states what is not proved.
        """
        if nothing:
            return Verdict("", Outcome.NOT_APPLICABLE, reason=nothing)
        several = [stages for stages in self.each if not stages.why_alone]
        if several:
            return combined(judge(stages) for stages in several)
        reasons = [*(stages.why_alone for stages in self.each), *self.without.values()]
        return Verdict("", Outcome.NOT_CHECKED, reason="; ".join(dict.fromkeys(reasons)))


@of_fleet(given.pytestconfig, given.session, given.allocation, baseline)
def all_stages(
    pytestconfig: pytest.Config,
    session: ClusterSession,
    allocation: Allocation,  # not applicable without a scheduler
    baseline: tuple[BandwidthThreshold, ...],
) -> AllStages:
    """The stages of each allocation, whose nodes share a partition and a number of GPUs."""
    made = AllStages()
    recording = pytestconfig.option.baseline == "record"
    for held in session.allocations:
        profile = session.nodes[held.nodes[0]].profile
        if profile.gpu is None:
            continue
        gpus = session.inventory[held.nodes[0]].gpus or profile.gpu.count
        runner = NcclRunner(
            held.slurm, held, session.cluster, session.need_channel(), session.inventory, gpus_per_node=gpus
        )
        try:
            _ = runner.runner
        except NotAvailable as error:
            made.without |= dict.fromkeys(held.nodes, str(error))
            continue
        nodes = session.without_problem(held.nodes)
        own = session.nodes[held.nodes[0]].group.thresholds
        rows = (*baseline, *own, *profile.nccl)
        thresholds = Thresholds(rows, profile, runner.config, runner.gpus, runner.exports, recording=recording)
        made.each.append(NcclStages(runner, nodes, thresholds, held.slurm))
    if not made.each and not made.without:
        raise NotApplicable("no profile of the cluster has GPUs")
    return made


@of_fleet(given.session)
def nothing_between(session: ClusterSession) -> str:
    """Why the run can prove nothing between nodes: it has one node; '' where it has several."""
    return "" if len(session.plan.selected) >= PAIR else "the run has one node: it proves nothing between nodes"


@of_node(all_stages, given.node)
def stages(all_stages: AllStages, node: Node) -> NcclStages:
    """The stages of the allocation of this item's node."""
    if node.name in all_stages.without:
        raise NotAvailable(f"{all_stages.without[node.name]}")
    found = next((stages for stages in all_stages.each if node.name in stages.nodes), None)
    if found is None:
        raise NotApplicable("the node has no GPUs")
    return found


def _valid(stages: NcclStages, node: Node) -> NcclStages:
    verdict = stages.alone.verdicts[node.name]
    if verdict.outcome is not Outcome.PASSED:
        raise NotAvailable(f"the run of this node alone is not valid, see nccl.alone: {verdict.findings[0].measured}")
    return stages


valid_alone = of_node(stages, given.node)(_valid)  # else nccl.alone fails with the reason


@of_node(stages, given.node)
def valid_several(stages: NcclStages, node: Node) -> NcclStages:
    """The stages, if the run of this node alone is valid and measured a bandwidth."""
    if stages.runner.gpus < 2:
        raise NotApplicable("one GPU alone has no bus bandwidth")
    return _valid(stages, node)


@of_node(given.pytestconfig, given.cluster, given.table)
def show_floor(pytestconfig: pytest.Config, cluster: Cluster, table: Callable[..., None]) -> Callable[..., None]:
    """Show a run that no threshold judged: its figure and floor, and the command that records a threshold."""
    option = pytestconfig.option
    chosen = [f"--cluster={option.cluster}", *([f"--nodes={option.nodes}"] if option.nodes else [])]
    command = f"pytest {shlex.join(chosen)} -m nccl"

    def show(stages: NcclStages, collective: str, nodes: int) -> None:
        if found := stages.judge.judged_by_floor(collective, nodes):
            text, why = found
            table(
                FLOORS,
                f"{count(nodes, 'node')} x {count(stages.runner.gpus, 'GPU')}",
                collective,
                text,
                note=f"no row of {stages.profile.name} or of the cluster file fits; the floor is {why} "
                f"(docs/how-it-decides.md). `{command} --baseline=record` writes {nccl_baseline.describe(cluster.name)}; "
                f"`{command} --baseline={nccl_baseline.file_of(cluster.name)}` judges by it",
            )

    return show


nccl_environment = of_node(ENVIRONMENT)
all_environments = of_fleet(ENVIRONMENT)(environment.EnvironmentsOfAll)
usual_variables = of_node(given.node, all_environments)(lambda node, found: found.usual(node.peers))
nccl_image = of_node(given.cluster)(image_of)
intended_variables = of_node(given.cluster)(environment.intended)

collective = of_node(each=lambda cluster: {name: name for name in cluster.section(NcclConfig).collectives})


def test_image_environment(
    stages: NcclStages, node: Node, nccl_image: str, intended_variables: dict[str, str]
) -> Verdict:
    """In the image of the steps, NCCL's variables, files and plugins leave it its speed."""
    if not nccl_image:
        raise NotApplicable("the cluster file runs NCCL in no image: nccl.environment names none")
    found = stages.runner.image_environment(node.name)
    return image_environment(found, node.profile, intended_variables)


def test_alone(stages: NcclStages, node: Node) -> Verdict:
    """Within the node: each rank once, on its own device, over NVLink if the node has it, with correct data."""
    return stages.shown(stages.alone.verdicts[node.name], (node.name,))


def test_alone_bandwidth(valid_several: NcclStages, node: Node, show_floor: Callable[..., None]) -> Verdict:
    """Within the node: bus bandwidth at every size of a threshold; without one, above the floor of the node's links."""
    verdict = valid_several.alone_bandwidth(node.name)
    show_floor(valid_several, ALONE, 1)
    return verdict


def test_outlier(valid_several: NcclStages, node: Node, peers: frozenset[str]) -> Verdict:
    """The node's bandwidth is that of its peers, also if it reaches the threshold."""
    values, what = alone.largest_values(valid_several.alone.runs)
    of_peers = {name: value for name, value in values.items() if name in peers}
    return valid_several.shown(checks.outlier(node.name, of_peers, what), (node.name,))


def test_pairs(valid_alone: NcclStages, node: Node, nothing_between: str) -> Verdict:
    """The node is as fast with its partners as they are with others."""
    if nothing_between:
        raise NotApplicable(nothing_between)
    if valid_alone.why_alone:
        raise NotAvailable(valid_alone.why_alone)
    return valid_alone.pairs(node.name)


def test_links(all_stages: AllStages, nothing_between: str) -> Verdict:
    """Every link and leaf switch is as fast as the others."""
    return all_stages.judged(NcclStages.links, nothing_between)


def test_at_times(pytestconfig: pytest.Config, all_stages: AllStages, nothing_between: str) -> Verdict:
    """--until=95%: each node is slow in at most 5% of its measurements with partners, or is accused."""
    if not (until := pytestconfig.option.until):
        raise NotApplicable("runs only with --until, like --until=95%")
    confidence = confidence_of(until)
    return all_stages.judged(lambda stages: stages.at_times(confidence), nothing_between)


def test_whole(all_stages: AllStages, collective: str, nothing_between: str, curve: Callable[..., None]) -> Verdict:
    """Over all nodes: each rank once, on the requested nodes, over the fabric of the profile, with correct data."""

    def judge(stages: NcclStages) -> Verdict:
        measured = stages.whole(collective)
        title = f"{collective}, {len(stages.usable)} nodes x {stages.runner.gpus} GPUs"
        for run in measured.runs.values():
            curve(title, run.curve(), run=f"{collective} {scope_of(len(stages.usable))}")
        return stages.whole_validity(collective)

    return all_stages.judged(judge, nothing_between)


def test_whole_bandwidth(
    all_stages: AllStages, collective: str, nothing_between: str, show_floor: Callable[..., None]
) -> Verdict:
    """Over all nodes: bus bandwidth at every size of a threshold; without one, above the floor of the nodes' links."""

    def judge(stages: NcclStages) -> Verdict:
        verdict = stages.whole_bandwidth(collective)
        show_floor(stages, collective, len(stages.usable))
        return verdict

    return all_stages.judged(judge, nothing_between)


def test_whole_network(all_stages: AllStages, collective: str, nothing_between: str) -> Verdict:
    """Where NVLink joins nodes: the same over the adapters alone, with the NVLink domain switched off."""
    return all_stages.judged(lambda stages: stages.whole_network(collective), nothing_between)


def test_baseline(pytestconfig: pytest.Config, all_stages: AllStages, session: ClusterSession) -> None:
    """--baseline=record: repeat all measurements and write them to a file as thresholds of the cluster."""
    if pytestconfig.option.baseline != "record":
        raise NotApplicable("runs only with --baseline=record")
    written = nccl_baseline.record_all(all_stages.each, session.cluster, session.run)
    print(written)  # shown by -s and -rP


TESTS = Tests(environment, marks=("nccl",))
