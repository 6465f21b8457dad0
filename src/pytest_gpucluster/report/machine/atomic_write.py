"""The writer of reports: each file whole or not at all, readable by its owner alone or by one stated group as well.

`harmless` takes secrets and terminal control out of the event log, logs of steps and what LogXML writes. HTML, metrics
and history are made from the event log.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.core import redact
from pytest_gpucluster.core import sanitize as printable
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.secure_tempfile import Folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pytest_gpucluster.report.machine.run_folder import RunFolder

# these may lead to plain files, which must not be replaced
_STREAMS = ("/dev/std", "/dev/fd/", "/proc/self/fd/")


class Reports:
    """The outcome of the files of one run: `written` are whole; `problems` has the reason for each missing one.

    `folder`: where they are written; `group`: the id of the group that may read them, None: only the user.
    """

    def __init__(self, group: int | None = None, folder: Path = Path()) -> None:
        self.group, self.folder = group, folder
        self.runs: RunFolder | None = None  # in the process that owns the folder
        self.written: dict[Path, None] = {}
        self.problems: dict[Path, str] = {}

    @property
    def is_published(self) -> bool:
        """Whether the run has started an item: its folder stays."""
        return self.runs is not None and self.runs.is_published

    def publish(self) -> None:
        """Make the folder the latest one, at the first call."""
        if self.runs is not None and not self.runs.is_published:
            with self.writing(self.runs.link):
                self.runs.publish()

    def close(self, named: Collection[str] = ()) -> list[str]:
        """Remove the folders of old runs, or this one if nothing was published; return the ids of removed runs.

        `named`: ids of runs that stay.
        """
        removed: list[str] = []
        if self.runs is not None:
            with self.writing(self.runs.path):
                removed = self.runs.close(named)
        return removed

    @contextlib.contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Record the outcome of a file that is written inside: an error ends here and is added to `problems`."""
        self.written.pop(path, None)
        try:
            yield
        except GpuClusterError as error:
            self.problems[path] = " ".join(str(error).split())
        except OSError as error:
            self.problems[path] = f"{path}: cannot be written ({error.strerror or error})"
        except Exception as error:  # noqa: BLE001 - whatever it is: the other reports are written
            self.problems[path] = f"{path}: cannot be written ({type(error).__name__}: {error})"
        else:
            self.problems.pop(path, None)
            self.written[path] = None


def write_whole(
    path: Path, data: bytes | Iterable[bytes], *, group: int | None = None, mode: int | None = None
) -> None:
    """Write a file so that a reader sees the old content or all of the new; GpuClusterError where it cannot.

    `data` may come in pieces, where it is too large for memory. The mode is 0600, with a group 0640; `mode`
    differs where another program is the reader. A terminal or pipe of this name is written to.
    """
    pieces = [data] if isinstance(data, bytes) else data
    try:
        if is_stream(path):
            with open(  # noqa: PTH123 - a Path cannot be opened without O_CREAT
                os.open(path, os.O_WRONLY | os.O_APPEND), "wb"
            ) as file:  # a Path cannot be opened without O_CREAT
                file.writelines(pieces)
            return
        with contextlib.closing(Folder(path.parent, create=True, group=group)) as folder:
            folder.replace(path.name, pieces, mode=mode)
    except OSError as error:
        raise GpuClusterError(f"{path}: cannot be written ({error.strerror or error})") from error


def take_away(path: Path) -> None:
    """Remove the file of an earlier run, if there is one; a terminal or pipe stays. OSError where it cannot go."""
    if not is_stream(path):
        with contextlib.closing(Folder(path.parent)) as folder:
            folder.remove(path.name)


def harmless(text: str) -> str:
    """Return a text without secrets, where each control character has become '?'.

    Where control characters stand in the name of a secret they are left out instead, and the secret as well.
    """
    shown = redact.text(text.replace("\r\n", "\n"))
    bare = printable.bare(shown)
    found = bare if bare == shown else redact.text(bare)
    return printable.clean(shown) if found == bare else found


def is_stream(path: Path) -> bool:
    """Return True for a terminal, pipe or device of this user's or root's, which cannot be replaced by a file."""
    if str(path).startswith(_STREAMS):
        return True
    try:
        found = path.stat()
    except OSError:
        return False
    plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return not plain and found.st_uid in (os.geteuid(), 0)
