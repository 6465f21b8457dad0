"""Thresholds with a source, ceilings, outliers and baselines."""

from __future__ import annotations

import os
import statistics
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from paths import TESTS

from pytest_gpucluster.config.models import BandwidthThreshold, FabricProfile, GpuProfile, Profile
from pytest_gpucluster.core.check import Action, Finding, Metric, Outcome
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.kit.nccl.nccl_floor import Floor
from pytest_gpucluster.kit.nccl.nccl_tests import NcclRun, read
from pytest_gpucluster.suites.nccl import baseline
from pytest_gpucluster.suites.nccl.bandwidth import (
    NoThresholdError,
    bandwidth,
    ceiling,
    sizes_for,
    threshold_for,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.core.check import Verdict

DATA = TESTS / "data" / "nccl"
GIB = 2**30
NO_NVLS = {"NCCL_NVLS_ENABLE": "0"}


def row(busbw: float, size: int = 4 * GIB, nodes: int = 1, **more: Any) -> BandwidthThreshold:
    keys = {"gpus_per_node": 8, "source": "recordings", "tolerance": 0.05, **more}
    return BandwidthThreshold(size=size, nodes=nodes, busbw=busbw, **keys)


H200 = (
    row(365, conditions=NO_NVLS),
    row(359, GIB, conditions=NO_NVLS),
    row(431, 16 * GIB, tolerance=0, source="azurehpc-health-checks conf"),
    row(191.05, nodes=4, source="DeepOps performance guide"),
)


def run_8() -> NcclRun:
    (run,) = read((DATA / "nccl-allreduce-g8.txt").read_text()).runs
    return run


def choose(rows: tuple[BandwidthThreshold, ...] = H200, **more: Any) -> float:
    keys = {
        "collective": "all_reduce",
        "nodes": 1,
        "gpus_per_node": 8,
        "size": 4 * GIB,
        "env": NO_NVLS,
        **more,
    }
    return threshold_for(rows, **keys).bound


def test_the_bound_is_the_value_less_its_tolerance() -> None:
    assert choose() == pytest.approx(365 * 0.95)
    assert choose(size=16 * GIB, env={}) == 431


def test_the_choice_names_its_source() -> None:
    chosen = threshold_for(H200, collective="all_reduce", nodes=4, gpus_per_node=8, size=4 * GIB, env={})
    assert chosen.why == "191.05 GB/s less 5%; source: DeepOps performance guide"
    assert chosen.row is H200[3]


def test_more_conditions_go_first_then_the_earlier_row() -> None:
    plain, special, other = row(400), row(365, conditions=NO_NVLS), row(300)
    assert choose((plain, special, other)) == pytest.approx(365 * 0.95)
    assert choose((plain, special, other), env={}) == pytest.approx(400 * 0.95)
    assert choose((other, plain), env={}) == pytest.approx(300 * 0.95)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": 8}, "no row has more than 4 nodes, and rows are not extrapolated"),
        ({"nodes": 8}, "all_reduce 4 x 8 4 GiB 191.05 GB/s differs in nodes 4"),
        ({"nodes": 2}, "no threshold for all_reduce on 2 nodes x 8 GPUs at 4 GiB; nearest:"),
        ({"size": 2 * GIB}, "differs in size 1 GiB"),
        ({"env": {}}, "differs in NCCL_NVLS_ENABLE=0 (is not set)"),
        ({"env": {"NCCL_NVLS_ENABLE": "1"}}, "(is 1)"),
        ({"gpus_per_node": 4}, "differs in gpus_per_node 8"),
        ({"collective": "alltoall"}, "differs in collective all_reduce"),
        ({"rows": ()}, "neither the cluster file nor the profile has one"),
    ],
)
def test_no_row_is_an_error_that_names_the_nearest(change: dict[str, Any], words: str) -> None:
    with pytest.raises(NoThresholdError) as error:
        choose(**change)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, ConfigError)


def test_sizes_come_from_the_rows() -> None:
    sizes = sizes_for(H200, collective="all_reduce", nodes=1, gpus_per_node=8, env=NO_NVLS)
    assert sizes == (GIB, 4 * GIB, 16 * GIB)
    with pytest.raises(NoThresholdError, match="on 3 nodes"):
        sizes_for(H200, collective="all_reduce", nodes=3, gpus_per_node=8, env={})


def test_recorded_h200_passes_its_own_rows() -> None:
    verdict = bandwidth(run_8(), H200[:2], nodes=1, gpus_per_node=8, env=NO_NVLS)
    assert verdict.outcome is Outcome.PASSED
    assert Metric("busbw all_reduce 4 GiB alone", 365.76, "GB/s") in verdict.metrics
    bound = Metric("bound all_reduce 4 GiB alone", 365 * 0.95, "GB/s", "recordings", better="neither")
    assert bound in verdict.metrics


PROFILE = Profile(
    name="h200", description="", source="",
    gpu=GpuProfile(count=8, name="NVIDIA H200", nvlinks=18, nvlink_speed=26.562, nvswitch=True),
    fabric=FabricProfile(hcas=8, rate=50.0, link_layer="InfiniBand"),
)  # fmt: skip


def test_ceilings() -> None:
    def of(collective: str, nodes: int = 1, **more: bool) -> float:
        limit = ceiling(collective, nodes=nodes, gpus_per_node=8, profile=PROFILE, **more)
        assert limit is not None
        return limit.busbw / 1.02

    assert of("all_gather") == pytest.approx(478.116)
    assert of("all_reduce", nvls=False) == pytest.approx(478.116)
    assert of("all_reduce") == pytest.approx(478.116 * 1.75)
    assert of("sendrecv", 2) == pytest.approx(400.0)
    assert of("all_gather", 4) == pytest.approx(478.116)
    assert of("alltoall", 2) == pytest.approx(400 * 15 / 64)
    assert ceiling("all_reduce", nodes=1, gpus_per_node=1, profile=PROFILE) is None
    assert (
        ceiling("all_reduce", nodes=1, gpus_per_node=8, profile=Profile(name="x", description="", source=""))
        is None
    )


# A tray of GB200 or GB300: its NVSwitches are the rack's
TRAY = Profile(
    name="tray", description="", source="",
    gpu=GpuProfile(count=4, name="NVIDIA GB300", nvlinks=18, nvlink_speed=53.125, fabric_state=True),
    fabric=FabricProfile(hcas=4, rate=100.0, link_layer="Ethernet"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("collective", "nodes", "counted", "busbw"),
    [  # Oracle's documentation of BM.GPU.GB300.4: nodes of one rack, and 32 nodes of two
        ("all_reduce", 2, 1, 841.63), ("all_reduce", 16, 1, 930.48), ("all_reduce", 32, 2, 738.39),
        ("alltoall", 2, 1, 685.06), ("alltoall", 16, 1, 666.92), ("alltoall", 2, 0, 685.06),
    ],
)  # fmt: skip
def test_nvlink_beyond_the_node_is_not_limited_by_adapters(
    collective: str, nodes: int, counted: int, busbw: float
) -> None:
    limit = ceiling(collective, nodes=nodes, gpus_per_node=4, profile=TRAY, counted=counted)
    assert limit is not None
    assert busbw < limit.busbw
    assert limit.why.startswith("18 NVLinks x 53.125 GB/s")
    # NCCL counts as many nodes as there are: the racks differ, or MNNVL is off, and adapters are the way
    apart = ceiling(collective, nodes=nodes, gpus_per_node=4, profile=TRAY, counted=nodes)
    assert apart is not None
    assert apart.why.startswith("4 adapters x 100 GB/s")


def test_without_its_log_nccl_may_have_used_nvlink_beyond_the_node_only_where_switches_are_outside() -> None:
    own = TRAY.model_copy(update={"gpu": TRAY.gpu.model_copy(update={"nvswitch": True})})  # type: ignore[union-attr]
    found = ceiling("alltoall", nodes=2, gpus_per_node=4, profile=own)
    assert found is not None
    assert found.why.startswith("4 adapters")
    bare = TRAY.model_copy(update={"gpu": None})
    found = ceiling("alltoall", nodes=2, gpus_per_node=4, profile=bare)
    assert found is not None
    assert found.why.startswith("4 adapters")
    assert ceiling("alltoall", nodes=2, gpus_per_node=4, profile=bare, counted=1) is None


def test_the_switch_outside_of_the_node_adds_up_too() -> None:
    limit = ceiling("all_reduce", nodes=1, gpus_per_node=4, profile=TRAY)
    assert limit is not None
    assert limit.busbw == pytest.approx(18 * 53.125 * 1.5 * 1.02)


# --- outliers ---------------------------------------------------------------------------------------------


# --- baselines --------------------------------------------------------------------------------------------

WHEN = datetime(2026, 11, 21, 6, tzinfo=timezone.utc)
FROM = baseline.Provenance("prod", WHEN, "run-7", {"nccl": "2.28.9"})
KEY = baseline.Key("all_reduce", 1, 8, 4 * GIB, (("NCCL_NVLS_ENABLE", "0"),))


def test_a_baseline_is_the_median_less_mads() -> None:
    (made,), refused = baseline.record({KEY: [100.0, 110.0, 90.0, 105.0, 95.0]}, FROM, mads=2)
    assert made.busbw == 90.0  # median 100, MAD 5
    assert made.tolerance == 0
    assert made.conditions == NO_NVLS
    assert not refused
    for words in ("prod", "2026-11-21", "run-7", "median 100.00", "5 repeats", "MAD 5", "less 2 MADs"):
        assert words in made.source


def test_a_quiet_machine_keeps_a_least_drop() -> None:
    (made,), _ = baseline.record({KEY: [100.0] * 5}, FROM)
    assert made.busbw == 98.0


def test_too_few_repeats_make_no_row() -> None:
    rows, refused = baseline.record({KEY: [100.0, 101.0]}, FROM)
    assert not rows
    assert "2 repeats, at least 3 are needed" in refused[0]
    assert "no bandwidth" in baseline.record({KEY: [100.0, 0.0, 99.0]}, FROM)[1][0]


@given(st.lists(st.floats(1, 1000), min_size=3, max_size=20))
def test_a_baseline_is_below_its_median_or_refused(values: list[float]) -> None:
    rows, refused = baseline.record({KEY: values}, FROM)
    assert len(rows) + len(refused) == 1
    for made in rows:
        assert statistics.median(values) / 2 <= made.busbw + 1e-3
        assert made.busbw < statistics.median(values)
    for reason in refused:
        assert "spread too far" in reason


def test_written_baselines_are_read_back_and_judge(tmp_path: Path) -> None:
    rows, _ = baseline.record({KEY: [365.0, 366.0, 364.0]}, FROM)
    path = tmp_path / "new" / "prod.yaml"
    baseline.write(path, rows, FROM)
    assert baseline.load(path) == rows
    head = yaml.safe_load(path.read_text())["baseline"]
    assert (head["cluster"], head["run"], head["mads"], head["versions"]) == (
        "prod",
        "run-7",
        3.0,
        {"nccl": "2.28.9"},
    )
    assert list(path.parent.iterdir()) == [path]
    assert choose(baseline.load(path)) == pytest.approx(357.7)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = baseline.record({KEY: [365.0, 366.0, 364.0]}, FROM)
    path = tmp_path / "prod.yaml"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        baseline.write(path, rows, FROM)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_empty_baseline_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no baseline was written"):
        baseline.write(tmp_path / "x.yaml", (), FROM)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a baseline"),
        ("a: [", "not a baseline"),
        ("nccl: []\nbaseline: {}\n", "has no rows"),
        ("baseline: {}\nnccl: [{size: 4G, busbw: 3, source: x, sise: 1}]\n", "nccl[0].sise: Extra inputs"),
        ("baseline: {}\nnccl: [{size: 4G, source: x}]\n", "nccl[0].busbw: Field required"),
        ("baseline: {}\nnccl: [3]\n", "nccl[0]"),
    ],
)
def test_bad_baselines_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "b.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        baseline.load(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_absent_and_binary_baselines(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00\x01")
    for path, words in (("none.yaml", "cannot be read"), (".", "cannot be read"), ("b", "not a baseline")):
        with pytest.raises(ConfigError, match=words):
            baseline.load(tmp_path / path)


# --- the floor ------------------------------------------------------------------------------------------------


def above_floor(
    lowest: Floor | str, run: NcclRun | None = None, rows: tuple[BandwidthThreshold, ...] = H200
) -> Verdict:
    return bandwidth(run or run_8(), rows, nodes=1, gpus_per_node=8, env={}, floor=lambda _: lowest)


def test_without_a_row_the_largest_message_must_reach_the_floor() -> None:
    half = Floor(239.0, 478.1, "18 NVLinks x 26.562 GB/s")
    good = above_floor(half, rows=())
    assert good.outcome is Outcome.PASSED
    assert good.metrics == (
        Metric("busbw all_reduce 4 GiB alone", 365.76, "GB/s"),
        Metric(
            "bound all_reduce 4 GiB alone", 239.0, "GB/s", "floor: 18 NVLinks x 26.562 GB/s", better="neither"
        ),
    )
    bad = above_floor(Floor(366.0, 732.0, "2 links"), rows=())
    assert (bad.outcome, bad.action) == (Outcome.FAILED, Action.MONITOR)
    assert bad.findings == (
        Finding("all_reduce 4 GiB", "365.76 GB/s", "at least 366.00 GB/s (half of 732 GB/s: 2 links)"),
    )


def test_rows_go_before_the_floor() -> None:
    fits = (row(365),)
    assert above_floor(Floor(1000.0, 2000.0, "x"), rows=fits).outcome is Outcome.PASSED
    assert above_floor(Floor(1.0, 2.0, "x"), rows=(row(400),)).outcome is Outcome.FAILED


def test_without_row_and_links_nothing_is_judged() -> None:
    with pytest.raises(NoThresholdError):
        bandwidth(run_8(), H200, nodes=2, gpus_per_node=8, env={})
    verdict = above_floor("topology: cut", rows=())
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert verdict.reason.startswith("no threshold for all_reduce on 1 nodes x 8 GPUs")
    assert verdict.reason.endswith("a floor is computed from the links: topology: cut")
    empty = replace(run_8(), rows=())
    assert above_floor("x", empty, rows=()).reason == "no message was measured"
