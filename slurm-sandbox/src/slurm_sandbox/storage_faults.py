"""Faults of the folder that all nodes share: a FUSE file system is mounted over it, which is faulty for single nodes (storage_fs.py)."""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from slurm_sandbox import processes
from slurm_sandbox.errors import SandboxError
from slurm_sandbox.faults import slurm_fault
from slurm_sandbox.slurm_faults import FaultAction
from slurm_sandbox.storage_fs import CLIENT_SLOW, FAULT_FILE, SERVER_SLOW

if TYPE_CHECKING:
    from slurm_sandbox.faults import InjectedFault
    from slurm_sandbox.layout import Layout
    from slurm_sandbox.slurm_faults import FaultContext

_MODULE = "slurm_sandbox.storage_fs"
_PATIENCE = 10.0


def why_no_fuse() -> str:
    """Return why no FUSE file system can be mounted here, '' if one can."""
    if os.geteuid():
        return "only root can mount over the shared folder"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is missing"
    return "" if ctypes.util.find_library("fuse3") else "libfuse3 is not installed: install fuse3"


def _inject(context: FaultContext, injected: InjectedFault) -> None:
    if why := why_no_fuse():
        raise SandboxError(f"fault {injected.kind}: {why}")
    _mount(context.layout)
    fault = {"kind": injected.kind, **injected.options}
    (context.layout.node(injected.node) / FAULT_FILE).write_text(json.dumps(fault))


def _heal(context: FaultContext, injected: InjectedFault) -> None:
    (context.layout.node(injected.node) / FAULT_FILE).unlink(missing_ok=True)
    if not any(context.layout.nodes.glob(f"*/{FAULT_FILE}")):
        unmount(context.layout)


def _mount(layout: Layout) -> None:
    if layout.shared.is_mount():
        return
    command = (sys.executable, "-m", _MODULE, str(layout.shared), str(layout.nodes))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    background = ("sh", "-c", '"$@" >"$0" 2>&1 </dev/null &', str(layout.log_file("storage")), *command)
    subprocess.run(background, env=environment, check=True, start_new_session=True)
    deadline = time.monotonic() + _PATIENCE
    while not layout.shared.is_mount():
        if time.monotonic() > deadline:
            raise SandboxError(f"the FUSE file system was not mounted: {layout.log_file('storage').read_text()[-300:]}")
        time.sleep(0.02)


def unmount(layout: Layout) -> None:
    """Stop the file system, if it is mounted; its processes in it get errors."""
    server = list(processes.of_command(_MODULE, str(layout.shared)))
    if server or layout.shared.is_mount():
        subprocess.run(("umount", "-l", str(layout.shared)), check=False, capture_output=True)
        processes.stop(server, patience=2.0)


ACTIONS: dict[str, FaultAction] = {}


def _add(name: str, description: str, **options: float) -> None:
    slurm_fault(name, description, **options)
    ACTIONS[name] = FaultAction(_inject, _heal)


_add("storage_slow", "each read and write of the node in the shared folder is delayed", ms=200)
_add(
    SERVER_SLOW,
    "the server of the shared folder reads and writes at this rate for all nodes together; inject it into every node",
    mb_s=40,
)
_add(CLIENT_SLOW, "the node reads and writes in the shared folder at this rate; inject it into every node", mb_s=20)
_add("storage_full", "the shared folder has no more space for the node after the first MiB of a file", mib=1)
_add("storage_error", "fsync in the shared folder fails on the node with EIO")
_add("storage_corrupt", "the node reads another byte than was written to the shared folder")
_add("storage_stale", "the node sees files that others replace in the shared folder only later", seconds=3)
_add("storage_locks", "locks of the node in the shared folder are not known to the others")
