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

from pytest_gpucluster.kit.nccl import pairing as schedule
from pytest_gpucluster.kit.nccl.localization import Localiser
from pytest_gpucluster.kit.nccl.measurement import Bound, Localisation, Measurement, fleet_bound
from pytest_gpucluster.suites.nccl import fleet

sys.path.insert(0, str(ROOT / "benchmarks"))
from collections import Counter

from campaigns import draw
from link_model import ACROSS, WITHIN, LinkModel

from pytest_gpucluster.kit.nccl import inference, localization, next_pairs, open_questions
from pytest_gpucluster.kit.nccl.measurement import (
    GroupKind,
    Judged,
    Status,
    Unresolved,
    judge,
    kind_of,
)

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.kit.nccl.pairing import Batch


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


@pytest.mark.parametrize(("links", "partners"), [("45 56", 3), ("45 56 50 9a cd", 4)])
def test_links_that_stay_slow_accuse_no_node_that_they_share(links: str, partners: int) -> None:
    nodes = names(16)
    slow = {frozenset(nodes[int(end, 16)] for end in pair): 0.5 for pair in links.split()}
    found = localise(nodes, LinkModel(links=slow, noise=0.01, seed=1), alone=False, repeats=1)
    assert found.bad_nodes == ()
    assert {*map(frozenset, found.bad_links)} == slow.keys()
    bad = LinkModel(links=slow, network={nodes[5]: 0.5}, noise=0.01, seed=1)
    found = localise(nodes, bad, alone=False, repeats=1)
    assert found.bad_nodes == (nodes[5],)
    assert found.why[nodes[5]].count("gpu") == partners


def test_a_stated_bound_that_no_pair_reaches_accuses_nobody() -> None:
    nodes = names(16)
    model = LinkModel(leaves=leaves_of(nodes, 8))
    found = localise(nodes, model, expected={"within": 2 * WITHIN}, alone=False)
    assert found.bad_nodes == ()
    assert set(nodes) <= {part for entry in found.unresolved for part in entry.candidates}
    assert found.steps == 1


@pytest.mark.parametrize(("steps", "bad"), [(1, ()), (9, ("leaf1",))])
def test_a_leaf_that_is_busy_in_one_step_is_not_bad(steps: int, bad: tuple[str, ...]) -> None:
    nodes = names(32)
    model = LinkModel(leaves=leaves_of(nodes, 8), bad_leaves={"leaf1": 0.5})
    plan = Localiser(nodes, leaves=model.leaves, alone=False, repeats=1)
    for step in range(9):
        if step == steps:
            model.bad_leaves.clear()
        plan.feed(model.run(plan.next_rounds()))
    found = plan.verdict()
    assert (found.bad_leaves, found.bad_nodes, found.bad_links, found.steps) == (bad, (), (), 2)


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


def test_a_passing_disturbance_is_reported_and_accuses_nobody() -> None:
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


def test_data_that_were_wrong_once_are_no_passing_disturbance() -> None:
    plan = Localiser(names(8), alone=False, repeats=1)
    while batch := plan.next_rounds():
        wrong = "" if plan.measurements else "wrong data: 7 elements"
        plan.feed(
            Measurement(pair, 100.0, wrong if pair == ("gpu002", "gpu003") else "")
            for groups in batch
            for pair in groups
        )
    (question,) = plan.verdict().unresolved
    assert question.candidates == ("gpu002", "gpu003", "link gpu002-gpu003")
    assert question.reason == "wrong data: 7 elements, right when repeated"


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


def test_oversubscription_is_reported_unless_the_bound_is_given() -> None:
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


@pytest.mark.parametrize("block", range(10))
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


# --- value by value ---


class Course:
    """A plan on parts of given health, to its end: all batches, and the verdict."""

    def __init__(
        self, nodes: str, sick: dict[str, float | str] | None = None, leaves: str = "", **options: Any
    ) -> None:
        self.sick = sick or {}
        self.leaf = dict(zip(nodes, leaves, strict=False))
        self.batches: list[schedule.Batch] = []
        plan = Localiser(
            tuple(nodes), leaves={n: leaf for n, leaf in self.leaf.items() if leaf != "-"}, **options
        )
        while batch := plan.next_rounds():
            self.batches.append(batch)
            plan.feed([self.measure(group) for groups in batch for group in groups])
        assert batch == ()
        self.found = plan.verdict()

    def measure(self, group: schedule.Group) -> Measurement:
        """A group is as fast as its slowest part; the parts are nodes, GPUs, links as 'ab', leaves, 'a+' in pairs."""
        hosts = sorted({member[0] for member in group})
        parts = {*group, *hosts, "".join(hosts), *("".join(group),)}
        if len(group) == 1:
            parts.add(f"{group[0]}!")
        if len(hosts) > 1:
            parts |= {f"{member}+" for member in (*group, *hosts)}
            if len(leaves := {self.leaf.get(host, "-") for host in hosts}) > 1:
                parts |= leaves
        crossing = len({self.leaf.get(host) for host in hosts}) > 1
        rank = ":" in group[0]
        healthy = (
            (340.0 if rank else 400.0) if len(hosts) == 1 else 50.0 if rank else 90.0 if crossing else 100.0
        )
        words = [self.sick[part] for part in sorted(parts & self.sick.keys())]
        for word in words:
            if isinstance(word, str):
                return Measurement(group, None, word.removeprefix("-"), skipped=word.startswith("-"))
        return Measurement(group, healthy * min([1.0, *(float(word) for word in words)]))

    @property
    def rounds(self) -> str:
        """The batches, a line each: rounds after '|', groups after a blank."""
        return "\n".join(
            " | ".join(" ".join("".join(g) for g in groups) for groups in batch) for batch in self.batches
        )


SLOW_SPINE = (
    "no bound of pairs across leaves, which are equally slow (fleet median 45 less 12%; within a leaf fleet median 100 less 12%): "
    "the spine, one of the leaves, or oversubscription by design; state the bound of 'across' to decide"
)
PARTS_OF_C = "c:0a:0 c:1a:1 c:2a:2 c:3a:3 b:0d:0 b:1d:1 b:2d:2 b:3d:3 | c:0c:1 c:2c:3 | c:1c:2 c:3c:0"
# nodes, what is sick and the options, the rounds of each batch ('|' between rounds), what the verdict says
COURSES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    (
        "abcd",
        {"sick": {"b+": 0.5}},
        "a b c d | ad bc | ac db | ab cd",
        {
            "bad_nodes": ("b",),
            "why": {"b": "bad with c, d, a, which are fine with others"},
            "rounds": 3,
            "steps": 1,
            "evidence": (
                "b alone: 400 GB/s, at least 352 GB/s (fleet median 400 less 12%): good",
                "b with c: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "d with b: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "a with b: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
            ),
        },
    ),
    (
        "abcde",
        {"sick": {"b+": 0.5}},
        "a b c d e | ab cd | bc de\nac bd",
        {
            "bad_nodes": ("b",),
            "why": {"b": "bad with a, c, d, which are fine with others"},
            "rounds": 3,
            "steps": 2,
            "evidence": (
                "b alone: 400 GB/s, at least 352 GB/s (fleet median 400 less 12%): good",
                "a with b: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "b with c: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "b with d: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
            ),
        },
    ),
    (
        "abcdefgh",
        {"sick": {"cd": 0.5}},
        "a b c d e f g h | ab cd ef gh | bc de fg ha\ncd",
        {
            "bad_links": (("c", "d"),),
            "rounds": 3,
            "steps": 2,
            "evidence": (
                "c with d: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "c with d: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
            ),
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxxxyyyy"},
        "a b c d e f g h | ab cd ef gh | ae bf cg dh",
        {"rounds": 2, "steps": 1},
    ),
    (
        "abcdefghijkl",
        {"leaves": "xxxxyyyyzzzz", "sick": {"y": 0.5}},
        "a b c d e f g h i j k l | ab cd ef gh ij kl | ei bj cg hl af dk",
        {
            "bad_leaves": ("y",),
            "why": {"y": "4 of 4 pairs across it are slow, pairs within are fine"},
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcdefghijkl",
        {"leaves": "xxxxyyyyzzzz", "sick": {"y": 0.5, "f+": 0.3}},
        "a b c d e f g h i j k l | ab cd ef gh ij kl | ei bj cg hl af dk\neg fh",
        {
            "bad_nodes": ("f",),
            "bad_leaves": ("y",),
            "why": {
                "f": "bad with e, h, which are fine with others",
                "y": "3 of 3 pairs across it are slow, pairs within are fine",
            },
            "rounds": 3,
            "steps": 2,
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxxxyyyy", "sick": {"x": 0.5}, "expected": {"across": 80.0, "within": 90.0}},
        "a b c d e f g h | ab cd ef gh | ae bf cg dh",
        {
            "unresolved": ((("x", "y"), "slow to other leaves, and none of them is acquitted"),),
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxxxyyyy", "sick": {"x": 0.5}},
        "a b c d e f g h | ab cd ef gh | ae bf cg dh",
        {
            "unresolved": (
                (
                    ("x", "y"),
                    SLOW_SPINE,
                ),
            ),
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcdef",
        {"sick": {"c:2": 0.5, "c": 0.6}, "gpus_per_node": 4},
        "a b c d e f | ab cd ef | bc de fa\nc\n" + PARTS_OF_C,
        {
            "bad_nodes": ("c",),
            "why": {"c": "slow alone, measured twice"},
            "rounds": 2,
            "part_rounds": 3,
            "steps": 3,
            "evidence": (
                "c alone: 240 GB/s, at least 352 GB/s (fleet median 400 less 12%): slow",
                "c with d: 60 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "b with c: 60 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "c alone: 240 GB/s, at least 352 GB/s (fleet median 400 less 12%): slow",
                "c:0 with a:0: 30 GB/s, at least 44 GB/s (fleet median 50 less 12%): slow",
                "c:1 with a:1: 30 GB/s, at least 44 GB/s (fleet median 50 less 12%): slow",
                "c:2 with a:2: 25 GB/s, at least 44 GB/s (fleet median 50 less 12%): slow",
                "c:3 with a:3: 30 GB/s, at least 44 GB/s (fleet median 50 less 12%): slow",
                "c:0 with c:1: 204 GB/s, at least 124.7 GB/s (fleet median 187 less 33%): good",
                "c:2 with c:3: 170 GB/s, at least 124.7 GB/s (fleet median 187 less 33%): good",
                "c:1 with c:2: 170 GB/s, at least 124.7 GB/s (fleet median 187 less 33%): good",
                "c:3 with c:0: 204 GB/s, at least 124.7 GB/s (fleet median 187 less 33%): good",
            ),
        },
    ),
    (
        "abcdef",
        {"sick": {"c:1+": 0.5, "c+": 0.5}, "gpus_per_node": 2},
        "a b c d e f | ab cd ef | bc de fa\nc:0a:0 c:1a:1 b:0d:0 b:1d:1",
        {
            "bad_nodes": ("c",),
            "why": {"c": "bad with d, b, which are fine with others"},
            "rounds": 2,
            "part_rounds": 1,
            "steps": 2,
            "evidence": (
                "c alone: 400 GB/s, at least 352 GB/s (fleet median 400 less 12%): good",
                "c with d: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "b with c: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "c:0 with a:0: 25 GB/s, at least 44 GB/s (fleet median 50 less 12%): slow",
                "c:1 with a:1: 25 GB/s, at least 44 GB/s (fleet median 50 less 12%): slow",
            ),
        },
    ),
    (
        "abcdef",
        {"sick": {"c": "crashed"}, "gpus_per_node": 2},
        "a b c d e f | ab cd ef | bc de fa",
        {
            "bad_nodes": ("c",),
            "why": {"c": "failed alone: crashed"},
            "rounds": 2,
            "steps": 1,
            "evidence": ("c alone: crashed", "c with d: crashed", "b with c: crashed"),
        },
    ),
    (
        "abcde",
        {"expected": {"within": 200.0}},
        "a b c d e | ab cd | bc de",
        {
            "unresolved": (
                (
                    ("a", "b", "c", "d", "e"),
                    "no pair is fine: the fabric as a whole, or the bound is too high",
                ),
            ),
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcd",
        {"expected": {"within": 200.0}},
        "a b c d | ad bc | ac db | ab cd",
        {
            "unresolved": (
                (("a", "d", "link a-d"), "no further acquitted partner to decide between them"),
                (("b", "c", "link b-c"), "no further acquitted partner to decide between them"),
            ),
            "rounds": 3,
            "steps": 1,
        },
    ),
    (
        "ab",
        {},
        "a b | ab",
        {
            "unresolved": (
                (("a",), "no bound: state the expected bandwidth, there are too few pairs to compare"),
                (("b",), "no bound: state the expected bandwidth, there are too few pairs to compare"),
            ),
            "rounds": 1,
            "steps": 1,
            "evidence": (
                "a alone: 400 GB/s, at least 352 GB/s (fleet median 400 less 12%): good",
                "b alone: 400 GB/s, at least 352 GB/s (fleet median 400 less 12%): good",
                "a with b: 100 GB/s, no bound: unjudged",
            ),
        },
    ),
    (
        "ab",
        {"sick": {"ab": "hung"}, "expected": {"within": 50.0}},
        "a b | ab",
        {
            "unresolved": ((("a", "b", "link a-b"), "no further acquitted partner to decide between them"),),
            "rounds": 1,
            "steps": 1,
            "evidence": (
                "a alone: 400 GB/s, at least 352 GB/s (fleet median 400 less 12%): good",
                "b alone: 400 GB/s, at least 352 GB/s (fleet median 400 less 12%): good",
                "a with b: hung",
            ),
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxx-yyy-", "sick": {"h+": 0.5}},
        "a b c d e f g h | ab dh ef cg | de bf ag ch",
        {
            "bad_nodes": ("h",),
            "why": {"h": "bad with d, c, which are fine with others"},
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcdef",
        {"sick": {"c+": "-c had ended"}},
        "a b c d e f | ab cd ef | bc de fa\nca\nca\nca\nca\nca\nca\nca",
        {
            "unresolved": ((("c",), "never measured in a pair"),),
            "rounds": 9,
            "steps": 8,
            "evidence": (
                "c alone: 400 GB/s, at least 352 GB/s (fleet median 400 less 12%): good",
                "c with d: not measured, c had ended",
                "b with c: not measured, c had ended",
                "c with a: not measured, c had ended",
                "c with a: not measured, c had ended",
                "c with a: not measured, c had ended",
                "c with a: not measured, c had ended",
                "c with a: not measured, c had ended",
                "c with a: not measured, c had ended",
                "c with a: not measured, c had ended",
            ),
        },
    ),
    (
        "a",
        {},
        "a",
        {"steps": 1},
    ),
    (
        "a",
        {"sick": {"a": 0.5}, "expected": {"alone": 300.0}},
        "a\na",
        {"bad_nodes": ("a",), "why": {"a": "slow alone, measured twice"}, "steps": 2},
    ),
    (
        "abcdefgh",
        {"sick": {"c+": 0.5, "d+": 0.5}},
        "a b c d e f g h | ab cd ef gh | bc de fg ha\nca db",
        {
            "bad_nodes": ("c", "d"),
            "why": {
                "c": "bad with b, a, which are fine with others",
                "d": "bad with e, b, which are fine with others",
            },
            "rounds": 3,
            "steps": 2,
        },
    ),
    (
        "abcdefgh",
        {"sick": {"c+": 0.5, "d+": 0.5, "e+": 0.5}},
        "a b c d e f g h | ab cd ef gh | bc de fg ha\nca db eg\nda",
        {
            "bad_nodes": ("c", "d", "e"),
            "why": {
                "c": "bad with b, a, which are fine with others",
                "d": "bad with b, a, which are fine with others",
                "e": "bad with f, g, which are fine with others",
            },
            "rounds": 4,
            "steps": 3,
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxxxyyyy", "sick": {"b+": 0.5, "f+": 0.5}},
        "a b c d e f g h | ab cd ef gh | ae bf cg dh\nbc fg",
        {
            "bad_nodes": ("b", "f"),
            "why": {
                "b": "bad with a, c, which are fine with others",
                "f": "bad with e, g, which are fine with others",
            },
            "rounds": 3,
            "steps": 2,
        },
    ),
    (
        "abcdefghi",
        {"leaves": "xxxyyyzzz", "sick": {"d+": 0.5, "e+": 0.5, "f+": 0.5}},
        "a b c d e f g h i | ab de gh cf | dg bh cf ai\nca db eg fh\nda eb fg\nea\ndf\nef",
        {
            "unresolved": (
                (("y", "d", "e", "f"), "no pair across this leaf is fine: the leaf, or all these nodes"),
            ),
            "rounds": 7,
            "steps": 6,
        },
    ),
    (
        "abcdefgh",
        {"sick": {"c+": 0.5}, "max_steps": 1},
        "a b c d e f g h | ab cd ef gh | bc de fg ha",
        {
            "bad_nodes": ("c",),
            "why": {"c": "bad with d, b, which are fine with others"},
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcdef",
        {"sick": {"c+": 0.5}, "alone": False},
        "ab cd ef | bc de fa",
        {
            "bad_nodes": ("c",),
            "why": {"c": "bad with d, b, which are fine with others"},
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcdef",
        {
            "sick": {"c:2": 0.5, "c+": 0.9, "c": 0.8},
            "gpus_per_node": 4,
            "expected": {"alone": 390.0, "rail": 40.0, "local": 250.0},
        },
        "a b c d e f | ab cd ef | bc de fa\nc\n" + PARTS_OF_C,
        {
            "bad_nodes": ("c",),
            "bad_parts": {"c": ("GPU 2",)},
            "why": {"c": "slow alone, measured twice"},
            "rounds": 2,
            "part_rounds": 3,
            "steps": 3,
            "evidence": (
                "c alone: 320 GB/s, at least 390 GB/s (expected): slow",
                "c with d: 80 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "b with c: 80 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "c alone: 320 GB/s, at least 390 GB/s (expected): slow",
                "c:0 with a:0: 40 GB/s, at least 40 GB/s (expected): good",
                "c:1 with a:1: 40 GB/s, at least 40 GB/s (expected): good",
                "c:2 with a:2: 25 GB/s, at least 40 GB/s (expected): slow",
                "c:3 with a:3: 40 GB/s, at least 40 GB/s (expected): good",
                "c:0 with c:1: 272 GB/s, at least 250 GB/s (expected): good",
                "c:2 with c:3: 170 GB/s, at least 250 GB/s (expected): slow",
                "c:1 with c:2: 170 GB/s, at least 250 GB/s (expected): slow",
                "c:3 with c:0: 272 GB/s, at least 250 GB/s (expected): good",
            ),
        },
    ),
    (
        "abcdef",
        {"leaves": "xxyyzz", "sick": {"ab": 0.5, "ac": 0.5}, "expected": {"within": 95.0, "across": 85.0}},
        "a b c d e f | ab cd ef | ce bf ad\nab",
        {"bad_links": (("a", "b"),), "rounds": 3, "steps": 2},
    ),
    (
        "abcdefgh",
        {"leaves": "xxxxyyzz", "sick": {"e+": 0.5, "f+": 0.5}},
        "a b c d e f g h | ab cd ef gh | eg bh cf\nea fb\neb fa",
        {
            "unresolved": ((("e", "f", "link e-f"), "no further acquitted partner to decide between them"),),
            "rounds": 4,
            "steps": 3,
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxxxyyyy", "sick": {"ae": 0.5}},
        "a b c d e f g h | ab cd ef gh | ae bf cg dh\nae",
        {"bad_links": (("a", "e"),), "rounds": 3, "steps": 2},
    ),
    (
        "dcba",
        {"sick": {"a+": 0.5, "b+": 0.5}},
        "d c b a | da cb | db ac | dc ba",
        {
            "bad_nodes": ("b", "a"),
            "why": {
                "b": "bad with c, d, which are fine with others",
                "a": "bad with d, c, which are fine with others",
            },
            "rounds": 3,
            "steps": 1,
        },
    ),
    (
        "hgfedcba",
        {"sick": {"e+": 0.5, "b+": 0.4}},
        "h g f e d c b a | hg fe dc ba | gf ed cb ah",
        {
            "bad_nodes": ("e", "b"),
            "why": {
                "e": "bad with f, d, which are fine with others",
                "b": "bad with a, c, which are fine with others",
            },
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcdefghijkl",
        {"leaves": "zzzyyyxxxwww", "sick": {"z": 0.5, "x": 0.5}},
        "a b c d e f g h i j k l | ab de gh jk cf il | aj dg bh ke cf il\nca fd ig lj",
        {
            "bad_leaves": ("x", "z"),
            "why": {
                "x": "2 of 2 pairs across it are slow, pairs within are fine",
                "z": "3 of 3 pairs across it are slow, pairs within are fine",
            },
            "rounds": 3,
            "steps": 2,
        },
    ),
    (
        "abcdef",
        {"sick": {"b": "crashed", "ae": "-lost", "ac": "-lost", "ad": "-lost", "af": "-lost"}},
        "a b c d e f | ab cd ef | bc de fa\nac\nac\nac\nac\nac\nac\nac",
        {
            "bad_nodes": ("b",),
            "why": {"b": "failed alone: crashed"},
            "unresolved": ((("a",), "measured with bad nodes only"),),
            "rounds": 9,
            "steps": 8,
        },
    ),
    (
        "abcde",
        {"leaves": "xxxxx"},
        "a b c d e | ab cd | bc de",
        {"rounds": 2, "steps": 1},
    ),
    (
        "abcdef",
        {"sick": {"c!": 0.5}, "gpus_per_node": 2},
        "a b c d e f | ab cd ef | bc de fa\nc\nc:0a:0 c:1a:1 b:0d:0 b:1d:1 | c:0c:1 | c:1c:0",
        {
            "bad_nodes": ("c",),
            "why": {"c": "slow alone, measured twice"},
            "rounds": 2,
            "part_rounds": 3,
            "steps": 3,
        },
    ),
    (
        "abcde",
        {"leaves": "xxxxy"},
        "a b c d e | ab cd | ae\neb",
        {"rounds": 3, "steps": 2},
    ),
    (
        "abcde",
        {"leaves": "xxxxy", "sick": {"e+": 0.5}},
        "a b c d e | ab cd | ae\neb\nec\ned",
        {
            "unresolved": (
                (("x", "y"), SLOW_SPINE),
                (("e",), "no bound: state the expected bandwidth, there are too few pairs to compare"),
            ),
            "rounds": 5,
            "steps": 4,
        },
    ),
    (
        "abcde",
        {"leaves": "xxxxy", "sick": {"a!": 0.5}},
        "a b c d e | ab cd | ae\na | eb",
        {"bad_nodes": ("a",), "why": {"a": "slow alone, measured twice"}, "rounds": 3, "steps": 2},
    ),
    (
        "abcdefgh",
        {"sick": {"cd": 0.5}, "max_steps": 1},
        "a b c d e f g h | ab cd ef gh | bc de fg ha",
        {
            "unresolved": ((("link c-d",), "slow or failed once, not measured again"),),
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "fedcba",
        {"sick": {"c!": 0.5, "e!": 0.5}, "max_steps": 1},
        "f e d c b a | fe dc ba | ed cb af",
        {
            "unresolved": ((("e",), "slow alone, measured once"), (("c",), "slow alone, measured once")),
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxxxyyyy", "sick": {"x": 0.5, "b+": 0.6}},
        "a b c d e f g h | ab cd ef gh | ae bf cg dh\nac bd",
        {
            "bad_nodes": ("b",),
            "why": {"b": "bad with a, d, which are fine with others"},
            "unresolved": ((("x", "y"), SLOW_SPINE),),
            "rounds": 3,
            "steps": 2,
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxxxyyyy", "sick": {"x": 0.5, "bf": "hung"}},
        "a b c d e f g h | ab cd ef gh | ae bf cg dh",
        {
            "unresolved": (
                (("x", "y"), SLOW_SPINE),
                (("x", "y", "link b-f"), "too few pairs cross these leaves"),
            ),
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "fedcba",
        {"sick": {"c:1+": 0.5, "c+": 0.8}, "gpus_per_node": 3, "expected": {"within": 90.0, "rail": 40.0}},
        "f e d c b a | fe dc ba | ed cb af\nc:0f:0 c:1f:1 c:2f:2 e:0d:0 e:1d:1 e:2d:2",
        {
            "bad_nodes": ("c",),
            "bad_parts": {"c": ("GPU 1 or its adapter",)},
            "why": {"c": "bad with d, b, which are fine with others"},
            "rounds": 2,
            "part_rounds": 1,
            "steps": 2,
        },
    ),
    (
        "fedcba",
        {"sick": {"c:1+": "hung", "c+": 0.8}, "gpus_per_node": 3, "expected": {"within": 90.0, "rail": 40.0}},
        "f e d c b a | fe dc ba | ed cb af\nc:0f:0 c:1f:1 c:2f:2 e:0d:0 e:1d:1 e:2d:2",
        {
            "bad_nodes": ("c",),
            "bad_parts": {"c": ("GPU 1 or its adapter",)},
            "why": {"c": "bad with d, b, which are fine with others"},
            "rounds": 2,
            "part_rounds": 1,
            "steps": 2,
        },
    ),
    (
        "abcdef",
        {
            "leaves": "xxxyyy",
            "sick": {"ad": 0.5, "be": 0.5, "cf": 0.5},
            "expected": {"within": 90.0, "across": 80.0},
        },
        "a b c d e f | ab de cf | ad be cf\nca fd",
        {
            "unresolved": ((("x", "y"), "slow to other leaves, and none of them is acquitted"),),
            "rounds": 3,
            "steps": 2,
        },
    ),
    (
        "abcdefg",
        {"leaves": "xxxyyzz", "sick": {"y": 0.5}, "expected": {"within": 90.0, "across": 80.0}},
        "a b c d e f g | ab de fg | df bg ae\nca",
        {
            "bad_leaves": ("y",),
            "why": {"y": "2 of 2 pairs across it are slow, pairs within are fine"},
            "rounds": 3,
            "steps": 2,
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxxyyy--", "sick": {"g+": 0.5, "h+": 0.5}, "expected": {"within": 90.0, "across": 80.0}},
        "a b c d e f g h | ab de gh cf | dg bh cf ae\nga hc",
        {
            "bad_nodes": ("g", "h"),
            "why": {
                "g": "bad with d, a, which are fine with others",
                "h": "bad with b, c, which are fine with others",
            },
            "rounds": 3,
            "steps": 2,
        },
    ),
    (
        "abc",
        {"leaves": "xyz", "sick": {"a+": 0.5}, "expected": {"within": 90.0, "across": 80.0}},
        "a b c | bc | ac | ab",
        {
            "unresolved": ((("a", "link a-c", "x"), "no further acquitted partner to decide between them"),),
            "rounds": 3,
            "steps": 1,
        },
    ),
    (
        "abcdefghijkl",
        {"leaves": "xxxxyyyyzzzz", "sick": {"y": 0.5, "ef": 0.5}},
        "a b c d e f g h i j k l | ab cd ef gh ij kl | ei bj cg hl af dk\neg fh\nef",
        {
            "bad_links": (("e", "f"),),
            "bad_leaves": ("y",),
            "why": {"y": "4 of 4 pairs across it are slow, pairs within are fine"},
            "rounds": 4,
            "steps": 3,
        },
    ),
    (
        "abcde",
        {"leaves": "xxyyy", "sick": {"x": 0.5}, "expected": {"within": 90.0, "across": 80.0}},
        "a b c d e | ab cd | ac bd\nec",
        {
            "unresolved": ((("x", "y"), "slow to other leaves, and none of them is acquitted"),),
            "rounds": 3,
            "steps": 2,
        },
    ),
]


@pytest.mark.parametrize(("nodes", "options", "rounds", "said"), COURSES)
def test_the_course_of_a_localisation(
    nodes: str, options: dict[str, Any], rounds: str, said: dict[str, Any]
) -> None:
    course = Course(nodes, **options)
    assert course.rounds == rounds
    unresolved = tuple(Unresolved(*one) for one in said.get("unresolved", ()))
    evidence = said.get("evidence", course.found.evidence)
    assert course.found == Localisation(**{**said, "unresolved": unresolved, "evidence": evidence})
    assert course.found.clean is not any(key.startswith(("bad", "unresolved")) for key in said)


def test_one_json_line_of_the_payload() -> None:
    read = Measurement.from_dict
    assert read({"members": ["a", 7], "busbw": "5"}) == Measurement(("a", "7"), 5.0, "", skipped=False)
    assert read({"members": ["a"], "busbw": 5, "wrong": None}) == Measurement(("a",), 5.0)
    assert read({"members": ["a"], "busbw": 5, "wrong": 2}) == Measurement(
        ("a",), 5.0, "wrong data: 2 elements"
    )
    assert read({"members": ["a"], "problem": "hung", "wrong": 2}) == Measurement(("a",), None, "hung")
    assert read({"members": ["a"], "skipped": True}) == Measurement(("a",), None, "", skipped=True)
    assert read({"members": ["a"], "busbw": 0}) == Measurement(("a",), 0.0)
    with pytest.raises(ValueError, match=r"^a measurement without members$"):
        read({"members": [], "busbw": 1})
    with pytest.raises(ValueError, match=r"^neither busbw nor problem for a b$"):
        read({"members": ["a", "b"]})


@pytest.mark.parametrize(
    ("values", "value", "origin"),
    [
        ([100.0, 100.0], 88.0, "fleet median 100 less 12%"),
        (
            [75.0, 100.0],
            87.5 - 87.5 / 3,  # four standard deviations would be 85%: no fault would be slow
            "fleet median 87.5 less 33%",
        ),  # a quarter off is good still
        ([74.9, 100.0], 88.0, "fleet median 100 less 12%"),
        # the 90th percentile starts: of eleven values the second highest, of ten the highest
        ([10.0] * 9 + [100.0, 500.0], 88.0, "fleet median 100 less 12%"),
        ([10.0] * 8 + [100.0, 500.0], 440.0, "fleet median 500 less 12%"),
        ([0.0, 0.0], 0.0, "fleet median 0 less 0%"),
    ],
)
def test_the_bound_that_a_fleet_sets(values: list[float], value: float, origin: str) -> None:
    near: Any = pytest.approx(value)
    assert fleet_bound(values) == Bound(near, origin)
    assert fleet_bound(values[:1]) is None


def test_bounds_by_kind_and_where_they_come_from() -> None:
    def bounds(
        *fed: tuple[str, float], later: tuple[tuple[str, float], ...] = (), **options: Any
    ) -> dict[str, float]:
        it = Localiser(("a", "b", "c", "d"), leaves={"a": "x", "b": "x", "c": "y"}, **options)
        it.next_rounds()
        it.feed(Measurement(tuple(group), value) for group, value in fed)
        it.next_rounds()
        it._steps = 2
        it.feed(Measurement(tuple(group), value) for group, value in later)
        return {kind.value: round(bound.value, 2) for kind, bound in it.bounds().items()}

    assert bounds(("ac", 100.0), ("bc", 100.0)) == {"across": 88.0, "within": 88.0}
    assert bounds(("ab", 100.0)) == {}
    # no pair within the leaves is fine: a pair within a leaf is never slower than one across
    assert bounds(*[("ab", 60.0), ("ac", 100.0)] * 2) == {"within": 88.0, "across": 88.0}
    assert bounds(*[("ab", 80.0), ("ac", 100.0)] * 2) == {"within": 70.4, "across": 88.0}
    # a later batch looks where something is slow: its values count only where the first gave one or none
    assert bounds(("a", 100.0), later=(("b", 100.0),)) == {"alone": 88.0}
    assert bounds(("a", 100.0), ("b", 100.0), later=(("a", 110.0),) * 5) == {"alone": 88.0}
    assert bounds(expected={"within": 5.0}) == {"within": 5.0, "across": 5.0}
    assert bounds(expected={"across": 5.0}) == {"across": 5.0, "within": 5.0}
    assert bounds(expected={"alone": 5.0}) == {"alone": 5.0}
    assert bounds(("a", 100.0), ("b", 100.0), min_distance=0.3) == {"alone": 70.0}
    assert bounds(("a", 90.0), ("b", 110.0), sigmas=1.0) == {"alone": 85.17}


def test_kinds_and_judgements() -> None:
    it = Localiser(("a", "b", "c"), leaves={"a": "x", "b": "x", "q": "z"}, gpus_per_node=2)
    assert it.leaves == {"a": "x", "b": "x"}
    assert {group: kind_of(group, it.leaves) for group in (("a",), ("a", "b"), ("a", "c"), ("a:0", "b:0"), ("a:0", "a:1"))} == {
        ("a",): GroupKind.ALONE, ("a", "b"): GroupKind.WITHIN, ("a", "c"): GroupKind.ACROSS, ("a:0", "b:0"): GroupKind.RAIL,
        ("a:0", "a:1"): GroupKind.LOCAL,
    }  # fmt: skip
    bounds = {GroupKind.ALONE: Bound(10.0, "expected")}
    judged = [
        (Measurement(("a",), 10.0), Status.GOOD), (Measurement(("a",), 9.99), Status.SLOW),
        (Measurement(("a",)), Status.FAILED), (Measurement(("a",), 20.0, "hung"), Status.FAILED),
        (Measurement(("a",), 20.0, "gone", skipped=True), Status.SKIPPED),
        (Measurement(("a", "b"), 20.0), Status.UNJUDGED),
    ]  # fmt: skip
    assert [judge(one, bounds.get(kind_of(one.members, it.leaves))) for one, _ in judged] == [
        status for _, status in judged
    ]
    assert [kind.value for kind in GroupKind] == ["alone", "within", "across", "rail", "local"]
    assert [status.value for status in Status] == ["good", "slow", "failed", "skipped", "unjudged"]


def test_names_must_be_there_once_each_and_known() -> None:
    for nodes in ((), ("a", "a")):
        with pytest.raises(ValueError, match=r"^a localisation needs node names, each once$"):
            Localiser(nodes)
    with pytest.raises(ValueError, match=r"^measured, but not under test: x y$"):
        Localiser(("a",)).feed([Measurement(("y:0", "a:0", "x:1"), 1.0)])


def test_what_is_found_is_clean_only_where_nothing_is_named() -> None:
    assert Localisation() == Localisation((), (), (), {}, {}, (), (), 0, 0, 0)
    assert Localisation().clean
    for found in (
        Localisation(("a",)), Localisation((), (("a", "b"),)), Localisation((), (), ("x",)),
        Localisation(unresolved=(Unresolved(("a",), "why"),)),
    ):  # fmt: skip
        assert not found.clean


@pytest.mark.parametrize(
    ("slow", "fine", "mostly"), [(3, 1, True), (2, 1, False), (5, 2, False), (30, 10, True)]
)
def test_three_quarters_are_mostly_slow(slow: int, fine: int, *, mostly: bool) -> None:
    assert inference._mostly_slow(Counter({True: slow, False: fine})) is mostly


def test_the_leaf_with_the_largest_slow_share_is_the_worst() -> None:
    # x: 3 of 4 slow, y: 2 of 2 slow, z: fine elsewhere
    crossing = [
        (("x", "z"), True), (("x", "z"), True), (("x", "w"), True), (("x", "w"), False), (("y", "z"), True),
        (("y", "w"), True), (("z", "w"), False), (("z", "w"), False), (("z", "w"), False), (("z", "w"), False),
    ]  # fmt: skip
    assert inference._worst_leaf(crossing) == ("y", "2 of 2 pairs across it are slow, pairs within are fine")
    assert inference._worst_leaf([it for it in crossing if "y" not in it[0]]) == (
        "x",
        "3 of 4 pairs across it are slow, pairs within are fine",
    )


@pytest.mark.parametrize(
    ("slow", "fine", "mostly"), [(2, 0, True), (1, 0, False), (0, 2, False), (2, 98, False)]
)
def test_a_leaf_that_is_mostly_slow(slow: int, fine: int, *, mostly: bool) -> None:
    assert inference._mostly_slow(Counter({True: slow, False: fine})) is mostly


def test_the_worst_leaf_is_slow_with_those_that_are_fine_elsewhere() -> None:
    slow = [(("x", "y"), True), (("x", "z"), True)]
    assert inference._worst_leaf([*slow, (("y", "z"), False)]) == (
        "x",
        "2 of 2 pairs across it are slow, pairs within are fine",
    )
    assert inference._worst_leaf(slow) is None  # nobody that it met is known to be fine
    assert inference._worst_leaf([*slow, (("v", "w"), False)]) is None
    assert inference._worst_leaf([]) is None
    assert inference._tally(slow) == {
        "x": Counter({True: 2}),
        "y": Counter({True: 1}),
        "z": Counter({True: 1}),
    }


def test_bad_nodes_come_in_the_order_of_slurm() -> None:
    nodes = ("z", "y", "a", "b", "c", "d")
    it = Localiser(nodes, expected={"alone": 10.0, "within": 10.0})
    while batch := it.next_rounds():
        it.feed(
            Measurement(group, 1.0 if set(group) & {"z", "a"} else 20.0)
            for groups in batch
            for group in groups
        )
    assert it.verdict().bad_nodes == ("z", "a")


def test_pairs_are_placed_in_few_rounds() -> None:
    pairs = [("a", "b"), ("c", "d"), ("a", "c"), ("b", "d"), ("a", "d"), ("a", "e"), ("a", "f")]
    assert localization._arrange(pairs) == (
        (("a", "b"), ("c", "d")),
        (("a", "c"), ("b", "d")),
        (("a", "d"),),
        (("a", "e"),),
    )
    assert localization._arrange([]) == ()
    assert open_questions.link(("a", "b")) == "link a-b"


def test_a_clean_fleet_ends_and_its_evidence_is_reported() -> None:
    it = Localiser(("a", "b", "c", "d"), gpus_per_node=2, expected={"alone": 5.0, "within": 10.0})
    batch = it.next_rounds()
    it.feed(Measurement(group, 20.0) for groups in batch for group in groups)
    assert it.next_rounds() == ()
    found = it.verdict()
    assert found.clean
    assert (found.rounds, found.part_rounds, found.steps) == (3, 0, 1)


def judged(kind: GroupKind, *results: tuple[Measurement, Status]) -> list[Judged]:
    return [Judged(measured, kind, status) for measured, status in results]


def test_lines_of_evidence() -> None:
    bound = Bound(10.0, "expected")
    cases = {
        "a alone: hung": (Measurement(("a",), None, "hung"), Status.FAILED),
        "b alone: no bandwidth": (Measurement(("b",)), Status.FAILED),
        "a with b: 5 GB/s, at least 10 GB/s (expected): slow": (Measurement(("a", "b"), 5.0), Status.SLOW),
        "a with c: not measured, skipped": (Measurement(("a", "c"), skipped=True), Status.SKIPPED),
        "b with c: not measured, lost": (Measurement(("b", "c"), None, "lost", True), Status.SKIPPED),
    }
    for text, result in cases.items():
        (one,) = judged(GroupKind.WITHIN, result)
        assert open_questions.line(one, bound) == text
    (one,) = judged(GroupKind.ALONE, (Measurement(("c",), 7.0), Status.UNJUDGED))
    assert open_questions.line(one, None) == "c alone: 7 GB/s, no bound: unjudged"


@pytest.mark.parametrize(
    ("results", "again", "why"),
    [
        ([5.0], True, None), ([20.0], False, None), ([], False, None), ([5.0, 20.0], False, None),
        ([5.0, 20.0, 20.0], False, None), ([5.0, 5.0, 20.0], False, "slow alone, measured twice"),
        ([5.0, 5.0], False, "slow alone, measured twice"), ([5.0, 20.0, 5.0, 20.0], False, None),
        ([5.0, None], True, None), ([5.0, 5.0, None, None], False, "slow alone, measured twice"),
        ([20.0, "hung", "crashed"], False, "failed alone: hung"), ([None], False, None),
    ],
)  # fmt: skip
def test_what_a_node_measures_alone(
    results: list[float | str | None], *, again: bool, why: str | None
) -> None:
    measured = [
        Measurement(("a",), None, one)
        if isinstance(one, str)
        else Measurement(("a",), one, skipped=one is None)
        for one in results
    ]
    bound = Bound(10.0, "expected")
    found = inference.judge_alone(judged(GroupKind.ALONE, *((it, judge(it, bound)) for it in measured)))
    assert found.slow_once == ({"a"} if again else set())
    assert found.bad == ({"a": why} if why else {})


def pairs_of(leaves: str, fed: str, **options: Any) -> inference.Inference:
    """Read pairs such as 'ab+ cd-' (fine and slow) of nodes a, b, c and so on."""
    nodes = "abcdefgh"[: len(leaves)]
    known = {node: leaf for node, leaf in zip(nodes, leaves, strict=True) if leaf != "-"}
    it = Localiser(tuple(nodes), leaves=known, expected={"within": 10.0, "across": 10.0}, **options)
    it.feed(Measurement(tuple(one[:2]), 20.0 if one[2] == "+" else 5.0) for one in fed.split())
    return it.infer()


def test_a_link_is_bad_only_where_it_is_never_fine() -> None:
    fine = "ac+ bd+"
    assert pairs_of("xxxx", f"ab- ab- {fine}").bad_links == (("a", "b"),)
    assert pairs_of("xxxx", f"ab- {fine}").bad_links == ()
    found = pairs_of("xxxx", f"ab- ab- ab+ {fine}")
    assert found.bad_links == ()
    assert [*open_questions.evidence(found, ())] == ["link a-b: bad 2 time(s), fine 1: a passing disturbance"]
    assert [*open_questions.evidence(pairs_of("xxxx", f"ab+ ab+ {fine}"), ())] == []


def test_a_link_needs_more_slow_measurements_where_pairs_are_slow_again_that_are_fine() -> None:
    fine = "ae+ bf+ cg+ dh+"
    assert pairs_of("xxxxxxxx", f"ab- ab- ab- cd- cd+ {fine}", repeats=1).bad_links == (("a", "b"),)
    found = pairs_of("xxxxxxxx", f"ab- ab- ab- cd- cd- cd+ {fine}", repeats=1)
    assert found.bad_links == ()
    (question,) = open_questions.unresolved(found)
    assert (question.candidates, question.reason) == (
        ("link a-b",), "slow or failed every time, as pairs were that are fine now"
    )  # fmt: skip
    assert pairs_of("xxxxxxxx", f"{'ab- ' * 9}cd- cd- cd+ {fine}", repeats=1).bad_links == (("a", "b"),)


def test_a_pair_across_that_is_as_often_fine_as_slow_accuses_no_leaf() -> None:
    within = "ab+ cd+ ef+"
    assert pairs_of("xxyyzz", f"{within} ac- bd- ce+ df+ ae+").leaves.candidates == ()
    assert pairs_of("xxyyzz", f"{within} ac- bd- ce+ ae+").leaves.candidates == ()
    assert pairs_of("xxyyzz", f"{within} ac- bd- ae- bf- ce+ df+").leaves.bad.keys() == {"x"}
    assert pairs_of("xxyyzz", f"{within} ac- ac+ bd- bd+ ae- bf- ce+ df+").leaves.bad == {}
    assert pairs_of("xxyyzz", f"{within} ac- ac- ac+ bd- ae- bf- ce+ df+").leaves.bad.keys() == {"x"}
    assert pairs_of("xxyyzz", f"{within} ac- ac- ac+ bd- bd- bd+ ae- bf- ce+ df+").leaves.bad == {}
    # nodes of unknown leaf say nothing of leaves
    assert pairs_of("x--y", "bc+ ab- cd-").leaves.bad == {}


def test_leaves_that_slow_and_unknown_leaves_share_stay_open() -> None:
    found = pairs_of("x--y", "bc+ ab- cd-")
    assert found.closed_leaves == {"x", "y"}
    assert pairs_of("xxyy", "ab+ cd+ ac- bd+").closed_leaves == set()


def test_values_with_a_problem_set_no_bound() -> None:
    it = Localiser(("a", "b", "c"))
    it.feed([
        Measurement(("a",), 100.0), Measurement(("b",), 100.0), Measurement(("c",), 500.0, "wrong data"),
        Measurement(("c",), 500.0, "wrong data"), Measurement(("c",)),
    ])  # fmt: skip
    assert it.bounds() == {GroupKind.ALONE: Bound(88.0, "fleet median 100 less 12%")}


def test_a_spine_at_three_quarters_of_the_leaves_is_no_slow_spine() -> None:
    def spine(across: float, origin: str = "fleet median 74 less 12%") -> str:
        within = Bound(100.0, "fleet median 100 less 12%")
        return inference.slow_spine({GroupKind.WITHIN: within, GroupKind.ACROSS: Bound(across, origin)})

    assert spine(75.0) == ""
    assert spine(74.0).startswith(
        "no bound of pairs across leaves, which are equally slow (fleet median 74 less 12%; within a leaf "
    )
    assert spine(20.0, "expected") == ""
    assert inference.slow_spine({GroupKind.WITHIN: Bound(100.0, "expected")}) == ""


def edge(ends: str, leaves: str, **counts: int) -> inference.Edge:
    return inference.Edge(
        (*ends,), (*leaves,), Counter({Status(name): count for name, count in counts.items()})
    )


def test_pairs_are_read_in_both_directions_and_across_a_slow_spine_they_prove_nothing() -> None:
    pairs = [(Measurement(("a", "b"), 1.0), Status.GOOD), (Measurement(("b", "a"), 1.0), Status.SLOW)]
    found = judged(GroupKind.ACROSS, *pairs)
    assert inference.edges_of(found, {"a": "x"}) == (
        inference.Edge(("a", "b"), ("x", ""), Counter({Status.GOOD: 1, Status.SLOW: 1})),
    )
    (unproved,) = inference.edges_of(found, {"a": "x"}, across_proves=False)
    assert unproved.counts == {Status.UNJUDGED: 1, Status.SLOW: 1}
    assert inference.ends_with([unproved], Status.GOOD) == set()


def test_a_node_is_convicted_by_two_partners_but_not_across_a_closed_leaf() -> None:
    two = [edge("ab", "xx", slow=1), edge("ca", "yx", failed=1)]
    options: dict[str, Any] = {"acquitted": {"b", "c"}, "partners": {"b", "c"}}
    assert inference.convict(two, set(), **options) == {"a": "bad with b, c, which are fine with others"}
    assert inference.convict(two, {"y"}, **options) == {}
    assert inference.convict(two, set(), acquitted={"a"}, partners={"b", "c"}) == {}
    assert inference.convict(two, set(), acquitted=set(), partners={"b"}) == {}


def test_a_bad_pair_is_open_until_a_bad_end_or_leaf_explains_it() -> None:
    across = edge("ab", "xy", slow=1)
    assert inference.unexplained([across, edge("cd", "xx", good=1)], set(), set()) == (across,)
    assert inference.unexplained([across], {"b"}, set()) == ()
    assert inference.unexplained([across], set(), {"y"}) == ()
    assert inference.unexplained([edge("ab", "yy", slow=1)], set(), {"y"}) != ()  # it does not cross
    assert inference.closed_leaves([across], set(), set()) == {"x", "y"}
    assert inference.closed_leaves([across, edge("cd", "xz", good=1)], set(), {"w"}) == {"y", "w"}


def test_nodes_have_met_if_their_pair_ran() -> None:
    assert next_pairs.met_in([edge("ab", "xx", slow=1, skipped=1), edge("ac", "xx", skipped=1)]) == {
        "a": {"b"},
        "b": {"a"},
    }
