"""Each target of the Makefile runs, in its cheapest form, in a copy of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING

import pytest
from paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
COLLECT = {"PYTEST_ADDOPTS": "--collect-only -qq"}  # these tests are part of what `make test-all` runs
CASES: dict[str, tuple[str, dict[str, str], str]] = {  # target: (its variables, environment, what it prints)
    "help": ("", {}, "make demo"),
    "slurm": ("", {}, ""),
    "packages": ("", {}, ""),
    "reframe": ("", {}, ""),
    "lint": ("", {}, "no issues found"),
    "format": ("", {}, "left unchanged"),
    "docs": ("", {}, "Documentation built"),
    "release": ("", {}, "release: dist/ has version"),
    "demo": ("", {}, "ACCEPTED: 1 of 1 node"),
    "test": ("", COLLECT, "test_fault_matrix.py"),
    "test-all": ("", COLLECT, "test_make.py"),
    "test-rest": ("", COLLECT, "test_make.py"),
    "oldest": ("", COLLECT, "test_models.py"),
    "messages": ("", COLLECT, "test_links.py"),
    "corpus": ("NAMES=dcgm", {}, " cases, 0 wrong"),
    "fuzz": ("", COLLECT, "test_readers_fuzz.py"),
    "mutation": ("COUNT=3 PACKAGES=core/outliers.py", {}, "of 3 changes detected"),
    "chaos": ("KILLS=1", {}, "leaked 0, lost 0, wrong 0"),
    "bench": ("ONLY=import_cost.py", {}, "import_cost.py"),
    "clean": ("", {}, ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the files of this one, and its environments by links: `make clean` removes the links alone."""
    copy = tmp_path_factory.mktemp("checkout")
    git = ("git", "-c", "user.name=test", "-c", "user.email=test@localhost")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(lambda name: (ROOT / name).exists(), listed.stdout.splitlines()):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    subprocess.run([*git, "init", "-q"], cwd=copy, check=True)
    subprocess.run([*git, "add", "-A"], cwd=copy, check=True)
    subprocess.run([*git, "commit", "-q", "-m", "copy"], cwd=copy, check=True)
    (copy / ".venv").symlink_to(ROOT / ".venv")
    (copy / ".cache").mkdir()
    for name in ("docs", "frameworks", "reframe"):
        if (ROOT / ".cache" / name / ".ready").exists():
            (copy / ".cache" / name).symlink_to(ROOT / ".cache" / name)
    return copy


def test_every_target_has_a_case_and_every_case_a_target() -> None:
    assert set(CASES) == TARGETS
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony
    assert set(phony.group(1).split()) == TARGETS


def test_help_describes_every_target_that_is_typed() -> None:
    described = set(re.findall(r'@echo "make ([a-z-]+)', MAKEFILE))
    assert TARGETS - described == {"help", "format", "clean", "slurm", "packages", "reframe", "test-rest"}


def test_files_that_recipes_name_exist() -> None:
    scripts = [
        path.read_text(encoding="utf-8")
        for path in (ROOT / "tools").iterdir()
        if not path.suffix and path.is_file()
    ]
    named = set(
        re.findall(
            r"(?<![/\w.])(?:tests|tools|benchmarks)/[\w/-]+\w(?:\.py)?",
            "\n".join([MAKEFILE, *scripts]),
        )
    )
    assert "tests/config/test_models.py" in named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.thorough
@pytest.mark.parametrize("target", CASES)
def test_target_runs(checkout: Path, target: str) -> None:
    variables, environment, expected = CASES[target]
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_", "MAKE"))
    }
    # what is installed is not installed anew because files of the copy are newer
    ready = [
        word
        for one in (".venv", ".cache/docs", ".cache/frameworks", ".cache/reframe")
        for word in ("-o", f"{one}/.ready")
        if (checkout / one / ".ready").exists()
    ]
    with tempfile.TemporaryDirectory() as short:  # sockets of namespaced nodes have long paths
        done = subprocess.run(
            ["make", *ready, target, *variables.split()],
            cwd=checkout,
            env={
                **inherited,
                "GPUCLUSTER_SANDBOX": f"{short}/s",
                "TMPDIR": short,
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
        )
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed[-3000:]
    assert expected in printed, printed[-3000:]
