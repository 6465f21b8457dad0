"""NVIDIA's libraries on a node: what the loader's cache names, and which files cannot be loaded. Formats: ldconfig(8), elf(5)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotApplicable, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe
from pytest_gpucluster.core.scripts import script

if TYPE_CHECKING:
    from collections.abc import Mapping

_CACHED = re.compile(r"\s*(lib\S+) \(([^)]*)\) => (/\S+)")
_BAD = re.compile(r"(?:grep: )?(/\S+?)(?:: (.*))?")


@dataclass(frozen=True)
class Libraries:
    """NVIDIA's libraries. `cached`: {path that the loader's cache names: whether it is for 64 bits}.

    bad: {path: why it cannot be read, '' if it is no ELF file}, of the cache and of the files beside.
    """

    cached: Mapping[str, bool]
    bad: Mapping[str, str]

    def replaced(self, path: str) -> bool:
        """Return whether the cache names a good file of the same library."""
        stem = stem_of(path)
        return any(stem_of(one) == stem and one not in self.bad for one in self.cached)


def stem_of(path: str) -> str:
    """Return the name of a library without version: libcuda of /lib64/libcuda.so.1."""
    return path.rpartition("/")[2].partition(".so")[0]


def read_libraries(answer: Answer) -> Libraries:
    """Read the output of libraries.sh; NotApplicable if the cache has no library of NVIDIA, as on NixOS."""
    lines = answer.out.splitlines()
    if lines[-1:] != ["end"] or "bad" not in lines:
        raise ProbeError("ldconfig -p: the answer ended early")
    middle = lines.index("bad")
    found = [match for line in lines[:middle] if (match := _CACHED.fullmatch(line))]
    cached = {match[3]: "64" in match[2] for match in found}
    if not cached:
        raise NotApplicable("the loader's cache (ldconfig -p) has no library of NVIDIA")
    bad = {}
    for line in lines[middle + 1 : -1]:
        match = _BAD.fullmatch(line)
        if match and match[2] != "Permission denied":
            path = next((one for one in cached if match[1].endswith(one)), match[1])
            bad[path] = match[2] or ""
    return Libraries(cached, bad)


LIBRARIES: Probe[Libraries] = Probe(
    "libraries of NVIDIA",
    script(__package__, "libraries.sh"),
    read_libraries,
    by_hand="ldconfig -p | grep -e libnvidia -e libcuda | sed 's/.*=> //' | xargs ls -lL",
)
