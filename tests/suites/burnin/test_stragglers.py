"""Who is compared with whom, and who is a straggler."""

from __future__ import annotations

from typing import Any

import pytest
from burnin_helpers import CONFIG, GPU_1, NAME, failed, fleet, gpu_of, hello, load, reason
from constants import with_constants
from counter_examples import MONITOR, NOT_CHECKED, PASSED, CounterExample, assert_as_expected
from counter_examples import name as name_of
from judged import figures, judged

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.suites.burnin import stragglers
from pytest_gpucluster.suites.burnin.config import BurninConfig
from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals


def test_why_nothing_was_compared() -> None:
    few = fleet(1, a=[load("a", "matmul", gpus=2)])
    reason(stragglers.stragglers(few, "a", CONFIG), NOT_CHECKED, "bf16: 2 values are too few")
    nothing = BurninResult({"a": NodeTotals("a", hello=hello("a"))}, 60, 4)
    reason(stragglers.stragglers(nothing, "a", CONFIG), NOT_CHECKED, "nothing was measured")


def test_a_straggler_is_named_once() -> None:
    whole = fleet(2, a=[load("a", "matmul", own={1: {"tflops": 560.0}}), load("a", "hbm")])
    verdict = stragglers.stragglers(whole, "a", CONFIG)
    assert (judged(verdict), verdict.reason) == ((MONITOR, [GPU_1]), "")
    assert figures(verdict.findings[0].measured) == [560, 20]
    assert figures(verdict.findings[0].expected) == [8, 700]
    assert stragglers.stragglers(whole, "b", CONFIG).outcome is Outcome.PASSED
    assert stragglers.stragglers(whole, "a", BurninConfig(expect={"bf16": 561.0})).findings == ()
    near = fleet(2, a=[load("a", "matmul", own={3: {"tflops": 650.0}})])
    assert failed(stragglers.stragglers(near, "a", CONFIG)) == [], "7% are within the least distance"


@pytest.mark.parametrize(("gpus", "shared"), [(2, True), (3, True), (4, False)])
def test_a_slow_partner_is_not_distinguished_from_its_peer_where_there_are_few(
    gpus: int, *, shared: bool
) -> None:
    own: dict[str, dict[int, Any]] = {"peer": {1: {"gbs": 100.0}}, "matmul": {1: {"tflops": 560.0}}}
    whole = BurninResult({name: NodeTotals(name, hello(name, gpus), rounds=1) for name in "abcd"}, 60, gpus)
    for name, totals in whole.nodes.items():
        for kind, slow in own.items():
            totals.add(load(name, kind, gpus, own=slow if name == "a" else {}))
    verdict = stragglers.stragglers(whole, "a", CONFIG)
    assert judged(verdict) == (MONITOR, [GPU_1, f"{GPU_1} or its partner" if shared else GPU_1])


def test_equals_are_of_one_kind() -> None:
    nodes = {
        "a": NodeTotals("a", hello("a", 2)),
        "b": NodeTotals("b", hello("b", 2, cpus=32)),
        "c": NodeTotals("c"),
    }
    for name, totals in nodes.items():
        totals.rates = {metric: {gpu_of(name, 0): [1.0]} for metric in ("bf16", "hbm", "h2d")} | {
            "cpu": {"": [2.0]}
        }
    whole = BurninResult(nodes, 60)

    def kinds(metric: str) -> dict[str, list[str]]:
        return {
            kind: [node for node, _ in values]
            for kind, values in stragglers._by_hardware(whole, metric).items()
        }

    assert kinds("bf16") == kinds("hbm") == {NAME: ["a", "b"], " None CPUs, 0 GPUs": ["c"]}
    assert kinds("h2d") == {
        f"{NAME} 64 CPUs, 2 GPUs": ["a"], f"{NAME} 32 CPUs, 2 GPUs": ["b"], " None CPUs, 0 GPUs": ["c"]
    }  # fmt: skip
    assert kinds("cpu") == {" 64 CPUs, 2 GPUs": ["a"], " 32 CPUs, 2 GPUs": ["b"], " None CPUs, 0 GPUs": ["c"]}


def test_pairs_are_compared_from_three_partners_on() -> None:
    def fleet_of(partners: int) -> BurninResult:
        nodes = {name: NodeTotals(name, hello(name)) for name in "abcdefgh"}
        for name, totals in nodes.items():
            totals.rates = {"nccl_pairs": {gpu_of(name, 0): [50.0 if name == "a" else 90.0]}}
            totals.partners = {f"x{n}": [90.0] for n in range(partners)}
        return BurninResult(nodes, 60)

    assert failed(stragglers.stragglers(fleet_of(3), "a", CONFIG)) == [
        "GPU 0 (GPU-a-0, 0000:00:00.0): nccl_pairs 50 GB/s, 44% below"
    ]
    assert (
        stragglers.stragglers(fleet_of(2), "a", CONFIG).reason
        == "nothing was measured that could be compared"
    )


@pytest.mark.parametrize(("metric", "own", "host"), [("hbm", 0.19, 0.5), ("h2d", 0.5, 0.19)])
def test_gpus_and_hosts_have_a_least_distance_each(metric: str, own: float, host: float) -> None:
    nodes = {name: NodeTotals(name, hello(name)) for name in "abcdefgh"}
    for name, totals in nodes.items():
        totals.rates = {metric: {gpu_of(name, 0): [4000.0 if name == "a" else 5000.0]}}
    whole = BurninResult(nodes, 60)
    strict = with_constants(BurninConfig, {"min_relative": own}, min_relative_host=host)
    assert len(stragglers.stragglers(whole, "a", strict).findings) == 1
    wide = with_constants(BurninConfig, {"min_relative": own + 0.02}, min_relative_host=host + 0.02)
    assert stragglers.stragglers(whole, "a", wide).outcome is Outcome.PASSED


def burned(
    machine: str, source: str, expected: str, tflops: dict[int, float], *, nodes: int = 3, sick: bool = False
) -> CounterExample:
    """Return a fleet of which node a has GPUs of these rates, the others 700 TFLOP/s."""
    own = {index: {"tflops": value} for index, value in tflops.items()}
    whole = fleet(nodes, a=[load("a", "matmul", own=own), load("a", "hbm")])
    return CounterExample(
        "burnin.stragglers",
        machine,
        source,
        expected,
        lambda: stragglers.stragglers(whole, "a", CONFIG),
        sick,
    )


COUNTER_EXAMPLES = (
    burned("within 1% of each other", "the spread of clocks of one model", PASSED, {0: 704.0, 1: 696.0, 2: 699.0}),
    burned("one GPU is a tenth faster", "a cooler place in the rack", PASSED, {1: 770.0}),
    burned("the only node of its kind", "no other node to compare with", PASSED, {}, nodes=1),
    burned("one GPU is a fifth slower", "heat or a power brake", MONITOR, {1: 560.0}, sick=True),
    burned("all GPUs of the node are a fifth slower", "a power limit of the node", MONITOR, dict.fromkeys(range(4), 560.0), sick=True),
)  # fmt: skip


@pytest.mark.parametrize("machine", COUNTER_EXAMPLES, ids=name_of)
def test_machines_are_judged_as_a_person_would(machine: CounterExample) -> None:
    assert_as_expected(machine)
