"""A cluster whose partitions differ has several allocations: each has a runner with its own nodes and GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpucluster.core.fact import Fact
from pytest_gpucluster.kit.framework.framework_step import FrameworkStepRunner, framework_runner
from pytest_gpucluster.suites.ddp.config import DdpConfig
from pytest_gpucluster.suites.matrix.config import MatrixConfig
from pytest_gpucluster.suites.matrix.test_matrix import matrices

GPUS = {"large1": 8, "large2": 8, "small1": 4, "small2": 4}


def session(
    *, problems: tuple[str, ...] = (), simulated: bool = False, generic: bool = False, sandbox: bool = False
) -> Any:
    """Return two allocations: two nodes of 8 GPUs, and two of 4. `generic`: their profile has no GPU."""

    def group_of(node: str) -> Any:
        gpu = None if generic else SimpleNamespace(count=GPUS[node])
        return SimpleNamespace(profile=SimpleNamespace(gpu=gpu, simulated=simulated))

    held = (("large1", "large2"), ("small1", "small2"))
    return SimpleNamespace(
        cluster=SimpleNamespace(environments={}, group_of=group_of, sandbox=sandbox),
        inventory={name: SimpleNamespace(gpus=count) for name, count in GPUS.items()},
        allocations=tuple(SimpleNamespace(slurm=None, nodes=nodes) for nodes in held),
        nodes=[*GPUS],
        without_problem=lambda names: tuple(name for name in names if name not in problems),
        need_channel=lambda: None,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [(8, 8, 8), (4, 4, 4)]),
        ({"problems": ("large1", "large2")}, [(4, 4, 4)]),  # no node that can be tested: no runner
        ({"generic": True}, [(8, 8, 8), (4, 4, 4)]),  # those of Slurm
        ({"generic": True, "sandbox": True}, [(0, 0, 2), (0, 0, 2)]),
        ({"simulated": True}, [(8, 0, 2), (4, 0, 2)]),
    ],
)
def test_every_allocation_has_a_runner_with_its_own_gpus(given: Any, expected: list[tuple[int, ...]]) -> None:
    made = FrameworkStepRunner.of_allocations(session(**given), DdpConfig())
    assert [(it.gpus, it.real_gpus, it.ranks_per_node) for it in made] == expected


def test_every_allocation_has_its_own_nodes() -> None:
    found = session(problems=("large1",))
    made = FrameworkStepRunner.of_allocations(found, DdpConfig(nodes=1))
    assert [it.nodes for it in made] == [("large2",), ("small1",)]
    of_matrix = next(matrices.function(MatrixConfig(), None, found))
    assert [it.nodes for it in of_matrix] == [("large2",), ("small1", "small2")]
    assert framework_runner(FrameworkStepRunner, Fact(list))(made, SimpleNamespace(name="small1")) is made[1]
