"""Files that may take a node out of service: marks of the circuit breaker, and what a gate compares its node with.

They may be on a file server. A process of its own opens them, so that a server that is away holds no gate. It accepts nothing
that another user can have written or redirected: owner, mode and links are checked on open descriptors.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import ConfigError, TransportError
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.core.secure_tempfile import Folder

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.transport.base import Transport

PATIENCE = 2.0  # seconds for a file server
MOST = 64 << 20  # bytes
MISSING = 3  # exit status of the process for a file that does not exist
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY  # no wait for the writer of a pipe


def content(path: Path, *, own: bool) -> bytes:
    """Return the content of a regular file; `own`: it and its folder must be of root or this user, and closed to others."""
    with contextlib.ExitStack() as stack:
        if own:
            folder = stack.enter_context(contextlib.closing(Folder(path.parent)))
            handle = os.open(folder.reach(path.name), _FLAGS | os.O_NOFOLLOW)
        else:
            handle = os.open(path, _FLAGS)
        file = stack.enter_context(os.fdopen(handle, "rb"))
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise PermissionError("is no regular file")
        if found.st_size > MOST:
            raise OSError(f"is larger than {MOST >> 20} MiB")
        if own:
            _refuse_others(found)
        return file.read()


def mark(path: Path, check: str, node: str, seconds: float) -> int:
    """Leave the mark PATH/CHECK/NODE; return how many marks of the check are at most `seconds` older, this one included.

    The file server gives all marks their times: no clock of a node matters.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(contextlib.closing(Folder(path.parent, create=True)))
        for name in (path.name, check):
            folder = stack.enter_context(contextlib.closing(folder.folder(name, create=True)))
            _refuse_others(Path(folder.reach(".")).stat())
        folder.replace(node, ())
        marks = {name: os.lstat(folder.reach(name)) for name in folder.names() if not name.startswith(".")}
    for name, found in marks.items():
        _refuse_others(found)
        if not stat.S_ISREG(found.st_mode):
            raise PermissionError(f"{check}/{name} is no mark")
    since = marks[node].st_mtime - seconds
    return sum(found.st_mtime >= since for found in marks.values())


def _refuse_others(found: os.stat_result) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"belongs to another user ({found.st_uid})")
    if found.st_mode & _OTHERS:
        raise PermissionError(f"other users may write to it (mode {stat.S_IMODE(found.st_mode):04o})")


def read(path: Path, transport: Transport, *, own: bool) -> str | None:
    """Return the text of a file, None if there is none; ConfigError where it cannot be used, or does not come in time."""
    try:
        return _ask(transport, "content", path, own or "")
    except TransportError as error:
        raise ConfigError(f"{path} is not used: no answer within {PATIENCE:g} s") from error
    except OSError as error:
        raise ConfigError(f"{path} is not used: {error}") from error


def count_marks(path: Path, transport: Transport, check: str, node: str, seconds: float) -> int:
    """Return what `mark` does; OSError or TransportError where the own mark cannot be left and counted."""
    count = int(_ask(transport, "mark", path, check, node, seconds) or 0)
    if count < 1:
        raise OSError("the own mark is not there")
    return count


def _ask(transport: Transport, what: str, path: Path, *words: object) -> str | None:
    program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import answer; answer(*sys.argv[1:])"
    argv = [sys.executable, "-I", "-c", program, what, str(path.absolute()), *map(str, words)]
    done = transport.run(argv, timeout=PATIENCE)
    if done.rc == MISSING:
        return None
    if done.rc != 0:
        raise OSError(one_line(done.stderr, 160) or "no message")
    return done.stdout


def answer(what: str, path: str, *words: str) -> None:
    """Do the work of the process: print the content or the number of marks."""
    try:
        if what == "content":
            sys.stdout.buffer.write(content(Path(path), own=bool(words[0])))
        else:
            check, node, seconds = words
            sys.stdout.write(f"{mark(Path(path), check, node, float(seconds))}\n")
    except FileNotFoundError:
        sys.exit(MISSING)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{error.strerror or error}" if isinstance(error, OSError) else repr(error))
