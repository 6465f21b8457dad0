"""Each target of the Makefile is typed: the cheap ones and the demo run in a copy of the checkout, of the others make shows the commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
# what is not shown by `make -n`, but run: {target: what it prints}; of tests, which of them are collected
RUN = {
    "help": "make demo",
    "test": "test_fault_matrix.py",
    "test-rest": "test_make.py",
    "messages": "test_links.py",
    "clean": "",
}
READY = [
    word for one in (".venv", ".cache/docs", ".cache/frameworks", ".cache/reframe") for word in ("-o", f"{one}/.ready")
]


def make(folder: Path, *words: str, options: str = "--collect-only -qq") -> str:
    own = ("PYTEST_", "COV_", "MAKE")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    env["PYTEST_ADDOPTS"] = options
    done = subprocess.run(["make", *READY, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def test_files_that_recipes_name_exist() -> None:
    tools = [path for path in (ROOT / "tools").iterdir() if not path.suffix and path.is_file()]
    text = "\n".join([MAKEFILE, *(path.read_text(encoding="utf-8") for path in tools)])
    named = set(re.findall(r"(?<![/\w.])(?:tests|tools|benchmarks)/[\w/-]+\w(?:\.py)?", text))
    assert "tests/config/test_models.py" in named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("target", sorted(TARGETS - RUN.keys()))
def test_make_knows_the_commands_of_a_target(target: str) -> None:
    assert make(ROOT, "-n", target)


@pytest.mark.thorough
def test_cheap_targets_run(tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(lambda name: (ROOT / name).exists(), listed.stdout.splitlines()):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name, follow_symlinks=False)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")  # `make clean` removes the link alone
    for target, printed in RUN.items():
        assert printed in make(tmp_path, target), target
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    assert "ACCEPTED: 1 of 1 node" in make(tmp_path, "demo", options="")
    assert (ROOT / ".venv" / "bin" / "python").exists()
