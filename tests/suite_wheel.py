"""A suite of another distribution: a wheel with a package and its entry point, installed into a folder for PYTHONPATH."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "gpucluster-{suite}"
version = "1.0"

[project.entry-points."pytest_gpucluster.suites"]
{suite} = "gpucluster_{suite}"
"""


def install_suite(folder: Path, suite: str, files: Mapping[str, str], project: str = PROJECT) -> Path:
    """Build the wheel of the package gpucluster_SUITE, install it, and return the folder for PYTHONPATH."""
    package, installed = folder / "source" / f"gpucluster_{suite}", folder / "installed"
    package.mkdir(parents=True)
    (package.parent / "pyproject.toml").write_text(project.format(suite=suite))
    for name, text in files.items():
        (package / name).write_text(text)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    words = ("--no-deps", "--no-build-isolation", "--no-index", "--target", str(installed), str(package.parent))
    subprocess.run([*pip, *words], check=True, timeout=300)
    return installed
