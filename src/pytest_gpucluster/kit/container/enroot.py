"""Facts of Pyxis and Enroot on a node: version, named containers, free space. Pure."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import NOT_FOUND, Answer, Probe, text_of
from pytest_gpucluster.core.run_mark import PREFIX
from pytest_gpucluster.core.scripts import script

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# pyxis_NAME (scope global), pyxis_JOB_NAME (scope job), pyxis_JOB.STEP and pyxis_JOB_JOB.STEP for unnamed ones;
# the names of the suites' containers contain the job: gpucluster-JOB-DIGEST (see container_name)
_UNNAMED = re.compile(r"pyxis_(?:\d+_)?(\d+)\.\d+")
_OF_JOB = re.compile(r"pyxis_(\d+)_.+")
_OF_SUITES = re.compile(rf"pyxis_(?:\d+_)?{PREFIX}-(\d+)-.+")
# Pyxis runs Enroot with slurmd's PATH; a task's PATH may lack the folder
UNKNOWN = "enroot does not list the containers of the node: is it on the PATH of tasks, as it is on slurmd's?"
SEARCH = "PATH=$PATH:/usr/bin:/usr/local/bin:/opt/enroot/bin"

_SPACE_LINE = re.compile(r"(\w+) ((?:\d+ ){4}\d+) (rw|ro) (.+)")


@dataclass(frozen=True)
class Pyxis:
    """The plugin in plugstack.conf of the node. `absent`: why there is none; `version`: '' if unknown."""

    library: str = ""
    version: str = ""
    absent: str = ""


@dataclass(frozen=True)
class EnrootSpace:
    """One path of Enroot: `free` of `size` bytes for the user, and whether it is writable.

    `inodes`: how many files can be created; None where the file system has no such limit.
    """

    what: str
    path: str
    free: int
    size: int
    writable: bool
    inodes: int | None = None


def read_pyxis(answer: Answer) -> Pyxis:
    """Return plugin and version."""
    lines = text_of(answer).splitlines()
    library = next((line.removeprefix("so ") for line in lines if line.startswith("so ")), "")
    if not library:
        return Pyxis(absent=lines[-1].strip() if lines else "no answer")
    versions = [match[1] for line in lines if (match := re.search(r"version v(\S+)", line))]
    return Pyxis(library, versions[0] if versions else "")


def read_space(answer: Answer) -> tuple[EnrootSpace, ...]:
    """Return the paths of Enroot; NotAvailable without Enroot on PATH."""
    spaces = []
    for line in text_of(answer).splitlines():
        match = _SPACE_LINE.fullmatch(line.strip())
        if match is None:
            raise ProbeError(f"space of enroot: not understood: {line!r}")
        what, numbers, rights, path = match.groups()
        free, size, block, inodes, most = map(int, numbers.split())
        spaces.append(EnrootSpace(what, path, free * block, size * block, rights == "rw", inodes if most else None))
    if not spaces:
        raise ProbeError("space of enroot: no path in the answer")
    return tuple(spaces)


def read_names(answer: Answer) -> tuple[str, ...]:
    """Return the output of `enroot list`; NotAvailable without Enroot on PATH."""
    if answer.rc == NOT_FOUND:
        raise NotAvailable("enroot is not found on PATH")
    return tuple(line.strip() for line in text_of(answer).splitlines() if line.strip())


def jobs_of(names: tuple[str, ...]) -> Mapping[str, int]:
    """Return {container: job} of the containers that belong to one job."""
    found = {}
    for name in names:
        match = _OF_SUITES.fullmatch(name) or _UNNAMED.fullmatch(name) or _OF_JOB.fullmatch(name)
        if match:
            found[name] = int(match[1])
    return found


def may_be_named(name: str) -> bool:
    """Return whether a user may have given the container this name: `--container-name=2024_torch` in the scope global."""
    return not (_OF_SUITES.fullmatch(name) or _UNNAMED.fullmatch(name))


def suite_containers(names: tuple[str, ...]) -> Mapping[str, int]:
    """Return {container: job} of the containers that the suites created."""
    return {name: int(match[1]) for name in names if (match := _OF_SUITES.fullmatch(name))}


def enroot_names(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Return Enroot's names of the container that Pyxis calls `name`, in either scope."""
    pattern = re.compile(rf"pyxis_(?:\d+_)?{re.escape(name)}")
    return tuple(found for found in names if pattern.fullmatch(found))


def remove_command(names: tuple[str, ...]) -> str:
    """Return the command that removes containers."""
    return f"{SEARCH}; enroot remove -f " + " ".join(map(shlex.quote, names)) + " </dev/null"


def remove_present_command(names: Sequence[str]) -> str:
    """Return the command that removes those of the containers that exist on a node."""
    wanted = " | ".join(map(shlex.quote, names))
    return f"""{NAMES.command} | {{ rc=0; while read -r name; do
case $name in {wanted}) enroot remove -f "$name" </dev/null || rc=$? ;; esac
done; exit $rc; }}"""


PYXIS = Probe("Pyxis", script(__package__, "pyxis.sh"), read_pyxis, by_hand="grep -i pyxis /etc/slurm/plugstack.conf*")
SPACE = Probe(
    "room of Enroot",
    script(__package__, "enroot_space.sh"),
    read_space,
    by_hand="df -h $ENROOT_DATA_PATH $ENROOT_CACHE_PATH",
)
NAMES = Probe("containers", f"{SEARCH}; enroot list", read_names, by_hand="enroot list")
