"""Faults of containers that make steps in them slow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from slurm_sandbox import spank
from slurm_sandbox.errors import SandboxError
from slurm_sandbox.faults import slurm_fault
from slurm_sandbox.slurm_faults import FaultAction

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_sandbox.faults import InjectedFault
    from slurm_sandbox.slurm_faults import FaultContext

_VARIABLE = re.compile(r"[A-Za-z_]\w*=\S*")


def _file(context: FaultContext, injected: InjectedFault) -> Path:
    return context.layout.node(injected.node) / "fault.container_variables"


def _set_variables(context: FaultContext, injected: InjectedFault) -> None:
    """Let the sandbox's Enroot set variables in each container of the node, as a hook does."""
    words = str(injected.options["variables"]).split()
    if not words or not all(_VARIABLE.fullmatch(word) for word in words):
        raise SandboxError(f"fault {injected.kind} needs variables=NAME=VALUE; several have blanks between them")
    if not (context.layout.enroot / spank.LIBRARY).exists():
        raise SandboxError(f"fault {injected.kind} needs the sandbox's own containers: start it with --pyxis auto")
    _file(context, injected).write_text("".join(f"{word}\n" for word in words))


def _remove_variables(context: FaultContext, injected: InjectedFault) -> None:
    _file(context, injected).unlink(missing_ok=True)


ACTIONS = {"container_variables": FaultAction(_set_variables, _remove_variables)}
slurm_fault(
    "container_variables",
    "an Enroot hook sets variables in containers of the node; inject it into every node",
    variables="NCCL_IB_DISABLE=1",
)
