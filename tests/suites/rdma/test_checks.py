"""The verdicts on rails, links and latency; healthy machines pass, sick ones are named, and only what two partners confirm drains."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from counter_examples import CounterExample, result
from judged import judged
from rdma_helpers import BOUND, GOOD, RAILS, SLOW, measured, names, rails_of, reach
from suite_helpers import considered

from pytest_gpucluster.kit.nccl.measurement import Bound
from pytest_gpucluster.suites.rdma import checks
from pytest_gpucluster.suites.rdma.results import RdmaResult

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict

PERFTEST = "perftest, linux-rdma/perftest"
NGC = "https://github.com/Mellanox/ngc_multinode_perf"
AZURE = "https://github.com/Azure/azurehpc-health-checks"
NO_GID = "gpu02: Unable to set up socket connection"
FAILED = "gpu02: Failed status{}: wr_id 0"
LOST = "-transport retry counter exceeded (12)"  # so since 2025
TESTS = ("write", "send")


def of_node(value: float | str, *rails: str, tests: tuple[str, ...] = TESTS, **options: Any) -> RdmaResult:
    """A fleet of six whose node gpu02 is slow, late or broken on these rails."""

    def slow(rail: str, one: str, other: str, test: str) -> float | str | None:
        return value if rail in rails and "gpu02" in (one, other) and test in tests else None

    return measured(names(6), slow, **options)


def cable(value: float) -> RdmaResult:
    return measured(names(6), lambda _r, a, b, _t: value if {a, b} == {"gpu01", "gpu02"} else None)


def all_at(value: float, bound: Bound | None = BOUND, count: int = 6) -> RdmaResult:
    return measured(names(count), lambda _r, _a, _b, test: value if test != "read" else None, bound=bound)


def sound(count: int, **options: Any) -> RdmaResult:
    return measured(names(count), lambda *_: None, **options)


def bandwidth(found: RdmaResult, node: str = "gpu02", nodes: int = 6) -> Verdict:
    return checks.bandwidth(node, found, reach(nodes))


ABSENT = replace(sound(6), absent={"gpu02": "not installed: ib_write_bw; install perftest"})
SHARED_PCIE = replace(sound(6), together={**sound(6).together, "gpu02": (GOOD, "gpu01")})
ROCE, PCIE_3 = Bound(0.9 * 12.5, "90% of the port's 100 Gb/s"), Bound(22.5, "90% of the port's 200 Gb/s")
LATENCY, TOGETHER = (partial(it, "gpu02", reach=reach(6)) for it in (checks.latency, checks.together))
# machine, source, expected, check, what it is given
ROWS: list[tuple[Any, ...]] = [
    ("NDR at 393 Gb/s", AZURE, "passed", bandwidth, all_at(393 / 8)),
    ("RoCE of 100 Gb/s with an MTU of 1024", "BlueField-3", "passed", bandwidth, all_at(11.58, ROCE)),
    ("beside a slow adapter", NGC, "passed", bandwidth, of_node(SLOW, RAILS[0]), "gpu03"),
    ("its cable to one other node is slow", NGC, "passed", bandwidth, cable(SLOW)),
    ("all at 100 of 200 Gb/s", "PCIe 3.0: limited by 8.0 GT/s", "monitor", bandwidth, all_at(12.5, PCIE_3)),
    ("a node without perftest", PERFTEST, "not checked", bandwidth, ABSENT),
    ("a run of one node", PERFTEST, "not applicable", bandwidth, sound(1), "gpu01", 1),
    ("a slow adapter", NGC, "drain", bandwidth, of_node(SLOW, RAILS[1])),
    ("all rails at three quarters", "IOMMU, ACS, BIOS", "configure", bandwidth, of_node(SLOW, *RAILS)),
    ("a port without the GID", PERFTEST, "monitor", bandwidth, of_node(NO_GID, RAILS[0], tests=("write",))),
    ("data that were lost", PERFTEST, "monitor", bandwidth, of_node(FAILED.format(LOST), RAILS[0])),
    ("a partner that was not ready", PERFTEST, "monitor", bandwidth, of_node(FAILED.format(" 13"), RAILS[0])),
    ("above the limit", NGC, "monitor", bandwidth, of_node(40.0, RAILS[0], bound=Bound(30.0, "stated"))),
    ("a sound fleet", NGC, "passed", checks.links, [all_at(GOOD)]),
    ("a slow cable", NGC, "monitor", checks.links, [cable(SLOW)]),
    ("no other node", NGC, "not applicable", checks.links, [sound(1)]),
    ("a sound fleet", NGC, "passed", LATENCY, sound(6)),
    ("an adapter that answers late", NGC, "monitor", LATENCY, of_node(5.9, RAILS[0], tests=("read",))),
    ("a sound fleet", NGC, "passed", TOGETHER, sound(6)),
    ("a shared PCIe link", NGC, "monitor", TOGETHER, SHARED_PCIE),
]
COUNTER_EXAMPLES = [
    CounterExample(
        check(*given).check,
        machine,
        source,
        expected,
        partial(check, *given),
        sick=expected in ("drain", "configure", "monitor"),
    )
    for machine, source, expected, check, *given in ROWS
]
test_machine_gets_the_verdict_of_a_person = considered(COUNTER_EXAMPLES)


def test_rails_that_are_slow_alike_are_one_finding() -> None:
    (finding,) = bandwidth(of_node(SLOW, *RAILS)).findings
    assert (str(finding.part), finding.code) == ("all 2 rails", "all_rails_slow")
    assert str(finding.measured).startswith("29.5 to 29.5 GB/s with partners that are fast with others")


def test_a_rail_on_which_every_pair_fails_proves_nothing() -> None:
    """No node is at fault, and none of them is accepted for it."""
    found = measured(names(6), lambda *_: "gpu01: Couldn't listen to port 20000")
    assert result(bandwidth(found)) == "not checked"
    links = checks.links([found])
    assert result(links) == "monitor"
    assert "Couldn't listen to port" in str(links.findings[0].measured)


def test_without_a_rate_and_with_two_nodes_there_is_nothing_to_compare_with() -> None:
    found = sound(2, bound=None)
    verdict = bandwidth(found, nodes=2)
    assert (result(verdict), verdict.reason.rpartition(": ")[2]) == ("not checked", checks.OTHERWISE)
    assert result(checks.links([found])) == "not checked"


def test_an_adapter_that_no_other_node_has_at_its_place_is_not_checked() -> None:
    rails = rails_of(names(4))
    rails["gpu02"] = {RAILS[0]: rails["gpu02"][RAILS[0]], "mlx5_7 port 1": rails["gpu02"][RAILS[1]]}
    verdict = bandwidth(sound(4, rails=rails), nodes=4)
    assert (judged(verdict), "no other node" in verdict.reason) == (("not checked", []), True)


def test_few_nodes_have_no_outlier_and_no_links() -> None:
    for check in (checks.latency, checks.together):
        assert result(check("gpu02", sound(3), reach(3))) == "not applicable"
    assert result(checks.links([])) == "not applicable"
