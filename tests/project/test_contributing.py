"""The diffs of CONTRIBUTING.md work as they are printed: a node check in a copy of the package, and a suite of its own."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from framework_helpers import message
from paths import ROOT
from plugin_helpers import cluster_file, names, run_pytest
from suite_wheel import PROJECT, install_suite

import pytest_gpucluster

if TYPE_CHECKING:
    from pytest_gpucluster.sandbox import Sandbox

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
# {file: the text before which its part is added}
PLACES = {
    "src/pytest_gpucluster/suites/os/checks/state.py": '@check(\n    "os.user"',
    "src/pytest_gpucluster/suites/os/test_os.py": "TESTS = Tests(",
    "tests/suites/os/checks/test_state.py": '    ("os.user", ids): [',
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
    shutil.copytree(ROOT / "tests", root / "tests", ignore=shutil.ignore_patterns("data", "corpus", "__pycache__"))
    for name, added in steps().items():
        path, place = root / name, PLACES[name]
        added = f"{IMPORTS if 'Probe(' in added else ''}{added}" + ("\n\n" if "def " in added else "")
        text = path.read_text()
        assert text.count(place) == 1
        path.write_text(text.replace(place, f"{added}{place}"))
    return root


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_the_added_case_passes(tmp_path: Path, root: Path) -> None:
    env = {"PYTHONPATH": os.pathsep.join(map(str, (root / "src", root / "tests", ROOT / "slurm-sandbox/tests")))}
    module = root / "tests" / "suites" / "os" / "checks" / "test_state.py"
    run = run_pytest(tmp_path, "-k", "aslr", "--write-messages", env=env, where=(str(module),))
    assert run.rc == 0, run.out
    assert " passed" in run.out


# what the page leaves out
SUITE_IMPORTS = {
    "__init__.py": """
from pydantic import Field
from pytest_gpucluster.api import FrameworkConfig, Suite
""",
    "payload.py": """
from pytest_gpucluster.kit.payloads.prelude import installed, reporter
""",
    "checks.py": """
from pytest_gpucluster.api import Action, Finding, Judgement, NotAvailable, PayloadResult, check
""",
    "test_deepspeed.py": """
from functools import cached_property
import pytest
from pytest_gpucluster.api import FrameworkStepRunner, PayloadResult, Tests, framework_runner, framework_runners, of_node, required_section
from gpucluster_deepspeed import DeepspeedConfig, checks
""",
}


@pytest.mark.thorough
def test_the_framework_suite_of_the_page_works(sandbox: Sandbox, tmp_path: Path) -> None:
    section = TEXT.partition("## A framework suite")[2].partition("\n## ")[0]
    printed = re.findall(r"^\d\. `([\w.]+)`.*?```diff\n(.*?)```", section, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in printed] == ["pyproject.toml", *SUITE_IMPORTS]
    bodies = {name: re.sub(r"^\+", "", text, flags=re.MULTILINE) for name, text in printed}
    project = PROJECT.partition("[project.entry-points")[0] + bodies.pop("pyproject.toml")
    files = {
        name: f"from __future__ import annotations\n{SUITE_IMPORTS[name]}\n{body}" for name, body in bodies.items()
    }
    installed = install_suite(tmp_path / "wheel", "deepspeed", files, project)
    file = cluster_file(sandbox, tmp_path, deepspeed={"nodes": 2})
    run = run_pytest(
        tmp_path,
        *("--strict-markers", f"--cluster={file}", "-m", "deepspeed"),
        env={"PYTHONPATH": str(installed)},
        where=(),
    )
    ends = {nodeid.rpartition("::")[2]: outcome for nodeid, outcome in run.outcomes.items()}
    assert ends == {
        **{f"test_framework[gpu0{number}]": "failed" for number in (1, 2)},
        **{f"test_framework[gpu0{number}]": "not applicable" for number in (3, 4)},
    }, run.out
    assert "No module named 'deepspeed'" in message(run, "test_framework[gpu01]")
