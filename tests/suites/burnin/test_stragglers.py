"""Who is compared with whom, and who is a straggler."""

from __future__ import annotations

from typing import Any

import pytest
from burnin_helpers import CONFIG, GPU_1, added, fleet, gpu_of, healthy, hello, load, sick
from counter_examples import MONITOR, NOT_CHECKED, PASSED
from judged import figures, judged
from suite_helpers import considered

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals
from pytest_gpucluster.suites.burnin.stragglers import stragglers


def test_a_straggler_is_named_once() -> None:
    whole = fleet(2, a=[load("a", "matmul", own={1: {"tflops": 560.0}}), load("a", "hbm")])
    verdict = stragglers(whole, "a", CONFIG)
    assert (judged(verdict), verdict.reason) == ((MONITOR, [GPU_1]), "")
    (finding,) = verdict.findings
    assert (figures(finding.measured), figures(finding.expected)) == ([560, 20], [8, 700])
    assert stragglers(whole, "b", CONFIG).outcome is Outcome.PASSED
    assert stragglers(whole, "a", BurninConfig(expect={"bf16": 561.0})).findings == ()
    near = fleet(2, a=[load("a", "matmul", own={3: {"tflops": 650.0}})])
    assert stragglers(near, "a", CONFIG).findings == (), "7% are within the least distance"


@pytest.mark.parametrize(("gpus", "shared"), [(3, True), (4, False)])
def test_a_slow_partner_is_not_distinguished_from_its_peer_among_few(gpus: int, *, shared: bool) -> None:
    own: dict[str, dict[int, Any]] = {"peer": {1: {"gbs": 100.0}}, "matmul": {1: {"tflops": 560.0}}}
    whole = BurninResult({name: NodeTotals(name, hello(name, gpus), rounds=1) for name in "abcd"}, 60, gpus)
    for node, totals in whole.nodes.items():
        for kind, slow in own.items():
            totals.add(load(node, kind, gpus, own=slow if node == "a" else {}))
    verdict = stragglers(whole, "a", CONFIG)
    assert judged(verdict) == (MONITOR, [GPU_1, GPU_1])
    assert ("or its partner" in str(verdict.findings[1].measured)) is shared


def eight(metric: str, slow: float, usual: float, **of_others: Any) -> BurninResult:
    """Eight nodes with one value each, of which that of node a is another one."""
    nodes = {name: NodeTotals(name, hello(name, **({} if name == "a" else of_others))) for name in "abcdefgh"}
    for node, totals in nodes.items():
        part = "" if metric == "cpu" else gpu_of(node, 0)
        value = slow if node == "a" else usual
        totals.rates = {"bf16" if metric == "power" else metric: {part: [value]}}
        totals.watts = {part: {str(value): 3}}
    return BurninResult(nodes, 60)


@pytest.mark.parametrize(("metric", "compared"), [("bf16", True), ("power", True), ("h2d", False), ("cpu", False)])
def test_gpus_are_compared_by_name_and_hosts_by_cpus_and_gpus(metric: str, *, compared: bool) -> None:
    others = eight(metric, 510.0, 800.0, cpus=32)
    verdict = stragglers(others, "a", CONFIG)
    assert (judged(verdict)[0] == MONITOR) is compared
    assert judged(stragglers(eight(metric, 510.0, 800.0), "a", CONFIG))[0] == MONITOR
    assert stragglers(others, "a", CONFIG, "ab").outcome is Outcome.NOT_CHECKED, "two peers are too few"


def test_pairs_are_compared_from_three_partners_on() -> None:
    for partners, expected in ((3, MONITOR), (2, NOT_CHECKED)):
        whole = eight("nccl_pairs", 50.0, 90.0)
        for totals in whole.nodes.values():
            totals.partners = {f"x{n}": [90.0] for n in range(partners)}
        verdict = stragglers(whole, "a", CONFIG)
        assert judged(verdict)[0] == expected
        assert [figures(it.measured) for it in verdict.findings] == [[50, 44]] * (partners == 3)


def of_rates(*tflops: float) -> Any:
    """Return a change: the GPUs of node a multiply at these rates."""
    own = {index: {"tflops": value} for index, value in enumerate(tflops)}
    return added(*[load("a", "matmul", own=own)] * 3)


ONE, ALL = of_rates(700, 560, 700, 700), of_rates(560, 560, 560, 560)
EQUAL, FAST = of_rates(704, 696, 699, 700), of_rates(700, 770)
COUNTER_EXAMPLES = (
    healthy(stragglers, "within 1% of each other", "clocks of one model", PASSED, EQUAL),
    healthy(stragglers, "one GPU is a tenth faster", "a cooler place in the rack", PASSED, FAST),
    sick(stragglers, "one GPU is a fifth slower", "heat or a power brake", MONITOR, ONE),
    sick(stragglers, "all GPUs of the node are a fifth slower", "a power limit of the node", MONITOR, ALL),
)
test_machines_are_judged_as_a_person_would = considered(COUNTER_EXAMPLES)
