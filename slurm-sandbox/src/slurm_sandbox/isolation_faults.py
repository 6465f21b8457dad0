"""Faults of job isolation: a node whose own configuration does not isolate what Slurm's configuration states.

They need a sandbox with `isolation`.
"""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

from slurm_sandbox import slurm_faults
from slurm_sandbox.errors import SandboxError
from slurm_sandbox.faults import FAULTS, Fault
from slurm_sandbox.isolation import Isolation
from slurm_sandbox.slurm_faults import FaultAction, own_etc, restart

if TYPE_CHECKING:
    from collections.abc import Callable

    from slurm_sandbox.faults import InjectedFault
    from slurm_sandbox.slurm_faults import FaultContext

_PTMX = "c 5:2 rwm"  # /dev/ptmx


def _require_isolation(context: FaultContext, injected: InjectedFault) -> None:
    if not (context.layout.root / "private").exists():
        raise SandboxError(f"fault {injected.kind} needs isolated jobs: start the sandbox with --isolation")


def _own_file(name: str, text: Callable[[FaultContext, str], str]) -> Callable[[FaultContext, InjectedFault], None]:
    """Return an action that starts the node's slurmd with its own file instead of that of all nodes."""

    def inject(context: FaultContext, injected: InjectedFault) -> None:
        _require_isolation(context, injected)
        folder = own_etc(context, injected.node, without=name)
        (folder / name).write_text(text(context, injected.node))
        restart(context, injected.node)

    return inject


def _common_files(context: FaultContext, injected: InjectedFault) -> None:
    shutil.rmtree(context.layout.root / f"etc.{injected.node}", ignore_errors=True)
    restart(context, injected.node)


def _cgroups(**constrained: bool) -> FaultAction:
    def text(context: FaultContext, _node: str) -> str:
        return Isolation(context.layout).cgroup_conf(**constrained)

    return FaultAction(_own_file("cgroup.conf", text), _common_files)


def _without_container(context: FaultContext, _node: str) -> str:
    """Return slurm.conf without JobContainerType, or its name since 25.11."""
    lines = context.layout.conf.read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(("JobContainerType=", "NamespaceType=")))


def _write_pam(adopts: bool, context: FaultContext, injected: InjectedFault) -> None:
    _require_isolation(context, injected)
    Isolation(context.layout).write_pam(injected.node, adopts=adopts)


def _deny_ptys(context: FaultContext, injected: InjectedFault) -> None:
    _require_isolation(context, injected)
    Isolation(context.layout).deny(injected.node, _PTMX)


def _allow_ptys(context: FaultContext, injected: InjectedFault) -> None:
    Isolation(context.layout).allow(injected.node, _PTMX)


KINDS = {
    "cores_unconstrained": ("cgroup.conf of the node has ConstrainCores=no", _cgroups(cores=False)),
    "devices_unconstrained": ("cgroup.conf of the node has ConstrainDevices=no", _cgroups(devices=False)),
    "memory_unconstrained": ("cgroup.conf of the node has ConstrainRAMSpace=no", _cgroups(memory=False)),
    "tmp_shared": (
        "slurm.conf of the node lacks JobContainerType (NamespaceType), so that jobs share /tmp",
        FaultAction(_own_file("slurm.conf", _without_container), _common_files),
    ),
    "pam_adopt_missing": (
        "/etc/pam.d/sshd of the node lacks pam_slurm_adopt",
        FaultAction(partial(_write_pam, False), partial(_write_pam, True)),
    ),
    "pty_missing": ("steps on the node can open no pseudo-terminal", FaultAction(_deny_ptys, _allow_ptys)),
}
ACTIONS = slurm_faults.ACTIONS | {name: action for name, (_, action) in KINDS.items()}
FAULTS.update((name, Fault(name, text, {}, action=name)) for name, (text, _) in KINDS.items())
