"""The cluster file of a sandbox states what its nodes have."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from sandbox_helpers import sandbox_folder, slurm

from pytest_gpucluster import config
from pytest_gpucluster.kit.node.os_config import OsConfig
from pytest_gpucluster.sandbox import Sandbox
from pytest_gpucluster.suites.ibfabric.plan import read_plan
from slurm_sandbox import daemons, hardware
from slurm_sandbox import node_files as render
from slurm_sandbox.collectives import CommunicatorModel, NodeHealth, busbw
from slurm_sandbox.models import MODELS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.thorough


@pytest.fixture
def folder() -> Iterator[Path]:
    with sandbox_folder() as path:
        yield path


def test_cluster_file_loads_and_states_the_model(sandbox: Sandbox) -> None:
    cluster = config.load_cluster(sandbox.cluster_file)
    (group,) = cluster.groups
    assert group.names == sandbox.nodes
    assert group.profile.simulated
    assert group.profile.gpu is not None
    assert group.profile.gpu.count == 8
    assert cluster.section(OsConfig).shared_storage == (str(sandbox.layout.root / "shared"),)
    assert [row.nodes for row in group.thresholds] == [1, 2, 3, 4]
    cables = read_plan([sandbox.cluster_file.with_name("cables.csv")]).cables
    assert len(cables) == 4 * (8 + 1)  # rails, and the port of the board


def test_the_next_step_names_this_sandbox(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--cluster=sandbox` is the sandbox in the default folder: beside another one it would test that."""
    monkeypatch.setenv(Sandbox.variable, str(folder / "default"))
    assert Sandbox().next_step.startswith("pytest --cluster=sandbox; ")
    other = Sandbox(folder / "s")
    assert other.next_step.startswith(f"pytest --cluster={other.cluster_file}; ")


def test_limits_and_folder_of_slurm_are_stated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded on a sandbox of one node: slurm.limits failed, for the file said MaxNodes=1 of a partition of 2.

    Commands of one version do not talk with daemons of a much older or newer one.
    """
    programs = folder / "slurm"
    programs.mkdir(parents=True)
    for name, program in daemons.find_programs().items():
        (programs / name).symlink_to(program)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    sandbox = Sandbox(folder / "s")
    sandbox.up(nodes=1, pyxis="off")
    try:
        shown = slurm(sandbox, "scontrol", "show", "partition", "debug")
        stated = config.load_cluster(sandbox.cluster_file).limits["debug"].max_nodes
        assert f"MaxNodes={stated} " in shown
        assert config.load_cluster(str(sandbox.cluster_file)).slurm.bin == str(programs)
    finally:
        sandbox.down()


@pytest.mark.parametrize("model", sorted(MODELS))
def test_healthy_nodes_reach_what_was_published_of_such_machines(model: str) -> None:
    profile, spec = config.load_profile(f"sandbox-{model}"), MODELS[model]
    health = NodeHealth(**render.network(hardware.healthy_node("gpu02", 1, spec.gpus, spec, "/state/shared")))
    for row in profile.nccl:
        world = CommunicatorModel({str(node): health for node in range(row.nodes)}, spec.gpus)
        assert busbw(world, row.collective, int(row.size)) >= row.busbw * (1 - row.tolerance), row
