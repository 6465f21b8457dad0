"""Memory errors of GPUs and their repair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Judgement, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.kit.gpu.nvidia_csv import is_unsaid, is_unsupported
from pytest_gpucluster.kit.gpu.nvidia_smi import ROWS
from pytest_gpucluster.suites.gpu.readings import of_present_gpus, root_only, states, unread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucluster.config.models import GpuProfile
    from pytest_gpucluster.kit.gpu.nvidia_smi import Gpu, Gpus, RowRemapping

# the table of retired pages holds 64; DCGM fails at 63 (DcgmGPUHardwareLimits.h, DCGM_LIMIT_MAX_RETIRED_PAGES)
MANY_ROWS = 8  # remapped for uncorrectable errors
RETIRED_PAGES = 63


@check(
    "gpu.ecc_volatile",
    show="nvidia-smi -q -d ECC -i INDEX",
    cause="uncorrectable memory errors since the driver was loaded",
    hint="nvidia-smi -q -d ECC,ROW_REMAPPER -i INDEX; reset the GPU; return it if they come back",
    action=Action.RESET_GPU,
    never_healthy="ECC counts an uncorrectable error only where data of this GPU were lost, and the reset that repairs it clears the "
    "count",
)
@of_present_gpus
def ecc_volatile(gpus: Gpus, gpu_profile: GpuProfile) -> Judgement:
    """There is no uncorrectable ECC error since the driver was loaded; corrected ones are measured."""
    _require_ecc(gpu_profile)
    for gpu in gpus:
        if gpu.ecc_volatile_corrected is not None:
            yield Metric("ecc_volatile_corrected", gpu.ecc_volatile_corrected, "errors", gpu.part)
        if gpu.ecc_volatile_uncorrected is None:
            yield unread(gpus, gpu, "ecc_volatile_uncorrected", "0", stated=states(gpu_profile, "ecc"))
            continue
        yield Metric("ecc_volatile_uncorrected", gpu.ecc_volatile_uncorrected, "errors", gpu.part)
        if gpu.ecc_volatile_uncorrected:
            found = Quantity(gpu.ecc_volatile_uncorrected, "uncorrectable")
            yield Finding(gpu.part, found, Quantity(0, "uncorrectable", "0"), code="uncorrectable_errors")


@check(
    "gpu.ecc_aggregate",
    show="nvidia-smi -q -d ECC -i INDEX",
    cause="the GPU's on-chip memory has more errors than its life allows",
    hint="nvidia-smi -q -d ECC -i INDEX (SRAM Threshold Exceeded); return the GPU",
    action=Action.MONITOR,
    never_healthy="the GPU itself reports that its SRAM exceeded the threshold up to which NVIDIA keeps a GPU in service",
)
@of_present_gpus
def ecc_aggregate(gpus: Gpus, gpu_profile: GpuProfile) -> Judgement:
    """Uncorrectable SRAM errors over the GPU's life stay within limits.

    If the driver reports the GPU's own threshold (580 and later), that decides; else there must be none, as in
    azurehpc-health-checks. gpu.remapped_rows judges errors of DRAM.
    """
    _require_ecc(gpu_profile)
    for gpu in gpus:
        if gpu.ecc_aggregate_uncorrected is not None:
            yield Metric("ecc_aggregate_uncorrected", gpu.ecc_aggregate_uncorrected, "errors", gpu.part)
        yield from _sram(gpus, gpu)


def _require_ecc(profile: GpuProfile) -> None:
    if not profile.ecc:
        raise NotApplicable("the profile has no ECC")


def _sram(gpus: Gpus, gpu: Gpu) -> Judgement:
    if gpu.ecc_aggregate_sram is not None:
        yield Metric("ecc_aggregate_sram_uncorrected", gpu.ecc_aggregate_sram, "errors", gpu.part)
    if gpu.sram_threshold_exceeded:
        measured = f"SRAM threshold exceeded ({gpu.ecc_aggregate_sram} uncorrectable)"
        yield Finding(gpu.part, measured, "not exceeded", Action.VENDOR, code="threshold_exceeded")
    elif root_only(gpu.unread.get("sram_threshold_exceeded", "")):
        yield NotAvailable(f"SRAM threshold of {gpu}: nvidia-smi shows it to root alone")
    elif gpu.sram_threshold_exceeded is None:
        # if the driver does not count SRAM separately, the total is its upper bound
        found, total = gpu.ecc_aggregate_sram, gpu.ecc_aggregate_uncorrected
        if found is None and gpu.lacks("ecc_aggregate_sram") and total is not None:
            if total:
                errors = f"{total} uncorrectable errors of SRAM and DRAM together"
                yield NotAvailable(f"{gpu}: {errors}; this driver does not count SRAM separately")
        elif found is None:
            yield unread(gpus, gpu, "ecc_aggregate_sram", "no uncorrectable error in SRAM", stated=False)
        elif found:
            errors_in_sram = Quantity(found, "uncorrectable in SRAM")
            none = Quantity(0, "uncorrectable in SRAM", "none")
            yield Finding(gpu.part, errors_in_sram, none, code="uncorrectable_in_sram")


@check(
    "gpu.remapped_rows",
    show="nvidia-smi -q -d ROW_REMAPPER -i INDEX",
    cause="the GPU's memory has run out of spare rows, or a remapping failed",
    hint="nvidia-smi -q -d ROW_REMAPPER -i INDEX; return the GPU",
    action=Action.MONITOR,
    never_healthy="a remapping fails only in a GPU without spare rows for its bad memory, which is NVIDIA's condition for a "
    "return",
)
@of_present_gpus
def remapped_rows(gpus: Gpus, rows: Mapping[str, RowRemapping], gpu_profile: GpuProfile) -> Judgement:
    """No row remapping failed, and more than 8 rows remapped for uncorrectable errors are a warning."""
    return _judge_rows(gpus, rows, gpu_profile, _remapped)


def _remapped(gpu: Gpu, row: RowRemapping, profile: GpuProfile) -> Judgement:
    if row.correctable is not None:
        yield Metric("remapped_rows_correctable", row.correctable, "rows", gpu.part)
    if row.failure is None:
        yield _row_unread(gpu, row, "failure", "no failure")
    elif row.failure:
        yield Finding(gpu.part, "a row remapping failed", "no failure", Action.VENDOR, code="failed")
    if row.uncorrectable is None:
        yield _row_unread(gpu, row, "uncorrectable", f"at most {MANY_ROWS} rows")
        return
    yield Metric("remapped_rows_uncorrectable", row.uncorrectable, "rows", gpu.part)
    if row.uncorrectable > MANY_ROWS:
        # a remapped row is repaired; only a failed remapping is a reason to return a GPU (NVIDIA's RMA policy)
        found = Quantity(row.uncorrectable, "rows", f"{row.uncorrectable} rows remapped for uncorrectable errors")
        yield Advisory(gpu.part, found, Quantity(MANY_ROWS, "rows", f"at most {MANY_ROWS}"), code="many_rows")


def _row_unread(gpu: Gpu, row: RowRemapping, name: str, expected: str) -> Finding | NotAvailable:
    """Return why one value of a GPU that remaps rows is absent."""
    text = row.unread.get(name, "no value")
    if is_unsupported(text) or is_unsaid(text):
        return NotAvailable(f"remapped_rows.{name} of {gpu}: {text}")
    return Finding(gpu.part, Quote(text), expected, Action.MONITOR, code="unreadable")


def _judge_rows(
    gpus: Gpus,
    rows: Mapping[str, RowRemapping],
    profile: GpuProfile,
    judge: Callable[[Gpu, RowRemapping, GpuProfile], Judgement],
) -> Judgement:
    """Judge the row remapping of each GPU that reports it."""
    _require_ecc(profile)
    for gpu in gpus:
        row = rows.get(gpu.uuid or "")
        if row is None:
            yield NotAvailable(f"{gpu}: nvidia-smi --query-remapped-rows does not list it")
        elif denied := next(filter(root_only, row.unread.values()), ""):
            yield NotAvailable(f"row remapping of {gpu}: nvidia-smi shows it to root alone: {denied}")
        elif len(row.unread) == len(ROWS) and all(map(is_unsupported, row.unread.values())):
            yield NotApplicable("GPUs before Ampere, and guests, report no row remapping")
        else:
            yield from judge(gpu, row, profile)


@check(
    "gpu.remapped_pending",
    show="nvidia-smi -q -d ROW_REMAPPER -i INDEX",
    cause="a row waits to be remapped; until then the bad memory is in use",
    hint="drain the node; reset the GPU (nvidia-smi --gpu-reset -i INDEX), or reboot",
    action=Action.RESET_GPU,
    never_healthy="a remapping is pending only while a bad row is still in use; the reset that ends this clears the flag",
)
@of_present_gpus
def remapped_pending(gpus: Gpus, rows: Mapping[str, RowRemapping], gpu_profile: GpuProfile) -> Judgement:
    """No row remapping waits for a reset."""
    return _judge_rows(gpus, rows, gpu_profile, _pending)


def _pending(gpu: Gpu, row: RowRemapping, _: GpuProfile) -> Judgement:
    if row.pending is None:
        yield _row_unread(gpu, row, "pending", "none pending")
    elif row.pending:
        yield Finding(gpu.part, "a row remapping is pending", "none pending", code="pending")


@check(
    "gpu.retired_pages",
    show="nvidia-smi -q -d PAGE_RETIREMENT -i INDEX",
    cause="a page waits to be retired, so that bad memory is in use, or the table of retired pages is full",
    hint="drain the node; reset the GPU (nvidia-smi --gpu-reset -i INDEX), or reboot",
    action=Action.RESET_GPU,
    never_healthy="a retirement is pending only while bad memory is in use, and 63 retired pages fill the table of 64 (DCGM: "
    "isolate)",
)
@of_present_gpus
def retired_pages(gpus: Gpus) -> Judgement:
    """No page retirement waits for a reset, and the table of retired pages has room (GPUs before Ampere)."""
    if all(gpu.retired_pending is None and gpu.lacks("retired_pending") for gpu in gpus):
        raise NotApplicable("GPUs since Ampere remap rows")
    for gpu in gpus:
        retired = (gpu.retired_single or 0) + (gpu.retired_double or 0)
        if retired >= RETIRED_PAGES:
            most = Quantity(RETIRED_PAGES, "retired pages", f"fewer than {RETIRED_PAGES}")
            found = Quantity(retired, "retired pages")
            yield Finding(gpu.part, found, most, Action.VENDOR, code="table_full")
        if gpu.retired_pending is None and gpu.lacks("retired_pending"):
            continue  # another GPU of the node is broken and reports another text
        if gpu.retired_pending is None:
            yield unread(gpus, gpu, "retired_pending", "none pending", stated=False)
        elif gpu.retired_pending:
            yield Finding(gpu.part, "a page retirement is pending", "none pending", code="pending")
