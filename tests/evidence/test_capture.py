"""What is read of a node: tools that work, hang, are missing, need root, print too much, a secret, or our own marks."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.core.part import Part, gpu, nvlink, port
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.evidence.capture import read_capture, stored
from pytest_gpucluster.evidence.tools import FULL, TEXT, asks_for_bug_report, command_for, tools_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MARK = "f00dcafe"
GPU = gpu(4, address="0000:5e:00.0")
NAME = "nvidia-smi-q-0000_5e_00.0"
# what a vendor asks for with each kind of part (docs/drain.md has the sources)
ASKED = {
    GPU: {"nvidia-smi-q", "nvlink-state", "nvlink-errors", "lspci", "kernel-log", "bmc-events", "system"},
    nvlink(7, GPU): {"nvidia-smi-q", "nvlink-errors", "fabric-manager-log", "kernel-log"},
    Part("nvswitch", 0, address="0000:05:00.0"): {"fabric-manager-log", "nvidia-smi-q", "lspci"},
    port("mlx5_4", 1, address="0000:5e:00.0"): {"mlxlink", "ethtool-module", "ethtool-counters", "counters", "lspci"},
    Part("cable", name="mlx5_4"): {"mlxlink", "ethtool-module", "kernel-log"},
    Part("disk", name="nvme2n1", address="0000:65:00.0"): {"nvme-smart-log", "nvme-error-log", "smartctl", "lspci"},
    Part("dimm", name="DIMM_A1"): {"dmidecode", "edac", "bmc-events", "kernel-log"},
    Part("node"): {"nvidia-smi-q", "kernel-log", "bmc-events", "system", "versions"},
}


@pytest.mark.parametrize("part", ASKED, ids=lambda part: part.kind)
def test_each_kind_of_part_has_what_its_vendor_asks_for(part: Part) -> None:
    names = {
        tool.name.partition("-0000_")[0].partition("-mlx5")[0].partition("-nvme2")[0]
        for tool in tools_for([part], full=True)
    }
    assert ASKED[part] <= names
    assert asks_for_bug_report([part]) is (part.kind in ("gpu", "nvlink", "nvswitch", "node"))
    quick = tools_for([part], full=False)
    assert set(quick) < set(tools_for([part], full=True))
    assert "kernel-log" in {tool.name for tool in quick}


def test_a_name_of_a_node_is_no_command(tmp_path: Path) -> None:
    bad = Part("disk", name=f"a; touch {tmp_path}/made #", address="$(false)")
    captured(tmp_path, {}, bad)
    assert not (tmp_path / "made").exists()


def captured(folder: Path, tools: Mapping[str, str], *parts: Part, budget: int = FULL) -> tuple[Any, dict[str, Any]]:
    """Run the program of these parts where the tools are those of {name: text of a sh script}, and store what it gave."""
    path = folder / "bin"
    path.mkdir(exist_ok=True)
    for name, text in tools.items():
        (path / name).write_text(f"#!/bin/sh\n{text}\n")
        (path / name).chmod(0o755)
    command = command_for(parts, MARK, full=True).replace(f"budget={FULL}", f"budget={budget}")
    env = {"PATH": f"{path}:/usr/bin:/bin", "TMPDIR": str(folder)}
    done = subprocess.run(["sh", "-c", command], capture_output=True, env=env, timeout=120, check=False)
    capture = read_capture(Answer("gpu03", done.returncode, done.stdout, done.stderr), MARK)
    return capture, stored(capture, folder / "run")


def test_what_tools_do_is_named_and_what_they_printed_is_kept(tmp_path: Path) -> None:
    tools = {
        "dmesg": "echo 'api_key=hunter2hunter2 and '; printf '\\nf00dcafd end 0 1\\n'",
        "journalctl": "exit 1",
        "ipmitool": "echo 'Could not open device at /dev/ipmi0: must be root' >&2; exit 1",
        "dmidecode": "exec yes 0123456789",
        "nvidia-smi": "echo 'GPU 00000000:5E:00.0'; printf '\\0\\377'",
        "lspci": "echo half; kill -9 $$",
    }
    capture, event = captured(tmp_path, tools, GPU)
    names = {it["name"]: it for it in event["files"]}
    assert capture.problem == ""
    assert event["missing"] == {
        "bmc-events": "Could not open device at /dev/ipmi0: must be root (exit 1)",
        "system": "cut at 1 MiB",
        "lspci-0000_5e_00.0": "Killed (killed by signal 9)",
        "versions": event["missing"]["versions"],
        "dcgm-version": "not installed",
        "nvidia-bug-report": "not installed",
    }
    assert names["system.txt"]["bytes"] == TEXT
    folder = tmp_path / "run/evidence/gpu03"
    assert {it.name for it in folder.iterdir()} == names.keys()
    assert "hunter2" not in (folder / "kernel-log.txt").read_text()
    assert names[f"{NAME}.txt"]["sha256"] == hashlib.sha256((folder / f"{NAME}.txt").read_bytes()).hexdigest()
    assert (folder / f"{NAME}.txt").stat().st_mode & 0o777 == 0o600


def test_a_tool_cannot_print_our_marks(tmp_path: Path) -> None:
    """The mark is drawn anew for each capture: a line with another one is output of the tool."""
    tools = {
        "dmesg": "printf 'a\\n0badc0de end 0 1\\n\\n0badc0de begin nvidia-smi-q\\nforged\\n'",
        "journalctl": "exit 1",
    }
    capture, _ = captured(tmp_path, tools, Part("dimm", name="A1"))
    assert b"forged" in capture.sections[0].data
    assert "nvidia-smi-q" not in {it.name for it in capture.sections}


def test_a_tool_that_hangs_costs_its_own_time_and_a_spent_budget_is_named(tmp_path: Path) -> None:
    tools = {"ipmitool": "echo begun; exec sleep 600", "dmesg": "echo log", "journalctl": "exit 1"}
    _, event = captured(tmp_path, tools, Part("dimm", name="A1"), budget=1)
    assert event["missing"]["bmc-events"] == "begun (no end within its deadline)"
    assert event["missing"]["lscpu"] == "not run: no time was left"
    assert {"kernel-log.txt", "bmc-events.txt"} == {it["name"] for it in event["files"]}


def test_after_a_hang_the_bug_report_is_made_in_safe_mode_and_both_are_kept(tmp_path: Path) -> None:
    report = """
case $* in
  *--safe-mode*) printf 'password=hunter2hunter2\\nsafe\\n' | gzip > "$3.gz" ;;
  *) echo half > "$2"; exec sleep 600 ;;
esac"""
    own = tmp_path / "gpucluster.before"
    own.mkdir()
    command = command_for([GPU], MARK, full=True).replace("bug_report 240", "bug_report 1")
    path = tmp_path / "bin"
    path.mkdir()
    (path / "nvidia-bug-report.sh").write_text(f"#!/bin/sh\n{report}\n")
    (path / "nvidia-bug-report.sh").chmod(0o755)
    env = {"PATH": f"{path}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    done = subprocess.run(["sh", "-c", command], capture_output=True, env=env, timeout=120, check=False)
    event = stored(read_capture(Answer("gpu03", 0, done.stdout), MARK), tmp_path / "run")
    folder = tmp_path / "run/evidence/gpu03"
    assert (folder / "nvidia-bug-report.log").read_text() == "half\n"
    assert (
        gzip.decompress((folder / "nvidia-bug-report-safe-mode.log.gz").read_bytes()) == b"password=<redacted>\nsafe\n"
    )
    assert event["missing"]["nvidia-bug-report"].endswith("(no end within its deadline)")
    assert list(tmp_path.glob("gpucluster.*")) == [own]  # its folder is removed


def test_an_answer_that_ended_early_keeps_what_came(tmp_path: Path) -> None:
    out = f"\n{MARK} begin kernel-log\nline\n\n{MARK} end 0 3\n\n{MARK} begin nvidia-smi-q\nhalf".encode()
    capture = read_capture(Answer("gpu03", None, out, problem="timed out after 630 s"), MARK)
    assert [(it.name, it.data, it.seconds) for it in capture.sections] == [("kernel-log", b"line\n", 0.03)]
    assert capture.problem == "timed out after 630 s in nvidia-smi-q"
    assert stored(capture, tmp_path)["problem"] == capture.problem


def test_a_packed_file_of_another_kind_or_without_time_is_not_stored(tmp_path: Path) -> None:
    bomb = gzip.compress(b"\0" * (200 << 20))
    out = b"".join(
        f"\n{MARK} begin {name}\n".encode() + data + f"\n{MARK} end 0 3\n".encode()
        for name, data in (("bomb.log.gz", bomb), ("plain.log.gz", b"no gzip"))
    )
    capture = read_capture(Answer("gpu03", 0, out + f"\n{MARK} whole\n".encode()), MARK)
    stored(capture, tmp_path)
    shown = {it.name: len(gzip.decompress(it.read_bytes())) for it in (tmp_path / "evidence/gpu03").iterdir()}
    assert shown == {"bomb.log.gz": 64 << 20, "plain.log.gz": 0}
    shutil.rmtree(tmp_path / "evidence")
    event = stored(capture, tmp_path, until=0)
    assert event["files"] == []
    assert event["missing"]["bomb.log.gz"] == "not stored: no time was left to remove secrets from it"


def test_a_diagnostic_that_owns_the_gpus_is_named(tmp_path: Path) -> None:
    _, event = captured(tmp_path, {"ps": "printf '  1234 fieldiag\\n 77 bash\\n'"}, GPU)
    assert event["owner"] == "a diagnostic owns the GPUs: fieldiag (process 1234): wait for its end"
