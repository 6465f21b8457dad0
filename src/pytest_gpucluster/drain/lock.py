"""A lock so that two runs of one user do not drain at once. There is none if no file can be locked.

Slurm has no compare-and-set for nodes. The lock is below the home folder, which login nodes usually share; against runs
of other users, the node is read again right before the command and after it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.secure_tempfile import Folder

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 60.0  # seconds; a drain of one node takes well under one


def lock_path(cluster: str) -> Path | None:
    """Return the path of the lock of a cluster, by Slurm's ClusterName; None for a user without a home."""
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError:
        return None
    return state / "pytest-gpucluster" / "locks" / f"drain-{re.sub(r'[^A-Za-z0-9_.-]', '_', cluster)}.lock"


@contextlib.contextmanager
def locked(path: Path | None, *, patience: float = PATIENCE) -> Iterator[bool]:
    """Hold the lock; yield False if there can be none. GpuClusterError if another run holds it too long."""
    if path is None:
        yield False
        return
    try:
        with contextlib.closing(Folder(path.parent, create=True)) as folder:
            handle = folder.open(path.name)
    except OSError:
        yield False
        return
    try:
        yield _wait_for(handle, path, patience)
    finally:
        os.close(handle)  # frees the lock too


def _wait_for(handle: int, path: Path, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise GpuClusterError(
                    f"{path}: another run has been draining for {patience:.0f} s: nothing is drained"
                ) from None
            time.sleep(0.1)
        except OSError:
            return False  # a file system without locks
        else:
            return True
