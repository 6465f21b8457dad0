"""Hard limits of the burn-in: where they come from, what misses them, and what no healthy GPU may miss."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from burnin_helpers import CONFIG, GPU_1, NAME, UUID, fleet, gpu_of, hello, load
from counter_examples import DRAIN, MONITOR, PASSED
from judged import figures, judged
from pydantic import ValidationError

from pytest_gpucluster import config as configs
from pytest_gpucluster.config.models import GpuProfile, Profile
from pytest_gpucluster.core.check import Action, Metric, Outcome, Verdict
from pytest_gpucluster.kit.gpu.gpu_peaks import KNOWN, LANE, Floor, figures_of, floor_of
from pytest_gpucluster.suites.burnin import load_checks, stragglers
from pytest_gpucluster.suites.burnin.config import DTYPES, BurninConfig, BurninLimit
from pytest_gpucluster.suites.burnin.limits import Rate, limit_of
from pytest_gpucluster.suites.burnin.results import BurninResult, NodeTotals, Peaks, unit_of

# NVIDIA's data sheets, dense: fp64, fp32, tf32, fp16, fp8, int8 (TFLOP/s, TOP/s), memory (GB/s)
A100, V100 = (19.5, 19.5, 156, 312, None, 624), (7.8, 15.7, None, 125, None, None, 900)
SHEETS = {
    "NVIDIA H200": (67, 67, 494.5, 989.5, 1979, 1979, 4800),
    "NVIDIA H200 NVL": (60, 60, 417.5, 835.5, 1670.5, 1670.5, 4800),
    "NVIDIA H100 80GB HBM3": (67, 67, 494.5, 989.5, 1979, 1979, 3350),
    "NVIDIA H100 PCIe": (51, 51, 378, 756, 1513, 1513, 2000),
    "NVIDIA H100 NVL": (60, 60, 417.5, 835.5, 1670.5, 1670.5, 3900),
    "NVIDIA H800": (None, 67, 494.5, 989.5, 1979, 1979, 3350),
    "NVIDIA A100-SXM4-40GB": (*A100, 1555),
    "A100-SXM4-40GB": (*A100, 1555),  # before driver 465
    "NVIDIA A100-PCIE-40GB": (*A100, 1555),
    "NVIDIA A100-SXM4-80GB": (*A100, 2039),
    "NVIDIA A100 80GB PCIe": (*A100, 1935),
    "NVIDIA A30": (10.3, 10.3, 82, 165, None, 330, 933),
    "NVIDIA A10": (None, 31.2, 62.5, 125, None, 250, 600),
    "NVIDIA L40S": (None, 91.6, 183, 362, 733, 733, 864),
    "NVIDIA L40": (None, 90.5, 90.5, 181, 362, 362, 864),
    "NVIDIA L4": (None, 30.3, 60, 121, 242.5, 242.5, 300),
    **dict.fromkeys(("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"), (7, 14, None, 112, None, None, 900)),
    "Tesla V100S-PCIE-32GB": (7, 14, None, 112, None, None, 900),  # of the slower sister
    **dict.fromkeys((f"Tesla V100-{it}GB" for it in ("SXM2-16", "SXM2-32", "SXM3-32")), V100),
    "Tesla T4": (None, 8.1, None, 65, None, 130, 300),
}


def test_peaks_are_those_of_the_data_sheets() -> None:
    assert {name.removeprefix("NVIDIA ") for name in SHEETS} == set(KNOWN)
    for name, (*rates, memory) in SHEETS.items():
        found = figures_of(name)
        assert found is not None, name
        dtypes = ("fp64", "fp32", "tf32", "fp16", "fp8", "int8")
        expected = {dtype: rate for dtype, rate in zip(dtypes, rates, strict=True) if rate}
        if expected.get("tf32"):
            expected["bf16"] = expected["fp16"]
        assert (found.tflops, found.hbm) == (expected, memory), name
        assert found.low_power == (name.removeprefix("NVIDIA ") in ("A10", "L4", "Tesla T4"))
        assert found.source.startswith("data sheet ")


UNKNOWN = (
    *("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-10C", "GRID V100D-32C"),  # slices
    *("NVIDIA H100 64GB HBM2", "NVIDIA H100 94GB HBM2e", "NVIDIA A100-SXM-64GB"),  # other memory
    *("NVIDIA H800 PCIe", "NVIDIA A10G", "NVIDIA GH200 480GB", "NVIDIA H20", ""),
)


def test_a_card_that_only_begins_like_another_has_no_figures() -> None:
    assert [name for name in UNKNOWN if figures_of(name) or floor_of("hbm", name)] == []


@pytest.mark.parametrize(
    ("metric", "name", "floor"),
    [
        ("bf16", NAME, Floor(494.75, "TFLOP/s", "50% of 989.5 TFLOP/s dense (data sheet H200)")),
        ("fp8", NAME, Floor(1979 * 0.3, "TFLOP/s", "30% of 1979 TFLOP/s dense (data sheet H200)")),
        ("int8", "NVIDIA A30", Floor(99, "TFLOP/s", "30% of 330 TFLOP/s dense (data sheet A30)")),
        ("fp16", "Tesla T4", Floor(13, "TFLOP/s", "20% of 65 TFLOP/s dense (data sheet T4)")),
        ("hbm", NAME, Floor(3360, "GB/s", "70% of 4800 GB/s (data sheet H200)")),
        ("fp8", "Tesla V100-SXM2-32GB", None),
        ("peer", NAME, None),
    ],
)
def test_limits_of_cards_say_where_they_come_from(metric: str, name: str, floor: Floor | None) -> None:
    found = floor_of(metric, name)
    expected = floor and (pytest.approx(floor.rate), floor.unit, floor.why)
    assert (found and (found.rate, found.unit, found.why)) == expected


@pytest.mark.parametrize(
    ("gen", "lane", "width", "rate"),
    [(3, 0.985, 16, 3.94), (4, 1.969, 16, 7.876), (5, 3.938, 8, 7.876), (6, 7.563, 16, 30.252)],
)
def test_limits_of_a_pcie_link(gen: int, lane: float, width: int, rate: float) -> None:
    assert LANE[gen] == lane
    why = f"25% of {lane * width:.1f} GB/s (PCIe {gen} x{width})"
    for metric in ("h2d", "d2h"):
        floor = floor_of(metric, "whatever", gen=gen, width=width)
        assert floor == Floor(pytest.approx(rate), "GB/s", why)  # type: ignore[arg-type]
    for unknown in ({"gen": None, "width": 16}, {"gen": gen, "width": None}, {"gen": 7, "width": 16}):
        assert floor_of("h2d", NAME, **unknown) is None


# What the burn-in's own loads measured on a sound H200 at 700 W
MEASURED = dict(zip((*DTYPES, "hbm"), (61.9, 51.2, 359.4, 651.6, 680.4, 1256.3, 887.7, 4296.7), strict=True))


@pytest.mark.parametrize("profile", ["h200-8", "h200-8-nonvls", "h200-vm", "azure-nd96isr-h200-v5"])
def test_a_sound_h200_is_far_above_its_limits_and_one_at_70_percent_is_below(profile: str) -> None:
    rows = {row.metric: row.drain_below for row in configs.load_profile(profile).rows(BurninLimit)}
    assert rows.keys() == MEASURED.keys()
    for metric, drain_below in rows.items():
        assert 0.7 * MEASURED[metric] < drain_below < 0.85 * MEASURED[metric], metric


@pytest.mark.parametrize(
    ("profiles", "limit", "best"),
    [
        (("dgx-h100", "azure-nd96isr-h100-v5"), 520, 794.5),
        (("dgx-a100", "dgx-a100-40gb", "azure-nd96asr-v4"), 200, 271.2),
    ],
)
def test_limits_of_other_profiles_are_below_what_their_source_measured(
    profiles: tuple[str, ...], limit: float, best: float
) -> None:
    for profile in profiles:
        (row,) = configs.load_profile(profile).rows(BurninLimit)
        assert (row.metric, row.drain_below, f"{best}" in row.source) == ("bf16", limit, True)
    assert limit < 0.75 * best


def profile_of(name: str | None = NAME, **rows: float) -> Profile:
    limits = tuple(BurninLimit(metric=it, drain_below=value, source="site") for it, value in rows.items())
    gpu = GpuProfile(count=4, name=name) if name else None
    plain = Profile(name="x", description="", source="", gpu=gpu)
    return plain.model_copy(update={"burnin": limits})


def limit(whole: BurninResult, metric: str, part: str = gpu_of("a", 0), **expect: float) -> Floor | None:
    return limit_of(whole, Rate("a", part, metric, 1.0), BurninConfig(expect=expect))


ROW = "the profile's row of burnin: site"


def test_the_cluster_file_goes_before_the_profile_of_these_gpus_and_the_profile_before_the_card() -> None:
    whole = fleet(1)
    assert limit(whole, "bf16") == floor_of("bf16", NAME)
    whole.take_limits(profile_of("NVIDIA H100 80GB HBM3", bf16=700.0, memory=9.0))
    assert (limit(whole, "bf16"), limit(whole, "memory", "")) == (floor_of("bf16", NAME), None)
    whole.take_limits(profile_of("H200", bf16=545.0, memory=9.0))  # as before driver 465
    assert limit(whole, "bf16") == Floor(545, "TFLOP/s", ROW)
    assert limit(whole, "memory", "") == Floor(9, "GB/s", ROW)
    assert limit(whole, "bf16", bf16=600) == Floor(600, "TFLOP/s", "burnin.expect of the cluster file")
    assert limit(whole, "hbm") == floor_of("hbm", NAME)
    bare = BurninResult({"a": NodeTotals("a", hello=hello("a", gpus=0))}, 60)
    bare.take_limits(profile_of(None, cpu=5.0))
    assert limit(bare, "cpu", "") == Floor(5, "units/s", ROW)


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
        found: Verdict = check(fleet(1, a=[line]), "a", config)
        return found

    strict = BurninConfig(expect={metric: 600})
    slow = verdict(599.0, strict)
    assert judged(slow) == (action, ["node" if action == MONITOR else GPU_1])
    assert (figures(slow.findings[0].measured), figures(slow.findings[0].expected)) == ([599], [600])
    assert (
        Metric(f"burnin_{metric}", 599.0, unit_of(metric), "" if action == MONITOR else GPU_1) in slow.metrics
    )
    assert judged(verdict(600.0, strict)) == (PASSED, [])
    if action == MONITOR:
        assert judged(verdict(599.0, CONFIG)) == (PASSED, []), "no figure, no limit"


def test_a_gpu_whose_power_was_limited_is_watched_and_not_drained() -> None:
    whole = fleet(1, a=[load("a", "matmul", own={1: {"tflops": 300.0}})])
    told = whole.nodes["a"]
    assert told.hello is not None
    told.hello["gpus"][1].update(power_limit=400.0, power_default=700.0)
    told.peaks[UUID] = Peaks(sm_mhz=[900.0, 1000.0, 1100.0])
    verdict = load_checks.matmul(whole, "a", CONFIG)
    (finding,) = verdict.findings
    assert (figures(finding.measured), finding.action) == ([300, 1000, 400, 700], Action.MONITOR)


def test_where_most_are_below_nobody_is_drained() -> None:
    def of(**slow: int) -> Verdict:
        own = {"tflops": 300.0}
        lines = {name: [load(name, "matmul", own=dict.fromkeys(range(it), own))] for name, it in slow.items()}
        return load_checks.matmul(fleet(len(slow), **lines), "a", CONFIG)

    assert judged(of(a=3, b=2))[0] == MONITOR
    assert "5 of 8 in the fleet are below" in of(a=3, b=2).findings[0].expected
    assert "first check" not in of(a=4, b=0).findings[0].expected
    alone = BurninResult({"a": NodeTotals("a", hello=hello("a", gpus=1), rounds=1)}, 60, 1)
    alone.nodes["a"].add(load("a", "matmul", gpus=1, own={0: {"tflops": 300.0}}))
    assert "first check" not in load_checks.matmul(alone, "a", CONFIG).findings[0].expected


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
    assert verdict.findings[0].expected.endswith("8 about 701 TFLOP/s on a,b; 8 about 591 TFLOP/s on c,d")
    assert stragglers.stragglers(whole, "a", CONFIG).outcome is Outcome.PASSED
    whole.take_limits(profile_of(bf16=600.0))
    assert stragglers.stragglers(whole, "c", CONFIG).outcome is Outcome.PASSED, "one fault, one verdict"
    assert load_checks.matmul(whole, "c", CONFIG).action is Action.MONITOR  # half of the fleet
