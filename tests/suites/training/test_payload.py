"""The parts of the payload that need no torch: processes on a GPU, the driver's version, the age of the process."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.suites.training import payload

if TYPE_CHECKING:
    from pathlib import Path

MINE, OTHER = "GPU-11", "GPU-22"


def rank() -> payload.Trainer:
    watch: Any = None
    made = payload.Trainer(Namespace(mode="alone", per_node=2, gpus=True), watch)
    made.uuid = MINE
    return made


def test_processes_of_nvidia_smi_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho '{MINE}, 4711, python3, 512 MiB'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert payload.gpu_processes() == [[MINE, "4711", "python3", "512 MiB"]]
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert payload.gpu_processes() is None


@pytest.mark.parametrize(
    ("rows", "started", "others"),
    [
        ([[MINE, "7", "python3", "1 MiB"], [OTHER, "8", "x", "1 MiB"]], False, ["python3 (pid 7)"]),
        ([[MINE, "7", "/usr/bin/nvidia-cuda-mps-server", "30 MiB"]], False, []),
        ([[MINE, "7", "x", "1 MiB"], [MINE, str(os.getpid()), "python3", "1 MiB"]], True, ["x (pid 7)"]),
        ([[MINE, "7", "python3", "1 MiB"]], True, None),  # maybe this process, by its pid outside
        (None, False, None),
    ],
)
def test_foreign_processes_are_those_on_the_gpu_of_the_rank(
    rows: list[list[str]] | None, *, started: bool, others: list[str] | None
) -> None:
    assert rank().others(rows, started=started) == others
