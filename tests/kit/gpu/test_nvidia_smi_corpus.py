"""The stand-in for nvidia-smi answers as nvidia-smi itself did, on the machines that recorded both."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import corpus_nvidia_smi as stand_in
from paths import TESTS

from pytest_gpucluster.kit.gpu import nvidia_smi

if TYPE_CHECKING:
    from pathlib import Path

DATA = TESTS / "data" / "h200x8"
# The two commands ran one after the other.
MOVING = {"clocks.sm", "clocks.mem", "power.draw", "temperature.gpu"}


def recorded(name: str) -> list[str]:
    return (DATA / name).read_text().splitlines()[1:-1]


def answer(tmp_path: Path, *arguments: str) -> tuple[int, list[str]]:
    whole = tmp_path / "q.txt"
    whole.write_text("\n".join(recorded("nvidia-smi-q.txt")) + "\n")
    argv = [sys.executable, "-SE", stand_in.__file__, str(whole), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_every_field_is_as_nvidia_smi_printed_it(tmp_path: Path) -> None:
    command = (DATA / "query-gpu.txt").read_text().splitlines()[0]
    fields = command.partition("--query-gpu=")[2].partition(" ")[0].split(",")
    header, *rows = [line.split(", ") for line in recorded("query-gpu.txt")]
    rc, lines = answer(tmp_path, f"--query-gpu={','.join(fields)}", "--format=csv")
    shown_header, *shown = [line.split(", ") for line in lines]
    assert (rc, shown_header, len(shown)) == (0, header, len(rows))
    for wanted, got in zip(rows, shown, strict=True):
        for field, theirs, ours in zip(fields, wanted, got, strict=True):
            if field in MOVING:
                assert ours.split(" ")[1:] == theirs.split(" ")[1:], field  # the unit
                assert abs(float(ours.split(" ")[0]) - float(theirs.split(" ")[0])) < 3, field
            else:
                assert ours == theirs, field


def test_remapped_rows_and_processes_are_as_nvidia_smi_printed_them(tmp_path: Path) -> None:
    fields = ",".join(("gpu_uuid", *(f"remapped_rows.{name}" for name in nvidia_smi.ROWS)))
    rows = answer(tmp_path, f"--query-remapped-rows={fields}", "--format=csv")[1]
    assert rows == recorded("query-remap.txt")
    columns = "pid,gpu_uuid,used_memory,process_name"
    shown = ["pid, gpu_uuid, used_gpu_memory [MiB], process_name"]
    assert answer(tmp_path, f"--query-compute-apps={columns}", "--format=csv") == (0, shown)
