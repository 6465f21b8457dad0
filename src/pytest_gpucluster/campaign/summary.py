"""What a campaign has found: one verdict over all its groups, for terminal, JSON, HTML and Prometheus."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pytest_gpucluster.campaign.campaign import judgements
from pytest_gpucluster.campaign.model import SlurmNode, View
from pytest_gpucluster.campaign.planner import OPEN, Planner
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.units import format_duration
from pytest_gpucluster.report.describe import labelled
from pytest_gpucluster.report.history.fleet_runs import last_verdicts
from pytest_gpucluster.report.history.regression import when
from pytest_gpucluster.report.page import html_page
from pytest_gpucluster.report.proof import FAILED, FIT, NOT_PROVED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.campaign.model import Campaign, NodeResult, RunGroup
    from pytest_gpucluster.campaign.store import CampaignStore
    from pytest_gpucluster.kit.suite_work import PairResult
    from pytest_gpucluster.report.history.fleet_runs import LastVerdict

UNDER_TEST, WAITING, OUT = "under test", "waiting", "out of service"
STATES = (FAILED, NOT_PROVED, OUT, UNDER_TEST, WAITING, FIT)  # worst first


@dataclass(frozen=True)
class NodeRow:
    """One node: its state, why, with how many partners it was tested, and the last verdict of each suite."""

    node: str
    state: str
    why: str
    partners: int
    verdicts: Mapping[str, LastVerdict] = field(default_factory=dict)
    view: SlurmNode = field(default_factory=lambda: SlurmNode(idle=False, in_service=True))


@dataclass(frozen=True)
class Summary:
    """A campaign at the time `now`. `problems`: what is about no single node, like a bad link."""

    campaign: Campaign
    now: float
    rows: tuple[NodeRow, ...]
    problems: tuple[str, ...]
    questions: tuple[str, ...]
    groups: tuple[RunGroup, ...]
    results: tuple[NodeResult, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether every expected node is fit, and nothing else failed."""
        return not self.problems and all(row.state == FIT for row in self.rows)

    @property
    def verdict(self) -> str:
        """The acceptance in one word."""
        if self.accepted:
            return "ACCEPTED"
        failed = self.problems or any(row.state == FAILED for row in self.rows)
        return "REJECTED" if failed else "NOT COMPLETE"

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites of the campaign."""
        return tuple(suite for kind in self.campaign.kinds for suite in kind.suites if not kind.larger)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the terminal."""
        counts = Counter(row.state for row in self.rows)
        shown = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
        of = labelled(self.campaign.cluster, simulated=self.campaign.simulated)
        yield f"campaign {self.campaign.name} of {of}: {self.verdict}: {len(self.rows)} nodes: {shown}"
        for state in STATES:
            if state == FIT:
                continue
            for why, nodes in self._by_reason(state).items():
                yield f"  {state}: {hostlist.fold(nodes)}{f': {why}' if why else ''}"
        yield from (f"  failed: {problem}" for problem in self.problems)
        yield from (f"  open: {question}" for question in self.questions)
        yield f"  groups: {len(self.groups)}, of which {sum(group.ended is None for group in self.groups)} run"

    def _by_reason(self, state: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for row in self.rows:
            if row.state == state:
                found.setdefault(row.why, []).append(row.node)
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return all that was found; times in seconds since the epoch. The sha256 is that of a group's event log."""
        of_group: dict[int, list[NodeResult]] = {}
        for result in self.results:
            of_group.setdefault(result.group, []).append(result)
        return {
            "campaign": self.campaign.name,
            "cluster": self.campaign.cluster,
            "simulated": self.campaign.simulated,
            "began": self.campaign.began,
            "ended": self.campaign.closed,
            "written": self.now,
            "verdict": self.verdict,
            "suites": list(self.suites),
            "kinds": [{**asdict(kind), "suites": list(kind.suites)} for kind in self.campaign.kinds],
            "nodes": [
                {
                    "node": row.node,
                    "state": row.state,
                    "why": row.why,
                    "partners": row.partners,
                    "in_service": row.view.in_service,
                    "share": row.view.share,
                    "suites": {
                        suite: {
                            "outcome": it.outcome,
                            "judged": it.started,
                            "age_seconds": round(self.now - it.started, 1),
                        }
                        for suite, it in row.verdicts.items()
                    },
                }
                for row in self.rows
            ],
            "problems": list(self.problems),
            "questions": list(self.questions),
            "groups": [
                {
                    "group": group.number,
                    "suites": group.kind,
                    "nodes": list(group.nodes),
                    "run": group.run,
                    "folder": group.folder,
                    "began": group.began,
                    "ended": group.ended,
                    "sha256": group.sha256,
                    "outcomes": {it.node: it.outcome for it in of_group.get(group.number, ())},
                    "left": [it.node for it in of_group.get(group.number, ()) if it.left],
                }
                for group in self.groups
            ],
        }

    def html(self) -> str:
        """Return one page: nodes by state, and the age of the last verdict of each suite."""
        counts = Counter(row.state for row in self.rows)
        return html_page.template("campaign.html.j2").render(
            style=html_page.style(),
            summary=self,
            counts=[(state, counts[state]) for state in STATES if counts[state]],
            now=when(self.now),
            began=when(self.campaign.began),
            rows=[
                {
                    "node": row.node,
                    "state": row.state,
                    "why": row.why,
                    "partners": row.partners,
                    "ages": [self._age(row.verdicts.get(suite)) for suite in self.suites],
                }
                for row in sorted(self.rows, key=lambda row: STATES.index(row.state))
            ],
        )

    def _age(self, verdict: LastVerdict | None) -> str:
        return "" if verdict is None else f"{verdict.outcome}, {format_duration(max(0.0, self.now - verdict.started))}"

    def metrics(self) -> bytes:
        """Return the metrics for the textfile collector of node_exporter."""
        registry = CollectorRegistry()
        registry.register(_Metrics(self))
        return generate_latest(registry)


class _Metrics(Collector):
    def __init__(self, summary: Summary) -> None:
        self._summary = summary

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the age of each verdict, and how many nodes are in each state."""
        summary = self._summary
        labels = ["cluster", "node", "suite", "outcome"]
        age = GaugeMetricFamily(
            "gpucluster_last_verdict_age_seconds", "Time since the suite last judged the node.", labels=labels
        )
        for row in summary.rows:
            for suite, it in row.verdicts.items():
                age.add_metric([summary.campaign.cluster, row.node, suite, it.outcome], summary.now - it.started)
        states = GaugeMetricFamily(
            "gpucluster_campaign_nodes", "Nodes of a campaign by state.", labels=["cluster", "campaign", "state"]
        )
        counts = Counter(row.state for row in summary.rows)
        for state in STATES:
            states.add_metric([summary.campaign.cluster, summary.campaign.name, state], counts[state])
        return [age, states]


def summarize(store: CampaignStore, campaign: Campaign, *, now: float) -> Summary:
    """Read a campaign from the history."""
    state = CampaignState(
        campaign,
        tuple(store.groups(campaign)),
        store.results(campaign),
        store.pairs(campaign),
        store.seen_nodes(campaign),
    )
    verdicts = last_verdicts(store, (campaign.cluster, campaign.simulated))
    return judge(state, now=now, claimed=store.leases(campaign.cluster), verdicts=verdicts)


@dataclass(frozen=True)
class CampaignState:
    """All that the verdict on a campaign follows from. `pairs`: suite -> what pairs measured; `seen`: each node in Slurm."""

    campaign: Campaign
    groups: tuple[RunGroup, ...]
    results: tuple[NodeResult, ...]
    pairs: Mapping[str, Sequence[PairResult]]
    seen: Mapping[str, SlurmNode]


def judge(
    given: CampaignState,
    *,
    now: float,
    claimed: Collection[str] = (),
    verdicts: Mapping[str, Mapping[str, LastVerdict]] = MappingProxyType({}),
) -> Summary:
    """Judge a campaign. `claimed`: nodes under test now; `verdicts`: node -> suite -> its last verdict in the history."""
    campaign, results, seen = given.campaign, given.results, given.seen
    judged = judgements(campaign, given.pairs)
    bad = {node: why for it in judged for node, why in it.bad.items()}
    planner = Planner(View(campaign, results, seen, limit=0, bad=bad))
    of_larger = {
        node: why for kind in campaign.kinds if kind.larger for node, why in planner.bisection(kind).bad.items() if why
    }
    names = {suite for kind in campaign.kinds for suite in kind.suites}
    rows = []
    for node in campaign.nodes:
        state = planner.state(node)
        why = _why(results, node, state, bad | of_larger)
        if state == OPEN:
            state = UNDER_TEST if node in claimed else WAITING if seen[node].in_service else OUT
            why = seen[node].why or why
        partners = {it for result in results if result.node == node for it in result.partners}
        of_node = {suite: it for suite, it in sorted(verdicts.get(node, {}).items()) if not names or suite in names}
        rows.append(NodeRow(node, state, why, len(partners), of_node, seen[node]))
    links = [f"link {one} - {other}" for it in judged for one, other in it.bad_links]
    together = [
        f"{hostlist.fold(nodes)} fail together, and each of them passes in another group: what they share is at fault"
        for kind in campaign.kinds
        if kind.larger
        for nodes in planner.bisection(kind).together
    ]
    problems = (*links, *together, *_of_cluster(results))
    questions = tuple(question for it in judged for question in it.questions)
    return Summary(campaign, now, tuple(rows), problems, questions, given.groups, results)


def _why(results: Iterable[NodeResult], node: str, state: str, bad: Mapping[str, str]) -> str:
    if node in bad:
        return bad[node]
    messages = [it.message for it in results if it.node == node and it.outcome == state and not it.left]
    return messages[-1] if messages else ""


def _of_cluster(results: Iterable[NodeResult]) -> list[str]:
    """Return what the newest group of each kind found about the cluster."""
    newest = {result.kind: result for result in results if not result.node}
    return [result.message for result in newest.values() if result.outcome == FAILED]
