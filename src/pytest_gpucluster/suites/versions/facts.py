"""The versions on a node. Pure.

Forms: `slurmd -V` "slurm 23.11.4" (Debian: "slurm-wlm 22.05.8"), `ofed_info -s` "MLNX_OFED_LINUX-23.10-0.5.5.0:" or
"OFED-internal-25.01-0.6.0:", `enroot version` "3.5.0", `nvidia-ctk --version` "NVIDIA Container Toolkit CLI version 1.17.8",
`nvidia-container-cli --version` "cli-version: 1.16.2"; the file behind libnccl.so.2 is libnccl.so.2.27.3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.core.probe import Answer, Probe
from pytest_gpucluster.core.scripts import script

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.kit.container.enroot import Pyxis
    from pytest_gpucluster.kit.gpu.nvidia_smi import Gpus

_VERSIONS = {
    "slurm": re.compile(r"slurm(?:-wlm)? (\d[\w.-]*)$"),
    "enroot": re.compile(r"(\d[\w.~+-]*)$"),
    "ofed": re.compile(r"[A-Za-z_-]+-(\d+\.\d+[\w.-]*?):?$"),
    "container_toolkit": re.compile(r"(\d[\w.~+-]*)$"),
    "nccl": re.compile(r"(\d+\.\d+[\d.]*)$"),
}
_ABSENT = {
    "slurm": "neither slurmd nor srun is on PATH",
    "enroot": "enroot does not state its version",
    "ofed": "ofed_info is absent",
    "container_toolkit": "neither nvidia-ctk nor nvidia-container-cli states its version",
    "nccl": "the loader finds no libnccl.so.2 on the node",
    "driver": "nvidia-smi shows no driver",
    "cuda": "nvidia-smi shows no CUDA version",
    "pyxis": "the version is unknown",
}


@dataclass(frozen=True)
class InstalledVersion:
    """A version. `package`: its package with version if one installed it; `distribution`: a distribution maintains it.

    A distribution may fix a bug in an old version: 22.05.8-4+deb12u3 of Debian has the fixes of 22.05.11.
    """

    text: str
    package: str = ""
    distribution: bool = False

    def __str__(self) -> str:
        """Like '22.05.8 (package slurmd 22.05.8-4+deb12u3)'."""
        return f"{self.text} (package {self.package})" if self.package else self.text


@dataclass(frozen=True)
class NodeVersions:
    """The versions of a node, {component: version}; `absent`: {component: why it is unknown}."""

    known: Mapping[str, InstalledVersion] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)

    def with_gpus(self, gpus: Gpus) -> NodeVersions:
        """Add the driver's versions."""
        drivers = sorted({gpu.driver for gpu in gpus if gpu.driver})
        return self._with({"driver": drivers[0] if drivers else "", "cuda": gpus.cuda or ""})

    def with_pyxis(self, pyxis: Pyxis) -> NodeVersions:
        """Add the version of Pyxis, or why it is unknown."""
        return self._with({"pyxis": pyxis.version}, {"pyxis": pyxis.absent or _ABSENT["pyxis"]})

    def without(self, components: Iterable[str], why: str) -> NodeVersions:
        """Add why components are unknown."""
        return self._with({}, dict.fromkeys(components, why))

    def _with(self, texts: Mapping[str, str], why: Mapping[str, str] | None = None) -> NodeVersions:
        found = {name: InstalledVersion(text) for name, text in texts.items() if text}
        unknown = {**{name: _ABSENT[name] for name in texts}, **(why or {})}
        absent = {name: text for name, text in unknown.items() if name not in found}
        return NodeVersions({**self.known, **found}, {**self.absent, **absent})


def read_versions(answer: Answer) -> NodeVersions:
    """Return the versions that need no other probe; ProbeError if the end of the answer is missing."""
    lines = [line.strip() for line in answer.out.splitlines()]
    if "end" not in lines or answer.truncated:
        raise ProbeError("versions: the answer ended early")
    texts = {name: text.strip() for name, _, text in (line.partition(" ") for line in lines)}
    found = {
        name: InstalledVersion(match[1])
        for name, pattern in _VERSIONS.items()
        if (match := pattern.fullmatch(texts.get(name, "")))
    }
    if "slurm" in found and (package := _package(texts.get("package", ""))):
        found["slurm"] = InstalledVersion(found["slurm"].text, *package)
    return NodeVersions(found, {name: _ABSENT[name] for name in _VERSIONS.keys() - found.keys()})


def _package(text: str) -> tuple[str, bool] | None:
    """Return name and version of the package, and whether a distribution maintains it.

    Slurm's own packages are slurm-smd* (debian/ of its source); an RPM that rpmbuild made of the source has no vendor.
    """
    words = text.split(" ", 3)
    if len(words) < 3 or not words[2]:  # kind, name, version, and perhaps who made it
        return None
    package_format, name, version, by = (*words, "")[:4]
    own = name.startswith("slurm-smd") if package_format == "deb" else by in ("", "(none)") or "SchedMD" in by
    return f"{name} {version}", not own


VERSIONS = Probe(
    "versions",
    script(__package__, "versions.sh"),
    read_versions,
    by_hand="slurmd -V; enroot version; ofed_info -s; nvidia-ctk --version; ldconfig -p | grep libnccl",
)
