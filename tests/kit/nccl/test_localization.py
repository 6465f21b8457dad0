"""Localisation: schedules, bounds, each kind of fault by itself, and a thousand seeded campaigns."""

from __future__ import annotations

import sys
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED, CounterExample
from hypothesis import given
from hypothesis import strategies as st
from judged import figures
from paths import ROOT
from suite_helpers import considered

from pytest_gpucluster.kit.nccl import pairing as schedule
from pytest_gpucluster.kit.nccl.localization import Localiser
from pytest_gpucluster.kit.nccl.measurement import Bound, Localisation, Measurement, fleet_bound
from pytest_gpucluster.suites.nccl import fleet

sys.path.insert(0, str(ROOT / "benchmarks"))

from campaigns import draw
from link_model import WITHIN, LinkModel

from pytest_gpucluster.kit.nccl import inference, open_questions
from pytest_gpucluster.kit.nccl.measurement import GroupKind, JudgedMeasurement, Status

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


@given(st.integers(2, 40))
def test_the_circle_holds_every_pair_once(count: int) -> None:
    batch = schedule.circle(names(count))
    for groups in batch:
        members = [member for group in groups for member in group]
        assert len(members) == len(set(members))
    assert len(batch) == count - 1 + count % 2
    pairs = [frozenset(pair) for groups in batch for pair in groups]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == {frozenset(pair) for pair in combinations(names(count), 2)}


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
    assert found.why[nodes[5]].text.count("gpu") == partners


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


def groups_of(batch: Batch) -> list[schedule.Group]:
    return [group for groups in batch for group in groups]


def test_wrong_data_is_a_failure_however_fast_and_no_passing_disturbance() -> None:
    def measured(group: schedule.Group, *, wrong: bool) -> Measurement:
        return Measurement(group, 100.0, "wrong data: 7 elements" * wrong, wrong=wrong)

    plan = Localiser(names(8))
    while batch := plan.next_rounds():
        plan.feed(measured(group, wrong="gpu003" in group) for group in groups_of(batch))
    found = plan.verdict()
    assert found.bad_nodes == ("gpu003",)
    assert found.why["gpu003"].code == "failed_alone"
    once, pair = Localiser(names(8), alone=False, repeats=1), ("gpu002", "gpu003")
    while batch := once.next_rounds():
        first = not once.measurements
        once.feed(measured(it, wrong=first and it == pair) for it in groups_of(batch))
    (question,) = once.verdict().unresolved
    assert question.candidates == (*pair, "link gpu002-gpu003")
    assert question.reason.code == "wrong_data_once"


def test_no_results_at_all_are_not_green() -> None:
    plan = Localiser(names(8))
    while plan.next_rounds():
        pass  # the executor lost every step
    assert not plan.verdict().clean


@pytest.mark.parametrize(
    ("seeds", "largest"),
    [
        (range(60), 128),
        *(pytest.param(range(at, at + 100), 1024, marks=pytest.mark.thorough) for at in range(0, 1000, 100)),
    ],
)
def test_campaigns_name_the_bad_and_spare_the_good(seeds: range, largest: int) -> None:
    for seed in seeds:
        campaign = draw(seed, largest)
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
            ranks = {part.index for part in parts}
            sick = {*campaign.model.gpus, *campaign.model.adapters}
            assert ranks == {int(p.partition(":")[2]) for p in sick if p.startswith(f"{node}:")}, seed


def test_pairs_of_a_slow_fleet_are_below_what_the_links_allow() -> None:
    nodes = tuple("abcd")

    def verdict(values: float, least: float | None, **more: Any) -> Localisation:
        bound = None if least is None else Bound(least, "half of 400 GB/s: 8 adapters x 50 GB/s")
        plan = Localiser(nodes, least=bound, alone=False, **more)
        while batch := plan.next_rounds():
            plan.feed(Measurement(group, values) for group in groups_of(batch))
        return plan.verdict()

    assert verdict(3.1, None).clean, "the fleet alone proves nothing"
    assert not verdict(3.1, 200.0).clean
    assert any("8 adapters x 50 GB/s" in line.text for line in verdict(3.1, 200.0).evidence)
    assert verdict(370.0, 200.0).clean
    assert verdict(190.0, 200.0, expected={"within": 180.0}).clean, "a stated figure goes before"


def linked(machine: str, verdict: str, nodes: int, *, leaf: int = 0, **options: Any) -> CounterExample:
    """Return the check of the links of a fleet of this health, with so many nodes on a leaf switch."""
    stated: dict[str, Any] = {"expected": {"within": options.pop("within")}} if "within" in options else {}
    of_leaves = leaves_of(names(nodes), leaf) if leaf else {}
    model = LinkModel(leaves=of_leaves, **options)

    def judged() -> Verdict:
        plan, measured = Localiser(names(nodes), leaves=of_leaves, **stated), []
        while batch := plan.next_rounds():
            measured += (results := model.run(batch))
            plan.feed(results)
        return fleet.links(plan.verdict(), measured, names(nodes))

    source = FAT_TREE if leaf or "links" in options else TESTS
    return CounterExample("nccl.links", machine, source, verdict, judged, sick=verdict == MONITOR)


def apart(machine: str, expected: str, *values: float) -> CounterExample:
    """Return the check of the first node of a fleet with these bandwidths in GB/s."""
    found = {f"gpu{n:03}": value for n, value in enumerate(values)}

    def judged() -> Verdict:
        return fleet.outlier("gpu000", found, "all_reduce")

    return CounterExample("nccl.outlier", machine, TESTS, expected, judged, sick=expected == MONITOR)


TESTS = "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"
FAT_TREE = "https://docs.nvidia.com/dgx-superpod/reference-architecture-scalable-infrastructure-h100/latest/network-fabrics.html"
ALL_SLOW = {f"leaf{n}": 0.5 for n in range(4)}
SLOW_LINK = {frozenset(("gpu002", "gpu003")): 0.5}
ALIKE = [365.0 + n / 10 for n in range(8)]
COUNTER_EXAMPLES = (
    linked("64 nodes with 3% of noise", PASSED, 64, noise=0.03, seed=1),
    linked("a slow node explains its slow links", PASSED, 16, network={"gpu003": 0.5}),
    linked("two nodes above the stated bound", PASSED, 2, within=80.0),
    linked("two nodes without a bound", NOT_CHECKED, 2),
    linked("half of the uplinks, by design", NOT_CHECKED, 64, leaf=16, bad_leaves=ALL_SLOW),
    linked("one node", NOT_APPLICABLE, 1),
    linked("a slow link", MONITOR, 16, links=SLOW_LINK),
    linked("a slow leaf switch", MONITOR, 48, leaf=16, bad_leaves={"leaf1": 0.5}),
    linked("one of two nodes is slow, or their link", MONITOR, 2, network={"gpu001": 0.5}, within=80.0),
    linked("the whole fleet has half of the stated bandwidth", MONITOR, 32, within=2 * WITHIN),
    apart("0.5% below, the others within 0.1%", PASSED, 363.0, *ALIKE),
    apart("a tenth faster than the others", PASSED, 401.0, *ALIKE),
    apart("4% below, as the noise of the fleet", PASSED, 350.0, 365, 351, 372, 360, 349, 370, 366),
    apart("the only node", NOT_APPLICABLE, 340.0),
    apart("15% below", MONITOR, 310.0, *ALIKE),
    apart("half of the fleet is 15% below", MONITOR, 310.0, 311, 309.5, 310.4, 365, 366, 364.6, 365.3),
)
test_fleets_get_the_verdict_that_a_person_gives_them = considered(COUNTER_EXAMPLES)


def health(words: str) -> dict[str, float | str]:
    """Read parts at half their speed, 'ab c=0.8' at another, or 'ab=hung': what happens there, '-' before it if skipped."""
    found: dict[str, float | str] = {}
    for word in words.split():
        part, _, value = word.partition("=")
        found[part] = float(value or 0.5) if not value or value[0].isdigit() else value
    return found


class Course:
    """A plan on parts of given health, to its end: all batches, and the verdict."""

    def __init__(self, nodes: str, sick: str = "", leaves: str = "", **options: Any) -> None:
        self.sick = health(sick)
        self.leaf = dict(zip(nodes, leaves, strict=False))
        self.batches: list[schedule.Batch] = []
        known = {n: leaf for n, leaf in self.leaf.items() if leaf != "-"}
        plan = Localiser(tuple(nodes), leaves=known, **options)
        while batch := plan.next_rounds():
            self.batches.append(batch)
            plan.feed(map(self.measure, groups_of(batch)))
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
        healthy = (340 if rank else 400) if len(hosts) == 1 else 50 if rank else 90 if crossing else 100
        words = [self.sick[part] for part in sorted(parts & self.sick.keys())]
        for word in words:
            if isinstance(word, str):
                return Measurement(group, None, word.removeprefix("-"), skipped=word.startswith("-"))
        return Measurement(group, healthy * min([1.0, *(float(word) for word in words)]))

    @property
    def later(self) -> str:
        """The batches after the first: rounds between '|', batches between '/'."""
        return " / ".join(
            " | ".join(" ".join("".join(g) for g in groups) for groups in batch) for batch in self.batches[1:]
        )

    @property
    def said(self) -> str:
        """What the verdict names; of what stays open the candidates and how the reason begins."""
        found = self.found
        words = ["bad " + " ".join(found.bad_nodes)] if found.bad_nodes else []
        words += [f"link {one}-{other}" for one, other in found.bad_links]
        words += [f"leaf {leaf}" for leaf in found.bad_leaves]
        words += [f"part {part}" for parts in found.bad_parts.values() for part in parts]
        words += [f"open {' '.join(it.candidates)}: {' '.join(it.reason.text.split()[:2])}" for it in found.unresolved]
        return "; ".join(words)


BOTH = {"within": 90.0, "across": 80.0}
UNREACHED = {"expected": {"within": 200.0}}
PARTS_OF_C = "c:0a:0 c:1a:1 c:2a:2 c:3a:3 b:0d:0 b:1d:1 b:2d:2 b:3d:3 | c:0c:1 c:2c:3 | c:1c:2 c:3c:0"
RAILS_OF_C = "c:0f:0 c:1f:1 c:2f:2 e:0d:0 e:1d:1 e:2d:2"
RAILS: dict[str, Any] = {"expected": {"within": 90.0, "rail": 40.0}, "gpus_per_node": 3}
LONG, LOST = "ca db eg fh / da eb fg / ea / df / ef", "ae=-lost ac=-lost ad=-lost af=-lost"
HALF: dict[str, Any] = {"expected": {"alone": 390.0, "rail": 40.0, "local": 250.0}, "gpus_per_node": 4}
# nodes, what is sick, the options, the batches after the first one, what the verdict says
COURSES: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("abcde", "b+", {}, "ac bd", "bad b"),
    ("abcdefgh", "cd", {}, "cd", "link c-d"),
    ("abcdefgh", "", {"leaves": "xxxxyyyy"}, "", ""),
    ("abcdefghijkl", "y f+=0.3", {"leaves": "xxxxyyyyzzzz"}, "eg fh", "bad f; leaf y"),
    ("abcdefgh", "x", {"leaves": "xxxxyyyy", "expected": BOTH}, "", "open x y: slow to"),
    ("abcdefgh", "x", {"leaves": "xxxxyyyy"}, "", "open x y: no bound"),
    ("abcdef", "c:2 c=0.6", {"gpus_per_node": 4}, f"c / {PARTS_OF_C}", "bad c"),
    ("abcdef", "c:1+ c+", {"gpus_per_node": 2}, "c:0a:0 c:1a:1 b:0d:0 b:1d:1", "bad c"),
    ("abcdef", "c=crashed", {"gpus_per_node": 2}, "", "bad c"),
    ("abcde", "", UNREACHED, "", "open a b c d e: no pair"),
    ("abcd", "", UNREACHED, "", "open a d link a-d: no further; open b c link b-c: no further"),
    ("ab", "", {}, "", "open a: no bound:; open b: no bound:"),
    ("ab", "ab=hung", {"expected": {"within": 50.0}}, "", "open a b link a-b: no further"),
    ("abcdefgh", "h+", {"leaves": "xxx-yyy-"}, "", "bad h"),
    ("abcdef", "c+=-ended", {}, "ca" + 6 * " / ca", "open c: never measured"),
    ("a", "", {}, "", ""),
    ("a", "a", {"expected": {"alone": 300.0}}, "a", "bad a"),
    ("abcdefghi", "d+ e+ f+", {"leaves": "xxxyyyzzz"}, LONG, "open y d e f: no pair"),
    ("abcdef", "c+", {"alone": False}, "", "bad c"),
    ("abcdef", "c:2 c+=0.9 c=0.8", HALF, f"c / {PARTS_OF_C}", "bad c; part c GPU 2"),
    ("abcdef", "ab ac", {"leaves": "xxyyzz", "expected": {"within": 95.0, "across": 85.0}}, "ab", "link a-b"),
    ("abcdef", f"b=crashed {LOST}", {}, "ac" + 6 * " / ac", "bad b; open a: measured with"),
    ("abcdef", "c!", {"gpus_per_node": 2}, "c / c:0a:0 c:1a:1 b:0d:0 b:1d:1 | c:0c:1 | c:1c:0", "bad c"),
    ("abcde", "", {"leaves": "xxxxy"}, "eb", ""),
    ("abcde", "e+", {"leaves": "xxxxy"}, "eb / ec / ed", "open x y: no bound; open e: no bound:"),
    ("abcde", "a!", {"leaves": "xxxxy"}, "a | eb", "bad a"),
    ("abcdefgh", "x b+=0.6", {"leaves": "xxxxyyyy"}, "ac bd", "bad b; open x y: no bound"),
    ("abcdefgh", "x bf=hung", {"leaves": "xxxxyyyy"}, "", "open x y: no bound; open x y link b-f: too few"),
    ("fedcba", "c:1+ c+=0.8", RAILS, RAILS_OF_C, "bad c; part c rail of GPU 1"),
    ("abcdef", "ad be cf", {"leaves": "xxxyyy", "expected": BOTH}, "ca fd", "open x y: slow to"),
    ("abcdefghijkl", "y ef", {"leaves": "xxxxyyyyzzzz"}, "eg fh / ef", "link e-f; leaf y"),
]


@pytest.mark.parametrize(("nodes", "sick", "options", "later", "said"), COURSES)
def test_courses(nodes: str, sick: str, options: dict[str, Any], later: str, said: str) -> None:
    course = Course(nodes, sick, **options)
    assert (course.later, course.said) == (later, said)
    found = course.found
    assert found.clean is not bool(said)
    assert found.why.keys() == {*found.bad_nodes, *found.bad_leaves}
    pairs = [groups[0] for batch in course.batches for groups in batch if len(groups[0]) > 1]
    parts = [pair for pair in pairs if ":" in pair[0]]
    assert (found.steps, found.part_rounds) == (len(course.batches), len(parts))
    assert found.rounds == len(pairs) - len(parts)


def test_one_json_line_of_the_payload() -> None:
    read = Measurement.from_dict
    assert read({"members": ["a"], "problem": "hung", "wrong": 2}) == Measurement(("a",), None, "hung")
    assert read({"members": ["a"], "skipped": True}) == Measurement(("a",), None, "", skipped=True)
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
    def bounds(*fed: tuple[str, float], later: Any = ()) -> dict[str, float]:
        it = Localiser(("a", "b", "c", "d"), leaves={"a": "x", "b": "x", "c": "y"})
        for batch in (fed, later):
            it.next_rounds()
            it.feed(Measurement(tuple(group), value) for group, value in batch)
        return {kind.value: round(bound.value, 2) for kind, bound in it.bounds().items()}

    assert bounds(("ac", 100.0), ("bc", 100.0)) == {"across": 88.0, "within": 88.0}
    # no pair within the leaves is fine: a pair within a leaf is never slower than one across
    assert bounds(*[("ab", 60.0), ("ac", 100.0)] * 2) == {"within": 88.0, "across": 88.0}
    # a later batch looks where something is slow: its values count only where the first gave one or none
    assert bounds(("a", 100.0), ("b", 100.0), later=(("a", 110.0),) * 5) == {"alone": 88.0}


# pairs 'ae-' (slow) and 'bh+' (fine) of nodes ab on leaf x, cd on y, ef on z, gh on w; the bad leaves with their pairs
LEAVES: list[tuple[str, dict[str, list[float]], tuple[str, ...]]] = [
    ("ae- bf- ag- bh+ ce- dg- eg+ eh+ fg+ fh+", {"x": [3, 4], "y": [2, 2]}, ()),
    ("ae- bf- ag- bh+ eg+ eh+", {"x": [3, 4]}, ()),  # three quarters
    ("ae- bf- ag+ eh+", {}, ()),
    ("ac- be-", {}, ("x",)),  # nobody that it met is known to be fine
    ("ac- bd- eg+", {}, ("x", "y")),
    ("", {}, ()),
    ("ac- ac+ bd- bd+ ae- bf- ce+ df+", {}, ()),  # a pair that is as often fine as slow
    ("ac- ac- ac+ bd- ae- bf- ce+ df+", {"x": [3, 4]}, ()),
]


@pytest.mark.parametrize(("across", "bad", "candidates"), LEAVES)
def test_a_leaf_is_bad_that_is_mostly_slow_with_leaves_that_are_fine_elsewhere(
    across: str, bad: dict[str, list[float]], candidates: tuple[str, ...]
) -> None:
    found = pairs_of("xxyyzzww", f"ab+ cd+ ef+ gh+ {across}").leaves
    assert ({leaf: figures(why) for leaf, why in found.bad.items()}, found.candidates) == (bad, candidates)


def test_a_batch_of_suspects_has_at_most_four_rounds_of_disjoint_pairs() -> None:
    plan = Localiser(tuple("abcdefgh"), alone=False, repeats=1)
    plan.next_rounds()
    slow = [Measurement(("a", other), 1.0) for other in "bcdefgh"]
    plan.feed([*slow, *(Measurement(pair, 9.0) for pair in combinations("bcdefgh", 2))])
    assert plan.next_rounds() == ((("a", "b"),), (("a", "c"),), (("a", "d"),), (("a", "e"),))


def judged(kind: GroupKind, *results: tuple[Measurement, Status]) -> list[JudgedMeasurement]:
    return [JudgedMeasurement(measured, kind, status) for measured, status in results]


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
    (passing,) = open_questions.evidence(found, ())
    assert passing.text == "link a-b: bad 2 time(s), fine 1: a passing disturbance"
    assert [*open_questions.evidence(pairs_of("xxxx", f"ab+ ab+ {fine}"), ())] == []


def test_a_link_needs_more_slow_measurements_where_pairs_are_slow_again_that_are_fine() -> None:
    fine = "ae+ bf+ cg+ dh+"
    assert pairs_of("xxxxxxxx", f"ab- ab- ab- cd- cd+ {fine}", repeats=1).bad_links == (("a", "b"),)
    found = pairs_of("xxxxxxxx", f"ab- ab- ab- cd- cd- cd+ {fine}", repeats=1)
    assert found.bad_links == ()
    (question,) = open_questions.unresolved(found)
    assert question.candidates == ("link a-b",)
    assert question.reason.code == "slow_link_by_chance"
    assert pairs_of("xxxxxxxx", f"{'ab- ' * 9}cd- cd- cd+ {fine}", repeats=1).bad_links == (("a", "b"),)


def test_a_spine_at_three_quarters_of_the_leaves_is_no_slow_spine() -> None:
    def spine(across: float, origin: str = "fleet median 74 less 12%") -> str:
        within = Bound(100.0, "fleet median 100 less 12%")
        return inference.slow_spine({GroupKind.WITHIN: within, GroupKind.ACROSS: Bound(across, origin)})

    assert spine(75.0) == ""
    assert figures(spine(74.0)) == [74, 12, 100, 12]
    assert spine(20.0, "expected") == ""
    assert inference.slow_spine({GroupKind.WITHIN: Bound(100.0, "expected")}) == ""
