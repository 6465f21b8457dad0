"""Missing GPUs are named by index and bus id, and explain findings about too few GPUs, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gpu_helpers import devices, lost

from pytest_gpucluster.core.check import Action, Finding, Outcome, Verdict
from pytest_gpucluster.kit.gpu.nvidia_smi import Gpus
from pytest_gpucluster.suites.gpu.missing_gpus import (
    HINT,
    RESET_HINT,
    MissingGpus,
    missing_gpus,
    usual_buses,
    with_missing,
)

ALL = devices()
USUAL = usual_buses([ALL, ALL, replace(ALL, devices=ALL.devices[:7])])


def without(*indices: int) -> Gpus:
    return replace(ALL, devices=tuple(gpu for place, gpu in enumerate(ALL.devices) if place not in indices))


def test_missing_gpus_have_the_index_and_bus_id_that_they_have_on_other_nodes() -> None:
    found = missing_gpus(without(5), 8, USUAL)
    assert found is not None
    assert found.cause == f"GPU 5 ({ALL.devices[5].bus}) missing: fell off the bus, or not found at boot"
    two = missing_gpus(without(0, 7), 8, USUAL)
    assert two is not None
    assert two.cause.startswith(f"GPU 0 ({ALL.devices[0].bus}), GPU 7 ({ALL.devices[7].bus}) missing: ")


def test_without_a_complete_node_their_number_is_named() -> None:
    found = missing_gpus(without(5), 8, usual_buses([without(5)]))
    assert found is not None
    assert found.cause.startswith("1 of 8 GPUs missing: ")
    others = {(ALL.devices[0].name, 8): tuple(f"0000:{place:02}:00.0" for place in range(8))}
    elsewhere = missing_gpus(without(5), 8, others)  # of other machines: no bus id is the same
    assert elsewhere is not None
    assert elsewhere.cause.startswith("1 of 8 GPUs missing: ")


def test_a_gpu_that_nvidia_smi_lists_as_lost_is_named_with_its_message() -> None:
    gpus = lost().gpus
    found = missing_gpus(gpus, 8, {})
    assert found is not None
    assert (found.cause, found.hint) == (f"GPU 4 ({gpus.devices[4].bus}): [GPU is lost]", HINT)
    unread = {"memory": "[GPU requires reset]"}
    reset = replace(ALL, devices=(*ALL.devices[:7], replace(ALL.devices[7], unread=unread)))
    found = missing_gpus(reset, 8, USUAL)
    assert found is not None
    assert found.hint == RESET_HINT


def test_complete_nodes_and_nodes_without_driver_miss_no_gpu() -> None:
    assert missing_gpus(ALL, 8, USUAL) is None
    assert missing_gpus(Gpus(driver_problem="no driver"), 8, USUAL) is None


@pytest.mark.parametrize(
    ("part", "measured", "expected"),
    [
        ("run", "too few GPUs: Invalid number of GPUs: 8 requested but only 7 were found.", "no failure"),
        ("rank 7", "LOCAL_RANK is 7, but only 7 GPUs are visible", "its own GPU"),
        ("task 7 (gpu02)", "local task 7, but only 7 devices are visible", "right sums on every device"),
        ("rank 7", "torch 2.4 sees no GPU: none (CUDA_VISIBLE_DEVICES=7)", "its own GPU"),
        ("GPUs", "7 took part: no reason is known", "8"),
        ("GPUs", "7", "8"),
        ("GPUs of gpu02", "7", "8"),
        ("task 0", "7 replicas", "8"),
        ("Gres", "7 GPUs (gpu:h200:7)", "8 GPUs"),
        ("GPU 0 of gpu02", "used by 2 ranks", "one rank"),
        ("GPU-5c", "ranks 0, 7", "one rank"),
        ("plain", "nvidia-container-cli: device error: 5: unknown device", "starts"),
    ],
)
def test_findings_about_too_few_gpus_are_explained(part: str, measured: str, expected: str) -> None:
    assert MissingGpus(7, 8, "why").explains(Finding(part, measured, expected))


@pytest.mark.parametrize(
    ("part", "measured", "expected"),
    [
        ("GPU 4 (GPU-1, 0000:9d:00.0)", "17 active links", "18"),
        ("rank 3", "CUDA error: out of memory", "its own GPU"),
        ("mlx5_2", "DOWN", "ACTIVE"),
        ("/raid", "7 GiB free", "8 GiB"),
        ("GPUs", "6", "8"),
    ],
)
def test_other_findings_are_not_explained(part: str, measured: str, expected: str) -> None:
    assert not MissingGpus(7, 8, "why").explains(Finding(part, measured, expected))


def test_the_cause_replaces_that_of_the_check_unless_other_findings_need_it() -> None:
    few, other = Finding("GPUs", "7", "8"), Finding("node", "lost", "answers")
    verdict = Verdict(
        "x.y", Outcome.FAILED, (few,), cause="c", hint="h", action=Action.DRAIN, never_healthy="n"
    )
    found = MissingGpus(7, 8, "GPU 5 missing", "reseat it")
    assert with_missing(verdict, found) == replace(verdict, cause="GPU 5 missing", hint="reseat it")
    both = with_missing(replace(verdict, findings=(few, other)), found)
    assert (both.cause, both.hint, both.action) == ("GPU 5 missing; c", "reseat it; h", Action.DRAIN)
    unchanged = replace(verdict, findings=(other,))
    assert with_missing(unchanged, found) is unchanged
