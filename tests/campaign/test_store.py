"""The state of campaigns in the history file."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.campaign.child import GroupResult
from pytest_gpucluster.campaign.model import Campaign, Kind, RunGroup
from pytest_gpucluster.campaign.planner import Choice
from pytest_gpucluster.campaign.store import CampaignStore
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.kit.suite_work import PairResult
from pytest_gpucluster.report.proof import FAILED, FIT, NOT_TESTED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALONE = Kind("alone", "gpu", ("gpu",))
NAMES = tuple(f"n{number:03d}" for number in range(40))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CampaignStore]:
    with contextlib.closing(CampaignStore(tmp_path / "h.db", create=True)) as made:
        yield made


def begin(store: CampaignStore, name: str = "x", **more: float) -> Campaign:
    return store.open_campaign("prod", name, NAMES, (ALONE,), simulated=True, **more)


def take(store: CampaignStore, campaign: Campaign, limit: int = len(NAMES)) -> RunGroup | None:
    """Claim the next node, unless this many are claimed."""

    def choose(now: CampaignStore) -> Choice | None:
        claimed = now.leases("prod")
        tested = {it.node for it in now.results(campaign)}
        free = [node for node in NAMES if node not in claimed and node not in tested]
        return Choice(ALONE, (free[0],), False) if free and len(claimed) < limit else None

    def group(choice: Choice) -> RunGroup:
        return RunGroup(0, campaign.number, "alone", choice.nodes, False, "", "m-1-2", "", 1.0, 2.0)

    return store.claim(campaign, choose, group)


def taken(store: CampaignStore, campaign: Campaign) -> RunGroup:
    group = take(store, campaign)
    assert group is not None
    return group


def test_processes_of_one_campaign_test_no_node_twice_and_keep_the_limit(tmp_path: Path) -> None:
    with contextlib.closing(CampaignStore(tmp_path / "h.db", create=True)) as store:
        campaign = begin(store)

    def process(_number: int) -> list[str]:
        done = list[str]()
        with contextlib.closing(CampaignStore(tmp_path / "h.db", create=True)) as own:
            while len(own.results(campaign)) < len(NAMES):
                group = take(own, campaign, limit=3)
                if group is not None:
                    assert len(own.leases("prod")) <= 3
                    done += group.nodes
                    assert own.release(group, GroupResult(dict.fromkeys(group.nodes, (FIT, ""))))
        return done

    with ThreadPoolExecutor(4) as pool:
        found = [node for done in pool.map(process, range(4)) for node in done]
    assert sorted(found) == sorted(NAMES)


def test_a_group_is_released_once_with_its_results(store: CampaignStore) -> None:
    campaign, boot = begin(store), "2026-01-01T00:00:00"
    group = taken(store, campaign)
    failed = {"n000": (FAILED, "gpu.count: 7")}
    assert store.release(group, GroupResult(failed, boots={"n000": boot}, run="r1", sha256="ab"))
    assert not store.release(group, GroupResult({"n000": (FIT, "")}))
    (found,) = store.results(campaign)
    assert {found.node: (found.outcome, found.message)} == failed
    assert (found.boot, store.leases("prod")) == (boot, {})
    (stored,) = store.groups(campaign)
    assert (stored.run, stored.sha256, stored.ended is not None) == ("r1", "ab", True)


def test_claims_of_all_campaigns_of_a_cluster_count(store: CampaignStore) -> None:
    one, other = taken(store, begin(store)), taken(store, begin(store, "y"))
    assert set(store.leases("prod")) == {*one.nodes, *other.nodes} == {"n000", "n001"}
    assert store.leases("other") == {}
    assert take(store, begin(store), limit=2) is None


def test_a_campaign_goes_on_where_it_stopped_and_begins_again_after_its_end(store: CampaignStore) -> None:
    campaign = begin(store)
    for outcome in (FIT, FAILED, NOT_TESTED):
        group = taken(store, campaign)
        store.release(group, GroupResult({group.nodes[0]: (outcome, "")}))
    assert begin(store) == campaign
    assert [it.left for it in store.results(campaign)] == [False] * 3
    store.close_campaign(campaign)
    assert begin(store).closed is None
    assert [it.left for it in store.results(campaign)] == [False, True, False]
    store.close_campaign(campaign)
    assert store.results(begin(store, newest=1e12)) == ()  # all of them are too old


def test_a_campaign_of_other_suites_needs_another_name(store: CampaignStore) -> None:
    begin(store)
    with pytest.raises(ConfigError, match="was begun with gpu, in other groups"):
        store.open_campaign("prod", "x", NAMES, (Kind("alone", "os", ("os",)),), simulated=True)


def test_pairs_of_a_repaired_node_count_no_more(store: CampaignStore) -> None:
    campaign = begin(store)
    pairs = {"nccl": [PairResult(("n000", "n001"), "pair_busbw", 3.5)]}
    store.release(taken(store, campaign), GroupResult({"n000": (FAILED, "")}, pairs=pairs))
    assert store.pairs(campaign) == pairs
    store.mark_left(campaign, ["n000"])
    assert store.pairs(campaign) == {}
