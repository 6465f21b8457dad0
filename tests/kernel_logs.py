"""Fold lines of a kernel log as a node folds its own."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.node import kernel_log

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucluster.kit.node.kernel_log import KernelLog

START = "Linux version 5.15.0-1061-nvidia (buildd@lcy02) #62-Ubuntu SMP"


def answered(tmp_path: Path, text: str) -> str:
    """Return what a node sends whose dmesg prints this."""
    (tmp_path / "log").write_text(text)
    tool = tmp_path / "dmesg"
    tool.write_text(f"#!/bin/sh\nexec cat {tmp_path}/log\n")
    tool.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", kernel_log.kernel_log_of(()).command], capture_output=True, env=env, timeout=60, check=True
    )
    assert not done.stderr, done.stderr
    return done.stdout.decode()


def fold_raw(tmp_path: Path, text: str) -> KernelLog:
    """Return the facts of that node; times of day are left out."""
    return replace(kernel_log.parse(Answer("gpu01", 0, answered(tmp_path, text).encode(), b"")), booted=None)


def fold(tmp_path: Path, *lines: str) -> KernelLog:
    """Return the facts of a node whose kernel printed these lines, one a second."""
    return fold_raw(tmp_path, "".join(f"[{n:5}.000000] {line}\n" for n, line in enumerate((START, *lines))))
