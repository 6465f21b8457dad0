"""Folders of a task that other users cannot replace, redirect or guess. `payload_step.sent` puts it into a payload.

Folders in shared places are opened one by one without following links. One that all users may write to without the
sticky bit is refused: there others can rename what this task creates. So is a folder of another user, except where this
task reaches everything by descriptors, and removes only files that have the name of their folder: its owner can rename
that folder, but cannot read or replace what is in it. Root does not use it even then: its owner may have mounted a file
system there that invents owners and contents. Python 3.6.
"""

import contextlib
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


def _refuse_replaceable(folder: int, path: str, *, foreign: bool = False) -> None:
    found = os.fstat(folder)
    if found.st_uid not in trusted_owners() and not (foreign and os.geteuid()):
        raise OSError("%s belongs to another user (%d)" % (path, found.st_uid))
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise OSError("all users may replace files in %s (mode %04o)" % (path, stat.S_IMODE(found.st_mode)))


def checked_folder(path: str, *, whole: bool = False) -> int:
    """Return a descriptor of a folder; OSError if it may not be used.

    `whole`: paths below it are given to other programs, so other users must not rename in it or in a folder above it.
    """
    handle, name = os.open("/", _PATH), ""
    try:
        for part in filter(None, os.path.realpath(path).split("/")):
            inner = os.open(part, _PATH, dir_fd=handle)
            os.close(handle)
            handle, name = inner, "%s/%s" % (name, part)
            if whole:
                _refuse_replaceable(handle, name)
        _refuse_replaceable(handle, name or "/", foreign=not whole)
    except BaseException:
        os.close(handle)
        raise
    return handle


def own_descriptor(parent: int, name: str, options: int) -> int:
    """Return a descriptor of a folder or file of this user in an open folder; OSError if it is another's or a link."""
    handle = os.open(name, options | os.O_NOFOLLOW, dir_fd=parent)
    if os.fstat(handle).st_uid != os.geteuid():
        os.close(handle)
        raise OSError("%s was replaced by another user" % name)
    return handle


def remove_named(parent: int, name: str) -> None:
    """Remove the files of this user's folder that begin with its name, then the folder, if it is empty."""
    with contextlib.suppress(OSError):
        folder = own_descriptor(parent, name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for found in os.listdir(folder):
                if found.startswith(name):
                    os.unlink(found, dir_fd=folder)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=parent)


def make_folder(parent: str, prefix: str) -> str:
    """Create a folder of mode 0700 with an unpredictable name; return its path."""
    path, name = os.path.realpath(parent), prefix + secrets.token_hex(8)
    handle = checked_folder(path, whole=True)
    try:
        os.mkdir(name, 0o700, dir_fd=handle)
    finally:
        os.close(handle)
    return os.path.join(path, name)


def remove_folder(path: str) -> None:
    """Remove a folder that this user created in a checked folder, if it exists; a link or another's folder stays."""
    parent, name = os.path.split(path)
    try:
        handle = checked_folder(parent, whole=True)
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
