"""Files of ours in the folder for temporary files, where everybody may have put something of our name."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

from pytest_gpucluster.errors import GpuClusterError

_FLAGS = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def open_own(name: str) -> tuple[Path, int]:
    """Open a file of this name for reading and writing, made with mode 0600 where there is none: path, descriptor.

    GpuClusterError where it cannot be opened or is not ours alone: a link, another user's, or of two names.
    """
    path = Path(name)
    try:
        path = Path(tempfile.gettempdir(), name)
        handle = os.open(path, _FLAGS, 0o600)
    except OSError as error:
        raise GpuClusterError(f"{path}: cannot be opened ({error.strerror or error}): {_REMEDY}") from error
    found = os.fstat(handle)
    if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(handle)
        raise GpuClusterError(f"{path}: is not this user's own file: {_REMEDY}")
    return path, handle


def refuse_traps(path: Path) -> None:
    """Raise OSError where another user decides what a file of ours, in a folder that is there, really is.

    That is: a link that is another user's, or a folder of another user's in which everybody may put one at any time.
    Root is nobody else. A folder that its owner shares with a group is taken.
    """
    ours = (os.geteuid(), 0)
    folder = path.parent.stat()
    if folder.st_uid not in ours and folder.st_mode & stat.S_IWOTH:
        raise PermissionError(
            errno.EPERM, "its folder is another user's, and everybody may write there", path
        )
    if path.is_symlink() and path.lstat().st_uid not in ours:
        raise PermissionError(errno.EPERM, "it is a link of another user's", path)


_REMEDY = "remove it, or set TMPDIR to a folder of your own"
