"""A cluster whose partitions differ has several allocations: the framework suites visit the nodes of each."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from framework_helpers import ends, run_suite

from pytest_gpucluster.kit.framework.framework_step import FrameworkStepRunner
from pytest_gpucluster.suites.ddp.config import DdpConfig

if TYPE_CHECKING:
    from plugin_helpers import Run

    from pytest_gpucluster.sandbox import Sandbox

pytestmark = pytest.mark.alone  # it loads all cores

LARGE, SMALL = SimpleNamespace(count=8), SimpleNamespace(count=4)


def session(
    *, problems: tuple[str, ...] = (), simulated: bool = False, generic: bool = False, sandbox: bool = False
) -> Any:
    """Return two allocations: two nodes of 8 GPUs, and two of 4. `generic`: their profile has no GPU."""

    def gpu_of(node: str) -> Any:
        return LARGE if node.startswith("large") else SMALL

    def group_of(node: str) -> Any:
        gpu = None if generic else gpu_of(node)
        return SimpleNamespace(profile=SimpleNamespace(gpu=gpu, simulated=simulated))

    nodes = ("large1", "large2"), ("small1", "small2")
    return SimpleNamespace(
        cluster=SimpleNamespace(environments={}, group_of=group_of, sandbox=sandbox),
        inventory={name: SimpleNamespace(gpus=gpu_of(name).count) for held in nodes for name in held},
        allocations=tuple(SimpleNamespace(slurm=None, nodes=held) for held in nodes),
        nodes=[name for held in nodes for name in held],
        without_problem=lambda names: tuple(name for name in names if name not in problems),
    )


def test_every_allocation_has_a_runner_with_its_own_nodes_and_gpus() -> None:
    made = FrameworkStepRunner.of_allocations(session(), DdpConfig())
    assert [(it.nodes, it.gpus, it.real_gpus, it.tasks_per_node) for it in made] == [
        (("large1", "large2"), 8, 8, 8),
        (("small1", "small2"), 4, 4, 4),
    ]
    one = FrameworkStepRunner.of_allocations(session(problems=("large1",)), DdpConfig(nodes=1))
    assert [it.nodes for it in one] == [("large2",), ("small1",)]


def test_an_allocation_without_testable_nodes_has_no_runner() -> None:
    made = FrameworkStepRunner.of_allocations(session(problems=("large1", "large2")), DdpConfig())
    assert [it.nodes for it in made] == [("small1", "small2")]


def test_the_gpus_of_a_profile_without_hardware_are_those_of_slurm() -> None:
    made = FrameworkStepRunner.of_allocations(session(generic=True), DdpConfig())
    assert [(it.gpus, it.real_gpus, it.ranks_per_node) for it in made] == [(8, 8, 8), (4, 4, 4)]
    made = FrameworkStepRunner.of_allocations(session(generic=True, sandbox=True), DdpConfig())
    assert [(it.gpus, it.real_gpus) for it in made] == [(0, 0), (0, 0)]


def test_simulated_gpus_are_no_real_ones() -> None:
    made = FrameworkStepRunner.of_allocations(session(simulated=True), DdpConfig())
    assert [(it.gpus, it.real_gpus) for it in made] == [(8, 0), (4, 0)]


def accept(sandbox: Sandbox, folder: Path, suite: str, *words: str, **keys: Any) -> Run:
    """Run a suite on two nodes in two partitions, without a framework on them."""
    groups = [{"nodes": "gpu01"}, {"nodes": "gpu02", "partition": "debug"}]
    python = Path(sys.executable)
    slurm = {"conf": sandbox.env["SLURM_CONF"], "partition": "batch", "time": "10m"}
    return run_suite(
        sandbox, folder, suite, *words, python=python, nodes=None, groups=groups, slurm=slurm, **keys
    )


@pytest.mark.parametrize(
    ("suite", "item", "claim"),
    [
        ("horovod", "test_build", {"launchers": ["srun"]}),
        ("ddp", "test_framework", {}),
    ],
)
def test_nodes_of_the_second_partition_are_judged(
    sandbox: Sandbox, tmp_path: Path, suite: str, item: str, claim: dict[str, Any]
) -> None:
    claim = {"environment": "frameworks", **claim}
    run = accept(sandbox, tmp_path, f"test_{suite}.py", "-k", item, **{suite: claim})
    assert ends(run) == {f"{item}[gpu01]": "failed", f"{item}[gpu02]": "failed"}, run.out


def test_a_cell_of_the_matrix_has_the_nodes_of_every_partition(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.fault("gpu_missing", "gpu02", gpu=1)
    profile = yaml.safe_load(sandbox.cluster_file.read_text())["profile"]
    keys: dict[str, Any] = {"profile": profile, "matrix": {}}
    run = accept(sandbox, tmp_path, "test_matrix.py", "-k", "srun-cpu or srun-gpu", **keys)
    assert ends(run) == {"test_cell[srun-cpu]": "passed", "test_cell[srun-gpu]": "failed"}, run.out
    assert "gpu02: measured 7 GPUs, expected 8 GPUs" in run.out
