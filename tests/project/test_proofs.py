"""Each suite states what it proves, and without the tool that a suite needs no suite is accepted."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from plugin_helpers import Run, run_pytest
from sandbox_helpers import sandbox_folder

from pytest_gpucluster import suites_path
from pytest_gpucluster.config.models import SECTIONS
from pytest_gpucluster.core.check import CHECKS
from pytest_gpucluster.core.registry import import_checks, suites
from pytest_gpucluster.core.values import OptionalSection
from pytest_gpucluster.plugin.options import names_in
from pytest_gpucluster.report.machine.events import read_run
from pytest_gpucluster.report.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Iterator

# the shells of probes need these: those of this machine, which read nothing simulated
OF_THE_HOST = {"cat", "date", "grep", "head", "hostname", "ls", "ps", "sudo", "tail", "wc"}
NAMES = [suite.name for suite in suites()]
NEEDS_SLURM = ("slurm", "controller")  # the tool is Slurm itself


def test_each_proof_is_a_check() -> None:
    import_checks()
    tests = {name for path in Path(suites_path()).glob("*/test_*.py") for name in names_in(path)}
    proofs = [one for suite in suites() for one in suite.proof]
    assert [one for one in proofs if not any(fnmatchcase(name, one) for name in tests | CHECKS.keys())] == []


@pytest.fixture(scope="module")
def without_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run of all suites on nodes on which no tool of any suite works: no nvidia-smi, no torch, no servers, no /sys."""
    from pytest_gpucluster.sandbox import Sandbox  # other tests of the module need none

    folder = tmp_path_factory.mktemp("without_tools")
    with sandbox_folder() as state:
        sandbox = Sandbox(state / "s")
        sandbox.up(nodes=2, pyxis="off")
        for tool in (state / "s" / "simbin").iterdir():
            tool.unlink()
            if tool.name not in OF_THE_HOST:
                tool.write_text('#!/bin/sh\\necho "${0##*/}: command not found" >&2\\nexit 127\\n')
                tool.chmod(0o755)
        settings = yaml.safe_load(sandbox.cluster_file.read_text())
        for model, key in SECTIONS.items():
            if issubclass(model, OptionalSection):
                settings[key] = {}
        settings["monitoring"] = {"prometheus": "http://127.0.0.1:9", "grafana": None}  # nothing listens there
        settings["software"] = {"modules": {"load": ["cuda"]}, "conda": {"environments": {"base": {}}}}
        settings["storage"] = {"filesystems": [{"path": str(folder / "absent")}]}
        settings.pop("nccl", None)
        path = folder / "bare.yaml"
        path.write_text(yaml.safe_dump(settings))
        options = (f"--cluster={path}", "--burnin-time=20s", "--time=10m")
        run = run_pytest(folder, *options, env=sandbox.env, timeout=600, where=())
        assert run.outcomes, run.out + run.err
        yield run


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in NAMES if name not in NEEDS_SLURM])
def test_without_its_tool_no_suite_is_accepted(without_tools: Run, name: str) -> None:
    run = read_run(_of_suite(without_tools.events, name))
    judged = judge(run)
    assert judged.outcome in ("rejected", "unproved"), judged


@pytest.mark.thorough
def test_without_slurm_its_suites_are_not_accepted(tmp_path: Path) -> None:
    settings = {"name": "bare", "nodes": "gpu01", "slurm": {"partition": "batch", "bin": str(tmp_path)}}
    (tmp_path / "bare.yaml").write_text(yaml.safe_dump(settings))
    run = run_pytest(tmp_path, f"--cluster={tmp_path}/bare.yaml", "-m", " or ".join(NEEDS_SLURM), where=())
    assert run.rc == pytest.ExitCode.USAGE_ERROR
    assert "ACCEPTED" not in run.out + run.err


def _of_suite(events: list[dict[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """Yield the events of a run as if one suite alone had run, with exit status 0."""
    for event in events:
        if event["event"] == "selection":
            rows = [row for row in event["required"] if row[0] == name]
            yield {**event, "required": rows}
        elif event["event"] == "finish":
            yield {**event, "exit": 0, "complaints": []}
        elif event["event"] != "result" or event["suite"] == name:
            yield event
