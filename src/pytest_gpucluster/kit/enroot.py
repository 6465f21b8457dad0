"""Facts of Pyxis and Enroot on a node: version, named containers, free space. Pure."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import NOT_FOUND, Answer, Probe, text_of
from pytest_gpucluster.core.run_mark import PREFIX

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

# plugstack.conf or an included file names the plugin; the version is text inside the plugin
_PYXIS = r"""
conf=$(scontrol show config 2>/dev/null | sed -n 's/^PlugStackConfig *= *//p')
for conf in "$conf" "${SLURM_CONF%/*}/plugstack.conf" /etc/slurm/plugstack.conf; do [ ! -r "$conf" ] || break; done
[ -r "$conf" ] || { echo "no plugstack.conf"; exit 0; }
files=$conf
for more in $(sed -n 's/^ *include  *//p' "$conf"); do
  case $more in /*) files="$files $more" ;; *) files="$files ${conf%/*}/$more" ;; esac
done
so=$(sed -n 's/^ *\(required\|optional\)  *\([^ ]*pyxis[^ ]*\.so\).*/\2/p' $files 2>/dev/null | head -n 1)
[ -n "$so" ] || { echo "no line with pyxis in $files"; exit 0; }
case $so in /*) ;; *) so=$(scontrol show config | sed -n 's/^PluginDir *= *//p')/$so ;; esac
[ -r "$so" ] || { echo "$so does not exist"; exit 0; }
echo "so $so"
grep -ao 'pyxis: version v[0-9][0-9A-Za-z.+-]*' "$so" | head -n 1
"""

# The precedence of Enroot: environment, enroot.conf, XDG's defaults
_SPACE = r"""
PATH=$PATH:/usr/bin:/usr/local/bin:/opt/enroot/bin
tool=$(command -v enroot) || { echo "enroot: not found" >&2; exit 127; }
conf=$(sed -n 's/^config::init "\(.*\)"$/\1/p' "$tool" | head -n 1)
for file in "${conf:-/etc/enroot/enroot.conf}" "${conf:-/etc/enroot/enroot.conf}".d/*.conf; do
  [ -r "$file" ] || continue
  while read -r key value; do
    case $key in
      ENROOT_DATA_PATH | ENROOT_CACHE_PATH | ENROOT_TEMP_PATH)
        eval "[ -n \"\${$key:-}\" ] || $key=$value" ;;
    esac
  done < "$file"
done
: "${ENROOT_DATA_PATH:=${XDG_DATA_HOME:-$HOME/.local/share}/enroot}"
: "${ENROOT_CACHE_PATH:=${XDG_CACHE_HOME:-$HOME/.cache}/enroot}"
: "${ENROOT_TEMP_PATH:=${TMPDIR:-/tmp}}"
for name in data cache temp; do
  case $name in data) path=$ENROOT_DATA_PATH ;; cache) path=$ENROOT_CACHE_PATH ;; temp) path=$ENROOT_TEMP_PATH ;; esac
  there=$path
  while [ ! -d "$there" ]; do there=$(dirname "$there"); done
  echo "$name $(stat -f -c '%a %b %S %d %c' "$there") $(test -w "$there" && echo rw || echo ro) $path"
done
"""
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
        spaces.append(
            EnrootSpace(what, path, free * block, size * block, rights == "rw", inodes if most else None)
        )
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


PYXIS = Probe("Pyxis", _PYXIS, read_pyxis, by_hand="grep -i pyxis /etc/slurm/plugstack.conf*")
SPACE = Probe("room of Enroot", _SPACE, read_space, by_hand="df -h $ENROOT_DATA_PATH $ENROOT_CACHE_PATH")
NAMES = Probe("containers", f"{SEARCH}; enroot list", read_names, by_hand="enroot list")
