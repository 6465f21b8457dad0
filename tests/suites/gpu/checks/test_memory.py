"""Memory errors of GPUs and their repair."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from gpu_helpers import (
    Host,
    changed,
    considered_hosts,
    examples,
    failing,
    gpus,
    judge,
    listed,
    put,
    remap,
    said,
    states,
    unread,
    verdict,
)
from judged import figures

from pytest_gpucluster.core.check import Action
from pytest_gpucluster.kit.gpu import nvidia_smi
from pytest_gpucluster.kit.gpu.nvidia_csv import NOT_REPORTED

if TYPE_CHECKING:
    from collections.abc import Callable

DENIED = "[Insufficient Permissions]"


def test_a_broken_gpu_accuses_no_other_of_its_retired_pages() -> None:
    broken = (unread("retired_pending", "[N/A]"), unread("retired_pending", "[Unknown Error]", 3))
    assert said("gpu.retired_pages", *broken) == "monitor: GPU 3"


def test_row_remapping_for_root_alone_is_not_checked() -> None:
    host = changed(remap(failure=None, pending=None, unread={"failure": DENIED, "pending": DENIED}))
    assert failing(host) == []
    for check in ("gpu.remapped_rows", "gpu.remapped_pending"):
        assert "to root alone" in judge(host, check)[check].reason


@pytest.mark.parametrize("value", ["failure", "uncorrectable", "pending"])
def test_one_value_of_row_remapping_that_cannot_be_read(value: str) -> None:
    check = "gpu.remapped_pending" if value == "pending" else "gpu.remapped_rows"
    for shown, end in (("[N/A]", "not checked"), ("[Unknown Error]", "monitor: GPU 3")):
        change = remap(**{value: None}, unread={value: shown})
        assert said(check, change) == end
        found = verdict(check, change)
        assert shown in (found.reason or str(found.findings[0].measured))


def test_many_remapped_rows_are_a_warning() -> None:
    for rows, end in ((8, "passed"), (9, "warning: GPU 3")):
        assert said("gpu.remapped_rows", remap(uncorrectable=rows)) == end
    (warning,) = verdict("gpu.remapped_rows", remap(uncorrectable=9)).advisories
    assert figures(f"{warning.measured} {warning.expected}") == [9, 8]


@pytest.mark.parametrize(("single", "double"), [(60, 3), (None, 63), (63, None)])
def test_a_full_table_of_retired_pages_is_for_the_vendor(single: int | None, double: int | None) -> None:
    for pending, more in ((False, []), (True, [Action.RESET_GPU])):
        full = gpus(3, retired_single=single, retired_double=double, retired_pending=pending)
        found = verdict("gpu.retired_pages", full).findings
        assert [it.action or Action.RESET_GPU for it in found] == [Action.VENDOR, *more]
        assert figures(f"{found[0].measured} {found[0].expected}") == [63, 63]


@pytest.mark.parametrize(
    ("sram", "shown", "total", "end"),
    [
        (0, "[N/A]", 9, "passed"),
        (1, "[N/A]", 9, "monitor: GPU 0"),
        (None, "[Unknown Error]", 9, "monitor: GPU 0"),
        (None, "[N/A]", 0, "passed"),
        (None, "[N/A]", 1, "not checked"),
    ],
)
def test_sram_errors_without_a_driver_threshold(sram: int | None, shown: str, total: int, end: str) -> None:
    alone = (listed(1), unread("ecc_aggregate_sram", shown, 0))
    counted = gpus(ecc_aggregate_sram=sram, ecc_aggregate_uncorrected=total, sram_threshold_exceeded=None)
    assert said("gpu.ecc_aggregate", *alone, counted) == end


def test_a_threshold_for_root_alone_is_not_checked() -> None:
    hidden = (unread("sram_threshold_exceeded", DENIED, 0), gpus(0, ecc_aggregate_sram=99))
    assert said("gpu.ecc_aggregate", *hidden) == "not checked"
    assert "to root alone" in verdict("gpu.ecc_aggregate", *hidden).reason


RMA = "NVIDIA GPU Memory Error Management, RMA Policy"
NO_ROWS = nvidia_smi.RowRemapping(None, None, None, None, dict.fromkeys(nvidia_smi.ROWS, "[N/A]"))
NO_REMAPPING = put(rows=lambda host: dict.fromkeys(host.rows, NO_ROWS))
HIDDEN = replace(NO_ROWS, unread=dict.fromkeys(nvidia_smi.ROWS, DENIED))
FOR_ROOT = put(rows=lambda host: dict.fromkeys(host.rows, HIDDEN))
NO_ECC = (unread("ecc_volatile_uncorrected", "[N/A]"), unread("ecc_volatile_corrected", "[N/A]"))
NOT_APART = (unread("ecc_aggregate_sram", NOT_REPORTED), unread("sram_threshold_exceeded", NOT_REPORTED))
NO_THRESHOLD = unread("sram_threshold_exceeded", NOT_REPORTED)
EXCEEDED = gpus(2, ecc_aggregate_sram=9, sram_threshold_exceeded=True)


def pages(single: int, double: int = 0, *, pending: bool = False) -> Callable[[Host], None]:
    return gpus(3, retired_single=single, retired_double=double, retired_pending=pending)


COUNTER_EXAMPLES = [
    *examples(
        "gpu.ecc_volatile",
        ("passed", "40,000 corrected errors since boot", RMA, gpus(2, ecc_volatile_corrected=40_000)),
        ("not applicable", "RTX 4090 without ECC", "default", gpus(ecc=False), *NO_ECC, states(ecc=False)),
        ("not applicable", "guest that sees no counters", "nvidia-smi: [N/A]", *NO_ECC),
        ("passed", "uncorrectable errors of former years", RMA, gpus(2, ecc_aggregate_uncorrected=7)),
        ("reset gpu", "one since boot", "DCGM_FR_VOLATILE_DBE_DETECTED", gpus(2, ecc_volatile_uncorrected=1)),
    ),
    *examples(
        "gpu.ecc_aggregate",
        ("passed", "nine errors of DRAM, repaired by remapping", RMA, gpus(2, ecc_aggregate_uncorrected=9)),
        ("passed", "two SRAM errors, below the GPU's threshold", RMA, gpus(2, ecc_aggregate_sram=2)),
        ("not checked", "driver 535", "SRAM is not apart", *NOT_APART, gpus(ecc_aggregate_uncorrected=4)),
        ("monitor", "driver 550, one error", "azurehpc: 0", gpus(2, ecc_aggregate_sram=1), NO_THRESHOLD),
        ("return to vendor", "the GPU reports it", "DCGM_FR_SRAM_THRESHOLD", EXCEEDED),
    ),
    *examples(
        "gpu.remapped_rows",
        ("passed", "GH200 with one remapped row", "healthy-gh200-one-pcie-lane", remap(uncorrectable=1)),
        ("warning", "A100 with 12 rows remapped in three years", RMA, remap(uncorrectable=12)),
        ("passed", "100 rows remapped for corrected errors", RMA, remap(correctable=100)),
        ("not applicable", "V100 and guests have no remapping", "nvidia-smi: [N/A]", NO_REMAPPING),
        ("return to vendor", "a remapping failed", RMA, remap(failure=True, uncorrectable=0)),
    ),
    *examples(
        "gpu.remapped_pending",
        ("passed", "rows remapped, nothing pending", RMA, remap(uncorrectable=3, correctable=2)),
        ("not applicable", "V100 and guests have no remapping", "nvidia-smi: [N/A]", NO_REMAPPING),
        ("not checked", "a user without the permission", "nvmlErrorString", FOR_ROOT),
        ("reset gpu", "A100 after Xid 63", "DCGM_FR_PENDING_ROW_REMAP", remap(pending=True)),
    ),
    *examples(
        "gpu.retired_pages",
        ("not applicable", "H200: the driver has no retired pages", "nvidia-smi: [N/A]"),
        ("passed", "V100 with 14 pages", "NVIDIA Dynamic Page Retirement", pages(12, 2)),
        ("passed", "V100 with 62 of 64 pages", "DcgmGPUHardwareLimits.h: 63", pages(60, 2)),
        ("return to vendor", "V100 with a full table", "sick-v100-full-table-of-retired-pages", pages(60, 3)),
        ("reset gpu", "P100: a page waits", "DCGM_FR_PENDING_PAGE_RETIREMENTS", pages(1, pending=True)),
    ),
]
test_machines_get_the_verdict_that_a_person_gives_them = considered_hosts(COUNTER_EXAMPLES)
