"""Pairs, links and outliers of a fleet: which node is named, and which of them leaves service."""

from __future__ import annotations

import functools

import pytest
from counter_examples import CounterExample
from judged import figures, judged
from suite_helpers import considered

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.kit.nccl.measurement import Evidence, Localisation, Measurement, Unresolved
from pytest_gpucluster.suites.nccl import fleet as nccl_fleet

SKIPPED = Measurement(("a", "b"), None, "a had ended", skipped=True)
OTHER_SKIPPED = Measurement(("a", "c"), None, "no time", skipped=True)


def pairs(node: str, found: Localisation, *measured: Measurement, hard: float | None = None) -> Verdict:
    return nccl_fleet.pairs(node, found, measured, 64 * 2**20, hard)


def fed(text: str) -> tuple[Measurement, ...]:
    """Read pairs such as 'ab:30 cd:99'."""
    words = (one.partition(":") for one in text.split())
    return tuple(Measurement(tuple(members), float(busbw)) for members, _, busbw in words)


def test_a_node_without_pairs_or_with_pairs_that_were_not_tried() -> None:
    bad = Localisation(("a",), why={"a": Explanation("slow_alone", "slow alone, measured twice")})
    alone = pairs("a", bad, Measurement(("a",), 300.0), Measurement(("b", "c"), 1.0))
    assert judged(alone) == ("not checked", [])
    untried = pairs("a", bad, SKIPPED, OTHER_SKIPPED)
    assert (judged(untried), untried.reason) == (("not checked", []), "a had ended")


@pytest.mark.parametrize(
    ("measured", "hard", "action"),
    [
        ((Measurement(("a", "b", "c"), 30.0),), 30.0, "monitor"),
        (fed("ab:30 ac:28"), 29.1, "drain"),
        (fed("ab:30 ac:28"), 29.0, "monitor"),
        ((*fed("ab:50"), Measurement(("a", "c"), 50.0, "wrong data")), 29.0, "drain"),
        ((*fed("ab:50"), Measurement(("a", "c"), None, "hung")), 29.0, "drain"),
        (fed("ab:50"), None, "drain"),  # sound partners convict it
    ],
)
def test_a_named_node_whose_pairs_reach_the_hard_limit_is_watched(
    measured: tuple[Measurement, ...], hard: float | None, action: str
) -> None:
    assert judged(pairs("a", Localisation(("a",)), *measured, hard=hard)) == (action, ["a"])


@pytest.mark.parametrize(
    ("measured", "said", "action"),
    [
        ("ab:20 ac:19 bc:30", [20, 64, 2], "drain"),
        ("ab:20 bc:30", [20, 64, 1], "monitor"),
        ("ab:0 ac:0 bd:30 ce:0", [0, 64, 2, 3, 5], "drain"),
        # half of the nodes is not most of them
        ("ab:20 ac:20 bd:30 ce:30 af:20", [20, 64, 3], "drain"),
    ],
)
def test_a_node_below_hard_limit_unnamed_by_the_fleet(measured: str, said: list[float], action: str) -> None:
    verdict = pairs("a", Localisation(), *fed(measured), hard=30.0)
    assert (judged(verdict), figures(verdict.findings[0].measured)) == ((action, ["a"]), said)
    assert figures(verdict.findings[0].expected) == [30]


def test_a_node_below_the_hard_limit_is_watched_while_something_else_may_be_the_cause() -> None:
    leaf = Localisation(unresolved=(Unresolved(("a", "link a-b", "leaf1"), Explanation("no_partner", "")),))
    verdict = pairs("a", leaf, *fed("ab:20 ac:19 bc:30"), hard=30.0)
    assert judged(verdict) == ("monitor", ["a"])
    (question,) = links(leaf, *fed("ab:20")).findings
    assert (question.code, question.part.kind, question.part.nodes) == ("no_partner", "group", ("a",))


def test_at_the_hard_limit_no_node_is_named() -> None:
    wrong = (Measurement(("a", "b"), 1.0, "wrong data"), Measurement(("a", "b", "c"), 1.0), Measurement(("a", "d")))
    for measured, hard in ((fed("ab:30 ac:1"), 30.0), (fed("ab:1"), None), (wrong, 30.0)):
        assert judged(pairs("a", Localisation(), *measured, hard=hard)) == ("passed", [])


def test_a_node_that_is_slow_alone_has_one_cause_and_a_short_finding() -> None:
    verdict = nccl_fleet.pairs("a", Localisation(("a",)), fed("ab:3 ac:2"), 2**30, None, True)
    assert figures(verdict.findings[0].measured) == [3, 1]
    assert verdict.cause == nccl_fleet.INSIDE


def links(found: Localisation, *measured: Measurement, nodes: tuple[str, ...] = ("a", "b", "c")) -> Verdict:
    return nccl_fleet.links(found, measured, nodes)


def test_evidence_is_of_the_node_or_link_that_is_named() -> None:
    lines = tuple(
        Evidence(text, frozenset(nodes.split())) for text, nodes in (("slow", "a b"), ("odd", "aa b"), ("odd", "a bb"))
    )
    (node,) = pairs("a", Localisation(("a",), evidence=lines[:2]), *fed("ab:3")).findings
    (link,) = links(Localisation((), (("a", "b"),), evidence=lines), *fed("ab:3")).findings
    for finding in (node, link):
        assert ("slow" in str(finding.measured), "odd" in str(finding.measured)) == (True, False)


def test_links_that_cannot_be_judged() -> None:
    found = Localisation(unresolved=(Unresolved(("a",), Explanation("no_bound", "")),), rounds=1, steps=1)
    few = links(found, nodes=("a", "b"))
    assert (judged(few), figures(few.reason)) == (("not checked", []), [2])
    assert judged(links(found, nodes=("a",))) == ("not applicable", [])
    untried = links(found, Measurement(("a",), 5.0), SKIPPED, OTHER_SKIPPED)
    assert (judged(untried), untried.reason) == (("not checked", []), "a had ended")
    assert judged(links(Localisation(), SKIPPED, *fed("ac:5"))) == ("passed", [])


def test_a_node_that_stands_apart_from_its_fleet() -> None:
    values = {f"n{i}": 100.0 for i in range(1, 9)} | {"n3": 94.9}
    verdict = nccl_fleet.outlier("n3", values, "all_reduce")
    assert judged(verdict) == ("monitor", ["all_reduce"])
    for node, known, end in (
        ("n3", {**values, "n3": 95.1}, "passed"),
        ("n1", values, "passed"),
        ("n9", values, "not applicable"),
        ("n1", {"n1": 1.0}, "not applicable"),
    ):
        assert judged(nccl_fleet.outlier(node, known, "x")) == (end, [])


def test_a_fleet_in_halves_names_both_and_drains_nobody() -> None:
    values = {"gpu01": 470.0, "gpu02": 471.0, "gpu03": 365.0, "gpu04": 366.0}
    verdict = nccl_fleet.outlier("gpu03", values, "all_reduce alone")
    assert judged(verdict) == ("monitor", ["all_reduce alone"])
    assert figures(verdict.findings[0].measured) == [365]
    assert str(verdict.findings[0].expected).endswith("about 470.50 GB/s, gpu[03-04] about 365.50 GB/s")
    assert judged(nccl_fleet.outlier("gpu01", values, "x")) == ("passed", [])


# machine, source, expected, pairs, nodes that the rounds named, hard limit of a pair
ROWS = [
    ("a profile of another network", "all are below", "monitor", "ab:20 ac:20 bc:20 bd:21 cd:20", "", 29.0),
    ("one partner, which is slow too", "two do not show which is at fault", "monitor", "ab:20", "", 29.0),
    ("10% below the fleet", "the spread of a fleet is no limit", "monitor", "ab:30 ac:30 bc:34", "a", 29.0),
    ("pairs at the speed of the fleet", "healthy", "passed", "ab:34 ac:33 bc:34", "", 29.0),
    ("slow with all partners, which are fast", "a failing adapter", "drain", "ab:20 ac:19 bc:34", "a", 29.0),
    ("the same without a hard limit", "a failing adapter", "drain", "ab:20 ac:19 bc:34", "a", None),
]
COUNTER_EXAMPLES = [
    CounterExample(
        "nccl.pairs",
        machine,
        source,
        expected,
        functools.partial(pairs, "a", Localisation(tuple(bad)), *fed(measured), hard=hard),
        sick=expected == "drain",
    )
    for machine, source, expected, measured, bad, hard in ROWS
]
test_machines_get_the_verdict_that_a_person_gives_them = considered(COUNTER_EXAMPLES)
