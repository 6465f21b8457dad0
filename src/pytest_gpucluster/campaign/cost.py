"""What a campaign will cost before it starts: its groups, times what groups of the same kinds took. Pure, but for the queries."""

from __future__ import annotations

import statistics
from math import ceil
from typing import TYPE_CHECKING

from pytest_gpucluster.core.text import count
from pytest_gpucluster.core.units import format_duration
from pytest_gpucluster.report.history.cost import node_hours

if TYPE_CHECKING:
    from pytest_gpucluster.campaign.model import Campaign, Kind
    from pytest_gpucluster.campaign.store import CampaignStore


def groups_of(kind: Kind, nodes: int) -> int:
    """Return how many groups of a kind test so many healthy nodes, each with all its partners."""
    partners = min(kind.partners, nodes - 1)
    return ceil(nodes * partners / (kind.size * (kind.size - 1))) if kind.size > 1 else nodes


def cost_of_campaign(store: CampaignStore, campaign: Campaign, limit: int, most: float) -> str:
    """Return the line of a campaign's start. `limit`: nodes at once. `most`: seconds after which the job of a group ends.

    Groups that have ended since the campaign began are left out. Nodes that fail, and repeats, make it shorter or longer.
    """
    ended = [it.kind for it in store.groups(campaign, "ended IS NOT NULL AND began >= ?", (campaign.began,))]
    left = {kind: max(0, groups_of(kind, len(campaign.nodes)) - ended.count(kind.name)) for kind in campaign.kinds}
    took = store.group_seconds(campaign)
    numbers = ", ".join(f"{count(number, 'group')} of {kind.name}" for kind, number in left.items())
    if any(number and kind.name not in took for kind, number in left.items()):
        bound = node_hours(sum(number * kind.size * most for kind, number in left.items()))
        return (
            f"cost: unknown without a history of such groups ({numbers}); at most {bound}, since the job of a group ends after "
            f"{format_duration(most)}"
        )
    total = sum(number * kind.size * statistics.median(took[kind.name]) for kind, number in left.items() if number)
    least = format_duration(total / max(1, min(limit, len(campaign.nodes))))
    return f"cost: about {node_hours(total)}, at least {least} ({numbers}; median of earlier groups, with the wait for nodes)"
