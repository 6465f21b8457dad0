"""Free ports on loopback, without conflicts between sandboxes that start at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Above the well-known ports, below those that Linux gives to outgoing connections
FIRST, LAST = 10_000, 20_000
_TRIES = 200
_PARTS = 16


@contextlib.contextmanager
def reserve(count: int) -> Iterator[int]:
    """Yield the first of `count` free consecutive ports; other sandboxes of this user wait meanwhile.

    Use it until the daemons listen. The first port is random, so that the port of a restarted daemon is seldom taken.
    """
    handle = _lock_file()
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield _free_block(count)
    finally:
        os.close(handle)


def _lock_file() -> int:
    """Open this user's own file in the folder for temporary files; SandboxError if another user has made it."""
    path = Path(tempfile.gettempdir(), f"slurm-sandbox-ports-{os.getuid()}.lock")
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SandboxError(f"{path}: cannot be opened ({error.strerror}): remove it, or set TMPDIR") from error
    found = os.fstat(handle)
    if found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise SandboxError(f"{path}: is not a plain file of this user's own: remove it, or set TMPDIR")
    return handle


def _free_block(count: int) -> int:
    # the lock is of one user: users begin in parts of their own, so that two of them seldom choose the same ports
    size = (LAST - FIRST) // _PARTS
    own = FIRST + os.getuid() % _PARTS * size
    for low, high in ((own, own + size), (FIRST, LAST)):
        for _ in range(_TRIES if count < high - low else 0):
            first = random.randrange(low, high - count)
            if all(_is_free(port) for port in range(first, first + count)):
                return first
    raise SandboxError(
        f"no {count} consecutive free ports on 127.0.0.1 between {FIRST} and {LAST}: stop the programs that use them"
    )


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
