"""The suite of CONTRIBUTING.md works as it is printed there, in a folder of its own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from framework_helpers import message
from plugin_helpers import cluster_file, run_pytest

import pytest_gpucluster

if TYPE_CHECKING:
    from pytest_gpucluster.sandbox import Sandbox

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"
# what the page leaves out
IMPORTS = {
    "__init__.py": """
from pytest_gpucluster.core.registry import Suite
from pytest_gpucluster.kit.framework_config import FrameworkConfig
""",
    "payload.py": """
from pytest_gpucluster.kit.payloads.prelude import installed, reporter
""",
    "checks.py": """
from pytest_gpucluster.core.check import Finding, Judgement, check
from pytest_gpucluster.kit.payload_result import PayloadResult
""",
    "test_deepspeed.py": """
from functools import cached_property
import pytest
from pytest_gpucluster.cluster.slurm.allocation import Allocation
from pytest_gpucluster.kit.framework_step import FrameworkStepRunner
from pytest_gpucluster.kit.payload_result import PayloadResult
from pytest_gpucluster.plugin.expect import Expect
from pytest_gpucluster.plugin.session import ClusterSession, Node
from pytest_gpucluster.suite import claimed, taking_part
from pytest_gpucluster.suites.deepspeed import DeepspeedConfig, checks
""",
}


def test_the_framework_suite_of_the_page_works(sandbox: Sandbox, tmp_path: Path) -> None:
    section = PAGE.read_text().partition("## A framework suite")[2].partition("\n## ")[0]
    printed = re.findall(r"^\d\. `([\w.]+)`.*?```diff\n(.*?)```", section, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in printed] == [*IMPORTS]
    copy = tmp_path / "pytest_gpucluster"
    shutil.copytree(Path(pytest_gpucluster.__file__).parent, copy)
    folder = copy / "suites" / "deepspeed"
    folder.mkdir()
    for name, text in printed:
        body = re.sub(r"^\+", "", text, flags=re.MULTILINE)
        (folder / name).write_text(f"from __future__ import annotations\n{IMPORTS[name]}\n{body}")
    file = cluster_file(sandbox, tmp_path, deepspeed={"nodes": 2})
    run = run_pytest(
        tmp_path,
        *("--strict-markers", f"--cluster={file}", "-m", "deepspeed"),
        env={"PYTHONPATH": str(tmp_path)},
        where=(str(folder),),
    )
    ends = {nodeid.rpartition("::")[2]: outcome for nodeid, outcome in run.outcomes.items()}
    assert ends == {
        **{f"test_framework[gpu0{number}]": "failed" for number in (1, 2)},
        **{f"test_framework[gpu0{number}]": "not applicable" for number in (3, 4)},
    }, run.out
    assert "No module named 'deepspeed'" in message(run, "test_framework[gpu01]")
