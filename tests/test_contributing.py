"""The diffs of CONTRIBUTING.md for a node check, applied to a copy of the package: the check is found, runs and judges."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from plugin_helpers import cluster_file, names, run_pytest

import pytest_gpucluster

if TYPE_CHECKING:
    from pytest_gpucluster.sandbox import Sandbox

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
# {file: the text before which its part is added}
PLACES = {
    "src/pytest_gpucluster/suites/os/checks.py": '@check(\n    "os.user"',
    "src/pytest_gpucluster/suites/os/test_os.py": "globals().update(checks_as_tests",
    "tests/test_checks_os_exact.py": '    ("kernel", lambda p:',
}
IMPORTS = "from pytest_gpucluster.core.probe import Probe, text_of\n"  # the diffs leave out imports


def steps() -> dict[str, str]:
    """Return {file: what is added to it} of the section on a node check."""
    section = TEXT.partition("## A node check")[2].partition("\n## ")[0]
    found = re.findall(r"^\d\. `([^`]+)`.*?```diff\n(.*?)```", section, re.MULTILINE | re.DOTALL)
    return {name: "".join(line[1:] + "\n" for line in diff.splitlines()) for name, diff in found}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("contributed")
    shutil.copytree(Path(pytest_gpucluster.__file__).parent, root / "src" / "pytest_gpucluster")
    shutil.copytree(
        ROOT / "tests", root / "tests", ignore=shutil.ignore_patterns("data", "corpus", "__pycache__")
    )
    for name, added in steps().items():
        path, place = root / name, PLACES[name]
        added = f"{IMPORTS if 'Probe(' in added else ''}{added}" + ("\n\n" if "def " in added else "")
        text = path.read_text()
        assert text.count(place) == 1
        path.write_text(text.replace(place, f"{added}{place}"))
    return root


def test_a_node_check_needs_at_most_three_files() -> None:
    assert [*steps()] == [*PLACES]
    (count,) = re.findall(r"^\| a node check \| (\d) \| 1 \|$", TEXT, re.MULTILINE)
    assert int(count) == len(PLACES) <= 3


def test_the_added_check_is_one_item_per_node(sandbox: Sandbox, tmp_path: Path, root: Path) -> None:
    suite = str(root / "src" / "pytest_gpucluster" / "suites" / "os")
    run = run_pytest(
        tmp_path,
        f"--cluster={cluster_file(sandbox, tmp_path, required=['os.aslr'])}",
        "-k",
        "aslr",
        env={"PYTHONPATH": str(root / "src")},
        where=(suite,),
    )
    assert names(run.outcomes, "passed") == [f"test_aslr[gpu0{number}]" for number in range(1, 5)], run.out


def test_the_added_case_passes(tmp_path: Path, root: Path) -> None:
    env = {"PYTHONPATH": str(root / "src")}
    run = run_pytest(
        tmp_path, "-k", "alike", env=env, where=(str(root / "tests" / "test_checks_os_exact.py"),)
    )
    assert run.rc == 0, run.out
    assert " passed" in run.out
