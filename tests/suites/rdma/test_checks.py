"""The verdicts on rails, links and latency; healthy machines pass, sick ones are named, and only what two partners confirm drains."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from counter_examples import (
    CONFIGURE,
    DRAIN,
    MONITOR,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
    CounterExample,
    assert_as_expected,
    name,
)
from rdma_helpers import BOUND, GOOD, RAILS, SLOW, measured, names, rails_of, reach

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.kit.nccl.measurement import Bound
from pytest_gpucluster.suites.rdma import checks
from pytest_gpucluster.suites.rdma.results import RdmaResult

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict

PERFTEST = "perftest, linux-rdma/perftest"
NGC = "https://github.com/Mellanox/ngc_multinode_perf"
AZURE = "https://github.com/Azure/azurehpc-health-checks"


def one_rail(rail: str, node: str, value: float | str, *tests: str) -> RdmaResult:
    """A node of six that is slow, late or broken on one rail."""
    return measured(
        names(6),
        lambda at, a, b, test: (
            value if at == rail and node in (a, b) and test in (tests or ("write", "send")) else None
        ),
    )


def all_at(value: float, bound: Bound | None = BOUND, count: int = 4) -> RdmaResult:
    return measured(names(count), lambda _r, _a, _b, test: value if test != "read" else None, bound=bound)


def bandwidth(found: RdmaResult, node: str = "gpu02", nodes: int = 6) -> Verdict:
    return checks.bandwidth(node, found, reach(nodes))


def latency(found: RdmaResult, node: str = "gpu02") -> Verdict:
    return checks.latency(node, found, reach(6))


def absent(node: str) -> RdmaResult:
    found = measured([it for it in names(6) if it != node], lambda *_: None)
    return replace(found, absent={node: "not installed: ib_write_bw; install perftest"})


COUNTER_EXAMPLES = [
    CounterExample("rdma.bandwidth", "NDR at 393 Gb/s", AZURE, PASSED, lambda: bandwidth(all_at(393 / 8))),
    CounterExample(
        "rdma.bandwidth", "RoCE of 100 Gb/s with an MTU of 1024: 92.6 Gb/s", "BlueField-3, public notes", PASSED,
        lambda: bandwidth(all_at(92.62 / 8, Bound(0.9 * 12.5, "90% of the port's 100 Gb/s"))),
    ),
    CounterExample(
        "rdma.bandwidth", "a node beside one with a slow adapter", NGC, PASSED,
        lambda: bandwidth(one_rail(RAILS[0], "gpu03", SLOW)),
    ),
    CounterExample(
        "rdma.bandwidth", "a node whose cable to one other node is slow", NGC, PASSED,
        lambda: bandwidth(measured(names(6), lambda _r, a, b, _t: SLOW if {a, b} == {"gpu01", "gpu02"} else None)),
    ),
    CounterExample(
        "rdma.bandwidth", "a fleet behind PCIe 3.0, all at 100 of 200 Gb/s", "public notes on RoCE: limited by 8.0 GT/s", MONITOR,
        lambda: bandwidth(all_at(12.5, Bound(22.5, "90% of the port's 200 Gb/s")), nodes=4), sick=True,
    ),
    CounterExample(
        "rdma.bandwidth", "a node without perftest", PERFTEST, NOT_CHECKED, lambda: bandwidth(absent("gpu02")),
    ),
    CounterExample(
        "rdma.bandwidth", "a run of one node", PERFTEST, NOT_APPLICABLE,
        lambda: checks.bandwidth("gpu01", measured(names(1), lambda *_: None), reach(1)),
    ),
    CounterExample(
        "rdma.bandwidth", "a slow adapter", NGC, DRAIN, lambda: bandwidth(one_rail(RAILS[1], "gpu02", SLOW)), sick=True,
    ),
    CounterExample(
        "rdma.bandwidth", "all rails of a node at three quarters: IOMMU, ACS or the BIOS", NGC, CONFIGURE,
        lambda: bandwidth(measured(names(6), lambda _r, a, b, test: SLOW if test != "read" and "gpu02" in (a, b) else None)), sick=True,
    ),
    CounterExample(
        "rdma.bandwidth", "a port without the GID: no repair of hardware helps", "perftest: set_up_connection", MONITOR,
        lambda: bandwidth(one_rail(RAILS[0], "gpu02", "gpu02: Unable to set up socket connection", "write")), sick=True,
    ),
    CounterExample(
        "rdma.bandwidth", "above the limit and below the fleet", NGC, MONITOR,
        lambda: bandwidth(measured(
            names(6), lambda r, a, b, _t: 40.0 if r == RAILS[0] and "gpu02" in (a, b) else None, bound=Bound(30.0, "stated")
        )), sick=True,
    ),
    CounterExample("rdma.links", "a sound fleet", NGC, PASSED, lambda: checks.links([all_at(GOOD)])),
    CounterExample(
        "rdma.links", "a slow cable", NGC, MONITOR,
        lambda: checks.links([measured(names(6), lambda _r, a, b, _t: SLOW if {a, b} == {"gpu01", "gpu02"} else None)]), sick=True,
    ),
    CounterExample("rdma.latency", "a sound fleet", NGC, PASSED, lambda: latency(measured(names(6), lambda *_: None))),
    CounterExample(
        "rdma.latency", "an adapter that answers late", NGC, MONITOR,
        lambda: latency(one_rail(RAILS[0], "gpu02", 5.9, "read")), sick=True,
    ),
    CounterExample(
        "rdma.together", "a sound fleet", NGC, PASSED,
        lambda: checks.together("gpu02", measured(names(6), lambda *_: None), reach(6)),
    ),
    CounterExample(
        "rdma.together", "rails that share a PCIe link", NGC, MONITOR,
        lambda: checks.together("gpu02", shared_pcie("gpu02"), reach(6)), sick=True,
    ),
]  # fmt: skip


def shared_pcie(node: str) -> RdmaResult:
    found = measured(names(6), lambda *_: None)
    return replace(found, together={**found.together, node: (GOOD, "gpu01")})


@pytest.mark.parametrize("example", COUNTER_EXAMPLES, ids=name)
def test_machine_gets_the_verdict_of_a_person(example: CounterExample) -> None:
    assert_as_expected(example)


def test_a_slow_rail_is_named_by_adapter_and_gpu_with_both_partners_and_the_limit() -> None:
    (finding,) = bandwidth(one_rail(RAILS[1], "gpu02", SLOW)).findings
    assert finding.part == "mlx5_1 port 1, rail of GPU 1"
    assert "bad with gpu01, gpu03, gpu04, which are fine with others" in finding.measured
    assert "29.5 GB/s, at least 45 GB/s (90% of the port's 400 Gb/s): slow" in finding.measured


def test_rails_that_are_slow_alike_are_one_finding() -> None:
    found = measured(names(6), lambda _r, a, b, test: SLOW if test != "read" and "gpu02" in (a, b) else None)
    (finding,) = bandwidth(found).findings
    assert finding.part == "all 2 rails"
    assert finding.measured.startswith("29.5 to 29.5 GB/s with partners that are fast with others")


def test_what_perftest_prints_is_explained() -> None:
    (finding,) = bandwidth(
        one_rail(RAILS[0], "gpu02", "gpu02: Unable to set up socket connection", "write")
    ).findings
    assert finding.measured.endswith(
        "the port has no GID of this index: see fabric.gid and NCCL_IB_GID_INDEX"
    )
    assert checks.meaning("some other text") == ""
    # the loader has not found a library, or a version of it: the adapter may well be there
    assert checks.meaning("gpu02: ib_write_bw: libmlx5.so.1: version `MLX5_1.24' not found") == ""
    assert "hca_count" in checks.meaning("gpu02: IB device mlx5_9 not found")


@pytest.mark.parametrize(
    ("status", "means"),
    [
        ("4", "the adapter cannot reach memory"),
        ("12", "data were lost on the path"),
        ("13", "the partner was not ready"),
        ("-local protection error (4)", "the adapter cannot reach memory"),
        ("-transport retry counter exceeded (12)", "data were lost on the path"),
        ("-RNR retry counter exceeded (13)", "the partner was not ready"),
    ],
)
def test_the_status_of_a_completion_is_explained_with_and_without_its_name(status: str, means: str) -> None:
    before = " " if status[0] != "-" else ""
    text = f"gpu02: Completion with error at client Failed status{before}{status}: wr_id 0 syndrom 0x81"
    assert checks.meaning(text).startswith(means)


def test_a_rail_on_which_every_pair_fails_proves_nothing() -> None:
    """No node is at fault, and none of them is accepted for it."""
    found = measured(names(6), lambda *_: "gpu01: Couldn't listen to port 20000")
    verdict = bandwidth(found)
    assert verdict.outcome is Outcome.NOT_CHECKED
    links = checks.links([found])
    assert links.outcome is Outcome.FAILED
    assert "Couldn't listen to port" in links.findings[0].measured


def test_without_a_rate_and_with_two_nodes_there_is_nothing_to_compare_with() -> None:
    found = measured(names(2), lambda *_: None, bound=None)
    verdict = bandwidth(found, nodes=2)
    assert (verdict.outcome, verdict.reason.rpartition(": ")[2]) == (Outcome.NOT_CHECKED, checks.OTHERWISE)
    assert checks.links([found]).outcome is Outcome.NOT_CHECKED


def test_an_adapter_that_no_other_node_has_at_its_place_is_not_checked() -> None:
    rails = rails_of(names(4))
    rails["gpu02"] = {RAILS[0]: rails["gpu02"][RAILS[0]], "mlx5_7 port 1": rails["gpu02"][RAILS[1]]}
    verdict = bandwidth(measured(names(4), lambda *_: None, rails=rails), nodes=4)
    assert (verdict.outcome, "no other node" in verdict.reason) == (Outcome.NOT_CHECKED, True)


def test_metrics_have_the_rail_and_the_slowest_rail_with_each_partner() -> None:
    metrics = {(it.name, it.device): it.value for it in bandwidth(all_at(GOOD)).metrics}
    assert metrics["rdma_bandwidth", "mlx5_0"] == GOOD
    assert metrics["slowest_rail", "with gpu01"] == GOOD


def test_two_nodes_are_too_few_for_an_outlier() -> None:
    verdict = latency(measured(names(3), lambda *_: None))
    assert verdict.outcome is Outcome.NOT_APPLICABLE
    assert (
        checks.together("gpu02", measured(names(3), lambda *_: None), reach(3)).outcome
        is Outcome.NOT_APPLICABLE
    )


def test_links_of_nodes_without_partners_are_not_applicable() -> None:
    assert checks.links([measured(names(1), lambda *_: None)]).outcome is Outcome.NOT_APPLICABLE
    assert checks.links([]).outcome is Outcome.NOT_APPLICABLE
