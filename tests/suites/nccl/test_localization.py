"""Localisation: schedules, bounds, each kind of fault by itself, and a thousand seeded campaigns."""

from __future__ import annotations

import sys
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import (
    MONITOR,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
    CounterExample,
    assert_as_expected,
    name,
)
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT

from pytest_gpucluster.kit import pairing as schedule
from pytest_gpucluster.suites.nccl import fleet
from pytest_gpucluster.suites.nccl.localization import Localiser
from pytest_gpucluster.suites.nccl.measurement import Bound, Localisation, Measurement, fleet_bound

sys.path.insert(0, str(ROOT / "benchmarks"))
from campaigns import draw
from link_model import ACROSS, WITHIN, LinkModel

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.kit.pairing import Batch


def names(count: int) -> list[str]:
    return [f"gpu{i:03}" for i in range(count)]


def leaves_of(nodes: list[str], size: int) -> dict[str, str]:
    return {node: f"leaf{i // size}" for i, node in enumerate(nodes)}


def localise(nodes: list[str], model: LinkModel, **options: Any) -> Localisation:
    plan = Localiser(nodes, leaves=model.leaves, **options)
    while batch := plan.next_rounds():
        plan.feed(model.run(batch))
    return plan.verdict()


def assert_disjoint(batch: Batch) -> None:
    for groups in batch:
        members = [member for group in groups for member in group]
        assert len(members) == len(set(members))


# -- schedules --------------------------------------------------------------------------------------------------


@given(st.integers(2, 40))
def test_the_circle_holds_every_pair_once(count: int) -> None:
    batch = schedule.circle(names(count))
    assert_disjoint(batch)
    assert len(batch) == count - 1 + count % 2
    pairs = [frozenset(pair) for groups in batch for pair in groups]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == {frozenset(pair) for pair in combinations(names(count), 2)}


@given(st.integers(5, 60))
def test_two_rounds_of_neighbours_give_each_node_two_partners(count: int) -> None:
    batch = (schedule.neighbours(names(count)), schedule.neighbours(names(count), shift=1))
    assert_disjoint(batch)
    met = {node: {p for groups in batch for p in groups if node in p} for node in names(count)}
    assert sum(len(pairs) == 2 for pairs in met.values()) >= count - 2 * (count % 2)
    assert all(pairs for pairs in met.values())


@given(st.lists(st.integers(1, 12), min_size=2, max_size=8))
def test_pairs_across_leaves_cross(sizes: list[int]) -> None:
    leaves = {f"n{leaf}-{i}": f"leaf{leaf}" for leaf, size in enumerate(sizes) for i in range(size)}
    within, across = (
        schedule.within_leaves(list(leaves), leaves),
        schedule.across_leaves(list(leaves), leaves),
    )
    assert_disjoint((within, across))
    assert all(leaves[a] != leaves[b] for a, b in across)
    assert sum(leaves[a] != leaves[b] for a, b in within) <= len(sizes) // 2
    assert len(within) == sum(sizes) // 2


# -- bounds -----------------------------------------------------------------------------------------------------


def test_the_bound_of_a_fleet_ignores_its_slow_part() -> None:
    bound = fleet_bound([100.0, 101.0, 99.0, 100.0, 40.0, 30.0])
    assert bound
    assert bound.value == pytest.approx(88.0)
    assert str(bound) == "at least 88 GB/s (fleet median 100 less 12%)"


def test_one_value_sets_no_bound() -> None:
    assert fleet_bound([5.0]) is None


def test_a_wide_fleet_gets_a_wide_bound() -> None:
    narrow, wide = fleet_bound([100.0] * 9), fleet_bound([88.0, 92.0, 96.0, 100.0, 104.0, 108.0, 112.0])
    assert narrow
    assert wide
    assert wide.value < narrow.value


# -- one fault at a time ----------------------------------------------------------------------------------------


def test_a_healthy_fleet_is_clean_in_one_step() -> None:
    found = localise(names(64), LinkModel(noise=0.03, seed=1), gpus_per_node=8)
    assert found.clean
    assert (found.rounds, found.steps) == (2, 1)


@pytest.mark.parametrize("leaf_size", [0, 16])
@pytest.mark.parametrize(
    "fault",
    [
        {"network": {"gpu100": 0.5}},
        {"adapters": {"gpu100:3": 0.5}},
        {"gpus": {"gpu100:3": 0.5}},
        {"crashes": {"gpu100": "pair"}},
        {"crashes": {"gpu100": "alone"}},
        {"hangs": {"gpu100": "pair"}},
        {"hangs": {"gpu100": "alone"}},
    ],
    ids=str,
)
def test_one_bad_node_of_256_takes_three_rounds_and_three_steps(
    fault: dict[str, Any], leaf_size: int
) -> None:
    nodes = names(256)
    leaves = leaves_of(nodes, leaf_size) if leaf_size else {}
    found = localise(nodes, LinkModel(leaves=leaves, seed=5, **fault), gpus_per_node=8)
    assert found.bad_nodes == ("gpu100",)
    assert not found.bad_links
    assert not found.bad_leaves
    assert not found.unresolved
    assert found.rounds <= 3
    assert found.steps <= 3
    assert (
        any(line.startswith("gpu100 ") and "GB/s" in line for line in found.evidence)
        or "failed" in found.why["gpu100"]
    )


@pytest.mark.parametrize(("fault", "part"), [("adapters", "GPU 3 or its adapter"), ("gpus", "GPU 3")])
def test_the_bad_part_of_a_node_is_named(fault: str, part: str) -> None:
    model = LinkModel(seed=2, **{fault: {"gpu010:3": 0.4}})  # type: ignore[arg-type]
    found = localise(names(32), model, gpus_per_node=8)
    assert found.bad_parts == {"gpu010": (part,)}


def test_a_node_slow_on_all_rails_names_no_part() -> None:
    model = LinkModel(seed=2, network={"gpu010": 0.4})
    found = localise(names(32), model, gpus_per_node=8)
    assert found.bad_nodes == ("gpu010",)
    assert not found.bad_parts


def test_a_slow_link_accuses_neither_end() -> None:
    model = LinkModel(seed=3, links={frozenset(("gpu010", "gpu011")): 0.5})
    found = localise(names(32), model)
    assert found.bad_links == (("gpu010", "gpu011"),)
    assert not found.bad_nodes
    assert not found.unresolved
    assert sum("gpu010 with gpu011" in line for line in found.evidence) == 2


def test_a_bad_leaf_accuses_none_of_its_nodes() -> None:
    nodes = names(64)
    model = LinkModel(leaves=leaves_of(nodes, 16), bad_leaves={"leaf2": 0.5}, network={"gpu040": 0.3}, seed=4)
    found = localise(nodes, model)
    assert found.bad_leaves == ("leaf2",)
    assert found.bad_nodes == ("gpu040",)  # on that leaf, and bad within it as well


def test_of_two_leaves_neither_is_accused_alone() -> None:
    nodes = names(32)
    model = LinkModel(leaves=leaves_of(nodes, 16), bad_leaves={"leaf1": 0.5}, seed=4)
    found = localise(nodes, model)
    assert not found.bad_leaves
    assert not found.bad_nodes
    assert {"leaf0", "leaf1"} <= set(found.unresolved[0].candidates)


def test_bad_nodes_that_were_paired_together_are_all_named() -> None:
    bad = names(64)[20:25]
    found = localise(names(64), LinkModel(network=dict.fromkeys(bad, 0.4), seed=6))
    assert found.bad_nodes == tuple(bad)
    assert not found.unresolved


def test_a_hang_costs_one_deadline_a_step() -> None:
    model = LinkModel(hangs={"gpu007": "pair", "gpu100": "pair", "gpu200": "pair"}, seed=7)
    found = localise(names(256), model)
    assert found.bad_nodes == ("gpu007", "gpu100", "gpu200")
    assert model.deadlines <= found.steps


def test_a_passing_disturbance_is_told_and_accuses_nobody() -> None:
    plan = Localiser(names(16))
    model = LinkModel(seed=8)
    first = model.run(plan.next_rounds())
    at = next(i for i, m in enumerate(first) if m.members == ("gpu004", "gpu005"))
    first[at] = Measurement(first[at].members, 30.0)
    plan.feed(first)
    again = plan.next_rounds()
    assert again == ((("gpu004", "gpu005"),),)
    plan.feed(model.run(again))
    assert plan.next_rounds() == ()
    found = plan.verdict()
    assert found.clean
    assert "link gpu004-gpu005: bad 1 time(s), fine 1: a passing disturbance" in found.evidence


def test_wrong_data_is_a_failure_however_fast() -> None:
    plan = Localiser(names(8))
    while batch := plan.next_rounds():
        results = [
            Measurement.from_dict({"members": g, "busbw": 100.0, "wrong": 7 if "gpu003" in g else 0})
            for groups in batch
            for g in groups
        ]
        plan.feed(results)
    found = plan.verdict()
    assert found.bad_nodes == ("gpu003",)
    assert "wrong data: 7 elements" in found.why["gpu003"]


# -- what cannot be told ----------------------------------------------------------------------------------------


def test_of_two_nodes_both_remain_candidates() -> None:
    found = localise(names(2), LinkModel(network={"gpu001": 0.5}), expected={"within": 80.0})
    assert not found.bad_nodes
    assert set(found.unresolved[0].candidates) == {"gpu000", "gpu001", "link gpu000-gpu001"}


def test_one_pair_without_a_bound_is_not_green() -> None:
    found = localise(names(2), LinkModel())
    assert not found.clean
    assert "no bound" in found.unresolved[0].reason


@pytest.mark.parametrize("count", [3, 4, 5])
def test_a_few_nodes_are_enough(count: int) -> None:
    found = localise(names(count), LinkModel(network={"gpu001": 0.5}))
    assert found.bad_nodes == ("gpu001",)
    assert not found.unresolved


def test_a_fleet_that_is_slow_as_a_whole_accuses_nobody() -> None:
    found = localise(names(32), LinkModel(), expected={"within": 2 * WITHIN})
    assert not found.bad_nodes
    assert len(found.unresolved[0].candidates) == 32
    assert found.steps == 1


def test_no_results_at_all_are_not_green() -> None:
    plan = Localiser(names(8))
    while plan.next_rounds():
        pass  # the executor lost every step
    assert not plan.verdict().clean


def test_oversubscription_is_told_unless_the_bound_is_given() -> None:
    nodes = names(64)
    model = LinkModel(leaves=leaves_of(nodes, 16), bad_leaves={f"leaf{i}": 0.5 for i in range(4)})
    assert "oversubscription" in localise(nodes, model).unresolved[0].reason
    assert localise(nodes, model, expected={"across": 0.4 * ACROSS}).clean


def test_strangers_are_refused() -> None:
    plan = Localiser(names(4))
    with pytest.raises(ValueError, match="not under test: gpu999"):
        plan.feed([Measurement(("gpu999",), 1.0)])


@pytest.mark.parametrize("line", [{"members": []}, {"members": ["a", "b"]}])
def test_a_line_without_a_result_is_refused(line: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"members|neither"):
        Measurement.from_dict(line)


# -- campaigns --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(1, 10))])
def test_a_thousand_campaigns_name_the_bad_and_spare_the_good(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        campaign = draw(seed)
        found = campaign.run()
        told = {part for entry in found.unresolved for part in entry.candidates}
        missed = campaign.bad - set(found.bad_nodes)
        assert not {node for node in missed if campaign.knowable(node)}, seed
        assert missed <= told, seed
        assert set(found.bad_nodes) <= campaign.bad, seed
        assert all(frozenset(link) in campaign.model.links for link in found.bad_links), seed
        assert set(found.bad_leaves) <= campaign.model.bad_leaves.keys(), seed
        assert campaign.model.bad_leaves.keys() <= {*found.bad_leaves, *told}, seed
        for node, parts in found.bad_parts.items():
            ranks = {int(part.split()[1]) for part in parts}
            sick = {*campaign.model.gpus, *campaign.model.adapters}
            assert ranks == {int(p.partition(":")[2]) for p in sick if p.startswith(f"{node}:")}, seed


def test_pairs_of_a_slow_fleet_are_below_what_the_links_allow() -> None:
    nodes = tuple("abcd")

    def verdict(values: float, least: float | None, **more: Any) -> Localisation:
        bound = None if least is None else Bound(least, "half of 400 GB/s: 8 adapters x 50 GB/s")
        plan = Localiser(nodes, least=bound, alone=False, **more)
        while batch := plan.next_rounds():
            plan.feed([Measurement(tuple(group), values) for groups in batch for group in groups])
        return plan.verdict()

    assert verdict(3.1, None).clean, "the fleet alone proves nothing"
    assert not verdict(3.1, 200.0).clean
    assert any("8 adapters x 50 GB/s" in line for line in verdict(3.1, 200.0).evidence)
    assert verdict(370.0, 200.0).clean
    assert verdict(190.0, 200.0, expected={"within": 180.0}).clean, "a stated figure goes before"


# -- machines ---------------------------------------------------------------------------------------------------


def linked(
    machine: str,
    source: str,
    verdict: str,
    nodes: list[str],
    model: LinkModel,
    *,
    sick: bool = False,
    **options: Any,
) -> CounterExample:
    """Return the check of the links of a fleet of this health."""

    def judged() -> Verdict:
        plan, measured = Localiser(nodes, leaves=model.leaves, **options), []
        while batch := plan.next_rounds():
            measured += (results := model.run(batch))
            plan.feed(results)
        return fleet.links(plan.verdict(), measured, nodes)

    return CounterExample("nccl.links", machine, source, verdict, judged, sick)


def apart(machine: str, source: str, expected: str, *values: float, sick: bool = False) -> CounterExample:
    """Return the check of the first node of a fleet with these bandwidths in GB/s."""
    found = {f"gpu{n:03}": value for n, value in enumerate(values)}
    return CounterExample(
        "nccl.outlier", machine, source, expected, lambda: fleet.outlier("gpu000", found, "all_reduce"), sick
    )


TESTS = "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"
FAT_TREE = "https://docs.nvidia.com/dgx-superpod/reference-architecture-scalable-infrastructure-h100/latest/network-fabrics.html"
TWO = {"within": 80.0}
COUNTER_EXAMPLES = (
    linked("64 nodes with 3% of noise", TESTS, PASSED, names(64), LinkModel(noise=0.03, seed=1)),
    linked("a slow node explains its slow links", TESTS, PASSED, names(16), LinkModel(network={"gpu003": 0.5})),
    linked("two nodes above the stated bound", TESTS, PASSED, names(2), LinkModel(), expected=TWO),
    linked("two nodes without a bound", TESTS, NOT_CHECKED, names(2), LinkModel()),
    linked("leaves with half of the uplinks, by design", "https://docs.nvidia.com/networking/display/rdgroce", NOT_CHECKED,
           names(64), LinkModel(leaves=leaves_of(names(64), 16), bad_leaves={f"leaf{n}": 0.5 for n in range(4)})),
    linked("one node", TESTS, NOT_APPLICABLE, names(1), LinkModel()),
    linked("a slow link", FAT_TREE, MONITOR, names(16), LinkModel(links={frozenset(("gpu002", "gpu003")): 0.5}), sick=True),
    linked("a slow leaf switch", FAT_TREE, MONITOR, names(48), LinkModel(leaves=leaves_of(names(48), 16), bad_leaves={"leaf1": 0.5}), sick=True),
    linked("one of two nodes is slow, or their link", TESTS, MONITOR, names(2), LinkModel(network={"gpu001": 0.5}), sick=True, expected=TWO),
    linked("the whole fleet has half of the stated bandwidth", TESTS, MONITOR, names(32), LinkModel(), sick=True, expected={"within": 2 * WITHIN}),
    apart("0.5% below, the others within 0.1%", TESTS, PASSED, 363.0, *(365.0 + n / 10 for n in range(8))),
    apart("a tenth faster than the others", TESTS, PASSED, 401.0, *(365.0 + n / 10 for n in range(8))),
    apart("4% below, as the noise of the fleet", TESTS, PASSED, 350.0, 365, 351, 372, 360, 349, 370, 366),
    apart("the only node", TESTS, NOT_APPLICABLE, 340.0),
    apart("15% below", TESTS, MONITOR, 310.0, *(365.0 + n / 10 for n in range(8)), sick=True),
    apart("half of the fleet is 15% below", TESTS, MONITOR, 310.0, 311, 309.5, 310.4, 365, 366, 364.6, 365.3, sick=True),
)  # fmt: skip


@pytest.mark.parametrize("machine", COUNTER_EXAMPLES, ids=name)
def test_fleets_get_the_verdict_that_a_person_gives_them(machine: CounterExample) -> None:
    assert_as_expected(machine)
