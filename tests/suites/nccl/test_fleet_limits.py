"""Hard limits of NCCL: what may drain a node, and what only says that something is slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from judged import figures
from pydantic import ValidationError

from pytest_gpucluster import config
from pytest_gpucluster.config.models import BandwidthThreshold
from pytest_gpucluster.core.check import Action, Outcome
from pytest_gpucluster.core.units import parse_size
from pytest_gpucluster.kit.nccl import nccl_log
from pytest_gpucluster.kit.nccl.measurement import Localisation, Measurement
from pytest_gpucluster.kit.nccl.nccl_rows import Half, NcclRow
from pytest_gpucluster.kit.nccl.nccl_tests import NcclRun
from pytest_gpucluster.suites.nccl import fleet as nccl_fleet
from pytest_gpucluster.suites.nccl.bandwidth import bandwidth

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict

GIB = 2**30


def run(busbw: float, size: int = 4 * GIB, world: int = 8) -> NcclRun:
    half = Half(1.0, 1.0, busbw, 0)
    return NcclRun(
        collective="all_reduce", world=world, rows=(NcclRow(size, size // 4, "float", "sum", -1, half, None),)
    )


def row(**more: Any) -> BandwidthThreshold:
    keys = {"gpus_per_node": 8, "size": 4 * GIB, "busbw": 365, "drain_below": 300, "source": "site", **more}
    return BandwidthThreshold(**keys)


def judged(busbw: float, nodes: int = 1, **more: Any) -> Verdict:
    rows = [row(nodes=nodes, **more)]
    return bandwidth(run(busbw, world=8 * nodes), rows, nodes=nodes, gpus_per_node=8, env={})


@pytest.mark.parametrize(
    ("busbw", "action"),
    [(299.99, Action.DRAIN), (300.0, Action.MONITOR), (346.7, Action.MONITOR), (346.75, None)],
)
def test_below_the_hard_limit_a_node_may_be_drained_and_above_it_is_watched(
    busbw: float, action: Action | None
) -> None:
    verdict = judged(busbw)
    assert (verdict.outcome is Outcome.FAILED, verdict.action) == (
        action is not None,
        action or Action.MONITOR,
    )


def test_a_figure_below_the_hard_limit_names_it() -> None:
    assert figures(judged(200.0).findings[0].expected) == [346.75, 365, 5, 300]
    assert figures(judged(320.0).findings[0].expected) == [346.75, 365, 5]


def test_without_a_hard_limit_and_of_several_nodes_no_figure_drains() -> None:
    for verdict in (judged(1.0, drain_below=None), judged(1.0, nodes=2)):
        assert (verdict.outcome, verdict.action) == (Outcome.FAILED, Action.MONITOR)
        assert figures(verdict.findings[0].expected) == [346.75, 365, 5]


def test_a_hard_limit_above_what_is_accepted_is_refused() -> None:
    assert row(busbw=100, tolerance=0.1, drain_below=90).bound == pytest.approx(90)
    with pytest.raises(ValidationError, match=r"drain_below 90.1 GB/s is above what is accepted: 90 GB/s"):
        row(busbw=100, tolerance=0.1, drain_below=90.1)


# Half of each figure, or what one lost link leaves, must be below; the least that sound nodes reach must be above.
# A100, V100, NC: the minimum of azurehpc-health-checks. H100, H200: without NVLink multicast, 365 GB/s (recorded)
@pytest.mark.parametrize(
    ("profile", "gpus", "size", "hard", "sound"),
    [
        ("h200-8", 8, "16G", 300, 365), ("azure-nd96isr-h200-v5", 8, "16G", 300, 365),
        ("h200-8-nonvls", 8, "1G", 290, 359), ("h200-8-nonvls", 8, "4G", 300, 365),
        ("h200-vm", 8, "1G", 290, 359), ("h200-vm", 8, "4G", 300, 365), ("h200-vm", 4, "4G", 290, 363),
        ("h200-vm", 2, "1G", 260, 327), ("h200-vm", 2, "4G", 275, 345),
        ("dgx-h100", 8, "16G", 300, 365), ("azure-nd96isr-h100-v5", 8, "16G", 300, 365),
        ("dgx-a100", 8, "8G", 180, 228), ("dgx-a100", 8, "16G", 180, 228), ("azure-nd96asr-v4", 8, "8G", 180, 228),
        ("azure-nd96asr-v4", 8, "16G", 180, 228), ("azure-nd96amsr-a100-v4", 8, "8G", 180, 228),
        ("dgx-1-v100", 8, "8G", 80, 110), ("azure-nd40rs-v2", 8, "8G", 80, 110),
        ("azure-nc48ads-a100-v4", 2, "16G", 145, 193), ("azure-nc80adis-h100-v5", 2, "16G", 155, 208),
    ],
)  # fmt: skip
def test_hard_limits_of_the_profiles(profile: str, gpus: int, size: str, hard: float, sound: float) -> None:
    rows = config.load_profile(profile).nccl
    (found,) = [it for it in rows if (it.nodes, it.gpus_per_node, it.size) == (1, gpus, parse_size(size))]
    assert found.drain_below == hard
    assert 0.7 * sound < hard < 0.85 * sound


def test_no_other_row_of_a_profile_has_a_hard_limit() -> None:
    bare = {
        (name, it.nodes, it.size // 2**20)
        for name in config.profile_names()
        for it in config.load_profile(name).nccl
        if it.drain_below is None and it.nodes == 1 and name != "sandbox-h200"
    }
    small = {(name, 1, size) for name in ("h200-8-nonvls", "h200-vm") for size in (64, 256)}
    assert bare == small | {("azure-nc96ads-a100-v4", 1, 8192)}, (
        "PCIe alone, and small messages, vary too much"
    )


# --- pairs


def pair(one: str, other: str, busbw: float | None, problem: str = "") -> Measurement:
    return Measurement((one, other), busbw, problem)


ALL = [pair("a", "b", 40.0), pair("c", "d", 90.0), pair("a", "c", 41.0), pair("b", "d", 91.0)]
BAD = Localisation(bad_nodes=("a",), why={"a": "bad with b, c"}, evidence=("a with b: slow",))


def of(
    node: str, measured: list[Measurement], hard: float | None, found: Localisation | None = None
) -> Verdict:
    return nccl_fleet.pairs(node, found or Localisation(), measured, 2**28, hard)


def test_a_node_that_is_named_but_above_the_hard_limit_is_watched() -> None:
    slow = [pair("a", "b", 70.0), pair("a", "c", 72.0)]
    assert of("a", slow, 71.0, BAD).action is Action.MONITOR
    assert of("a", slow, 71.1, BAD).action is Action.DRAIN
    assert of("a", slow, None, BAD).action is Action.DRAIN, "two sound partners convict it"
    assert of("a", [*slow, pair("a", "d", 99.0, "wrong data")], 71.0, BAD).action is Action.DRAIN
    assert of("a", [*slow, pair("a", "d", None, "hung")], 71.0, BAD).action is Action.DRAIN


# --- outliers and halves of the fleet


def test_a_fleet_in_halves_names_both_and_drains_nobody() -> None:
    values = {"gpu01": 470.0, "gpu02": 471.0, "gpu03": 365.0, "gpu04": 366.0}
    verdict = nccl_fleet.outlier("gpu03", values, "all_reduce alone")
    assert (verdict.outcome, verdict.action) == (Outcome.FAILED, Action.MONITOR)
    assert figures(verdict.findings[0].measured) == [365]
    assert verdict.findings[0].expected.endswith("gpu[01-02] about 470.50 GB/s, gpu[03-04] about 365.50 GB/s")
    assert nccl_fleet.outlier("gpu01", values, "x").outcome is Outcome.PASSED


# --- links


# --- settings


@pytest.mark.parametrize(
    ("name", "slows"),
    [
        ("NCCL_PROTO", True), ("NCCL_ALGO", True), ("NCCL_P2P_DISABLE", True), ("NCCL_NVLS_ENABLE", True),
        ("NCCL_MAX_NCHANNELS", True), ("NCCL_BUFFSIZE", True), ("NCCL_IB_HCA", False), ("NCCL_SOCKET_IFNAME", False),
        ("NCCL_NET_PLUGIN", False), ("NCCL_COLLNET_ENABLE", False), ("NCCL_CROSS_NIC", False),
        ("NCCL_PXN_DISABLE", False), ("NCCL_OOB_NET_IFNAME", False), ("NCCL_TOPO_FILE", False), ("NCCL_HOSTID", False),
        ("NCCL_ASYNC_ERROR_HANDLING", False), ("NCCL_IGNORE_CPU_AFFINITY", False), ("NCCL_CONF_FILE", False),
        ("NCCL_COMM_ID", False),
        ("NCCL_RAS_ENABLE", False), ("NCCL_DEBUG", False),
    ],
)  # fmt: skip
def test_settings_that_may_slow_the_gpus_of_one_node(name: str, slows: bool) -> None:  # a column
    log = nccl_log.read(f"gpu01:1:1 [0] NCCL INFO {name} set by environment to 1.\n")
    assert log.slowing == (frozenset({f"{name}=1"}) if slows else frozenset())
