"""The words of pairs, links and outliers of a fleet, of thresholds, ceilings and tables: compared exactly."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from counter_examples import (
    DRAIN,
    MONITOR,
    PASSED,
    CounterExample,
    assert_as_expected,
    name,
)
from judged import figures, judged

from pytest_gpucluster.config.models import BandwidthThreshold, FabricProfile, GpuProfile, Profile
from pytest_gpucluster.core.check import Action, Metric, Outcome, Verdict
from pytest_gpucluster.kit.nccl.measurement import Localisation, Measurement, Unresolved
from pytest_gpucluster.kit.nccl.nccl_rows import Half, NcclRow
from pytest_gpucluster.kit.nccl.nccl_tests import NcclRun
from pytest_gpucluster.suites.nccl import bandwidth as nccl_bandwidth
from pytest_gpucluster.suites.nccl import fleet as nccl_fleet
from pytest_gpucluster.suites.nccl.bandwidth import Ceiling, NoThresholdError

MIB, GIB = 2**20, 2**30
SKIPPED = Measurement(("a", "b"), None, "a had ended", skipped=True)


def pairs(node: str, found: Localisation, *measured: Measurement, hard: float | None = None) -> Verdict:
    return nccl_fleet.pairs(node, found, measured, 64 * MIB, hard)


def fed(text: str) -> tuple[Measurement, ...]:
    """Read pairs such as 'ab:30 cd:99'."""
    return tuple(
        Measurement(tuple(one.partition(":")[0]), float(one.partition(":")[2])) for one in text.split()
    )


def test_a_node_without_pairs_or_with_pairs_that_were_not_tried() -> None:
    bad = Localisation(("a",), why={"a": "slow alone, measured twice"})
    alone = pairs("a", bad, Measurement(("a",), 300.0), Measurement(("b", "c"), 1.0))
    assert (alone.outcome, alone.reason) == (Outcome.NOT_CHECKED, "the node was measured with no partner")
    untried = pairs("a", bad, SKIPPED, Measurement(("a", "c"), None, "c had ended", skipped=True))
    assert (untried.outcome, untried.reason) == (Outcome.NOT_CHECKED, "a had ended")


def test_a_bad_node_is_reported_with_its_parts_and_the_first_lines_of_evidence() -> None:
    lines = tuple(f"a with {i}: slow" for i in range(8))
    evidence = ("b alone: good", "aa with b: good", *lines)
    parts = {"a": ("GPU 1", "GPU 3")}
    found = Localisation(("a",), bad_parts=parts, why={"a": "bad with b, c"}, evidence=evidence)
    measured = (Measurement(("a", "b"), 30.0), Measurement(("c", "a"), None, "hung"), SKIPPED)
    verdict = pairs("a", found, *measured, hard=10.0)
    assert judged(verdict) == (DRAIN, ["a GPU 1, GPU 3"])
    assert verdict.findings[0].measured == f"bad with b, c at 64 MiB: {'; '.join(lines[:6])}"
    assert verdict.metrics == (Metric("pair_busbw", 30.0, "GB/s", "with b"),)
    wrong = Measurement(("a", "c"), 50.0, "wrong data")
    for others, hard, action in (
        ((Measurement(("a", "b", "c"), 30.0),), 30.0, MONITOR),
        (fed("ab:30 ac:28"), 29.1, DRAIN),
        (fed("ab:30 ac:28"), 29.0, MONITOR),
        ((*fed("ab:50"), wrong), 29.0, DRAIN),
        (fed("ab:50"), None, DRAIN),
    ):
        assert judged(pairs("a", Localisation(("a",)), *others, hard=hard)) == (action, ["a"])
    (metric,) = pairs("a", Localisation(), Measurement(("a", "b", "c"), 30.0)).metrics
    assert metric.device == "with b c"


@pytest.mark.parametrize(
    ("measured", "said", "action"),
    [
        ("ab:20 ac:19 bc:30", [20, 64, 2], DRAIN),
        ("ab:20 ac:19 bd:30 ce:10", [20, 64, 2, 3, 5], DRAIN),
        ("ab:20", [20, 64, 1, 2, 2], MONITOR),
        ("ab:20 bc:30", [20, 64, 1], MONITOR),
        ("ab:20 ac:20 bd:29", [20, 64, 2, 4, 4], MONITOR),
        ("ab:0 ac:0 bd:30 ce:0", [0, 64, 2, 3, 5], DRAIN),
        # half of the nodes is not most of them
        ("ab:20 ac:20 bd:30 ce:30 af:20", [20, 64, 3], DRAIN),
    ],
)
def test_a_node_below_the_hard_limit_that_the_fleet_does_not_name(
    measured: str, said: list[float], action: str
) -> None:
    verdict = pairs("a", Localisation(), *fed(measured), hard=30.0)
    assert (judged(verdict), figures(verdict.findings[0].measured)) == ((action, ["a"]), said)
    assert figures(verdict.findings[0].expected) == [30]


def test_a_node_below_the_hard_limit_is_watched_while_something_else_may_be_the_cause() -> None:
    leaf = Localisation(unresolved=(Unresolved(("a", "link a-b", "leaf1"), "no further acquitted partner"),))
    (finding,) = pairs("a", leaf, *fed("ab:20 ac:19 bc:30"), hard=30.0).findings
    assert finding.action is Action.MONITOR
    assert finding.measured.endswith("the node, its partners or the network: see nccl.links or rdma.links")


def test_at_the_hard_limit_no_node_is_named() -> None:
    assert pairs("a", Localisation(), *fed("ab:30 ac:1"), hard=30.0).outcome is Outcome.PASSED
    assert pairs("a", Localisation(), *fed("ab:1")).outcome is Outcome.PASSED
    wrong = (
        Measurement(("a", "b"), 1.0, "wrong data"),
        Measurement(("a", "b", "c"), 1.0),
        Measurement(("a", "d")),
    )
    assert pairs("a", Localisation(), *wrong, hard=30.0).outcome is Outcome.PASSED


def links(found: Localisation, *measured: Measurement, nodes: tuple[str, ...] = ("a", "b", "c")) -> Verdict:
    return nccl_fleet.links(found, measured, nodes)


def test_links_are_reported_with_their_evidence() -> None:
    found = Localisation(
        ("d",),
        (("a", "b"), ("a", "c")),
        ("x", "y"),
        why={"x": "3 of 4 are slow"},
        unresolved=(
            Unresolved(("c", "link b-c"), "too few"),
            Unresolved(("d",), "slow alone, measured once"),
            Unresolved(("n1", "n2"), "no further partner"),
        ),
        evidence=("a with b: 3 GB/s", "a with d: 2 GB/s", "a with bb: 2 GB/s", "b:0 with a:0: 4 GB/s"),
        rounds=3,
        steps=2,
    )
    verdict = links(found, *fed("ab:3"))
    assert verdict.action is Action.MONITOR
    assert [(it.part, it.measured) for it in verdict.findings] == [
        ("link a - b", "a with b: 3 GB/s; b:0 with a:0: 4 GB/s"),
        ("link a - c", "slow"),
        ("leaf switch x", "3 of 4 are slow"),
        ("leaf switch y", "slow"),
        ("one of c,link b-c", "undecided: too few"),
        ("one of n[1-2]", "undecided: no further partner"),
    ]
    assert [it.value for it in verdict.metrics] == [3, 2]


def test_links_that_cannot_be_judged() -> None:
    unbound = Unresolved(("a",), "no bound: state the expected bandwidth")
    found = Localisation(unresolved=(unbound,), rounds=1, steps=1)
    few = links(found, nodes=("a", "b"))
    assert (few.outcome, figures(few.reason)) == (Outcome.NOT_CHECKED, [2])
    assert links(found, nodes=("a",)).outcome is Outcome.NOT_APPLICABLE
    skipped = Measurement(("a", "c"), None, "no time", skipped=True)
    untried = links(found, Measurement(("a",), 5.0), SKIPPED, skipped)
    assert (untried.outcome, untried.reason) == (Outcome.NOT_CHECKED, "a had ended")
    assert links(Localisation(), SKIPPED, *fed("ac:5")).outcome is Outcome.PASSED


def test_where_a_bad_whole_may_lie() -> None:
    def where(found: Localisation, *measured: Measurement) -> str:
        return nccl_fleet.suspected_parts(found, measured, ("n1", "n2", "n3", "n4"))

    assert where(Localisation(("a", "b"), (("c", "d"),), ("x",)), SKIPPED) == (
        "the rounds of pairs name a, b, link c - d, leaf switch x"
    )
    assert (
        where(Localisation(unresolved=(Unresolved(("a",), "why"),)), SKIPPED) == "no pair could be measured"
    )
    unresolved = (Unresolved(("n1", "n2"), "too few"), Unresolved(("n3",), "no bound"))
    assert where(Localisation(unresolved=unresolved)) == (
        "the rounds of pairs could not identify the part: one of n[1-2]: too few; one of n3: no bound"
    )
    assert where(Localisation(), Measurement(("n1",), 5.0), *fed("ab:5 ba:5 cd:5")) == (
        "all 2 measured of 6 pairs are fine, so no node or link is at fault: the fault is in what only all "
        "of n[1-4] together use (switches above the leaves, routing, congestion)"
    )


def test_a_node_that_stands_apart_from_its_fleet() -> None:
    values = {f"n{i}": 100.0 for i in range(1, 9)} | {"n3": 94.9}
    verdict = nccl_fleet.outlier("n3", values, "all_reduce")
    assert (judged(verdict), figures(verdict.findings[0].measured)) == (
        (MONITOR, ["all_reduce"]),
        [94.9, 5.1],
    )
    assert figures(verdict.findings[0].expected) == [5, 100, 0]
    assert nccl_fleet.outlier("n3", {**values, "n3": 95.1}, "x").outcome is Outcome.PASSED
    assert nccl_fleet.outlier("n1", values, "x").outcome is Outcome.PASSED
    for node, known in (("n9", values), ("n1", {"n1": 1.0})):
        assert nccl_fleet.outlier(node, known, "x").outcome is Outcome.NOT_APPLICABLE


# --- thresholds and ceilings


def row(busbw: float = 365, **more: Any) -> BandwidthThreshold:
    return BandwidthThreshold(
        **{"gpus_per_node": 8, "size": 4 * GIB, "busbw": busbw, "source": "site", **more}
    )


def missing(rows: tuple[BandwidthThreshold, ...], **more: Any) -> str:
    asked = {"collective": "all_reduce", "nodes": 2, "gpus_per_node": 8, "size": 4 * GIB, "env": {}, **more}
    if asked["size"] is None:
        del asked["size"]
    with pytest.raises(NoThresholdError) as error:
        (nccl_bandwidth.threshold_for if "size" in asked else nccl_bandwidth.sizes_for)(rows, **asked)
    return str(error.value)


END = "; add a row to thresholds, or record a baseline"


def nearest(*rows: BandwidthThreshold, **more: Any) -> list[str]:
    told = missing(rows, **more).partition("nearest: ")[2].removesuffix(END)
    return [one.split(" GB/s")[0].rpartition(" ")[2] for one in told.split("; ")]


def test_the_nearest_rows_differ_in_the_least_then_in_nodes_then_in_size() -> None:
    assert nearest(row(1, nodes=9), row(2, nodes=4), row(3, nodes=3), row(4, nodes=1, size=GIB)) == [
        "3",
        "2",
        "1",
    ]
    assert nearest(row(1, nodes=2, size=GIB), row(2, nodes=2, size=8 * GIB), row(3, nodes=2, size=MIB)) == [
        "2", "1", "3",
    ]  # fmt: skip
    assert nearest(row(1, nodes=3, size=4 * GIB), row(2, nodes=2, size=8)) == ["2", "1"]
    assert nearest(row(1, nodes=4), row(2, nodes=1), row(3, nodes=5), size=None) == ["2", "1", "3"]
    # a row of one more node that is as large goes before one of as many nodes that differs twice
    assert nearest(row(1, nodes=2, size=8, gpus_per_node=4), row(2, nodes=3)) == ["2", "1"]
    # size counts among rows of as many other nodes, also where it is smaller
    assert nearest(row(1, nodes=3, size=8), row(2, nodes=3, size=GIB), row(3, nodes=3, size=64 * GIB)) == [
        "2",
        "3",
        "1",
    ]


def test_the_chosen_row_in_words() -> None:
    def why(*rows: BandwidthThreshold, **env: str) -> str:
        return nccl_bandwidth.threshold_for(
            rows, collective="all_reduce", nodes=1, gpus_per_node=8, size=4 * GIB, env=env
        ).why

    assert why(row(tolerance=0)).startswith("minimum 365 GB/s")
    assert "less 5%, A=1, B=2;" in why(row(conditions={"B": "2", "A": "1"}), A="1", B="2")
    assert figures(why(row(gpus_per_node=None, tolerance=0.125))) == [365, 12.5]


def profile(gpu: dict[str, Any] | None = None, fabric: dict[str, Any] | None = None) -> Profile:
    return Profile(
        name="p",
        description="p",
        source="site",
        gpu=None if gpu is None else GpuProfile(**{"name": "X", "count": 8, **gpu}),
        fabric=FabricProfile(**(fabric or {})),
    )


LINKS = {"nvlinks": 10, "nvlink_speed": 50.0}


@pytest.mark.parametrize(
    ("collective", "gpu", "busbw", "why"),
    [
        ("all_reduce", LINKS, 510.0, "10 NVLinks x 50 GB/s"),
        ("all_gather", {**LINKS, "nvswitch": True}, 510.0, "10 NVLinks x 50 GB/s"),
        (
            "all_reduce",
            {**LINKS, "nvswitch": True},
            510.0 * 1.5,
            "10 NVLinks x 50 GB/s x 1.5 (the switch reduces)",
        ),
    ],
)
def test_the_ceiling_within_a_node(collective: str, gpu: dict[str, Any], busbw: float, why: str) -> None:
    found = nccl_bandwidth.ceiling(collective, nodes=1, gpus_per_node=4, profile=profile(gpu))
    near: Any = pytest.approx(busbw)
    assert found == Ceiling(near, why)
    assert nccl_bandwidth.ceiling(collective, nodes=1, gpus_per_node=1, profile=profile(gpu)) is None
    for unknown in ({"nvlinks": 10}, {"nvlink_speed": 50.0}, {}, None):
        assert nccl_bandwidth.ceiling(collective, nodes=1, gpus_per_node=4, profile=profile(unknown)) is None


def test_two_ranks_have_a_ceiling_already() -> None:
    found = nccl_bandwidth.ceiling("all_reduce", nodes=1, gpus_per_node=2, profile=profile(LINKS))
    assert found == Ceiling(510.0, "10 NVLinks x 50 GB/s")


@pytest.mark.parametrize(
    ("collective", "share", "shown"),
    [
        ("all_reduce", 2 * 11 / 12, "1.83"),
        ("all_gather", 11 / 12 * 3 / 2, "1.38"),
        ("reduce_scatter", 11 / 12 * 3 / 2, "1.38"),
        ("alltoall", 11 / 32, "0.344"),
        ("broadcast", 1.0, "1"),
    ],
)
def test_the_ceiling_between_nodes(collective: str, share: float, shown: str) -> None:
    fabric = {"link_layer": "InfiniBand", "hcas": 2, "rate": 50.0}
    found = nccl_bandwidth.ceiling(collective, nodes=3, gpus_per_node=4, profile=profile(fabric=fabric))
    near: Any = pytest.approx(100 * share * 1.02)
    assert found == Ceiling(
        near,
        f"2 adapters x 50 GB/s x {shown} (bytes that cross)",
    )
    for unknown in ({"hcas": 2, "link_layer": "InfiniBand"}, {"rate": 50.0, "link_layer": "InfiniBand"}, {}):
        assert (
            nccl_bandwidth.ceiling(collective, nodes=3, gpus_per_node=4, profile=profile(fabric=unknown))
            is None
        )
    assert (
        nccl_bandwidth.ceiling(collective, nodes=1, gpus_per_node=4, profile=profile(fabric=fabric)) is None
    )


# --- verdict and table


def run_of(*rows: tuple[int, Half], collective: str = "all_reduce") -> NcclRun:
    return NcclRun(
        collective=collective,
        world=8,
        rows=tuple(NcclRow(size, size // 4, "float", "sum", -1, half, None) for size, half in rows),
    )


def test_a_bandwidth_that_was_not_measured_or_is_implausible() -> None:
    halves = ((GIB, 400.0), (2 * GIB, 400.5), (8, None))
    run = run_of(*((size, Half(1.0, 2.0, busbw, 0)) for size, busbw in halves))
    rows, limit = [row(), row(300, size=GIB, nodes=1)], Ceiling(400.0, "links")
    verdict = nccl_bandwidth.bandwidth(run, rows, nodes=1, gpus_per_node=8, env={}, limit=limit)
    assert judged(verdict) == (MONITOR, ["all_reduce 4 GiB", "all_reduce 2 GiB"])
    assert [(it.measured, figures(it.expected)) for it in verdict.findings] == [
        ("not measured", [346.75, 365, 5]),
        ("400.50 GB/s", [400]),
    ]
    assert verdict.metrics == (
        Metric("busbw all_reduce 1 GiB alone", 400.0, "GB/s"),
        Metric("bound all_reduce 1 GiB alone", 285.0, "GB/s", "site", better="neither"),
    )
    two = nccl_bandwidth.bandwidth(run, [row(300, size=GIB, nodes=2)], nodes=2, gpus_per_node=8, env={})
    assert [it.name[-14:] for it in two.metrics] == [" 1 GiB 2 nodes"] * 2


def paired(machine: str, source: str, expected: str, measured: str, *bad: str, hard: float | None = 29.0,
           sick: bool = False) -> CounterExample:  # fmt: skip
    """Return node a after these pairs; bad: the nodes that the rounds named; hard: the hard limit of a pair in GB/s."""
    judged = functools.partial(pairs, "a", Localisation(bad), *fed(measured), hard=hard)
    return CounterExample("nccl.pairs", machine, source, expected, judged, sick)


COUNTER_EXAMPLES = [
    paired("a fleet that is slow as a whole: a profile of another network", "no pair reaches the limit", MONITOR,
           "ab:20 ac:20 bc:20 bd:21 cd:20"),
    paired("one partner, which is slow too", "two nodes do not show which is at fault", MONITOR, "ab:20"),
    paired("10% below the fleet, above the hard limit", "the spread of a fleet is no limit", MONITOR, "ab:30 ac:30 bc:34", "a"),
    paired("a fast partner explains nothing: pairs at the speed of the fleet", "healthy", PASSED, "ab:34 ac:33 bc:34"),
    paired("slow with all partners, which are fast with each other", "a failing adapter", DRAIN, "ab:20 ac:19 bc:34", "a", sick=True),
    paired("the same where the fleet has no hard limit", "a failing adapter", DRAIN, "ab:20 ac:19 bc:34", "a", hard=None, sick=True),
]  # fmt: skip


@pytest.mark.parametrize("machine", COUNTER_EXAMPLES, ids=name)
def test_machines_get_the_verdict_that_a_person_gives_them(machine: CounterExample) -> None:
    assert_as_expected(machine)
