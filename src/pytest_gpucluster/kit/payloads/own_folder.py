"""Folders of a task that other users cannot replace, redirect or guess. `payload_step.sent` puts it into a payload.

Folders in shared places are opened one by one without following links. A folder of another user, or one that all users
may write to without the sticky bit, is refused: there others can rename what this task creates. Python 3.6.
"""

import os
import secrets
import shutil
import stat
from typing import Set

_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_ALL_IDS = 0xFFFFFFFF  # user_namespaces(7): the length of the map outside of a user namespace


def trusted_owners() -> Set[int]:
    """Return this user and root, also as a user namespace shows it."""
    owners = {0, os.geteuid()}
    with open("/proc/self/uid_map") as file:
        if int(file.readline().split()[2]) != _ALL_IDS:
            with open("/proc/sys/kernel/overflowuid") as other:
                owners.add(int(other.read()))
    return owners


def _refuse_replaceable(folder: int, path: str) -> None:
    found = os.fstat(folder)
    if found.st_uid not in trusted_owners():
        raise OSError("%s belongs to another user (%d)" % (path, found.st_uid))
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise OSError("all users may replace files in %s (mode %04o)" % (path, stat.S_IMODE(found.st_mode)))


def checked_folder(path: str, *, whole: bool = False) -> int:
    """Return a descriptor of a folder; OSError if others can replace files there. `whole`: nor in a folder above it."""
    handle, name = os.open("/", _PATH), ""
    try:
        for part in filter(None, os.path.realpath(path).split("/")):
            inner = os.open(part, _PATH, dir_fd=handle)
            os.close(handle)
            handle, name = inner, "%s/%s" % (name, part)
            if whole:
                _refuse_replaceable(handle, name)
        _refuse_replaceable(handle, name or "/")
    except BaseException:
        os.close(handle)
        raise
    return handle


def make_folder(place: str, prefix: str) -> str:
    """Create a folder of mode 0700 with an unpredictable name; return its path."""
    path, name = os.path.realpath(place), prefix + secrets.token_hex(8)
    handle = checked_folder(path, whole=True)
    try:
        os.mkdir(name, 0o700, dir_fd=handle)
    finally:
        os.close(handle)
    return os.path.join(path, name)


def remove_folder(path: str) -> None:
    """Remove a folder that this user created in a checked folder, if it exists; a link or another's folder stays."""
    place, name = os.path.split(path)
    try:
        handle = checked_folder(place)
    except OSError:
        return
    try:
        found = os.stat(name, dir_fd=handle, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            shutil.rmtree("/proc/self/fd/%d/%s" % (handle, name), ignore_errors=True)  # follows no links
    except FileNotFoundError:
        pass
    finally:
        os.close(handle)
