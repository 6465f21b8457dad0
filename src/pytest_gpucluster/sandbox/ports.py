"""Free ports on loopback, without conflicts between sandboxes that start at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import SandboxError
from pytest_gpucluster.core.secure_tempfile import open_own

if TYPE_CHECKING:
    from collections.abc import Iterator

# Above the well-known ports, below those that the suites' own programs choose (kit/payloads/prelude.py)
FIRST, LAST = 10_000, 20_000
_TRIES = 200


@contextlib.contextmanager
def reserve(count: int) -> Iterator[int]:
    """Yield the first of `count` free consecutive ports; other sandboxes of this user wait meanwhile.

    Use it until the daemons listen. The first port is random, so that the port of a restarted daemon is seldom taken.
    """
    _, handle = open_own(f"pytest-gpucluster-ports-{os.getuid()}.lock")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield _free_block(count)
    finally:
        os.close(handle)


def _free_block(count: int) -> int:
    for _ in range(_TRIES):
        first = random.randrange(FIRST, LAST - count)
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
