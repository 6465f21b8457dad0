"""The NCCL variables that a task sees on a node, the files that set them, and what their values name.

Source of the order and the form of the files: initEnv and setEnvFile in src/misc/param.cc of github.com/NVIDIA/nccl (2.29): the
environment, then NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf; the first value of a name counts, blanks and quotes included.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.core.probe import Answer, Probe
from pytest_gpucluster.core.scripts import script

if TYPE_CHECKING:
    from collections.abc import Mapping

SCRIPT = script(__package__, "environment_facts.sh")
_SEEN = re.compile(r"seen (/[^:]*:\d+):(.*)")
_PORT = re.compile(r"port (\S+) (\d{1,3}) (?:\d:)?(\w+) (\S+?)( virtual)?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Setting:
    """One variable. `where`: like /etc/nccl.conf:3, '' for the environment of the task."""

    name: str
    value: str
    where: str = ""

    def __str__(self) -> str:
        """Like NCCL_PROTO=LL."""
        return f"{self.name}={self.value}"


@dataclass(frozen=True)
class HcaPort:
    """A port of an adapter; `virtual`: of a virtual function whose physical adapter is in this host too."""

    device: str
    number: int
    state: str
    link_layer: str
    virtual: bool = False

    @property
    def usable(self) -> bool:
        """Whether NCCL may use the port."""
        return self.state == "ACTIVE" and not self.virtual


@dataclass(frozen=True)
class NcclEnvironment:
    """What a task of a node sees.

    `environment`: the variables of the task; `files`: the settings of the configuration files in the order in which NCCL
    reads them; `ignored`: their lines without effect, as (file:line, text). `seen`: (file:line, text) in files that may
    set variables of tasks. `readable`: {path in a value: whether it can be read}. `libraries`: those of NCCL and its
    plugins that the loader finds; None if unknown.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Setting, ...] = ()
    ignored: tuple[tuple[str, str], ...] = ()
    seen: tuple[tuple[str, str], ...] = ()
    ports: tuple[HcaPort, ...] = ()
    interfaces: frozenset[str] = frozenset()
    readable: Mapping[str, bool] = field(default_factory=dict)
    libraries: frozenset[str] | None = None

    @cached_property
    def effective(self) -> dict[str, Setting]:
        """{name: setting that counts} of NCCL's variables."""
        found = {name: Setting(name, value) for name, value in self.environment.items()}
        for setting in self.files:
            if setting.name.startswith("NCCL_"):
                found.setdefault(setting.name, setting)
        return found

    def where(self, setting: Setting) -> str:
        """Return where a setting comes from."""
        if setting.where:
            return setting.where
        lines = [location for location, text in self.seen if _sets(text, setting)]
        if lines:
            return ", ".join(lines[:3])
        return "the environment of the task, from none of the searched files: TaskProlog or a SPANK plugin of Slurm"


def _sets(text: str, setting: Setting) -> bool:
    """Return whether a line of a script sets this variable to this value, in quotes or without."""
    name, value = re.escape(setting.name), re.escape(setting.value)
    return not text.lstrip().startswith("#") and bool(re.search(rf"\b{name}=[\"']?{value}(?![\w.])", text))


def read_environment(answer: Answer) -> NcclEnvironment:
    """Return the facts; ProbeError if the end of the answer is missing."""
    lines = answer.out.splitlines()
    if "end" not in lines or answer.truncated:
        raise ProbeError("the environment of a task: the answer ended early")
    files, ignored = _files(lines)
    pairs = [line.removeprefix("env ").partition("=") for line in lines if line.startswith("env NCCL_")]
    words = [line.partition(" ") for line in lines]
    return NcclEnvironment(
        {name: value for name, _, value in pairs},
        files,
        ignored,
        tuple((match[1], match[2].strip()) for line in lines if (match := _SEEN.fullmatch(line))),
        tuple(
            HcaPort(match[1], int(match[2]), match[3], match[4], virtual=bool(match[5]))
            for match in filter(None, map(_PORT.fullmatch, lines))
        ),
        frozenset(name for key, _, rest in words if key == "net" for name in rest.split()),
        {rest: key == "readable" for key, _, rest in words if key in ("readable", "unreadable")},
        frozenset(rest for key, _, rest in words if key == "lib") if "searched" in lines else None,
    )


def _files(lines: list[str]) -> tuple[tuple[Setting, ...], tuple[tuple[str, str], ...]]:
    found: list[Setting] = []
    ignored: list[tuple[str, str]] = []
    file, number = "", 0
    for line in lines:
        if line.startswith("file "):
            file, number = line.removeprefix("file "), 0
        elif line.startswith("|") and file:
            number, text = number + 1, line[2:]
            name, equals, value = text.partition("=")
            if text.startswith("#") or not text.strip():
                continue
            if equals and _NAME.fullmatch(name):
                found.append(Setting(name, value, f"{file}:{number}"))
            else:
                ignored.append((f"{file}:{number}", text))
    return tuple(found), tuple(ignored)


BY_HAND = "env | grep ^NCCL_; cat ~/.nccl.conf /etc/nccl.conf"
ENVIRONMENT = Probe("NCCL environment", SCRIPT, read_environment, by_hand=BY_HAND)
# the text of a task in a container, which is no answer of the channel
read_task = replace(ENVIRONMENT, name="NCCL environment of the image").parse
