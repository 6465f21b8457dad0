"""Which nodes a campaign tests next, and when a node has its verdict."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from pytest_gpucluster.campaign.model import Campaign, Kind, NodeResult, SlurmNode, View
from pytest_gpucluster.campaign.planner import OPEN, Planner
from pytest_gpucluster.report.proof import FAILED, FIT, NOT_PROVED, NOT_TESTED

ALONE = Kind("alone", "not nccl", ("gpu",))
PAIRS = Kind("nccl", "nccl", ("nccl",), size=2, partners=3)
NAMES = tuple(f"n{number}" for number in range(1, 7))


def view(
    results: tuple[NodeResult, ...] = (),
    *,
    kinds: tuple[Kind, ...] = (ALONE, PAIRS),
    names: tuple[str, ...] = NAMES,
    busy: str = "",
    out: str = "",
    limit: int = 8,
    **more: object,
) -> View:
    campaign = Campaign(1, "c", "x", True, names, kinds, 0.0)
    nodes = {it: SlurmNode(it not in (*busy.split(), *out.split()), it not in out.split()) for it in names}
    return View(campaign, results, nodes, limit, **more)  # type: ignore[arg-type]


def result(number: int, nodes: str, outcome: str = FIT, kind: Kind = ALONE, **more: object) -> tuple[NodeResult, ...]:
    members = tuple(nodes.split())
    return tuple(
        NodeResult(kind.name, node, number, members, float(number), outcome, **more)  # type: ignore[arg-type]
        for node in members
    )


def chosen(found: Planner) -> tuple[Kind, tuple[str, ...]]:
    choice = found.choose({})
    assert choice is not None
    return choice.kind, choice.nodes


def all_choices(found: Planner) -> list[tuple[tuple[str, ...], bool]]:
    taken, order = dict[str, bool](), list[tuple[tuple[str, ...], bool]]()
    while choice := found.choose(taken):
        taken |= dict.fromkeys(choice.nodes, choice.waits)
        order.append((choice.nodes, choice.waits))
    return order


def test_a_node_is_tested_alone_before_it_is_tested_with_others() -> None:
    planner = Planner(view())
    choice = planner.choose({})
    assert choice is not None
    assert (choice.kind, choice.nodes, choice.waits) == (ALONE, ("n1",), False)
    assert planner.verdict("n1", ALONE) == OPEN


@pytest.mark.parametrize(
    ("limit", "busy", "claimed", "waiting"),
    [
        (2, "", 2, 0),
        (3, "n4 n5 n6", 3, 0),
        (8, "n4 n5 n6", 6, 3),
        (4, "n1 n2 n3 n4 n5 n6", 2, 2),
        (5, "n1 n2 n3 n4 n5 n6", 3, 3),
    ],
)
def test_the_limit_holds_and_waiting_leaves_room(limit: int, busy: str, claimed: int, waiting: int) -> None:
    waits = [waits for _, waits in all_choices(Planner(view(busy=busy, limit=limit)))]
    assert (len(waits), sum(waits)) == (claimed, waiting)


def test_idle_nodes_come_before_busy_ones_and_nodes_out_of_service_never() -> None:
    order = all_choices(Planner(view(busy="n1 n2", out="n3")))
    assert order == [((f"n{number}",), number < 3) for number in (4, 5, 6, 1, 2)]


def test_the_oldest_verdict_comes_first_and_after_it_what_was_tried_least_recently() -> None:
    ages = {"n1": 50.0, "n2": 20.0, "n3": 0.0, "n4": 40.0, "n5": 30.0, "n6": 10.0}
    order = all_choices(Planner(view(kinds=(ALONE,), ages=ages)))
    assert [nodes[0] for nodes, _ in order] == ["n3", "n6", "n2", "n5", "n4", "n1"]
    withdrawn = view(result(1, "n3", NOT_TESTED), kinds=(ALONE,), ages=ages)
    assert chosen(Planner(withdrawn)) == (ALONE, ("n6",))


def simulate(names: tuple[str, ...], bad: set[str], seed: int) -> tuple[Planner, list[NodeResult]]:
    """Drive the planner to its end; at each step a random half of the nodes is busy."""
    dice, results = Random(seed), list[NodeResult]()
    for number in range(1, 2_000):
        busy = " ".join(name for name in names if dice.random() < 0.5)
        planner = Planner(view(tuple(results), names=names, busy=busy))
        if not planner.unfinished():
            return planner, results
        choice = planner.choose({})
        if choice is not None:
            outcome = FAILED if set(choice.nodes) & bad and choice.kind is PAIRS else FIT
            results += result(number, " ".join(choice.nodes), outcome, choice.kind)
    pytest.fail("the campaign does not end")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [2, 3, 5, 16])
def test_each_node_meets_three_partners_and_a_bad_one_fails_alone(size: int, seed: int) -> None:
    names = tuple(f"n{number}" for number in range(size))
    bad = {"n1"} if size >= 5 else set()
    planner, results = simulate(names, bad, seed)
    for name in names:
        met = {it for one in results if one.node == name for it in one.partners}
        assert len(met) >= min(3, size - 1), name
        assert planner.state(name) == (FAILED if name in bad else FIT), name
    assert all(one.group < other.group for one, other in pairwise(it for it in results if it.node == "n0"))
    pairs = [one.nodes for one in results if one.kind == PAIRS.name and one.node == one.nodes[0]]
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)  # none twice
    alone = [one.node for one in results if one.kind == ALONE.name]
    assert sorted(alone) == sorted(names)  # each once


def alone(*nodes: str) -> tuple[NodeResult, ...]:
    return tuple(it for number, node in enumerate(nodes, 2) for it in result(number, node))


def test_a_node_that_failed_is_no_partner_and_is_tested_no_further_until_it_is_repaired() -> None:
    failed = result(1, "n1", FAILED)
    planner = Planner(view((*failed, *alone(*NAMES[1:]))))
    assert "n1" not in {node for nodes, _ in all_choices(planner) for node in nodes}
    assert (planner.state("n1"), planner.state("n2")) == (FAILED, OPEN)
    repaired = tuple(replace(it, left=True) for it in failed)
    planner = Planner(view(repaired, names=("n1",), kinds=(ALONE,)))
    assert (planner.state("n1"), chosen(planner)) == (OPEN, (ALONE, ("n1",)))


def test_preemption_is_tried_at_any_time_and_a_broken_run_three_times() -> None:
    taken = tuple(it for number in range(1, 10) for it in result(number, "n1", NOT_TESTED))
    assert Planner(view(taken, kinds=(ALONE,))).state("n1") == OPEN
    broken = tuple(it for number in range(1, 4) for it in result(number, "n1", NOT_PROVED))
    assert Planner(view(broken[:2], kinds=(ALONE,))).state("n1") == OPEN
    assert Planner(view(broken, kinds=(ALONE,))).state("n1") == NOT_PROVED


def test_a_pair_that_decides_a_question_comes_first() -> None:
    assert chosen(Planner(view(alone(*NAMES), wanted=(("n5", "n2"),)))) == (PAIRS, ("n5", "n2"))


def test_a_node_that_the_pairs_name_fails_although_single_pairs_passed() -> None:
    planner = Planner(view(alone(*NAMES), bad={"n3": "slow with n1 and n2"}))
    assert (planner.state("n3"), planner.state("n1")) == (FAILED, OPEN)


def test_without_a_partner_in_service_a_node_stays_open_and_does_not_hold_up_the_campaign() -> None:
    planner = Planner(view(result(1, "n1"), names=("n1", "n2"), out="n2"))
    assert (planner.state("n1"), planner.unfinished()) == (OPEN, [])
    single = Planner(view(result(1, "n1"), names=("n1",)))
    assert chosen(single) == (PAIRS, ("n1",))  # as in any run of one node
