"""Hard limits of the burn-in: where they come from, what misses them, and what no healthy GPU may miss."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from burnin_helpers import CONFIG, NAME, fleet, gpu_of, hello, load
from counter_examples import DRAIN, MONITOR, PASSED, result
from judged import figures, judged
from pydantic import ValidationError

from pytest_gpucluster import config as configs
from pytest_gpucluster.config.models import GpuProfile, Profile
from pytest_gpucluster.core.check import Action, Finding, Metric, Outcome, Verdict
from pytest_gpucluster.kit.gpu.gpu_peaks import KNOWN, LANE, Floor, figures_of, floor_of
from pytest_gpucluster.suites.burnin import load_checks, stragglers
from pytest_gpucluster.suites.burnin.config import (
    BurninConfig,
    BurninLimit,
)
from pytest_gpucluster.suites.burnin.limits import Rate, limit_of
from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals, Peaks

# NVIDIA's data sheets, dense: fp64, fp32, tf32, fp16, fp8, int8 (TFLOP/s, TOP/s), memory (GB/s)
SHEETS = {
    "NVIDIA H200": (67, 67, 494.5, 989.5, 1979, 1979, 4800),
    "NVIDIA H200 NVL": (60, 60, 417.5, 835.5, 1670.5, 1670.5, 4800),
    "NVIDIA H100 80GB HBM3": (67, 67, 494.5, 989.5, 1979, 1979, 3350),
    "NVIDIA H100 PCIe": (51, 51, 378, 756, 1513, 1513, 2000),
    "NVIDIA H100 NVL": (60, 60, 417.5, 835.5, 1670.5, 1670.5, 3900),
    "NVIDIA H800": (None, 67, 494.5, 989.5, 1979, 1979, 3350),
    "NVIDIA A100-SXM4-40GB": (19.5, 19.5, 156, 312, None, 624, 1555),
    "A100-SXM4-40GB": (19.5, 19.5, 156, 312, None, 624, 1555),  # before driver 465
    "NVIDIA A100-PCIE-40GB": (19.5, 19.5, 156, 312, None, 624, 1555),
    "NVIDIA A100-SXM4-80GB": (19.5, 19.5, 156, 312, None, 624, 2039),
    "NVIDIA A100 80GB PCIe": (19.5, 19.5, 156, 312, None, 624, 1935),
    "NVIDIA A30": (10.3, 10.3, 82, 165, None, 330, 933),
    "NVIDIA A10": (None, 31.2, 62.5, 125, None, 250, 600),
    "NVIDIA L40S": (None, 91.6, 183, 362, 733, 733, 864),
    "NVIDIA L40": (None, 90.5, 90.5, 181, 362, 362, 864),
    "NVIDIA L4": (None, 30.3, 60, 121, 242.5, 242.5, 300),
    "Tesla V100-PCIE-16GB": (7, 14, None, 112, None, None, 900),
    "Tesla V100-PCIE-32GB": (7, 14, None, 112, None, None, 900),
    "Tesla V100S-PCIE-32GB": (7, 14, None, 112, None, None, 900),  # of the slower sister
    "Tesla V100-SXM2-16GB": (7.8, 15.7, None, 125, None, None, 900),
    "Tesla V100-SXM2-32GB": (7.8, 15.7, None, 125, None, None, 900),
    "Tesla V100-SXM3-32GB": (7.8, 15.7, None, 125, None, None, 900),
    "Tesla T4": (None, 8.1, None, 65, None, 130, 300),
}


@pytest.mark.parametrize("name", SHEETS)
def test_peaks_are_those_of_the_data_sheets(name: str) -> None:
    figures = figures_of(name)
    assert figures is not None
    *rates, memory = SHEETS[name]
    dtypes = ("fp64", "fp32", "tf32", "fp16", "fp8", "int8")
    expected = {dtype: rate for dtype, rate in zip(dtypes, rates, strict=True) if rate}
    if expected.get("tf32"):
        expected["bf16"] = expected["fp16"]
    assert figures.tflops == expected
    assert figures.hbm == memory
    assert figures.low_power == (name.removeprefix("NVIDIA ") in ("A10", "L4", "Tesla T4"))
    assert figures.source.startswith("data sheet ")


def test_no_card_is_left_out_of_the_table() -> None:
    assert {name.removeprefix("NVIDIA ") for name in SHEETS} == set(KNOWN)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",  # torch, of a slice
        "NVIDIA A100-10C",  # vGPU
        "GRID V100D-32C",
        "NVIDIA H100 64GB HBM2",  # other memory
        "NVIDIA H100 94GB HBM2e",
        "NVIDIA H800 PCIe",
        "NVIDIA A10G",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA GH200 480GB",
        "NVIDIA H20",
        "",
    ],
)
def test_a_card_that_only_begins_like_another_has_no_figures(name: str) -> None:
    assert figures_of(name) is None
    assert floor_of("hbm", name) is None


@pytest.mark.parametrize(
    ("metric", "name", "floor"),
    [
        ("bf16", NAME, Floor(494.75, "TFLOP/s", "50% of 989.5 TFLOP/s dense (data sheet H200)")),
        ("fp8", NAME, Floor(1979 * 0.3, "TFLOP/s", "30% of 1979 TFLOP/s dense (data sheet H200)")),
        ("int8", "NVIDIA A30", Floor(99, "TFLOP/s", "30% of 330 TFLOP/s dense (data sheet A30)")),
        ("fp16", "Tesla T4", Floor(13, "TFLOP/s", "20% of 65 TFLOP/s dense (data sheet T4)")),
        ("int8", "NVIDIA L4", Floor(48.5, "TFLOP/s", "20% of 242.5 TFLOP/s dense (data sheet L4)")),
        ("hbm", NAME, Floor(3360, "GB/s", "70% of 4800 GB/s (data sheet H200)")),
        ("fp8", "Tesla V100-SXM2-32GB", None),
        ("peer", NAME, None),
    ],
)
def test_limits_of_cards_say_where_they_come_from(metric: str, name: str, floor: Floor | None) -> None:
    found = floor_of(metric, name)
    assert (found and (pytest.approx(found.rate), found.unit, found.why)) == (
        floor and (floor.rate, floor.unit, floor.why)
    )


@pytest.mark.parametrize(
    ("gen", "lane", "width", "rate"),
    [(3, 0.985, 16, 3.94), (4, 1.969, 16, 7.876), (5, 3.938, 8, 7.876), (6, 7.563, 16, 30.252)],
)
def test_limits_of_a_pcie_link(gen: int, lane: float, width: int, rate: float) -> None:
    assert LANE[gen] == lane
    for metric in ("h2d", "d2h"):
        floor = floor_of(metric, "whatever", gen=gen, width=width)
        assert floor is not None
        assert floor.rate == pytest.approx(rate)
        assert (floor.unit, floor.why) == ("GB/s", f"25% of {lane * width:.1f} GB/s (PCIe {gen} x{width})")


def test_a_link_that_is_not_known_has_no_limit() -> None:
    assert floor_of("h2d", NAME, gen=None, width=16) is None
    assert floor_of("h2d", NAME, gen=5, width=None) is None
    assert floor_of("d2h", NAME, gen=7, width=16) is None


# What the burn-in's own loads measured on a sound H200 at 700 W
MEASURED = {"fp64": 61.9, "fp32": 51.2, "tf32": 359.4, "fp16": 651.6, "bf16": 680.4, "fp8": 1256.3, "int8": 887.7,
            "hbm": 4296.7}  # fmt: skip


@pytest.mark.parametrize("profile", ["h200-8", "h200-8-nonvls", "h200-vm", "azure-nd96isr-h200-v5"])
def test_a_sound_h200_is_far_above_its_limits_and_one_at_70_percent_is_below(profile: str) -> None:
    rows = {row.metric: row.drain_below for row in configs.load_profile(profile).rows(BurninLimit)}
    assert rows.keys() == MEASURED.keys()
    for metric, drain_below in rows.items():
        assert 0.7 * MEASURED[metric] < drain_below < 0.85 * MEASURED[metric], metric


@pytest.mark.parametrize(
    ("profile", "metric", "limit", "best"),
    [("dgx-h100", "bf16", 520, 794.5), ("azure-nd96isr-h100-v5", "bf16", 520, 794.5), ("dgx-a100", "bf16", 200, 271.2),
     ("dgx-a100-40gb", "bf16", 200, 271.2), ("azure-nd96asr-v4", "bf16", 200, 271.2)],
)  # fmt: skip
def test_limits_of_other_profiles_are_below_what_their_source_measured(
    profile: str, metric: str, limit: float, best: float
) -> None:
    (row,) = configs.load_profile(profile).rows(BurninLimit)
    assert (row.metric, row.drain_below) == (metric, limit)
    assert f"{best}" in row.source
    assert limit < 0.75 * best


# --- which limit holds


def profile_of(name: str | None = NAME, **rows: float) -> Profile:
    limits = tuple(
        BurninLimit(metric=metric, drain_below=value, source="site") for metric, value in rows.items()
    )
    gpu = GpuProfile(count=4, name=name) if name else None
    plain = Profile(name="x", description="", source="", gpu=gpu)
    return plain.model_copy(update={"burnin": limits})


def limit(whole: BurninResult, metric: str, part: str = gpu_of("a", 0), **expect: float) -> Floor | None:
    return limit_of(whole, Rate("a", part, metric, 1.0), BurninConfig(expect=expect))


def test_the_cluster_file_goes_before_the_profile_and_the_profile_before_the_card() -> None:
    whole = fleet(1)
    assert limit(whole, "bf16") == floor_of("bf16", NAME)
    whole.take_limits(profile_of(bf16=545.0))
    assert limit(whole, "bf16") == Floor(545, "TFLOP/s", "the profile's row of burnin: site")
    assert limit(whole, "bf16", bf16=600) == Floor(600, "TFLOP/s", "burnin.expect of the cluster file")
    assert limit(whole, "hbm") == floor_of("hbm", NAME)


def test_rows_of_a_profile_are_for_its_gpus() -> None:
    whole = fleet(1)
    whole.take_limits(profile_of("NVIDIA H100 80GB HBM3", bf16=700.0, memory=9.0))
    assert limit(whole, "bf16") == floor_of("bf16", NAME)
    assert limit(whole, "memory", "") is None
    whole.take_limits(profile_of("H200", bf16=700.0, memory=9.0))  # as before driver 465
    assert limit(whole, "bf16") == Floor(700, "TFLOP/s", "the profile's row of burnin: site")
    assert limit(whole, "memory", "") == Floor(9, "GB/s", "the profile's row of burnin: site")


def test_a_node_without_gpus_takes_the_rows_of_its_host() -> None:
    whole = BurninResult({"a": NodeTotals("a", hello=hello("a", gpus=0))}, 60)
    whole.take_limits(profile_of(None, cpu=5.0))
    assert limit(whole, "cpu", "") == Floor(5, "units/s", "the profile's row of burnin: site")


@pytest.mark.parametrize("expect", [{"bf61": 1}, {"bf16": 0}, {"hbm": float("inf")}])
def test_a_limit_that_could_never_work_is_refused(expect: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        BurninConfig(expect=expect)
    (metric, value), *_ = expect.items()
    with pytest.raises(ValidationError):
        BurninLimit(metric=metric, drain_below=value, source="x")


# --- what is below it

PART = "GPU 1 (GPU-a-1, 0000:10:00.0)"


@pytest.mark.parametrize(
    ("kind", "own", "metric", "check", "action"),
    [
        ("matmul", {"tflops": 599.0}, "bf16", load_checks.matmul, DRAIN),
        ("hbm", {"gbs": 599.0}, "hbm", load_checks.memory_bandwidth, "reset gpu"),
        ("copies", {"h2d": 599.0, "d2h": 600.0}, "h2d", load_checks.copies, DRAIN),
        ("copies", {"h2d": 600.0, "d2h": 599.0}, "d2h", load_checks.copies, DRAIN),
        ("peer", {"gbs": 599.0}, "peer", load_checks.peer, DRAIN),
    ],
)
def test_a_rate_of_a_gpu_below_its_limit_fails(
    kind: str, own: dict[str, float], metric: str, check: Any, action: str
) -> None:
    high = {"tflops": 600.0, "gbs": 600.0, "h2d": 600.0, "d2h": 600.0}
    limit = BurninConfig(expect={metric: 600})
    whole = fleet(1, a=[load("a", kind, own=dict.fromkeys(range(4), high) | {1: high | own})])
    verdict = check(whole, "a", limit)
    assert (judged(verdict), figures(verdict.findings[0].measured)) == ((action, [PART]), [599])
    assert figures(verdict.findings[0].expected) == [600]
    equal = fleet(1, a=[load("a", kind, own=dict.fromkeys(range(4), high))])
    assert check(equal, "a", limit).outcome is Outcome.PASSED


def host(metric: str, value: float, nodes: int = 1) -> BurninResult:
    kind, key = {"cpu": ("cpu", "rate"), "memory": ("memory", "rate"), "storage_write": ("storage", "write"),
                 "storage_read": ("storage", "read")}[metric]  # fmt: skip
    line = {
        "load": kind,
        "results": [{"load": kind, "wrong": 0, "write": 9.0, "read": 9.0, "rate": 9.0, key: value}],
    }
    return fleet(nodes, **{name: [line] for name in "abcdefgh"[:nodes]})


@pytest.mark.parametrize(
    ("metric", "check", "unit"),
    [("cpu", load_checks.cpu, "units/s"), ("memory", load_checks.memory, "GB/s"), ("storage_write", load_checks.storage, "GB/s"),
     ("storage_read", load_checks.storage, "GB/s")],
)  # fmt: skip
def test_a_slow_host_is_watched(metric: str, check: Any, unit: str) -> None:
    strict = BurninConfig(expect={metric: 5.0})
    verdict = check(host(metric, 4.9), "a", strict)
    expected = f">= 5 {unit}: burnin.expect of the cluster file"
    assert verdict.findings == (Finding("node", f"{metric} 4.9 {unit}", expected, Action.MONITOR),)
    assert verdict.action is Action.MONITOR
    assert Metric(f"burnin_{metric}", 4.9, unit) in verdict.metrics
    assert check(host(metric, 5.0), "a", strict).outcome is Outcome.PASSED
    assert check(host(metric, 4.9), "a", CONFIG).outcome is Outcome.PASSED, "no figure, no limit"


def test_a_gpu_whose_power_was_limited_is_watched_and_not_drained() -> None:
    whole = fleet(1, a=[load("a", "matmul", own={1: {"tflops": 300.0}})])
    told = whole.nodes["a"]
    assert told.hello is not None
    told.hello["gpus"][1].update(power_limit=400.0, power_default=700.0)
    told.peaks[gpu_of("a", 1)] = Peaks(sm_mhz=[900.0, 1000.0, 1100.0])
    verdict = load_checks.matmul(whole, "a", CONFIG)
    (finding,) = verdict.findings
    assert finding.measured == "bf16 300 TFLOP/s at 1000 MHz; power limit set to 400 of 700 W"
    assert (finding.action, verdict.action) == (Action.MONITOR, Action.MONITOR)


def test_where_most_are_below_nobody_is_drained() -> None:
    def of(slow_a: int, slow_b: int) -> Verdict:
        slow = {"a": slow_a, "b": slow_b}
        lines = {
            name: [load(name, "matmul", own={key: {"tflops": 300.0} for key in range(count)})]
            for name, count in slow.items()
        }
        return load_checks.matmul(fleet(2, **lines), "a", CONFIG)

    assert (len(of(3, 2).findings), result(of(3, 2))) == (3, MONITOR)
    assert "5 of 8 in the fleet are below" in of(3, 2).findings[0].expected
    assert not any("first check" in it.expected for it in of(4, 0).findings)
    alone = BurninResult({"a": NodeTotals("a", hello=hello("a", gpus=1), rounds=1)}, 60, 1)
    alone.nodes["a"].add(load("a", "matmul", gpus=1, own={0: {"tflops": 300.0}}))
    assert "first check" not in load_checks.matmul(alone, "a", CONFIG).findings[0].expected


# --- collectives of the burn-in


def pairs(busbw: dict[tuple[str, str], float], alone: float = 340.0) -> BurninResult:
    """A fleet that was measured alone and in these pairs."""
    whole = fleet(len({name for pair in busbw for name in pair}))
    for members, value in [*busbw.items(), *(((name,), alone) for name in whole.nodes)]:
        told = {"members": [*members], "busbw": value, "wrong": 0}
        for name in members:
            results = [{"load": "nccl", "gpu": i, "uuid": gpu_of(name, i), **told} for i in range(4)]
            whole.nodes[name].add({"load": "nccl", "results": results})
    return whole


def test_a_node_that_is_slow_alone_is_reported_once() -> None:
    whole = pairs({("a", "b"): 100.0})
    for limit, expected in ((341, (MONITOR, ["node"])), (340, (PASSED, []))):
        verdict = load_checks.nccl(whole, "a", BurninConfig(expect={"nccl_alone": limit}))
        assert judged(verdict) == expected


def test_a_node_that_is_slow_with_partners_that_are_fast_with_others_is_drained() -> None:
    met = itertools.combinations("abcd", 2)
    whole = pairs({pair: 40.0 if "a" in pair else 90.0 for pair in met})
    strict = BurninConfig(expect={"nccl_pairs": 80})
    verdict = load_checks.nccl(whole, "a", strict)
    assert (judged(verdict), figures(verdict.findings[0].measured)) == ((DRAIN, ["node"]), [40, 3])
    for other in "bcd":
        assert load_checks.nccl(whole, other, strict).outcome is Outcome.PASSED
    assert load_checks.nccl(whole, "a", CONFIG).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("slow", "fast"),
    [("ab", ""), ("ab ac", "bc"), ("ab ac ad bc", "")],
    ids=["either of two", "two partners", "nobody is known to be fast"],
)
def test_a_slow_pair_without_a_partner_that_is_known_to_be_fast_drains_nobody(slow: str, fast: str) -> None:
    busbw = {(it[0], it[1]): 40.0 if it in slow else 90.0 for it in f"{slow} {fast}".split()}
    strict = BurninConfig(expect={"nccl_pairs": 80})
    whole = pairs(busbw)
    assert judged(load_checks.nccl(whole, "a", strict)) == (MONITOR, ["node"])
    whole.nodes["a"].partners.clear()
    assert load_checks.nccl(whole, "a", strict).outcome is Outcome.PASSED, "it was in no pair"


# --- a fleet in two halves


def test_a_fleet_in_two_halves_has_stragglers_that_drain_nobody() -> None:
    speeds = {"a": 700.0, "b": 702.0, "c": 590.0, "d": 592.0}
    whole = fleet(
        4,
        **{
            name: [load(name, "matmul", own={key: {"tflops": it} for key in range(4)})]
            for name, it in speeds.items()
        },
    )
    verdict = stragglers.stragglers(whole, "c", CONFIG)
    assert judged(verdict) == (MONITOR, [f"GPU {n} (GPU-c-{n}, 0000:{n}0:00.0)" for n in range(4)])
    assert verdict.findings[0].expected.endswith("8 about 701 TFLOP/s on a,b; 8 about 591 TFLOP/s on c,d")
    assert stragglers.stragglers(whole, "a", CONFIG).outcome is Outcome.PASSED
    whole.take_limits(profile_of(bf16=600.0))
    assert stragglers.stragglers(whole, "c", CONFIG).outcome is Outcome.PASSED, "one fault, one verdict"
    assert load_checks.matmul(whole, "c", CONFIG).action is Action.MONITOR  # half of the fleet


def test_every_rate_of_a_burn_in_may_have_a_limit() -> None:
    gpu = "fp64 fp32 tf32 fp16 bf16 fp8 int8 hbm h2d d2h peer nccl_alone nccl_pairs"
    for metric in f"{gpu} cpu memory storage_write storage_read rdma".split():
        assert BurninConfig(expect={metric: 1.0}).expect == {metric: 1.0}
