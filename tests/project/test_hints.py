"""The hints of all checks can be pasted: the only placeholders are NODE and those of parts, which reports replace."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest_gpucluster.suites
from pytest_gpucluster.core.by_part import for_parts
from pytest_gpucluster.core.check import CHECKS

PLACEHOLDER = re.compile(
    r"(?<![\w$-])(?:ADDRESS|BRIDGE|BUS_ID|DEVICE|DIR|DISK|FILE|HEAD|HOST|IFACE|IMAGE|INDEX|JOB|LIST|N|NAME|OLD|PATH|PEER|"
    r"PID|PORT|PYTHON|SERVER|SOURCE|TARGET|UNIT|URL|USER|VERSION|WATTS)(?!\w)"
)


def test_hints_have_no_placeholders_but_nodes_and_parts() -> None:
    for module in pkgutil.walk_packages(pytest_gpucluster.suites.__path__, "pytest_gpucluster.suites."):
        if module.name.endswith((".checks", ".dcgm")) or ".checks." in module.name:
            importlib.import_module(module.name)
    assert len(CHECKS) > 200
    assert {
        name: found[0]
        for name, check in CHECKS.items()
        if (found := PLACEHOLDER.findall(for_parts(check.hint, ["GPU 3"])))
    } == {}


def test_only_commands_of_slurm_get_lists_of_nodes() -> None:
    command = re.compile(r"(?:srun|scontrol|squeue|sinfo)\b[^;]*\bNODE\b")
    hints = {name: check.hint for name, check in CHECKS.items() if "NODE" in re.findall(r"\w+", check.hint)}
    assert {name: hint for name, hint in hints.items() if not command.search(hint)} == {}
