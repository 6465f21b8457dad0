"""Jobs and temporary folders that a killed run left.

A name alone is no proof. A job must belong to this user and have the mark of a process of this machine that has ended; it
is cancelled by its id together with that name. A folder must belong to this user too.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.core import run_mark as runmark
from pytest_gpucluster.core.errors import GpuClusterError, SlurmError
from pytest_gpucluster.core.secure_tempfile import Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_gpucluster.cluster.slurm.client import Slurm


TRIES = 10  # a second apart


@dataclass(frozen=True)
class Leftover:
    """One job, folder or container: `remove` removes it, or raises GpuClusterError or OSError.

    `remove` is None if this machine cannot decide whether its run has ended; `stays` has the reason.
    """

    what: str
    remove: Callable[[], object] | None
    stays: str = ""


def jobs(slurm: Slurm) -> list[Leftover]:
    """Return the jobs of this user's ended runs, and those of runs that cannot be judged here."""
    found: dict[tuple[str, str], str] = {}
    for number, state, name in _queue(slurm):
        if runmark.mark_in(name):
            found.setdefault((number, name), state)  # the elements of an array share both
    judged = [
        leftover_of(f"job {number} ({name}, {state})", name, partial(_cancel, slurm, number, name))
        for (number, name), state in found.items()
    ]
    return [one for one in judged if one is not None]


def folders(*more: Path) -> list[Leftover]:
    """Return the folders of this user's ended runs, in the temporary folders of this machine and in `more`.

    A run makes the folder of its socket in one of the two temporary folders (channel_server.py). Where other users can
    rename folders, a name proves nothing: see Folder.remove_folder.
    """
    judged = []
    temporary = (Path(tempfile.gettempdir()), Path("/tmp"))
    for parent in dict.fromkeys((*temporary, *more)):  # see _is_own_folder
        opened = partial(Folder, parent, foreign=parent not in temporary)
        with contextlib.suppress(OSError), contextlib.closing(opened()) as checked:
            for found in checked.names():
                name = found.removeprefix(".")
                if runmark.mark_in(name) and _is_own_folder(checked, found):
                    remove = partial(_remove_folder, opened, found)
                    judged.append(leftover_of(f"folder {parent / found}", name, remove))
    return [one for one in judged if one is not None]


def leftover_of(what: str, name: str, remove: Callable[[], object]) -> Leftover | None:
    """Return the leftover of an ended or unknown run; None for a running one. `name` must have a mark."""
    mark = runmark.mark_in(name)
    process, alive = runmark.process_of(mark), runmark.is_running(mark)
    if alive is None:
        elsewhere = f"{what} of process {process} of another machine, or of this one before a restart"
        return Leftover(elsewhere, None, "whether that run still exists cannot be determined here")
    return None if alive else Leftover(f"{what} of a killed run (process {process})", remove)


def remove(found: Iterable[Leftover], progress: Callable[[str], None]) -> bool:
    """Remove what may be removed, and report each result; False if a removal failed."""
    fine = True
    for one in found:
        if one.remove is None:
            progress(f"{one.what} stays: {one.stays}")
            continue
        try:
            one.remove()
        except (GpuClusterError, OSError) as error:
            fine = False
            progress(f"{one.what}: could not be removed: {error}")
        else:
            progress(f"{one.what}: removed")
    return fine


def _cancel(slurm: Slurm, number: str, name: str) -> None:
    """Cancel a job until the queue no longer has it: scancel misses a job that is being requeued."""
    states: list[str] = []
    problem = ""
    for _ in range(TRIES):
        try:
            slurm.run("scancel", f"--name={name}", number)
        except SlurmError as error:  # it may just have ended; the queue decides
            problem = f"{error}: "
        states = [state for found, state, known in _queue(slurm) if (found, known) == (number, name)]
        if not states:
            return
        time.sleep(1)
    if set(states) != {"COMPLETING"}:  # Slurm ends a COMPLETING job by itself
        raise GpuClusterError(f"{problem}it is still {', '.join(sorted(set(states)))}: run scancel {number}")


def _queue(slurm: Slurm) -> list[tuple[str, str, str]]:
    """Return (id, state, name) of this user's jobs; elements of an array share the id, and may share a line."""
    text = slurm.run("squeue", "--me", "-h", "-a", "-o", "%F %T %j")
    lines = (line.split(maxsplit=2) for line in text.splitlines())
    return [(words[0], words[1], words[2]) for words in lines if len(words) == 3]  # a job may have no name


def _remove_folder(open_parent: Callable[[], Folder], name: str) -> None:
    with contextlib.suppress(FileNotFoundError), contextlib.closing(open_parent()) as checked:
        if _is_own_folder(checked, name):
            checked.remove_folder(name)  # the shell of that run removes it too (channel_server.py)


def _is_own_folder(parent: Folder, name: str) -> bool:
    try:
        about = os.stat(parent.reach(name), follow_symlinks=False)  # noqa: PTH116 - below a descriptor
    except OSError:  # its run ends now
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
