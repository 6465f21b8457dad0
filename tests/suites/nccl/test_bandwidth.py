"""Thresholds with a source, hard limits, ceilings, floors and baselines."""

from __future__ import annotations

import os
import statistics
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from judged import figures, judged
from paths import TESTS
from pydantic import ValidationError

from pytest_gpucluster import config
from pytest_gpucluster.config.models import BandwidthThreshold, FabricProfile, GpuProfile, Profile
from pytest_gpucluster.core.check import Action, Metric, Outcome
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.kit.nccl.nccl_floor import Floor
from pytest_gpucluster.kit.nccl.nccl_rows import Half, NcclRow
from pytest_gpucluster.kit.nccl.nccl_tests import NcclRun, read
from pytest_gpucluster.suites.nccl import baseline
from pytest_gpucluster.suites.nccl.bandwidth import (
    Ceiling,
    NoThresholdError,
    bandwidth,
    ceiling,
    sizes_for,
    threshold_for,
)

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict

MIB, GIB = 2**20, 2**30
NO_NVLS = {"NCCL_NVLS_ENABLE": "0"}
RUN: dict[str, Any] = {"collective": "all_reduce", "nodes": 1, "gpus_per_node": 8}


def row(busbw: float = 365, size: int = 4 * GIB, **more: Any) -> BandwidthThreshold:
    keys = {"gpus_per_node": 8, "source": "recordings", "tolerance": 0.05, **more}
    return BandwidthThreshold(size=size, busbw=busbw, **keys)


H200 = (
    row(365, conditions=NO_NVLS),
    row(359, GIB, conditions=NO_NVLS),
    row(431, 16 * GIB, tolerance=0, source="azurehpc-health-checks conf"),
    row(191.05, nodes=4, source="DeepOps performance guide"),
)


def choose(rows: tuple[BandwidthThreshold, ...] = H200, **more: Any) -> float:
    env = more.pop("env", NO_NVLS)
    return threshold_for(rows, {**RUN, "size": 4 * GIB, **more}, env).bound


def test_the_bound_is_the_value_less_its_tolerance_of_the_row_with_more_conditions_else_the_earlier() -> None:
    assert choose() == pytest.approx(365 * 0.95)
    assert choose(size=16 * GIB, env={}) == 431
    plain, special, other = row(400), row(365, conditions=NO_NVLS), row(300)
    assert choose((plain, special, other)) == pytest.approx(365 * 0.95)
    assert choose((plain, special, other), env={}) == pytest.approx(400 * 0.95)
    assert choose((other, plain), env={}) == pytest.approx(300 * 0.95)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": 8}, "no row has more than 4 nodes, and rows are not extrapolated"),
        ({"size": 2 * GIB}, "differs in size 1 GiB"),
        ({"env": {}}, "differs in NCCL_NVLS_ENABLE=0 (is not set)"),
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
    assert sizes_for(H200, RUN, NO_NVLS) == (GIB, 4 * GIB, 16 * GIB)


# --- what is judged --------------------------------------------------------------------------------------------


def recorded() -> NcclRun:
    (run,) = read((TESTS / "data" / "nccl" / "nccl-allreduce-g8.txt").read_text()).runs
    return run


def run_of(rows: dict[int, float | None], nodes: int = 1) -> NcclRun:
    """Return a run of 8 GPUs a node; rows: {size: GB/s}."""
    found = tuple(NcclRow(size, Half(1.0, 2.0, busbw, 0), None) for size, busbw in rows.items())
    return NcclRun(collective="all_reduce", world=8 * nodes, rows=found)


def judged_by(bound: float, words: str) -> tuple[Metric, Metric]:
    """Return the recorded figure with its bound, and the bound for the picture of its run."""
    part = Part("size", 4 * GIB, of=named("run", "all_reduce alone"))
    return (
        Metric("busbw all_reduce 4 GiB alone", 365.76, "GB/s", bound=Quantity(bound, "GB/s", words)),
        Metric("busbw_bound", bound, "GB/s", part, better="neither"),
    )


def test_recorded_h200_passes_its_own_rows() -> None:
    verdict = bandwidth(recorded(), H200[:2], nodes=1, gpus_per_node=8, env=NO_NVLS)
    assert verdict.outcome is Outcome.PASSED
    words = "at least 346.75 GB/s (365 GB/s less 5%, NCCL_NVLS_ENABLE=0; source: recordings)"
    for metric in judged_by(365 * 0.95, words):
        assert metric in verdict.metrics


def test_a_bandwidth_that_was_not_measured_or_is_implausible() -> None:
    run = run_of({GIB: 400.0, 2 * GIB: 400.5, 8: None})
    rows, limit = [row(), row(300, size=GIB)], Ceiling(400.0, "links")
    verdict = bandwidth(run, rows, nodes=1, gpus_per_node=8, env={}, limit=limit)
    assert judged(verdict) == (Action.MONITOR.value, ["all_reduce 4 GiB", "all_reduce 2 GiB"])
    assert [figures(it.measured) for it in verdict.findings] == [[], [400.5]]
    assert [figures(it.expected) for it in verdict.findings] == [[346.75, 365, 5], [400]]
    assert [m.name for m in verdict.metrics] == ["busbw all_reduce 1 GiB alone", "busbw_bound"]
    two = bandwidth(run, [row(300, GIB, nodes=2)], nodes=2, gpus_per_node=8, env={})
    assert [it.name for it in two.metrics] == ["busbw all_reduce 1 GiB 2 nodes", "busbw_bound"]


@pytest.mark.parametrize(
    ("busbw", "nodes", "hard", "action", "expected"),
    [
        (299.99, 1, 300, Action.DRAIN, [346.75, 365, 5, 300]),
        (300.0, 1, 300, Action.MONITOR, [346.75, 365, 5]),
        (346.75, 1, 300, None, []),
        (1.0, 1, None, Action.MONITOR, [346.75, 365, 5]),
        (1.0, 2, 300, Action.MONITOR, [346.75, 365, 5]),  # a figure of several nodes convicts none
    ],
)
def test_below_the_hard_limit_a_node_may_be_drained_and_above_it_is_watched(
    busbw: float, nodes: int, hard: float | None, action: Action | None, expected: list[float]
) -> None:
    run, rows = run_of({4 * GIB: busbw}, nodes), [row(nodes=nodes, drain_below=hard)]
    verdict = bandwidth(run, rows, nodes=nodes, gpus_per_node=8, env={})
    assert verdict.outcome is (Outcome.FAILED if action else Outcome.PASSED)
    assert verdict.action is (action or Action.MONITOR)
    assert [figures(it.expected) for it in verdict.findings] == ([expected] if expected else [])


def test_a_hard_limit_above_what_is_accepted_is_refused() -> None:
    assert row(100, tolerance=0.1, drain_below=90).bound == pytest.approx(90)
    with pytest.raises(ValidationError, match=r"drain_below 90.1 GB/s is above what is accepted: 90 GB/s"):
        row(100, tolerance=0.1, drain_below=90.1)


def test_hard_limits_of_the_profiles_are_far_below_what_sound_nodes_reach_and_above_half_of_it() -> None:
    """H100 and H200 reach 365 GB/s without NVLink multicast (recorded); PCIe alone, and small messages, vary too much."""
    for profile in config.profile_names():
        for found in config.load_profile(profile).nccl:
            varies = found.size < GIB or profile == "azure-nc96ads-a100-v4"
            sound = min(found.busbw, 365)
            if found.nodes == 1 and not varies:
                assert 0.7 * sound < (found.drain_below or 0) < 0.85 * sound, (profile, found)
            else:
                assert found.drain_below is None, (profile, found)


# --- ceilings --------------------------------------------------------------------------------------------------


def profile(gpu: dict[str, Any] | None = None, **fabric: Any) -> Profile:
    found = None if gpu is None else GpuProfile(**{"name": "X", "count": 8, **gpu})
    return Profile(name="p", description="p", source="site", gpu=found, fabric=FabricProfile(**fabric))


IB: dict[str, Any] = {"link_layer": "InfiniBand", "hcas": 2, "rate": 50.0}
LINKS = {"nvlinks": 10, "nvlink_speed": 50.0}
SWITCHED = {**LINKS, "nvswitch": True}
# a tray of GB200 or GB300: its NVSwitches are the rack's
TRAY = profile(
    {"count": 4, "nvlinks": 18, "nvlink_speed": 53.125, "fabric_state": True}, hcas=4, rate=100.0, link_layer="Ethernet"
)


@pytest.mark.parametrize(
    ("collective", "gpu", "options", "busbw", "why"),
    [
        ("all_reduce", LINKS, {}, 500, "10 NVLinks x 50 GB/s"),
        ("all_gather", SWITCHED, {}, 500, "10 NVLinks x 50 GB/s"),
        ("all_reduce", SWITCHED, {}, 750, "10 NVLinks x 50 GB/s x 1.5 (the switch reduces)"),
        ("all_reduce", SWITCHED, {"nvls": False}, 500, "10 NVLinks x 50 GB/s"),
        ("all_reduce", {**LINKS, "fabric_state": True}, {}, 750, "10 NVLinks x 50 GB/s x 1.5 (the switch reduces)"),
    ],
)
def test_the_ceiling_within_a_node(
    collective: str, gpu: dict[str, Any], options: dict[str, Any], busbw: float, why: str
) -> None:
    near: Any = pytest.approx(busbw * 1.02)
    where: dict[str, Any] = {"nodes": 1, "gpus_per_node": 4, "profile": profile(gpu, **IB)} | options
    assert ceiling(collective, **where) == Ceiling(near, why)
    assert ceiling(collective, **where | {"gpus_per_node": 1}) is None
    for unknown in ({"nvlinks": 10}, {"nvlink_speed": 50.0}, {}, None):
        assert ceiling(collective, **where | {"profile": profile(unknown)}) is None


@pytest.mark.parametrize(
    ("collective", "share", "shown"),
    [("all_reduce", 2 * 11 / 12, "1.83"), ("all_gather", 11 / 12 * 3 / 2, "1.38"), ("alltoall", 11 / 32, "0.344")],
)
def test_the_ceiling_between_nodes(collective: str, share: float, shown: str) -> None:
    def of(nodes: int = 3, **fabric: Any) -> Ceiling | None:
        return ceiling(collective, nodes=nodes, gpus_per_node=4, profile=profile(**fabric))

    near: Any = pytest.approx(100 * share * 1.02)
    assert of(**IB) == Ceiling(near, f"2 adapters x 50 GB/s x {shown} (bytes that cross)")
    for unknown in ({"hcas"}, {"rate"}, {*IB}):
        assert of(**{key: value for key, value in IB.items() if key not in unknown}) is None
    assert of(1, **IB) is None


def of_tray(collective: str, nodes: int, tray: Profile = TRAY, counted: int = 0) -> tuple[float, str]:
    found = ceiling(collective, nodes=nodes, gpus_per_node=4, profile=tray, counted=counted)
    return (found.busbw, found.why.partition(" x ")[0]) if found else (0, "")


@pytest.mark.parametrize(
    ("collective", "nodes", "counted", "busbw"),
    [  # Oracle's documentation of BM.GPU.GB300.4: nodes of one rack, and 32 nodes of two
        ("all_reduce", 2, 1, 841.63),
        ("all_reduce", 16, 1, 930.48),
        ("all_reduce", 32, 2, 738.39),
        ("alltoall", 16, 1, 666.92),
        ("alltoall", 2, 0, 685.06),
    ],
)
def test_nvlink_beyond_the_node_is_not_limited_by_adapters(
    collective: str, nodes: int, counted: int, busbw: float
) -> None:
    limit, why = of_tray(collective, nodes, counted=counted)
    assert (busbw < limit, why) == (True, "18 NVLinks")
    # NCCL counts as many nodes as there are: the racks differ, or MNNVL is off, and adapters are the way
    assert of_tray(collective, nodes, counted=nodes)[1] == "4 adapters"


def test_without_its_log_nccl_may_have_used_nvlink_beyond_the_node_only_where_switches_are_outside() -> None:
    own = TRAY.model_copy(update={"gpu": TRAY.gpu.model_copy(update={"nvswitch": True})})  # type: ignore[union-attr]
    bare = TRAY.model_copy(update={"gpu": None})
    assert [of_tray("alltoall", 2, tray)[1] for tray in (own, bare)] == ["4 adapters"] * 2
    assert of_tray("alltoall", 2, bare, counted=1) == (0, "")


# --- the floor -------------------------------------------------------------------------------------------------


def above_floor(lowest: Floor | str, *rows: BandwidthThreshold, run: NcclRun | None = None) -> Verdict:
    return bandwidth(run or recorded(), rows, nodes=1, gpus_per_node=8, env={}, floor=lambda _: lowest)


def test_without_a_row_the_largest_message_must_reach_the_floor() -> None:
    good = above_floor(Floor(239.0, 478.1, "18 NVLinks x 26.562 GB/s"))
    assert good.outcome is Outcome.PASSED
    assert good.metrics == judged_by(239.0, "at least 239.00 GB/s (half of 478.1 GB/s: 18 NVLinks x 26.562 GB/s)")
    assert above_floor(Floor(365.76, 732.0, "at the floor")).outcome is Outcome.PASSED
    assert above_floor(Floor(1000.0, 2000.0, "rows go first"), row(365)).outcome is Outcome.PASSED
    assert above_floor(Floor(1.0, 2.0, "rows go first"), row(400)).outcome is Outcome.FAILED
    bad = above_floor(Floor(366.0, 732.0, "2 links"))
    assert judged(bad) == (Action.MONITOR.value, ["all_reduce 4 GiB"])
    assert figures(f"{bad.findings[0].measured} / {bad.findings[0].expected}") == [365.76, 366, 732, 2]


def test_without_row_and_links_nothing_is_judged() -> None:
    with pytest.raises(NoThresholdError):
        bandwidth(recorded(), H200, nodes=2, gpus_per_node=8, env={})
    verdict = above_floor("topology: cut")
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert verdict.reason.endswith("a floor is computed from the links: topology: cut")
    assert above_floor("x", run=replace(recorded(), rows=())).reason == "no message was measured"


# --- baselines -------------------------------------------------------------------------------------------------

WHEN = datetime(2026, 11, 21, 6, tzinfo=timezone.utc)
FROM = baseline.Provenance("prod", WHEN, "run-7", {"nccl": "2.28.9"})
KEY = baseline.Key("all_reduce", 1, 8, 4 * GIB, (("NCCL_NVLS_ENABLE", "0"),))
ROWS, _ = baseline.record({KEY: [365.0, 366.0, 364.0]}, FROM)


def test_a_baseline_is_the_median_less_mads_and_at_least_2_percent() -> None:
    (made,), refused = baseline.record({KEY: [100.0, 110.0, 90.0, 105.0, 95.0]}, FROM)
    assert (made.busbw, made.tolerance) == (85.0, 0)  # median 100, MAD 5
    assert made.conditions == NO_NVLS
    assert not refused
    for words in ("prod", "2026-11-21", "run-7", "median 100.00", "5 repeats", "MAD 5", "less 3 MADs"):
        assert words in made.source
    (quiet,), _ = baseline.record({KEY: [100.0] * 5}, FROM)
    assert quiet.busbw == 98.0


def test_too_few_repeats_or_none_with_a_bandwidth_make_no_row() -> None:
    for values, why in (([100.0, 101.0], "2 repeats, at least 3"), ([100.0, 0.0, 99.0], "no bandwidth")):
        rows, (refused,) = baseline.record({KEY: values}, FROM)
        assert not rows
        assert why in refused


@given(st.lists(st.floats(1, 1000), min_size=3, max_size=20))
def test_a_baseline_is_below_its_median_or_refused(values: list[float]) -> None:
    rows, refused = baseline.record({KEY: values}, FROM)
    assert len(rows) + len(refused) == 1
    for made in rows:
        assert statistics.median(values) / 2 <= made.busbw + 1e-3
        assert made.busbw < statistics.median(values)
    for reason in refused:
        assert "spread too far" in reason


def test_recorded_baselines_name_their_run_and_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stages: Any = Mock(nodes=["gpu01"], **{"runner.gpus": 1, "figures.side_effect": lambda: {KEY: [365.0]}})
    stages.unmeasured.return_value = stages
    told = baseline.record_all([stages], config.load_cluster("local"), "run-7")
    (path,) = Path().iterdir()
    assert told.startswith(f"1 thresholds written to {path}")
    head = yaml.safe_load(path.read_text())["baseline"]
    assert (head["cluster"], head["run"], head["mads"]) == ("local", "run-7", 3.0)
    assert choose(baseline.load(path)) == pytest.approx(357.7)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "prod.yaml"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        baseline.write(path, ROWS, FROM)
    with pytest.raises(ConfigError, match="no baseline was written"):
        baseline.write(path, (), FROM)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "not a baseline"),
        (b"nccl: []\nbaseline: {}\n", "has no rows"),
        (b"baseline: {}\nnccl: [{size: 4G, busbw: 3, source: x, sise: 1}]\n", "nccl[0].sise: Extra inputs"),
        (b"baseline: {}\nnccl: [{size: 4G, source: x}]\n", "nccl[0].busbw: Field required"),
        (None, "cannot be read"),
    ],
)
def test_bad_baselines_are_named(tmp_path: Path, text: bytes | None, words: str) -> None:
    path = tmp_path / "b.yaml"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ConfigError) as error:
        baseline.load(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
