"""The lines of a job's gates become srun's --exclude."""

from __future__ import annotations

import pytest

from pytest_gpucluster.gate.collect import SILENT, collect

LINES = [
    "gpu01: gpucluster: OK: 76 checks judged\n",
    "2: gpu03: gpucluster:gpu.count \x1b[31m7<8 GPUs (and 1 more)\n",
    "gpu.count: GPUs: measured 7, expected 8 (drain)\n",
    "srun: error: gpu03: task 2: Exited with exit code 1\n",
    " 1: gpu02: gpucluster: OK: 76 checks judged, 1 not checked\n",
]


def test_bad_and_silent_nodes_are_left_out() -> None:
    found = collect(LINES, ("gpu01", "gpu02", "gpu03", "gpu04"))
    assert found.bad == {"gpu03": "gpu.count 7<8 GPUs (and 1 more)", "gpu04": SILENT}
    assert found.option == "--exclude=gpu[03-04]"
    assert found.fit == ["gpu01", "gpu02"]


@pytest.mark.parametrize(
    ("lines", "option"),
    [
        (LINES, "--exclude=gpu03"),
        (LINES[:1], ""),
        ([f"{it}: gpucluster:{end}\n" for end in ("bad", " OK") for it in ("-x", "n1")], "--exclude=n1"),
        (["gpu01: gpucluster: nothing was judged: 0 checks judged\n"], "--exclude=gpu01"),
    ],
)
def test_without_expected_nodes_those_with_a_line_are_judged(lines: list[str], option: str) -> None:
    assert collect(lines, ()).option == option
