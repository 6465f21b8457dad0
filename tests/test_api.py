"""`pytest_gpucluster.api`: what tests of a site and suites of other distributions import."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from paths import ROOT

from pytest_gpucluster import api

LIGHT = {"pytest_gpucluster", "pytest_gpucluster.api"}


@pytest.mark.parametrize("name", api.__all__)
def test_every_name_resolves(name: str) -> None:
    assert getattr(api, name) is getattr(api, name)
    assert name in dir(api)


def test_the_import_loads_nothing_else() -> None:
    code = "import sys, pytest_gpucluster.api as api; before = set(sys.modules)\napi.Finding\nprint(*before)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert {name for name in loaded if name.startswith("pytest_gpucluster")} == LIGHT
    assert not {"pytest", "pydantic", "yaml", "ClusterShell", "tabulate", "testinfra"} & loaded


def test_what_is_documented_for_sites_imports_from_it_alone() -> None:
    pages = [ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.py")]
    found = {
        module
        for page in pages
        for module in re.findall(r"^(?:from|import) (pytest_gpucluster[\w.]*)", page.read_text(), re.MULTILINE)
    }
    assert found - {"pytest_gpucluster.api"} <= {"pytest_gpucluster.sandbox"}  # a product of its own
