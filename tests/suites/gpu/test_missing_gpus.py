"""Missing GPUs are named by index and bus id, and explain findings about too few GPUs, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gpu_helpers import LOST, changed, devices, unread

from pytest_gpucluster.core.check import Action, Finding, Outcome, Verdict
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.part import GPUS, Part
from pytest_gpucluster.kit.gpu.nvidia_smi import Gpus
from pytest_gpucluster.kit.gpu.too_few import TOO_FEW, reports_too_few
from pytest_gpucluster.suites.gpu.missing_gpus import (
    HINT,
    RESET_HINT,
    MissingGpus,
    UsualBuses,
    missing_gpus,
    usual_buses,
    with_missing,
)

ALL = devices()
BUS = [gpu.bus for gpu in ALL.devices]
USUAL = usual_buses({"gpu01": ALL, "gpu02": ALL, "gpu03": replace(ALL, devices=ALL.devices[:7])})


def without(*indices: int) -> Gpus:
    return replace(ALL, devices=tuple(gpu for place, gpu in enumerate(ALL.devices) if place not in indices))


@pytest.mark.parametrize(
    ("gpus", "usual", "cause", "hint"),
    [
        (without(5), USUAL, f"GPU 5 ({BUS[5]}) missing: fell off the bus, or not found at boot", HINT),
        (without(0, 7), USUAL, f"GPU 0 ({BUS[0]}), GPU 7 ({BUS[7]}) missing: ", HINT),
        # no node is complete
        (without(5), usual_buses({"gpu01": without(5)}), "1 of 8 GPUs missing: ", HINT),
        (changed(LOST).gpus, {}, f"GPU 4 ({BUS[4]}): [GPU is lost]", HINT),
        (changed(unread("memory", "[GPU requires reset]", 7)).gpus, USUAL, f"GPU 7 ({BUS[7]}): ", RESET_HINT),
    ],
)
def test_missing_gpus_are_named_by_other_nodes(gpus: Gpus, usual: UsualBuses, cause: str, hint: str) -> None:
    found = missing_gpus(gpus, 8, usual)
    assert found is not None
    assert found.cause.startswith(cause)
    assert found.hint == hint


def test_complete_nodes_and_nodes_without_driver_miss_no_gpu() -> None:
    assert missing_gpus(ALL, 8, USUAL) is None
    assert missing_gpus(Gpus(driver_problem="no driver"), 8, USUAL) is None


@pytest.mark.parametrize(
    "finding",
    [
        *(Finding("rank 7", "a sentence", "its own GPU", code=code) for code in TOO_FEW),
        Finding(Part("gpu", 5), "absent", "present", code="absent"),
        *(Finding("x", Quantity(7, unit), Quantity(8, unit)) for unit in ("GPUs", "devices", "replicas")),
    ],
)
def test_findings_about_too_few_gpus_are_explained(finding: Finding) -> None:
    assert MissingGpus(7, 8, "why").explains(finding)


@pytest.mark.parametrize(
    "finding",
    [
        Finding(Part("gpu", 4), Quantity(7, "links"), Quantity(8, "links")),
        Finding("rank 3", "8 requested but only 7 were found", "its own GPU", code="exit_status"),
        Finding(Part("file", name="/dev/nvidiactl"), "absent", "present", code="absent"),
        Finding(GPUS, Quantity(6, "GPUs"), Quantity(8, "GPUs")),
        Finding(GPUS, Quantity(7, "GPUs"), Quantity(9, "GPUs")),
    ],
)
def test_other_findings_are_not_explained(finding: Finding) -> None:
    assert not MissingGpus(7, 8, "why").explains(finding)


@pytest.mark.parametrize(
    ("output", "end"),
    [
        ("Invalid number of GPUs: 8 requested but only 7 were found.", True),
        ("nvidia-container-cli: device error: 5: unknown device", True),
        ("CUDA error: out of memory", False),
    ],
)
def test_output_that_reports_too_few_gpus(output: str, *, end: bool) -> None:
    assert reports_too_few(output) is end


def test_the_cause_replaces_that_of_the_check_unless_other_findings_need_it() -> None:
    few, other = Finding(GPUS, Quantity(7, "GPUs"), Quantity(8, "GPUs")), Finding("node", "lost", "answers")
    verdict = Verdict("x", Outcome.FAILED, (few,), cause="c", hint="h", action=Action.DRAIN, never_healthy="n")
    found = MissingGpus(7, 8, "GPU 5 missing", "reseat it")
    assert with_missing(verdict, found) == replace(verdict, cause="GPU 5 missing", hint="reseat it")
    both = with_missing(replace(verdict, findings=(few, other)), found)
    assert (both.cause, both.hint, both.action) == ("GPU 5 missing; c", "reseat it; h", Action.DRAIN)
    unchanged = replace(verdict, findings=(other,))
    assert with_missing(unchanged, found) is unchanged
