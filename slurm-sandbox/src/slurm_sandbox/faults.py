"""All faults that can be injected into a node: their table, and those of Slurm itself and of the environment that tasks see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_sandbox import fabric_faults, gpu_faults, nccl_faults, os_faults  # noqa: F401 - register theirs
from slurm_sandbox.fault_registry import (
    FAULTS,
    Fault,
    InjectedFault,
    apply,
    find,
    node_fault,
    placed,
    resolve_options,
    slurm_fault,
)

if TYPE_CHECKING:
    from slurm_sandbox.fault_registry import Options
    from slurm_sandbox.hardware import SimulatedNode

__all__ = ["FAULTS", "Fault", "InjectedFault", "apply", "find", "placed", "resolve_options", "slurm_fault"]

# -- Slurm itself --------------------------------------------------------------------------------------------

slurm_fault("drained", "an administrator drained the node", reason="bad cable, ticket 4711")
slurm_fault("slurmd_dead", "slurmd does not run")
slurm_fault("node_hanging", "processes that are started on the node never end")
slurm_fault("prolog_failing", "the prolog fails and Slurm drains the node")
slurm_fault("epilog_failing", "the epilog fails and Slurm drains the node after the job")
slurm_fault("epilog_hanging", "the epilog of an ended job hangs")
slurm_fault("image_missing", "the image file is missing for the node's Enroot")
slurm_fault("image_corrupt", "image files are damaged on the node")
slurm_fault("mount_source_missing", "a source of mounts is missing (the sandbox's own plugin only)", path="*")
slurm_fault("pyxis_missing", "plugstack.conf of the node does not load Pyxis")
slurm_fault("container_left", "a container of a killed job remains", job=4_000_000)
slurm_fault("wrong_gres", "slurmd finds fewer GPUs than slurm.conf lists", count=4)


# -- the environment that tasks see --------------------------------------------------------------------------


@node_fault("/etc/nccl.conf of the node switches off the path between its GPUs", line="NCCL_P2P_DISABLE=1")
def _nccl_conf(node: SimulatedNode, options: Options) -> None:
    node.nccl_conf.append(str(options["line"]))


@node_fault("Slurm sets a variable in the tasks of this node only, as a TaskProlog does", name="NCCL_PROTO", value="LL")
def _task_variable(node: SimulatedNode, options: Options) -> None:
    node.variables[str(options["name"])] = str(options["value"])
