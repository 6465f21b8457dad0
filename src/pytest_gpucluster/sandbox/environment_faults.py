"""Faults of the environment that tasks see on a node; they are added to faults.FAULTS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucluster.sandbox.faults import FAULTS, Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.sandbox.hardware import SimulatedNode


def _nccl_conf(node: SimulatedNode, options: dict[str, Any]) -> None:
    node.nccl_conf.append(str(options["line"]))


def _task_variable(node: SimulatedNode, options: dict[str, Any]) -> None:
    node.variables[str(options["name"])] = str(options["value"])


KINDS: tuple[tuple[str, str, str, dict[str, Any], Callable[[SimulatedNode, dict[str, Any]], None]], ...] = (
    (
        "nccl_conf",
        "/etc/nccl.conf of the node switches off the path between its GPUs",
        "nccl.environment",
        {"line": "NCCL_P2P_DISABLE=1"},
        _nccl_conf,
    ),
    (
        "task_variable",
        "Slurm sets a variable in the tasks of this node only, as a TaskProlog does",
        "nccl.environment",
        {"name": "NCCL_PROTO", "value": "LL"},
        _task_variable,
    ),
)
FAULTS.update((kind[0], Fault(*kind)) for kind in KINDS)
