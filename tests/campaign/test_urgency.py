"""Which nodes a budget tests first, and the groups that a campaign's cost counts."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from report.test_ledger import DAY, card, night

from pytest_gpucluster.campaign.cost import cost_of_campaign, groups_of
from pytest_gpucluster.campaign.model import Kind
from pytest_gpucluster.campaign.store import CampaignStore
from pytest_gpucluster.campaign.urgency import AGED, BOOTED, CHANGED, NONE, by_urgency, shown
from pytest_gpucluster.core.units import parse_node_hours

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KIND = ("prod", False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CampaignStore]:
    with contextlib.closing(CampaignStore(tmp_path / "h.db", create=True)) as made:
        yield made


def test_nodes_without_a_verdict_come_first_then_changes_then_boots_then_age_times_failures(
    store: CampaignStore,
) -> None:
    cards = {name: [card(str(number))] for number, name in enumerate("abcdefg")}
    store.add(night(1, cards))
    store.add(night(2, {"f": cards["f"]}, ("f", cards["f"][0].part)))
    store.add(night(3, {"d": cards["d"], "f": cards["f"]}))
    store.add(night(4, {"g": cards["g"]}, ("g", cards["g"][0].part)))  # it failed last
    # another suite reads b with a new card: its own verdict is no younger
    store.add(replace(night(5, {"b": [card("9")]}), items=()))
    boots = dict.fromkeys("abcdefgh", 0.0) | {"c": 1.5 * DAY, "d": 2.5 * DAY}
    found = by_urgency(store, KIND, {"gpu", "controller"}, boots, 9 * DAY)
    # f: 6 days and one failure are more urgent than 8 days without
    assert [it.node for it in found] == ["g", "h", "b", "c", "f", "a", "e", "d"]
    assert [it.cause for it in found] == [NONE, NONE, CHANGED, BOOTED, AGED, AGED, AGED, AGED]
    assert [it.failures for it in found] == [1, 0, 0, 0, 1, 0, 0, 0]
    assert shown(found[:3]) == "2 without a good verdict, 1 a part or its firmware changed since"


def test_verdicts_of_other_suites_make_no_age(store: CampaignStore) -> None:
    store.add(night(1, {"a": [card("1")]}))
    (found,) = by_urgency(store, KIND, {"nccl"}, {"a": 0.0}, 9 * DAY)
    assert (found.cause, found.tested) == (NONE, 0.0)


@pytest.mark.parametrize("text", ["40", "40h", "0nodeh", "-1nodeh", "1e3nodeh", "nodeh", "nan nodeh"])
def test_a_budget_is_a_number_of_node_hours(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 40nodeh"):
        parse_node_hours(text)


def test_the_cost_of_a_campaign_is_that_of_its_groups(store: CampaignStore) -> None:
    pairs = Kind("nccl", "nccl", ("nccl",), size=2, partners=3)
    by_four = Kind("nccl by 4", "nccl", ("nccl",), size=4, partners=3, larger=True)
    kinds = (Kind("alone", "gpu", ("gpu",)), pairs, by_four)
    assert [groups_of(kind, 40) for kind in kinds] == [40, 60, 10]
    assert [groups_of(kind, 1) for kind in kinds] == [1, 0, 0]
    campaign = store.open_campaign("prod", "x", tuple("abcd"), kinds[:2], simulated=False)
    # 4 nodes alone, and 6 pairs
    assert "at most 16 node-hours" in cost_of_campaign(store, campaign, 8, 3600)
