"""A FUSE file system over a folder, with faults for the processes of single nodes: `python -m slurm_sandbox.storage_fs FOLDER NODES`.

It is mounted over FOLDER and shows what is in it. A process belongs to the node in its SLURMD_NODENAME; NODES/NODE/fault.storage
has its fault as JSON: {"kind": KIND, ...}. Nothing is cached, so that each access of each node comes here. It calls libfuse3
(struct fuse_operations of libfuse 3.10 to 3.16) and libc without a compiler; SIGTERM unmounts it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
FAULT_FILE = "fault.storage"
CORRUPT_MIB = 3  # of each file
SERVER_SLOW, CLIENT_SLOW = "storage_server_slow", "storage_client_slow"
_OFD_SETLK = 37  # fcntl(2): the lock of an open file, so that a fork that closes it releases it too
_PID_OF_LOCK = 24  # offset of l_pid in struct flock, 0 for such a lock
_DIRECT_IO = 2  # bit of struct fuse_file_info
_NOT_PASSED = os.O_DIRECT | os.O_CREAT | os.O_EXCL | os.O_APPEND  # the kernel has done it, or places the data
_VALID = 1.0  # seconds for which the fault of a process is not read again

libc = ctypes.CDLL(None, use_errno=True)
for _name in ("pread", "pwrite"):
    getattr(libc, _name).argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long)
    getattr(libc, _name).restype = ctypes.c_ssize_t


class FileInfo(ctypes.Structure):
    """The beginning of struct fuse_file_info."""

    _fields_ = (
        ("flags", ctypes.c_int),
        ("bits", ctypes.c_uint),
        ("padding", ctypes.c_uint64),
        ("handle", ctypes.c_uint64),
    )


class Context(ctypes.Structure):
    """The beginning of struct fuse_context."""

    _fields_ = (("fuse", ctypes.c_void_p), ("uid", ctypes.c_uint), ("gid", ctypes.c_uint), ("pid", ctypes.c_int))


Info = ctypes.POINTER(FileInfo)
P, S, N, Z, L = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_long
# place in struct fuse_operations -> method and the types of its arguments
OPERATIONS: dict[int, tuple[str, tuple[Any, ...]]] = {
    0: ("getattr", (S, P, P)),
    3: ("mkdir", (S, N)),
    4: ("unlink", (S,)),
    5: ("rmdir", (S,)),
    7: ("rename", (S, S, N)),
    9: ("chmod", (S, N, P)),
    11: ("truncate", (S, L, P)),
    12: ("open", (S, Info)),
    13: ("read", (S, P, Z, L, Info)),
    14: ("write", (S, P, Z, L, Info)),
    15: ("statfs", (S, P)),
    17: ("release", (S, Info)),
    18: ("fsync", (S, N, Info)),
    24: ("readdir", (S, P, P, L, P, N)),
    30: ("create", (S, N, Info)),
    31: ("lock", (S, Info, N, P)),
    32: ("utimens", (S, P)),
    38: ("flock", (S, Info, N)),
}
PLACES = 42
FILLER = ctypes.CFUNCTYPE(N, P, S, P, L, N)


def result(value: int) -> int:
    """Return what libfuse expects of a call of libc: its result, or the error as a negative number."""
    return -ctypes.get_errno() if value < 0 else value


class Storage:
    """The operations; each returns 0, a count, or a negative error number."""

    def __init__(self, fuse: Any, folder: int, nodes: Path) -> None:
        self.fuse, self.nodes = fuse, nodes
        self.root = b"/proc/self/fd/%d" % folder
        self.faults: dict[int, tuple[float, str, dict[str, Any]]] = {}
        self.changed: dict[bytes, tuple[float, str]] = {}  # path -> when and by which node it was replaced
        self.busy: dict[str, float] = {}  # node, or '' for the server -> when it is free for the next access
        self.busy_lock = threading.Lock()

    def fault(self) -> tuple[str, dict[str, Any]]:
        """Return the node of the calling process, and its fault, {} without one."""
        pid = self.fuse.fuse_get_context().contents.pid
        until, node, found = self.faults.get(pid, (0.0, "", {}))
        if time.monotonic() > until:
            node, found = self._read_fault(pid)
            self.faults[pid] = (time.monotonic() + _VALID, node, found)
        return node, found

    def _read_fault(self, pid: int) -> tuple[str, dict[str, Any]]:
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            node = next((word[16:].decode() for word in words if word.startswith(b"SLURMD_NODENAME=")), "")
            return node, json.loads((self.nodes / node / FAULT_FILE).read_text()) if node else {}
        except (OSError, ValueError):
            return "", {}

    def delay(self, size: int = 0) -> dict[str, Any]:
        """Return the fault of the calling process; wait where an access of this many bytes is slow."""
        node, found = self.fault()
        kind = found.get("kind")
        if kind == "storage_slow":
            time.sleep(found["ms"] / 1e3)
        elif kind in (SERVER_SLOW, CLIENT_SLOW):
            with self.busy_lock:
                whose, now = "" if kind == SERVER_SLOW else node, time.monotonic()
                end = self.busy[whose] = max(now, self.busy.get(whose, 0.0)) + size / found["mb_s"] / 1e6
            time.sleep(end - now)
        return found

    def hidden(self, path: bytes) -> bool:
        """Whether a node with stale caches does not see yet that another one has replaced a file."""
        node, found = self.fault()
        when, who = self.changed.get(path, (0.0, node))
        return found.get("kind") == "storage_stale" and who != node and time.monotonic() < when + found["seconds"]

    def replaced(self, path: bytes) -> None:
        """Remember who has replaced a file."""
        self.changed[path] = (time.monotonic(), self.fault()[0])

    def getattr(self, path: bytes, stat: int, _info: int) -> int:
        """Return the attributes of a file."""
        return -errno.ENOENT if self.hidden(path) else result(libc.lstat(self.root + path, P(stat)))

    def mkdir(self, path: bytes, mode: int) -> int:
        """Make a folder."""
        return result(libc.mkdir(self.root + path, mode))

    def unlink(self, path: bytes) -> int:
        """Remove a file."""
        return result(libc.unlink(self.root + path))

    def rmdir(self, path: bytes) -> int:
        """Remove a folder."""
        return result(libc.rmdir(self.root + path))

    def rename(self, old: bytes, new: bytes, _flags: int) -> int:
        """Rename a file."""
        self.replaced(new)
        return result(libc.rename(self.root + old, self.root + new))

    def chmod(self, path: bytes, mode: int, _info: int) -> int:
        """Change the mode."""
        return result(libc.chmod(self.root + path, mode))

    def truncate(self, path: bytes, size: int, _info: int) -> int:
        """Change the size."""
        self.replaced(path)
        return result(libc.truncate(self.root + path, L(size)))

    def open(self, path: bytes, info: Any) -> int:
        """Open a file; its handle is a file descriptor."""
        if info.contents.flags & os.O_TRUNC:
            self.replaced(path)
        return self._opened(info, libc.open(self.root + path, info.contents.flags & ~_NOT_PASSED))

    def create(self, path: bytes, mode: int, info: Any) -> int:
        """Create and open a file."""
        return self._opened(info, libc.open(self.root + path, os.O_CREAT | os.O_RDWR, mode))

    def _opened(self, info: Any, handle: int) -> int:
        if handle < 0:
            return -ctypes.get_errno()
        info.contents.handle = handle
        info.contents.bits |= _DIRECT_IO
        return 0

    def read(self, _path: bytes, buffer: int, size: int, offset: int, info: Any) -> int:
        """Read; a corrupt node gets one wrong byte."""
        fault = self.delay(size)
        count: int = libc.pread(info.contents.handle, buffer, size, offset)
        bad = CORRUPT_MIB * MIB - offset
        if fault.get("kind") == "storage_corrupt" and 0 <= bad < count:
            ctypes.c_ubyte.from_address(buffer + bad).value ^= 1
        return result(count)

    def write(self, _path: bytes, buffer: int, size: int, offset: int, info: Any) -> int:
        """Write; a full file system takes the first part of a file."""
        fault = self.delay(size)
        if fault.get("kind") == "storage_full" and offset >= fault["mib"] * MIB:
            return -errno.ENOSPC
        return result(libc.pwrite(info.contents.handle, buffer, size, offset))

    def statfs(self, path: bytes, found: int) -> int:
        """Return sizes of the file system."""
        return result(libc.statvfs(self.root + path, P(found)))

    def release(self, _path: bytes, info: Any) -> int:
        """Close a file."""
        return result(libc.close(info.contents.handle))

    def fsync(self, _path: bytes, _data: int, info: Any) -> int:
        """Sync a file."""
        if self.delay().get("kind") == "storage_error":
            return -errno.EIO
        return result(libc.fsync(info.contents.handle))

    def readdir(self, path: bytes, buffer: int, filler: int, _offset: int, _info: int, _flags: int) -> int:
        """List a folder."""
        fill = FILLER(filler)
        for name in (b".", b"..", *os.listdir(self.root + path)):  # noqa: PTH208 - bytes
            fill(buffer, name, None, 0, 0)
        return 0

    def lock(self, _path: bytes, info: Any, _command: int, lock: int) -> int:
        """Lock as fcntl."""
        ctypes.c_int.from_address(lock + _PID_OF_LOCK).value = 0
        return self._locked(lambda: libc.fcntl(info.contents.handle, _OFD_SETLK, P(lock)))

    def flock(self, _path: bytes, info: Any, operation: int) -> int:
        """Lock as flock."""
        return self._locked(lambda: libc.flock(info.contents.handle, operation | fcntl.LOCK_NB))

    def _locked(self, take: Callable[[], int]) -> int:
        return 0 if self.fault()[1].get("kind") == "storage_locks" else result(take())

    def utimens(self, path: bytes, times: int) -> int:
        """Change the times."""
        return result(libc.utimensat(-100, self.root + path, P(times), 0))


def serve(folder: str, nodes: Path) -> int:
    """Mount the file system and serve it until SIGTERM; return the exit status of libfuse."""
    fuse = ctypes.CDLL("libfuse3.so.3")
    fuse.fuse_get_context.restype = ctypes.POINTER(Context)
    storage = Storage(fuse, os.open(folder, os.O_PATH | os.O_DIRECTORY), nodes)
    table = (P * PLACES)()
    functions = []
    for place, (name, types) in OPERATIONS.items():
        functions.append(ctypes.CFUNCTYPE(N, *types, use_errno=True)(_guarded(getattr(storage, name))))
        table[place] = ctypes.cast(functions[-1], P)
    caches = "entry_timeout=0,attr_timeout=0,negative_timeout=0,ac_attr_timeout=0"
    words = [b"storage_fs", b"-f", b"-o", caches.encode() + b",fsname=sandbox", folder.encode()]
    argv = (S * (len(words) + 1))(*words, None)
    return int(fuse.fuse_main_real(len(words), argv, table, Z(ctypes.sizeof(table)), None))


def _guarded(operation: Callable[..., int]) -> Callable[..., int]:
    """Return the operation; an OSError of Python is its error number."""

    def call(*args: Any) -> int:
        try:
            return operation(*args)
        except OSError as error:
            return -(error.errno or errno.EIO)

    return call


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], Path(sys.argv[2])))
