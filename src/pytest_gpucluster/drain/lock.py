"""A lock so that two runs of one user do not drain at once. Without it, a run changes no node.

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


class LockError(GpuClusterError):
    """The lock cannot be held."""


@contextlib.contextmanager
def locked(path: Path | None, *, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock. LockError if no file can be locked, or if another run holds the lock too long."""
    if path is None:
        raise LockError("no file can be locked without a home folder: no node is changed; set XDG_STATE_HOME")
    try:
        with contextlib.closing(Folder(path.parent, create=True)) as folder:
            handle = folder.open(path.name)
    except OSError as error:
        raise _no_lock(path, error) from error
    try:
        _wait_for(handle, path, patience)
        yield
    finally:
        os.close(handle)  # frees the lock too


def _no_lock(path: Path, error: OSError) -> LockError:
    return LockError(
        f"{path}: cannot be locked ({error.strerror}): no node is changed; XDG_STATE_HOME names another folder"
    )


def _wait_for(handle: int, path: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise LockError(
                    f"{path}: another run has been draining for {patience:.0f} s: no node is changed"
                ) from None
            time.sleep(0.1)
        except OSError as error:  # a file system without locks
            raise _no_lock(path, error) from error
        else:
            return
