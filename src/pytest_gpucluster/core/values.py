"""Types of values in cluster files and profiles, with the limits that Slurm sets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from pytest_gpucluster.core import units
from pytest_gpucluster.core.former_names import present_check, present_part
from pytest_gpucluster.core.hostlist import MAX_NODES, expand

if TYPE_CHECKING:
    from collections.abc import Iterator

# slurm.conf(5) of Slurm 20.11 to 26.05: MaxTasksPerNode "may not exceed 65533"
MAX_TASKS = 65_533
MAX_PORT = 65_535
MAX_PATH, MAX_NAME = 4095, 255  # bytes: limits.h of Linux, PATH_MAX with its NUL, and NAME_MAX


def absolute(path: str) -> str:
    """Return a path that means the same file in every folder; ValueError for a relative one."""
    if not path.startswith("/"):
        raise ValueError(f"must be an absolute path, which begins with /, not {path!r}")
    return bounded_path(path)


def bounded_path(path: str) -> str:
    """Return a path that a file system can hold; ValueError for a longer one."""
    if len(path.encode()) > MAX_PATH or any(len(part.encode()) > MAX_NAME for part in path.split("/")):
        raise ValueError(f"is no path: longer than {MAX_PATH} bytes, or {MAX_NAME} between two /: {path[:40]!r}...")
    return path


def local_path(path: str) -> str:
    """Return a path on this machine, which may begin with ~; ValueError if it cannot exist."""
    try:
        Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"must be a path; this machine does not know the user of {path[:40]!r}") from None
    return bounded_path(path)


def program(text: str) -> str:
    """Return the name or path of a program, or another word of a command; ValueError for what would be an option."""
    if text.startswith("-") or not text.strip():
        raise ValueError(f"must be a name or a path, not an option or blanks: {text[:40]!r}")
    return bounded_path(text)


def ssh_address(text: str) -> str:
    """Return [USER@]HOST[:PORT], where HOST may be an IPv6 address; ValueError for anything else."""
    found = re.fullmatch(
        r"(?:[^\s@]+@)?(?:\w[\w.%-]*|\[[0-9A-Fa-f:.]*[0-9A-Fa-f][\w:.%-]*\])(?::([0-9]{1,5}))?|"
        r"(?:[^\s@]+@)?(?:[0-9A-Fa-f]*:){2,}[0-9A-Fa-f:.]*[0-9A-Fa-f](?:%\w+)?",
        text,
    )
    if not found or int(found[1] or 0) > MAX_PORT:
        raise ValueError(f"must be [USER@]HOST[:PORT], not {text[:60]!r}")
    return text


def system_name(name: str) -> str:
    """Return the name of a unit, package or sysctl; ValueError for one that no node can have."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9@:_.+/\\*-]*", name) or ".." in name or len(name) > MAX_NAME:
        raise ValueError(f"{name[:80]!r}: invalid name (allowed: letters, digits and @:_.+/\\*-)")
    return name


def container_mount(text: str) -> str:
    """Return SOURCE[:TARGET[:FLAGS]] with absolute paths; ValueError for anything else.

    Pyxis takes tmpfs and umount as SOURCE too (args.c of 0.24: add_mount). A relative SOURCE would mean a file in the
    working folder of each step.
    """
    source, _, rest = text.partition(":")
    target = rest.partition(":")[0] if ":" in text else source
    if not target.startswith("/") or not (source.startswith("/") or source in ("tmpfs", "umount")):
        raise ValueError(f"must be SOURCE:TARGET[:FLAGS] with absolute paths, like /data:/data:ro, not {text!r}")
    return text


def image_file(text: str) -> str:
    """Return the name of an image; ValueError for a relative .sqsh file, which Pyxis would search in a registry."""
    return absolute(text) if text.endswith((".sqsh", ".squashfs")) else text


def version(text: str) -> str:
    """Return a version that can be compared; ValueError for one without numbers, below which nothing would be."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)*", text):
        raise ValueError(f"must be a version like 12.2, not {text!r}")
    return text


def named_nodes(value: str) -> str:
    """Return a hostlist that names at least one node; ValueError otherwise."""
    if not expand(value):
        raise ValueError("names no node")
    return value


def location(value: str) -> str:
    """Return the words for a place; ValueError for braces that are not {n}."""
    if {"{", "}"} & set(value.replace("{n}", "")):
        raise ValueError("only {n} can be replaced, by the place of the node in its hostlist")
    return value


def variable(name: str) -> str:
    """Return the name of an environment variable; ValueError for one that no shell could set."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"must be the name of an environment variable, like NCCL_DEBUG, not {name!r}")
    return name


def passed_variable(pattern: str) -> str:
    """Return a name of variables, in which * and ? may stand after a first letter; ValueError for any other."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_*?]*", pattern):
        raise ValueError(f"must be NAME or PREFIX_*, like http_proxy or NCCL_*, not {pattern!r}")
    return pattern


def salloc_option(word: str) -> str:
    """Return an option of salloc's; ValueError for --no-shell: nothing would end the allocation with pytest."""
    if word.startswith("--no-s") and "--no-shell".startswith(word):  # getopt takes what is unique
        raise ValueError("--no-shell would leave the nodes allocated after the run: leave it out")
    return word


_MEASURED = ["string", "number"]
Size = Annotated[
    int,
    BeforeValidator(units.parse_size),
    PlainSerializer(units.write_size, when_used="json"),
    WithJsonSchema({"type": _MEASURED, "title": "size", "examples": ["4G", "81559MiB", "2TB"]}),
]
# zero included: where zero has a meaning
AnyDuration = Annotated[
    float,
    Field(ge=0),
    BeforeValidator(units.parse_duration),
    PlainSerializer(lambda seconds: f"{seconds:.12g}s", when_used="json"),
    WithJsonSchema({"type": _MEASURED, "title": "duration", "examples": ["90s", "10m", "1-02:00:00"]}),
]
Duration = Annotated[AnyDuration, Field(gt=0)]
Bandwidth = Annotated[
    float,
    BeforeValidator(units.parse_bandwidth),
    PlainSerializer(lambda rate: f"{rate:.12g} GB/s", when_used="json"),
    WithJsonSchema({"type": _MEASURED, "title": "bandwidth", "examples": ["365 GB/s", "400 Gb/s"]}),
]
Count = Annotated[int, Field(ge=0)]
Nodes = Annotated[int, Field(ge=1, le=MAX_NODES)]
Tasks = Annotated[int, Field(ge=1, le=MAX_TASKS)]
Port = Annotated[int, Field(ge=1, le=MAX_PORT)]
Text = Annotated[str, Field(min_length=1)]
Location = Annotated[str, Field(min_length=1), AfterValidator(location)]
CheckPattern = Annotated[str, Field(min_length=1), AfterValidator(present_check)]
PartPattern = Annotated[str, Field(min_length=1), AfterValidator(present_part)]  # also CHECK/PART
PciAddress = Annotated[str, Field(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")]
LocalPath = Annotated[str, Field(min_length=1), AfterValidator(local_path)]
Program = Annotated[str, Field(min_length=1), AfterValidator(program)]
SshAddress = Annotated[str, AfterValidator(ssh_address)]
SystemName = Annotated[str, AfterValidator(system_name)]
FolderPath = Annotated[str, AfterValidator(absolute)]
ContainerMount = Annotated[str, AfterValidator(container_mount)]
SallocOption = Annotated[str, AfterValidator(salloc_option)]
Version = Annotated[str, AfterValidator(version)]
NamedNodes = Annotated[str, AfterValidator(named_nodes)]
Variable = Annotated[str, AfterValidator(variable)]
PassedVariable = Annotated[str, AfterValidator(passed_variable)]
Image = Annotated[str, Field(min_length=1), AfterValidator(image_file)]

Collective = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv", "gather", "scatter",
    "hypercube",
]  # fmt: skip


class Model(BaseModel):
    """Frozen, and strict about keys."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid", allow_inf_nan=False)


class ProfileRow(Model):
    """One of the rows that a profile has under the name of a suite, which `Suite.profile_rows` names."""

    about: ClassVar[str] = ""  # the line of the reference


class SuiteSection(Model):
    """The section of a suite in the cluster file, which `Suite.section` of core/registry.py names."""

    about: ClassVar[str] = ""  # the line of the reference
    order: ClassVar[int] = 100  # the place among the sections; those of the same order stand by name
    environment_keys: ClassVar[tuple[str, ...]] = ("environment",)  # keys that name one of `environments`
    starts_containers: ClassVar[bool] = False

    def environment_keys_used(self) -> tuple[str, ...]:
        """Return the keys of this section that name an environment."""
        return tuple(key for key in self.environment_keys if key in type(self).model_fields)

    def images_of_steps(self) -> tuple[str, ...]:
        """Return the images that the section itself names for its steps, instead of an environment."""
        return ()

    def without_effect(self) -> Iterator[tuple[str, str]]:
        """Yield keys that have no effect without another one, and the reason."""
        yield from ()

    def own_nodes(self) -> tuple[tuple[str, ...], Any]:
        """Return nodes that the section names, and the profile of those that no group of the cluster file has."""
        return (), None


class Section(SuiteSection):
    """A section that has its defaults where the file leaves it out."""


class OptionalSection(SuiteSection):
    """A section without which the suite is not applicable."""
