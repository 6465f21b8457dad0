"""Hard limits of the burn-in: where they come from, what misses them, and what no healthy GPU may miss."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from burnin_helpers import CONFIG, GPU_1, NAME, fleet, gpu_of, hello, load
from counter_examples import DRAIN, MONITOR, PASSED
from judged import figures, judged
from pydantic import ValidationError

from pytest_gpucluster import config as configs
from pytest_gpucluster.config.models import GpuProfile, Profile
from pytest_gpucluster.core.check import Action, Metric, Outcome, Verdict
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.kit.gpu.gpu_peaks import RateFloor, figures_of, floor_of
from pytest_gpucluster.report.machine.convert import measured_part
from pytest_gpucluster.suites.burnin import load_checks, stragglers
from pytest_gpucluster.suites.burnin.config import DTYPES, BurninConfig, BurninLimit
from pytest_gpucluster.suites.burnin.limits import Rate, limit_of
from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals, unit_of

UNKNOWN = (
    *("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-10C", "GRID V100D-32C"),  # slices
    *("NVIDIA H100 64GB HBM2", "NVIDIA H100 94GB HBM2e", "NVIDIA A100-SXM-64GB"),  # other memory
    *("NVIDIA H800 PCIe", "NVIDIA A10G", "NVIDIA GH200 480GB", "NVIDIA H20", ""),
)


def test_a_card_that_only_begins_like_another_has_no_figures() -> None:
    assert [name for name in UNKNOWN if figures_of(name) or floor_of("hbm", name)] == []


# What the burn-in's own loads measured on a sound H200 at 700 W
MEASURED = dict(zip((*DTYPES, "hbm"), (61.9, 51.2, 359.4, 651.6, 680.4, 1256.3, 887.7, 4296.7), strict=True))


@pytest.mark.parametrize("profile", ["h200-8", "h200-8-nonvls", "h200-vm", "azure-nd96isr-h200-v5"])
def test_a_sound_h200_is_far_above_its_limits_and_one_at_70_percent_is_below(profile: str) -> None:
    rows = {row.metric: row.drain_below for row in configs.load_profile(profile).rows(BurninLimit)}
    assert rows.keys() == MEASURED.keys()
    for metric, drain_below in rows.items():
        assert 0.7 * MEASURED[metric] < drain_below < 0.85 * MEASURED[metric], metric


def profile_of(name: str | None = NAME, **rows: float) -> Profile:
    limits = tuple(BurninLimit(metric=it, drain_below=value, source="site") for it, value in rows.items())
    gpu = GpuProfile(count=4, name=name) if name else None
    plain = Profile(name="x", description="", source="", gpu=gpu)
    return plain.model_copy(update={"burnin": limits})


def limit(whole: BurninResult, metric: str, part: str = gpu_of("a", 0), **expect: float) -> RateFloor | None:
    return limit_of(whole, Rate("a", part, metric, 1.0), BurninConfig(expect=expect))


ROW = "the profile's row of burnin: site"


def test_the_cluster_file_goes_before_the_profile_of_these_gpus_and_the_profile_before_the_card() -> None:
    whole = fleet(1)
    assert limit(whole, "bf16") == floor_of("bf16", NAME)
    whole.take_limits(profile_of("NVIDIA H100 80GB HBM3", bf16=700.0, memory=9.0))
    assert (limit(whole, "bf16"), limit(whole, "memory", "")) == (floor_of("bf16", NAME), None)
    whole.take_limits(profile_of("H200", bf16=545.0, memory=9.0))  # as before driver 465
    assert limit(whole, "bf16") == RateFloor(545, "TFLOP/s", ROW)
    assert limit(whole, "memory", "") == RateFloor(9, "GB/s", ROW)
    assert limit(whole, "bf16", bf16=600) == RateFloor(600, "TFLOP/s", "burnin.expect of the cluster file")
    assert limit(whole, "hbm") == floor_of("hbm", NAME)
    bare = BurninResult({"a": NodeTotals("a", hello=hello("a", gpus=0))}, 60)
    bare.take_limits(profile_of(None, cpu=5.0))
    assert limit(bare, "cpu", "") == RateFloor(5, "units/s", ROW)


@pytest.mark.parametrize(("metric", "value"), [("bf61", 1), ("bf16", 0), ("hbm", float("inf"))])
def test_a_limit_that_could_never_work_is_refused(metric: Any, value: float) -> None:
    with pytest.raises(ValidationError):
        BurninConfig(expect={metric: value})
    with pytest.raises(ValidationError):
        BurninLimit(metric=metric, drain_below=value, source="x")


@pytest.mark.parametrize(
    ("kind", "key", "metric", "check", "action"),
    [
        ("matmul", "tflops", "bf16", load_checks.matmul, DRAIN),
        ("hbm", "gbs", "hbm", load_checks.memory_bandwidth, "reset gpu"),
        ("copies", "h2d", "h2d", load_checks.copies, DRAIN),
        ("copies", "d2h", "d2h", load_checks.copies, DRAIN),
        ("peer", "gbs", "peer", load_checks.peer, DRAIN),
        ("cpu", "rate", "cpu", load_checks.cpu, MONITOR),
        ("memory", "rate", "memory", load_checks.memory, MONITOR),
        ("storage", "write", "storage_write", load_checks.storage, MONITOR),
        ("storage", "read", "storage_read", load_checks.storage, MONITOR),
        ("rdma", "rate", "rdma", load_checks.rdma, MONITOR),
    ],
)
def test_a_rate_below_its_limit_fails_and_that_of_a_host_is_watched(
    kind: str, key: str, metric: Any, check: Any, action: str
) -> None:
    def verdict(slow: float, config: BurninConfig) -> Verdict:
        rates = dict.fromkeys(("tflops", "gbs", "h2d", "d2h", "rate", "write", "read"), 600.0)
        if action == MONITOR:
            line = {"load": kind, "results": [{"load": kind, "wrong": 0, **rates, key: slow}]}
        else:
            line = load("a", kind, own=dict.fromkeys(range(4), rates) | {1: {**rates, key: slow}})
        found: Verdict = check(fleet(1 + (kind == "rdma"), a=[line]), "a", config)
        return found

    strict = BurninConfig(expect={metric: 600})
    slow = verdict(599.0, strict)
    assert judged(slow) == (action, ["node" if action == MONITOR else GPU_1])
    assert (figures(slow.findings[0].measured), figures(slow.findings[0].expected)) == ([599], [600])
    part, bound = "" if action == MONITOR else measured_part(GPU_1), slow.findings[0].expected
    assert isinstance(bound, Quantity)
    assert Metric(f"burnin_{metric}", 599.0, unit_of(metric), part, bound=bound) in slow.metrics
    assert judged(verdict(600.0, strict)) == (PASSED, [])
    if action == MONITOR:
        assert judged(verdict(599.0, CONFIG)) == (PASSED, []), "no figure, no limit"


def test_where_most_are_below_nobody_is_drained() -> None:
    def of(**slow: int) -> Verdict:
        own = {"tflops": 300.0}
        lines = {name: [load(name, "matmul", own=dict.fromkeys(range(it), own))] for name, it in slow.items()}
        return load_checks.matmul(fleet(len(slow), **lines), "a", CONFIG)

    assert judged(of(a=3, b=2))[0] == MONITOR
    assert "5 of 8 in the fleet are below" in str(of(a=3, b=2).findings[0].expected)


def pairs(busbw: dict[tuple[str, str], float], alone: float = 340.0) -> BurninResult:
    """A fleet that was measured alone and in these pairs."""
    whole = fleet(len({name for pair in busbw for name in pair}))
    for members, value in [*busbw.items(), *(((name,), alone) for name in whole.nodes)]:
        told = {"load": "nccl", "members": [*members], "busbw": value, "wrong": 0}
        for name in members:
            results = [{**told, "gpu": i, "uuid": gpu_of(name, i)} for i in range(4)]
            whole.nodes[name].add({"load": "nccl", "results": results})
    return whole


STRICT = BurninConfig(expect={"nccl_pairs": 80})


def test_a_node_that_is_slow_with_partners_that_are_fast_with_others_is_drained() -> None:
    whole = pairs({pair: 40.0 if "a" in pair else 90.0 for pair in itertools.combinations("abcd", 2)})
    verdict = load_checks.nccl(whole, "a", STRICT)
    assert (judged(verdict), figures(verdict.findings[0].measured)) == ((DRAIN, ["node"]), [40, 3])
    assert {load_checks.nccl(whole, other, STRICT).outcome for other in "bcd"} == {Outcome.PASSED}
    assert load_checks.nccl(whole, "a", CONFIG).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("slow", "fast"),
    [("ab", ""), ("ab ac", "bc"), ("ab ac ad bc", "")],
    ids=["either of two", "two partners", "nobody is known to be fast"],
)
def test_a_slow_pair_without_a_partner_that_is_known_to_be_fast_drains_nobody(slow: str, fast: str) -> None:
    whole = pairs({(it[0], it[1]): 40.0 if it in slow else 90.0 for it in f"{slow} {fast}".split()})
    assert judged(load_checks.nccl(whole, "a", STRICT)) == (MONITOR, ["node"])
    whole.nodes["a"].partners.clear()
    assert load_checks.nccl(whole, "a", STRICT).outcome is Outcome.PASSED, "it was in no pair"


def test_a_fleet_in_two_halves_has_stragglers_that_drain_nobody() -> None:
    speeds = {"a": 700.0, "b": 702.0, "c": 590.0, "d": 592.0}
    lines = {it: [load(it, "matmul", own={n: {"tflops": speeds[it]} for n in range(4)})] for it in speeds}
    whole = fleet(4, **lines)
    verdict = stragglers.stragglers(whole, "c", CONFIG)
    assert judged(verdict) == (MONITOR, [f"GPU {n} (GPU-c-{n}, 0000:{n}0:00.0)" for n in range(4)])
    assert str(verdict.findings[0].expected).endswith("about 701 TFLOP/s on a,b; 8 about 591 TFLOP/s on c,d")
    assert stragglers.stragglers(whole, "a", CONFIG).outcome is Outcome.PASSED
    whole.take_limits(profile_of(bf16=600.0))
    assert stragglers.stragglers(whole, "c", CONFIG).outcome is Outcome.PASSED, "one fault, one verdict"
    assert load_checks.matmul(whole, "c", CONFIG).action is Action.MONITOR  # half of the fleet
