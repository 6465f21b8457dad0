"""Files that others read while we write: whole or not there at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.errors import GpuClusterError

if TYPE_CHECKING:
    from collections.abc import Iterable


def write_whole(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file so that a reader sees the old content or all of the new; GpuClusterError where it cannot.

    `data` may come in pieces, where it is too much to be had at once.

    The file gets the mode that open() would give: another user's collector has to read it.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # the leading dot and the suffix keep it from collectors that read *.prom or *.xml
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise GpuClusterError(f"{path}: cannot be written ({error.strerror})") from error


def _umask() -> int:
    """Return this process's umask, which can only be read by setting it; Linux shows it, too."""
    with contextlib.suppress(OSError, StopIteration):
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(next(line for line in status.splitlines() if line.startswith("Umask:")).split()[1], 8)
    return 0o022
