"""The loop of a campaign: read the state of the nodes, start runs on those that are free, store how runs ended."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.campaign.child import USAGE, Child, arguments_of, last_line, outcome_of, was_refused
from pytest_gpucluster.campaign.model import JUDGED, Kind, RunGroup, SlurmNode, View
from pytest_gpucluster.campaign.planner import OPEN, Planner
from pytest_gpucluster.cluster import plan, signals
from pytest_gpucluster.cluster.slurm.inventory import seen_from_inside
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import ConfigError, SlurmError
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.core.run_mark import is_running, mark_of
from pytest_gpucluster.core.units import format_duration
from pytest_gpucluster.report.history.fleet_runs import last_verdicts
from pytest_gpucluster.report.proof import FAILED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pytest_gpucluster.campaign.model import Campaign, NodeResult
    from pytest_gpucluster.campaign.planner import Choice
    from pytest_gpucluster.campaign.store import CampaignStore
    from pytest_gpucluster.campaign.window import Window
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.kit.suite_work import PairJudgement, PairResult

STEP = 0.5  # seconds between two looks at the runs
AGAIN = 2.0  # seconds at least between two readings of the nodes
SPARE = 600.0  # seconds: how much longer than its job a run may take
PATIENCE = 120.0  # seconds that runs get to end when the campaign is stopped


@dataclass(frozen=True)
class Rules:
    """How a campaign behaves; times in seconds. `ends`: the monotonic time from which nothing starts; None: until all nodes in service are judged."""

    limit: int = 8
    ends: float | None = None
    window: Window | None = None
    reports: Path = Path("reports")
    arguments: tuple[str, ...] = ()


@dataclass
class Loop:
    """One process of a campaign."""

    campaign: Campaign
    cluster: Cluster
    slurm: Slurm
    store: CampaignStore
    rules: Rules
    show: Callable[[str], None]
    reserved: Collection[str] = ()
    own: dict[int, Child] = field(default_factory=dict)  # group -> its process
    nodes: dict[str, SlurmNode] = field(default_factory=dict)
    _read: float = 0.0
    _seen: dict[int, float] = field(default_factory=dict)  # group -> when this process saw it first
    _open: bool = True  # the window

    @property
    def kinds(self) -> dict[str, Kind]:
        """{name: kind}."""
        return {kind.name: kind for kind in self.campaign.kinds}

    @property
    def folder(self) -> Path:
        """The folder of the campaign's groups."""
        return self.rules.reports / f"campaign-{self.campaign.name}"

    def run(self) -> None:
        """Test until every node in service has a verdict, or time is up."""
        try:
            while not self._is_over():
                self._show_window()
                self._start_groups()
                self._pause()
        except KeyboardInterrupt:
            signals.ignore()
            self._stop()
            raise
        planner = Planner(self._view())
        if not any(planner.state(node) == OPEN and self.nodes[node].in_service for node in self.campaign.nodes):
            self.store.close_campaign(self.campaign)

    # -- one round

    def _is_over(self) -> bool:
        self._collect()
        self._read_nodes()
        running = self._is_at_work()
        if self.rules.ends is not None and time.monotonic() >= self.rules.ends:
            return not running
        planner = Planner(self._view())
        if self.rules.ends is not None:  # nodes out of service may come back
            return not running and all(planner.state(node) != OPEN for node in self.campaign.nodes)
        return not running and not planner.unfinished()

    def _is_at_work(self) -> bool:
        return any(group.campaign == self.campaign.number for group in self.store.live_groups(self.cluster.name))

    def _pause(self) -> None:
        """Wait until a run of this campaign has ended, or it is time to read the nodes again."""
        deadline = self._read + self.cluster.campaign.poll
        while time.monotonic() < deadline:
            time.sleep(STEP)
            if self._ended():
                break
        time.sleep(max(0.0, self._read + AGAIN - time.monotonic()))

    def _read_nodes(self) -> None:
        """Read all nodes from Slurm: one request."""
        self.slurm.refresh()
        try:
            inventory = seen_from_inside(self.slurm.nodes(), self.reserved)
        except SlurmError as error:
            if not self.nodes:
                raise
            self.show(f"the nodes could not be read: {error}")
            return
        finally:
            self._read = time.monotonic()
        seen = view_nodes(self.cluster, inventory, self.campaign.nodes, self.reserved)
        if seen != self.nodes:
            self.store.see_nodes(self.campaign, seen)
        self.nodes = seen
        if repaired := self._repaired(self.store.results(self.campaign)):
            self.store.mark_left(self.campaign, repaired)

    def _repaired(self, results: Iterable[NodeResult]) -> set[str]:
        """Return the nodes that went out of service, or were booted, after they failed."""
        failed = [it for it in results if it.node in self.nodes and it.outcome == FAILED and not it.left]
        return {
            it.node
            for it in failed
            if not self.nodes[it.node].in_service or (it.boot and self.nodes[it.node].boot not in ("", it.boot))
        }

    # -- starting

    def _view(self) -> View:
        results = self.store.results(self.campaign)
        judged = self.judge_pairs()
        return View(
            self.campaign,
            results,
            self.nodes,
            self.rules.limit,
            self._ages,
            {node: why for it in judged for node, why in it.bad.items()},
            tuple(pair for it in judged for pair in it.wanted),
        )

    @cached_property
    def _ages(self) -> dict[str, float]:
        """When the nodes were good before: the oldest come first."""
        return oldest_verdicts(self.store, self.campaign)

    def judge_pairs(self) -> list[PairJudgement]:
        """Return what all pairs of the campaign show, by suite."""
        return judge_pairs(self.store, self.campaign)

    def _may_start(self) -> bool:
        if self.rules.ends is not None and time.monotonic() >= self.rules.ends:
            return False
        return self._in_window()

    def _in_window(self) -> bool:
        return self.rules.window is None or self.rules.window.contains(datetime.now().astimezone())

    def _show_window(self) -> None:
        """Print once that the window has closed."""
        window, before = self.rules.window, self._open
        self._open = self._in_window()
        if window is not None and before and not self._open:
            self.show(f"outside of the window {window}: nothing starts before {window.begin:%H:%M}")

    def _start_groups(self) -> None:
        planner = Planner(self._view())
        while self._may_start():

            def choose(store: CampaignStore) -> Choice | None:
                # another process may have stored results and claimed nodes since
                now = Planner(self._view()) if store.results(self.campaign) != planner.view.results else planner
                return now.choose(store.leases(self.cluster.name))

            group = self.store.claim(self.campaign, choose, self._group)
            if group is None:
                return
            self._start(group)

    def _queue_wait(self) -> float:
        """Return how long a request may wait: not beyond the window, nor beyond the end of the campaign."""
        left = [self.cluster.slurm.queue_wait]
        if self.rules.ends is not None:
            left.append(self.rules.ends - time.monotonic())
        if self.rules.window is not None:
            left.append(self.rules.window.seconds_left(datetime.now().astimezone()))
        return max(5.0, min(left))

    def _group(self, choice: Choice) -> RunGroup:
        now = time.time()
        until = now + self._queue_wait() + self.cluster.slurm.time + SPARE
        number, mark = 0, mark_of(os.getpid())
        return RunGroup(
            number, self.campaign.number, choice.kind.name, choice.nodes, choice.waits, "", mark, "", now, until
        )

    def _start(self, group: RunGroup) -> None:
        kind = self.kinds[group.kind]
        folder = (self.folder / f"{group.number:06d}").absolute()
        options = with_nice(self.cluster.slurm.extra_args, self.cluster.campaign.nice)
        settings = [f"slurm.queue_wait={round(self._queue_wait())}s", f"slurm.extra_args={options}"]
        child = Child(arguments_of(self.rules.arguments, kind, group.nodes, folder, settings), folder)
        self.own[group.number] = child
        self.store.started(group, child.mark, str(folder))
        child.go()
        waits = "; waits for busy nodes" if group.waits else ""
        self.show(f"group {group.number}: {hostlist.fold(group.nodes)} ({kind.name}{waits})")

    # -- ending

    def _ended(self) -> list[RunGroup]:
        """Return the groups whose run has ended: own ones, and those of processes that are gone."""
        return [group for group in self.store.live_groups(self.cluster.name) if self._has_ended(group)]

    def _has_ended(self, group: RunGroup) -> bool:
        if group.number in self.own:
            return self.own[group.number].process.poll() is not None
        running = is_running(group.child or group.owner) if group.child or group.owner else None
        if running is None:  # on another machine
            return self._has_outlasted(group)
        return not running

    def _has_outlasted(self, group: RunGroup) -> bool:
        """Return whether this process has seen a group for longer than its run may last: no clock of another machine matters."""
        since = self._seen.setdefault(group.number, time.monotonic())
        return time.monotonic() - since > group.until - group.began

    def _collect(self) -> None:
        judged = any(it.outcome in JUDGED for it in self.store.results(self.campaign))
        for group in self._ended():
            child = self.own.pop(group.number, None)
            # once a node was judged, the options are right: whatever it is, it may pass
            refused = child is not None and child.process.returncode == USAGE and not judged
            if refused and was_refused(Path(group.folder)):
                self.store.release(group, outcome_of(group, self.kinds[group.kind], {}))
                raise ConfigError(
                    f"a run of the campaign was refused: {last_line(Path(group.folder))} ({group.folder})"
                )
            if group.campaign == self.campaign.number:
                self._store(group)
            elif self._has_outlasted(group):  # of a campaign that nobody continues
                self.store.release(group, outcome_of(group, self._kind_of_other(group), {}))

    @staticmethod
    def _kind_of_other(group: RunGroup) -> Kind:
        return Kind(group.kind, "", size=len(group.nodes), partners=len(group.nodes) - 1)

    def _store(self, group: RunGroup) -> None:
        boots = {node: self.nodes[node].boot for node in group.nodes if node in self.nodes}
        group = self.store.groups(self.campaign, "id = ?", (group.number,))[0]  # with its folder
        outcome = outcome_of(group, self.kinds[group.kind], boots)
        if self.store.release(group, outcome):
            took = format_duration(time.time() - group.began)
            for node, (state, why) in outcome.nodes.items():
                if node or why:
                    self.show(
                        f"group {group.number}: {node or 'cluster'}: {state} after {took}{f': {why}' if why else ''}"
                    )

    def _stop(self) -> None:
        """End the own runs as Ctrl-C ends a run, and store how they ended."""
        for child in self.own.values():
            child.stop()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and any(it.process.poll() is None for it in self.own.values()):
            time.sleep(STEP)
        self._collect()


def with_nice(options: Iterable[str], nice: int) -> str:
    """Return salloc's options with --nice as JSON, which is YAML; a --nice of the site comes later, so salloc uses that."""
    return json.dumps([f"--nice={nice}", *options], ensure_ascii=False)


def view_nodes(
    cluster: Cluster, inventory: Mapping[str, NodeInfo], nodes: Iterable[str], reserved: Collection[str]
) -> dict[str, SlurmNode]:
    """Return the state of nodes for the planner."""
    chosen = tuple(nodes)
    problems = {node: plan.judge_node(node, inventory, wait=True) for node in chosen}
    known = tuple(node for node in chosen if node in inventory)
    shares = {node: key for key, held in plan.shares(cluster, inventory, known).items() for node in held}
    found = {}
    for node in chosen:
        problem, info = problems[node], inventory.get(node)
        why = problem.text if problem else ""
        if not why and reserved and node not in reserved:
            why = f"not in reservation {cluster.slurm.reservation}"
        found[node] = SlurmNode(
            idle=not why and info is not None and info.available,
            in_service=not why,
            share=shares.get(node),
            why=why,
            boot=info.boot_time if info else "",
        )
    return found


def judge_pairs(store: CampaignStore, campaign: Campaign) -> list[PairJudgement]:
    """Return what all pairs of a campaign show, by suite: a slow pair of Monday and another of Tuesday name their node."""
    return judgements(campaign, store.pairs(campaign))


def judgements(campaign: Campaign, found: Mapping[str, Sequence[PairResult]]) -> list[PairJudgement]:
    """Return what pairs show, by suite. `found`: suite -> what pairs have measured."""
    hooks = {suite.name: suite.pair_results for suite in suites() if suite.name in found}
    return [judge(campaign.nodes, found[name]) for name, judge in hooks.items() if judge is not None]


def oldest_verdicts(store: CampaignStore, campaign: Campaign) -> dict[str, float]:
    """Return {node: when the suite was good whose last good verdict is the oldest}; 0: one has none, or failed last."""
    names = {suite for kind in campaign.kinds for suite in kind.suites}
    return oldest_of(store, campaign.cluster, names, campaign.nodes, simulated=campaign.simulated)


def oldest_of(
    store: CampaignStore, cluster: str, names: Collection[str], nodes: Iterable[str], *, simulated: bool
) -> dict[str, float]:
    """Return the time of the oldest last good verdict of these suites for each node; no names: of all that the history has."""
    verdicts = last_verdicts(store, (cluster, simulated))
    found = {}
    for node in nodes:
        known = verdicts.get(node, {})
        times = [
            known[name].started if name in known and known[name].outcome == "passed" else 0.0
            for name in (names or known)
        ]
        found[node] = min(times, default=0.0)
    return found
