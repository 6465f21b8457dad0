"""Which nodes a budget tests first: by age of verdict, earlier failures, boots, and parts that were changed. Pure, but for the queries."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.campaign.campaign import oldest_of
from pytest_gpucluster.report.history.fleet_runs import last_verdicts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pytest_gpucluster.campaign.store import CampaignStore

RECENT = 10  # last runs of a node whose failures count
CLASSES = (
    "without a good verdict",
    "a part or its firmware changed since",
    "booted since",
    "by age and earlier failures",
)
NONE, CHANGED, BOOTED, AGED = range(len(CLASSES))


@dataclass(frozen=True)
class Urgency:
    """Why a node is tested. `tested`: time of the oldest good verdict of the selected suites, 0 without one; `cause`: index in CLASSES."""

    node: str
    tested: float
    failures: int
    cause: int

    def rank(self, now: float) -> tuple[float, ...]:
        """Return the place in the order, most urgent first: the cause, then the age times one more than the failures."""
        return (self.cause, -(now - self.tested) * (1 + self.failures))


def by_urgency(
    store: CampaignStore, kind: tuple[str, bool], names: Collection[str], boots: Mapping[str, float], now: float
) -> list[Urgency]:
    """Return nodes, most urgent first. `boots`: {node: when it was booted, 0 if unknown}; `names`: the selected suites.

    A suite that has judged no node, like one of the controller, gives no node an age.
    """
    cluster, simulated = kind
    judged = {suite for of_node in last_verdicts(store, kind).values() for suite in of_node} & set(names)
    tested = oldest_of(store, cluster, judged, boots, simulated=simulated) if judged else dict.fromkeys(boots, 0.0)
    failures, changes = _failures(store, kind), _changes(store, kind)
    found = [
        Urgency(node, at, failures[node], _cause(at, changes.get(node, 0.0), boot))
        for node, boot in boots.items()
        for at in (tested[node],)
    ]
    return sorted(found, key=lambda it: it.rank(now))


def shown(chosen: Iterable[Urgency]) -> str:
    """Say how many nodes are tested for which cause."""
    numbers = Counter(it.cause for it in chosen)
    return ", ".join(f"{numbers[cause]} {words}" for cause, words in enumerate(CLASSES) if numbers[cause])


def _cause(tested: float, changed: float, booted: float) -> int:
    if not tested:
        return NONE
    return CHANGED if changed > tested else BOOTED if booted > tested else AGED


def _failures(store: CampaignStore, kind: tuple[str, bool]) -> Counter[str]:
    """Count the runs that each node failed, among its last ones."""
    rows = store.query(
        "SELECT name, SUM(failed > 0) FROM (SELECT d.name, n.failed, ROW_NUMBER() OVER (PARTITION BY n.node ORDER BY n.started "
        "DESC) AS place FROM node_runs n JOIN nodes d ON d.id = n.node WHERE d.cluster = ? AND d.simulated = ?) "
        "WHERE place <= ? GROUP BY name",
        (*kind, RECENT),
    )
    return Counter(dict(rows))


def _changes(store: CampaignStore, kind: tuple[str, bool]) -> dict[str, float]:
    """Return {node: when a run last found a part or firmware that was not there before, or missed one}; its first parts are no change."""
    rows = store.query(
        "SELECT d.name, MAX(MAX(s.since, coalesce(s.until, 0))) FROM stays s JOIN nodes d ON d.id = s.node "
        "WHERE d.cluster = ? AND d.simulated = ? AND (s.until IS NOT NULL OR s.since > "
        "(SELECT MIN(t.since) FROM stays t WHERE t.node = s.node)) GROUP BY d.name",
        kind,
    )
    return dict(rows)
