"""The rows of a job's gates become srun's --exclude."""

from __future__ import annotations

import json

import pytest

from pytest_gpucluster.gate.collect import SILENT, collect


def row(node: object, why: object = "", fit: object = None) -> str:
    return json.dumps({"gate": node, "fit": not why if fit is None else fit, "why": why}) + "\n"


LINES = [
    row("gpu01"),
    "2: " + row("gpu03", "gpu.count \x1b[31m7<8 GPUs (and 1 more)"),
    "gpu03: gpucluster: OK: 76 checks judged\n",  # the line is for people
    f"gpu.count: GPUs: quoted {row('gpu03')}",
    "srun: error: gpu03: task 2: Exited with exit code 1\n",
    " 1: " + row("gpu02"),
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
        ([row(it, end) for end in ("bad", "") for it in ("-x", "n1", None)], "--exclude=n1"),
        ([row("gpu01", fit=1), row("gpu02", fit="true"), row("gpu03", [], fit=0)], "--exclude=gpu[01-03]"),
        (["[1]\n", "{}\n", "{" * 9000 + "}\n", row(None)], ""),
    ],
)
def test_without_expected_nodes_those_with_a_line_are_judged(lines: list[str], option: str) -> None:
    assert collect(lines, ()).option == option
