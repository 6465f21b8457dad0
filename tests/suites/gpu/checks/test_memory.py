from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import (
    MONITOR,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
    VENDOR,
    WARNING,
    CounterExample,
    assert_as_expected,
    name,
)
from gpu_helpers import PROFILE, Host, devices, example, failing, gpus, judge, put, remap
from judged import figures, judged

from pytest_gpucluster.config.models import GpuProfile
from pytest_gpucluster.core.check import Action, Outcome
from pytest_gpucluster.kit.gpu import nvidia_smi
from pytest_gpucluster.kit.gpu.nvidia_csv import NOT_REPORTED
from pytest_gpucluster.suites.gpu.checks import memory as checks

if TYPE_CHECKING:
    from collections.abc import Callable


def test_gpu_7_of_the_recording_is_within_limits_and_measured() -> None:
    verdicts = judge(Host())
    aggregate = {(m.name, m.device[:5]): m.value for m in verdicts["gpu.ecc_aggregate"].metrics}
    assert aggregate["ecc_aggregate_sram_uncorrected", "GPU 7"] == 1
    rows = {(m.name, m.device[:5]): m.value for m in verdicts["gpu.remapped_rows"].metrics}
    assert rows["remapped_rows_correctable", "GPU 7"] == 1
    strict = PROFILE.model_copy(update={"max_aggregate_sram_uncorrectable": 0})
    assert "max_aggregate_sram_uncorrectable" in strict.model_fields_set
    assert failing(Host(), strict) == ["gpu.ecc_aggregate"]  # a site that says 0 means 0


def test_a_broken_gpu_accuses_no_other_of_its_retired_pages() -> None:
    host = Host()
    for index in range(8):
        text = "[Unknown Error]" if index == 3 else "[N/A]"
        host.change(index, retired_pending=None, unread={"retired_pending": text})
    (finding,) = judge(host)["gpu.retired_pages"].findings
    assert finding.part.startswith("GPU 3 ")


def test_row_remapping_for_root_alone_is_not_checked() -> None:
    host = Host()
    denied = {"failure": "[Insufficient Permissions]", "pending": "[Insufficient Permissions]"}
    remap(host, failure=None, pending=None, unread=denied)
    verdicts = judge(host)
    assert failing(host) == []
    for check in ("gpu.remapped_rows", "gpu.remapped_pending"):
        assert verdicts[check].outcome is Outcome.NOT_CHECKED
        assert "to root alone" in verdicts[check].reason


@pytest.mark.parametrize("name", ["failure", "uncorrectable", "pending"])
def test_one_value_of_row_remapping_that_cannot_be_read(name: str) -> None:
    for said, expected in (("[N/A]", (NOT_CHECKED, [])), ("[Unknown Error]", (MONITOR, ["GPU 3"]))):
        host = Host()
        remap(host, **{name: None}, unread={name: said})
        verdict = judge(host)["gpu.remapped_pending" if name == "pending" else "gpu.remapped_rows"]
        outcome, parts = judged(verdict)
        assert (outcome, [part[:5] for part in parts]) == expected
        assert said in (verdict.reason or verdict.findings[0].measured)


def test_many_remapped_rows_are_watched_also_where_the_site_states_a_limit() -> None:
    host = Host()
    remap(host, uncorrectable=8)
    assert failing(host) == []
    remap(host, uncorrectable=9)
    (warning,) = judge(host)["gpu.remapped_rows"].advisories
    assert warning.measured == "9 rows remapped for uncorrectable errors"
    assert warning.expected == "at most 8"
    stated = GpuProfile(**PROFILE.model_dump(exclude_unset=True), max_remapped_uncorrectable=8)
    assert judge(host, stated)["gpu.remapped_rows"].action is Action.MONITOR
    remap(host, uncorrectable=0, failure=True)
    assert judge(host)["gpu.remapped_rows"].action is Action.VENDOR


@pytest.mark.parametrize(("single", "double"), [(60, 3), (None, 63), (63, None)])
def test_a_full_table_of_retired_pages_is_for_the_vendor(single: int | None, double: int | None) -> None:
    host = Host()
    host.change(
        3, retired_pending=False, retired_single=single, retired_double=double, unread={"retired_pending": ""}
    )
    verdict = judge(host)["gpu.retired_pages"]
    assert judged(verdict) == (VENDOR, [str(host.gpus.devices[3])])
    assert figures(verdict.findings[0].measured + verdict.findings[0].expected) == [63, 63]
    host.change(3, retired_pending=True)
    both = judge(host)["gpu.retired_pages"].findings
    assert [it.action for it in both] == [Action.VENDOR, Action.RESET_GPU]


@pytest.mark.parametrize(
    ("sram", "said", "total", "limit", "expected"),
    [
        (0, "[N/A]", 0, None, PASSED),
        (1, "[N/A]", 9, 1, PASSED),
        (2, "[N/A]", 9, 1, MONITOR),
        (None, "[Unknown Error]", 9, 1, MONITOR),
        (None, "[N/A]", 1, 1, PASSED),
        (None, "[N/A]", 2, 1, NOT_CHECKED),
    ],
)
def test_errors_of_sram_where_the_driver_knows_no_threshold(
    sram: int | None, said: str, total: int, limit: int | None, expected: str
) -> None:
    counted: dict[str, Any] = {"ecc_aggregate_sram": sram, "ecc_aggregate_uncorrected": total}
    unread = {"ecc_aggregate_sram": said}
    one = replace(devices().devices[0], **counted, sram_threshold_exceeded=None, unread=unread)
    stated = {} if limit is None else {"max_aggregate_sram_uncorrectable": limit}
    verdict = checks.ecc_aggregate(nvidia_smi.Gpus((one,)), PROFILE.model_copy(update=stated))
    assert judged(verdict) == (expected, [str(one)] if expected == MONITOR else [])


def test_a_threshold_for_root_alone_is_not_checked() -> None:
    host = Host()
    hidden = {"sram_threshold_exceeded": "[Insufficient Permissions]"}
    host.change(0, sram_threshold_exceeded=None, ecc_aggregate_sram=99, unread=hidden)
    verdict = judge(host)["gpu.ecc_aggregate"]
    assert (verdict.outcome, verdict.reason) == (
        Outcome.NOT_CHECKED,
        f"SRAM threshold of {host.gpus.devices[0]}: nvidia-smi shows it to root alone",
    )
    stated = PROFILE.model_copy(update={"max_aggregate_sram_uncorrectable": 5})
    assert judge(host, stated)["gpu.ecc_aggregate"].outcome is Outcome.FAILED


def test_remapped_rows_without_a_count_of_corrected_ones() -> None:
    host = Host()
    remap(host, correctable=None)
    names = [
        it.name for it in judge(host)["gpu.remapped_rows"].metrics if it.device == str(host.gpus.devices[3])
    ]
    assert names == ["remapped_rows_uncorrectable"]


RMA = "NVIDIA GPU Memory Error Management, RMA Policy"
NO_ROWS = nvidia_smi.RowRemapping(None, None, None, None, dict.fromkeys(nvidia_smi.ROWS, "[N/A]"))
NO_ECC = {"ecc_volatile_uncorrected": "[N/A]", "ecc_volatile_corrected": "[N/A]"}


def rows(**values: Any) -> Callable[[Host], None]:
    return lambda host: remap(host, **values)


def pages(single: int, double: int = 0, *, pending: bool = False) -> Callable[[Host], None]:
    return gpus(
        retired_single=single, retired_double=double, retired_pending=pending, unread={"retired_pending": ""}
    )


COUNTER_EXAMPLES = [
    example("gpu.ecc_volatile", "40,000 corrected errors since boot", f"{RMA}: corrected errors are no criterion", PASSED,
            gpus(2, ecc_volatile_corrected=40_000)),
    example("gpu.ecc_volatile", "RTX 4090 without ECC", "healthy-geforce-4090-ecc-off-as-delivered", NOT_APPLICABLE,
            gpus(ecc=False, ecc_volatile_uncorrected=None, ecc_volatile_corrected=None, unread=NO_ECC), ecc=False),
    example("gpu.ecc_volatile", "guest that sees no counters", "nvidia-smi: [N/A]", NOT_APPLICABLE,
            gpus(ecc_volatile_uncorrected=None, ecc_volatile_corrected=None, unread=NO_ECC)),
    example("gpu.ecc_volatile", "uncorrectable errors of former years, none since the reset", RMA, PASSED,
            gpus(2, ecc_aggregate_uncorrected=7, ecc_volatile_uncorrected=0)),
    example("gpu.ecc_volatile", "one uncorrectable error since boot", "DCGM_FR_VOLATILE_DBE_DETECTED", "reset gpu",
            gpus(2, ecc_volatile_uncorrected=1), sick=True),
    example("gpu.ecc_aggregate", "nine uncorrectable errors of DRAM, repaired by remapping", RMA, PASSED,
            gpus(2, ecc_aggregate_uncorrected=9, ecc_aggregate_sram=0)),
    example("gpu.ecc_aggregate", "two SRAM errors in three years, below the GPU's threshold", f"{RMA}: SRAM", PASSED,
            gpus(2, ecc_aggregate_sram=2, sram_threshold_exceeded=False)),
    example("gpu.ecc_aggregate", "driver 535, SRAM not counted apart", "nvidia-smi 535 --help-query-gpu", NOT_CHECKED,
            gpus(ecc_aggregate_sram=None, sram_threshold_exceeded=None, ecc_aggregate_uncorrected=4,
                 unread={"ecc_aggregate_sram": NOT_REPORTED, "sram_threshold_exceeded": NOT_REPORTED})),
    example("gpu.ecc_aggregate", "driver 550, one SRAM error, no threshold", "azurehpc-health-checks: 0", MONITOR,
            gpus(2, ecc_aggregate_sram=1), gpus(sram_threshold_exceeded=None, unread={"sram_threshold_exceeded": NOT_REPORTED})),
    example("gpu.ecc_aggregate", "the GPU reports that its SRAM exceeded the threshold", "DCGM_FR_SRAM_THRESHOLD", VENDOR,
            gpus(2, ecc_aggregate_sram=9, sram_threshold_exceeded=True), sick=True),
    example("gpu.remapped_rows", "GH200 with one remapped row", "healthy-gh200-one-pcie-lane-one-remapped-row", PASSED,
            rows(uncorrectable=1)),
    example("gpu.remapped_rows", "A100 with 12 rows remapped in three years", f"{RMA}: only a failed remapping", WARNING,
            rows(uncorrectable=12)),
    example("gpu.remapped_rows", "100 rows remapped for corrected errors", RMA, PASSED, rows(correctable=100)),
    example("gpu.remapped_rows", "V100 and guests have no remapping", "nvidia-smi: [N/A]", NOT_APPLICABLE,
            put(rows=lambda host: dict.fromkeys(host.rows, NO_ROWS))),
    example("gpu.remapped_rows", "a remapping failed", f"{RMA}: return", VENDOR, rows(failure=True), sick=True),
    example("gpu.remapped_pending", "rows remapped, nothing pending", RMA, PASSED, rows(uncorrectable=3, correctable=2)),
    example("gpu.remapped_pending", "V100 and guests have no remapping", "nvidia-smi: [N/A]", NOT_APPLICABLE,
            put(rows=lambda host: dict.fromkeys(host.rows, NO_ROWS))),
    example("gpu.remapped_pending", "a user without the permission", "nvmlErrorString", NOT_CHECKED,
            put(rows=lambda host: dict.fromkeys(host.rows, replace(
                NO_ROWS, unread=dict.fromkeys(nvidia_smi.ROWS, "[Insufficient Permissions]"))))),
    example("gpu.remapped_pending", "A100 after Xid 63", "sick-a100-row-remapping-pending; DCGM_FR_PENDING_ROW_REMAP: reset",
            "reset gpu", rows(pending=True), sick=True),
    example("gpu.retired_pages", "H200: the driver has no retired pages", "nvidia-smi: [N/A]", NOT_APPLICABLE),
    example("gpu.retired_pages", "V100 with 14 pages retired long ago", "NVIDIA Dynamic Page Retirement", PASSED, pages(12, 2)),
    example("gpu.retired_pages", "V100 with 62 of 64 pages", "DcgmGPUHardwareLimits.h: 63", PASSED, pages(60, 2)),
    example("gpu.retired_pages", "V100 with a full table", "sick-v100-full-table-of-retired-pages", VENDOR, pages(60, 3), sick=True),
    example("gpu.retired_pages", "P100 with a page that waits", "DCGM_FR_PENDING_PAGE_RETIREMENTS: reset", "reset gpu",
            pages(1, pending=True), sick=True),
]  # fmt: skip


@pytest.mark.parametrize("machine", COUNTER_EXAMPLES, ids=name)
def test_machines_get_the_verdict_that_a_person_gives_them(machine: CounterExample) -> None:
    assert_as_expected(machine)
