"""Files of this user, safe against links and folders of other users in shared folders like /tmp.

Files are opened relative to a checked folder that stays open. The folder, and every symbolic link in its path, must
belong to this user or to root; it must not be writable by all users, except with the sticky bit. Files in it are never
reached through a link: O_NOFOLLOW, O_EXCL or rename.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import secrets
import shutil
import stat
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import GpuClusterError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_INSIDE = os.O_PATH | os.O_NOFOLLOW
_FOLDER = _INSIDE | os.O_DIRECTORY  # which lets the automounter mount it, too
_FILE = os.O_RDWR | os.O_NOFOLLOW
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_MAX_LINKS = 40  # as the kernel's (path_resolution(7))
_REMEDY = "remove it, or set TMPDIR to a folder of your own"


class Folder:
    """An open folder of this user's or root's. Every method raises OSError with the full path."""

    def __init__(self, path: Path, *, create: bool = False, group: int | None = None, foreign: bool = False) -> None:
        """Open it. `create`: make it and missing parents, with mode 0700.

        `group`: the id of a group that may read new files (0750, 0640); None: only this user may.
        `foreign`: unless this user is root, it may belong to another user, who can rename what is in it.
        """
        self.path, self.group, self._foreign = path, group, foreign and os.geteuid() != 0
        self._handle = _walk(path, create=create, group=group)
        self._check()

    def close(self) -> None:
        """Close the folder; files opened in it stay open."""
        os.close(self._handle)

    def folder(self, name: str, *, create: bool = False) -> Folder:
        """Open a folder in this one; a link is refused, even one of this user."""
        inner = object.__new__(Folder)
        inner.path, inner.group, inner._foreign = self.path / name, self.group, False
        with _naming(inner.path):
            try:
                inner._handle = _enter(self._handle, name, create=create, group=self.group)
            except NotADirectoryError as error:
                raise OSError(errno.ENOTDIR, "is a link or a file, not a folder") from error
        inner._check()
        return inner

    def _check(self) -> None:
        found = os.fstat(self._handle)
        problem = ""
        if found.st_uid not in _trusted() and not self._foreign:
            problem = f"the folder belongs to another user ({found.st_uid})"
        elif found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            problem = f"all users may replace files in this folder (mode {stat.S_IMODE(found.st_mode):04o})"
        if problem:
            self.close()
            raise PermissionError(errno.EPERM, problem, str(self.path))

    def names(self) -> list[str]:
        """Return the names of the files in the folder, sorted."""
        with _naming(self.path):
            handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._handle)
            try:
                return sorted(os.listdir(handle))  # noqa: PTH208 - a descriptor, not a path
            finally:
                os.close(handle)

    def open(self, name: str) -> int:
        """Open or create a file for reading and writing; return its descriptor.

        It must be a plain file of this user with one link only.
        """
        with _naming(self.path / name):
            try:
                handle = os.open(name, _FILE | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._handle)
            except FileExistsError:
                handle = os.open(name, _FILE, dir_fd=self._handle)
            try:
                _refuse_foreign(os.fstat(handle))
                self._share(handle)
            except BaseException:
                os.close(handle)
                raise
        return handle

    def make(self, name: str) -> None:
        """Create an empty file. An existing one keeps its mode and must be plain.

        It may belong to another user if the folder is not writable by all: a group shares it. It is not opened, since
        closing it would release SQLite's locks (https://sqlite.org/howtocorrupt.html, 2.2).
        """
        with _naming(self.path / name):
            try:
                handle = os.open(name, _NEW, 0o600, dir_fd=self._handle)
            except FileExistsError:
                shared = not os.fstat(self._handle).st_mode & stat.S_IWOTH
                _refuse_foreign(os.stat(name, dir_fd=self._handle, follow_symlinks=False), shared=shared)
                return
            try:
                self._share(handle)
            finally:
                os.close(handle)

    def reach(self, name: str) -> str:
        """Return a path to a file for libraries that take only paths; valid while the folder is open."""
        return f"/proc/self/fd/{self._handle}/{name}"

    def replace(self, name: str, data: Iterable[bytes], *, mode: int | None = None) -> None:
        """Write a file atomically. A link of this name is replaced, never followed.

        `mode`: permissions that differ from those of the folder's files.
        """
        # the leading dot and the suffix hide it from collectors that read *.prom or *.xml
        temporary = f".{name[:200]}.{secrets.token_hex(8)}.tmp"
        with _naming(self.path / name):
            handle, unnamed = self._open_temporary(temporary)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.writelines(data)
                    file.flush()
                    self._share(file.fileno())
                    if mode is not None:
                        os.fchmod(file.fileno(), mode)
                    os.fsync(file.fileno())
                    if unnamed and self._link(file.fileno(), name):
                        return
                    if unnamed:
                        self._link(file.fileno(), temporary)
                os.replace(temporary, name, src_dir_fd=self._handle, dst_dir_fd=self._handle)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=self._handle)
                raise

    def link(self, name: str, target: str) -> None:
        """Make a symbolic link atomically; an existing link or file of this name is replaced."""
        temporary = f".{name}.{secrets.token_hex(8)}.tmp"
        with _naming(self.path / name):
            os.symlink(target, temporary, dir_fd=self._handle)
            try:
                os.replace(temporary, name, src_dir_fd=self._handle, dst_dir_fd=self._handle)
            except BaseException:
                os.unlink(temporary, dir_fd=self._handle)
                raise

    def _open_temporary(self, name: str) -> tuple[int, bool]:
        """Open a file without a name, of which SIGKILL leaves nothing (True), or `name` on NFS and the like (False)."""
        try:
            return os.open(".", os.O_WRONLY | os.O_TMPFILE, 0o600, dir_fd=self._handle), True
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):  # open(2) on O_TMPFILE
                raise
        return os.open(name, _NEW, 0o600, dir_fd=self._handle), False

    def _link(self, handle: int, name: str) -> bool:
        """Give a file without a name this one; False if there is such a file."""
        try:
            os.link(f"/proc/self/fd/{handle}", name, dst_dir_fd=self._handle, follow_symlinks=True)
        except FileExistsError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Remove a file or link, if it exists."""
        with _naming(self.path / name), contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._handle)

    def remove_folder(self, name: str) -> None:
        """Remove a folder with all that is in it.

        Of another user's folder, who can move any folder of this user here: only files that begin with the name, and
        the folder if it is empty then.
        """
        if os.fstat(self._handle).st_uid in _trusted():
            shutil.rmtree(self.reach(name))
            return
        with contextlib.closing(self.folder(name)) as inner:
            for found in inner.names():
                if found.startswith(name):
                    inner.remove(found)
        with _naming(self.path / name):
            os.rmdir(name, dir_fd=self._handle)

    def _share(self, handle: int) -> None:
        """Set the permissions of a file: 0600, or 0640 and the group."""
        if self.group is not None:
            os.fchown(handle, -1, self.group)
        os.fchmod(handle, 0o600 if self.group is None else 0o640)


def group_id(name: str | None) -> int | None:
    """Return the id of a group that may read reports; GpuClusterError if this user cannot give it files."""
    if name is None:
        return None
    try:
        found = grp.getgrnam(name).gr_gid
    except KeyError:
        raise GpuClusterError(f"group {name!r} does not exist on this machine: getent group lists them") from None
    if os.geteuid() != 0 and found not in (os.getegid(), *os.getgroups()):
        raise GpuClusterError(
            f"group {name!r}: this user is not a member and cannot give it files: newgrp, or another group"
        )
    return found


def open_own(name: str) -> tuple[Path, int]:
    """Open a file of this name in the folder for temporary files, for reading and writing: path, descriptor.

    GpuClusterError if it cannot be opened or belongs to another user.
    """
    path = Path(name)
    try:
        path = Path(tempfile.gettempdir(), name)
        with contextlib.closing(Folder(path.parent)) as folder:
            return path, folder.open(name)
    except OSError as error:
        raise GpuClusterError(f"{path}: cannot be opened ({error.strerror or error}): {_REMEDY}") from error


def temporary_folder() -> Folder:
    """Open the folder for temporary files; GpuClusterError if other users can replace files there."""
    path = Path(tempfile.gettempdir())
    try:
        return Folder(path)
    except OSError as error:
        raise GpuClusterError(
            f"TMPDIR={path}: {error.strerror or error}: set TMPDIR to a folder of your own"
        ) from error


def _trusted() -> tuple[int, int]:
    return os.geteuid(), 0


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the full path into errors of calls relative to a descriptor, and name a link as a link."""
    try:
        yield
    except OSError as error:
        why = "is a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)
        raise OSError(error.errno, why, str(path)) from error


def _refuse_foreign(found: os.stat_result, *, shared: bool = False) -> None:
    foreign = found.st_uid != os.geteuid() and not shared
    if foreign or not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        raise PermissionError(errno.EPERM, "is not a plain file of this user's own")


def _walk(path: Path, *, create: bool, group: int | None) -> int:
    with _naming(path):
        handle = os.open("/", _FOLDER)
        parts, links = list(reversed((Path.cwd() / path).parts[1:])), _MAX_LINKS
        try:
            while parts:
                name = parts.pop()
                try:
                    inner = _enter(handle, name, create=create, group=group)
                except NotADirectoryError:
                    target, links = PurePosixPath(_target(handle, name)), links - 1
                    if not links:
                        raise
                    inner = os.open("/" if target.is_absolute() else ".", _FOLDER, dir_fd=handle)
                    parts.extend(reversed(target.parts[target.is_absolute() :]))
                os.close(handle)
                handle = inner
        except BaseException:
            os.close(handle)
            raise
    return handle


def _enter(folder: int, name: str, *, create: bool, group: int | None) -> int:
    """Open, or create, a folder in a folder. NotADirectoryError also for a link."""
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
    with contextlib.suppress(FileExistsError):  # another run created it
        os.mkdir(name, 0o700, dir_fd=folder)
    handle = os.open(name, _FOLDER, dir_fd=folder)
    if group is not None:
        itself = f"/proc/self/fd/{handle}"  # a descriptor of O_PATH takes no fchmod
        os.chown(itself, -1, group)
        os.chmod(itself, 0o750)  # noqa: PTH101, S103 - a descriptor; for the stated group only
    return handle


def _target(folder: int, name: str) -> str:
    """Return the target of a symbolic link; PermissionError if another user owns it, NotADirectoryError for no link."""
    handle = os.open(name, _INSIDE, dir_fd=folder)
    try:
        found = os.fstat(handle)
        if not stat.S_ISLNK(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if found.st_uid not in _trusted():
            raise PermissionError(errno.EPERM, f"{name} is a link of another user ({found.st_uid})")
        return os.readlink("", dir_fd=handle)
    finally:
        os.close(handle)
