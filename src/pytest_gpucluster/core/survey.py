"""What `gpucluster init` finds on a running cluster; from it suites draft their sections of the cluster file. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.majority import decides, norm
from pytest_gpucluster.core.redact import is_secret
from pytest_gpucluster.core.text import count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.core.probe import Answer, Probe

T = TypeVar("T")
LONGEST = 200  # characters of a drafted value


@dataclass(frozen=True)
class Pmi:
    """How srun may start MPI programs: the types of `srun --mpi=list`, and slurm.conf's MpiDefault ('' for none)."""

    types: tuple[str, ...]
    default: str = ""


@dataclass(frozen=True)
class Agreed(Generic[T]):
    """A value that at least two thirds of the nodes of every group have; `count` is like '5 of 6 nodes'."""

    value: T
    count: str


@dataclass(frozen=True)
class Hardware:
    """The hardware of one node. Memory in bytes, rates in GB/s.

    gpus: (name, memory) of each. nvlinks: active links of each GPU, () if not read. links: the connections between GPUs
    (`NV18`, `SYS`). mig: whether some GPU is in MIG mode. settings: {key of a profile's `gpu`: value that all GPUs have}. ports: (link layer, rate) of the active
    ports of adapters. virtual: None if unknown. vendor: of the machine, like 'Amazon EC2'. unread: what could not be read.
    """

    gpus: tuple[tuple[str, int | None], ...] = ()
    nvlinks: tuple[int, ...] = ()
    links: frozenset[str] = frozenset()
    mig: bool = False
    settings: Mapping[str, bool | str | None] = field(default_factory=dict)
    ports: tuple[tuple[str, float], ...] = ()
    virtual: bool | None = None
    vendor: str = ""
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class Software:
    """What the steps of suites find on one node.

    system: of os-release. devices: the GPUs that torch sees; None if torch was not started. programs: {name: path}. packages: {module of python3: version, '' if unknown}. versions: {program: its first line}.
    images: known .sqsh files. modules: names of environment modules. pyxis: whether srun there takes --container-image.
    """

    python: str = ""
    programs: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    pyxis: bool = False
    system: str = ""
    devices: int | None = None


@dataclass(frozen=True)
class Survey:
    """The argument of `Suite.draft`. `pmi`: None where srun was not run.

    `groups`: the names of the queried nodes, by groups of the cluster file; () if no node was queried.
    `answers`: {command of a probe: {node: its answer}}. `in_step`: the commands ran in a step of Slurm. `outputs`:
    {command of Slurm's: its output}, of those that succeeded. `hardware`, `software`: of the one node of each group that
    was read. `unread`: {node: why its group was not read}. `sizes`: the number of nodes of each partition. `share_host`: several nodes of Slurm are one
    machine, as in a sandbox.
    """

    pmi: Pmi | None = None
    groups: tuple[tuple[str, ...], ...] = ()
    answers: Mapping[str, Mapping[str, Answer]] = field(default_factory=dict)
    in_step: bool = True
    outputs: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    hardware: Mapping[str, Hardware] = field(default_factory=dict)
    software: Mapping[str, Software] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    share_host: bool = False

    def facts(self, probe: Probe[T]) -> dict[str, T]:
        """Return the facts of the nodes that could provide them."""
        found = {}
        for node, answer in self.answers.get(probe.command, {}).items():
            try:
                found[node] = probe.parse(answer)
            except GpuClusterError:
                continue  # a node without this fact agrees with no other
        return found

    def agreed(self, values: Mapping[str, T]) -> Agreed[T] | None:
        """Return the value of {node: value} that most nodes of every group have, if any."""
        votes = norm(values.items()).votes
        if not votes:
            return None
        value, having = votes[0]
        if not all(decides(len(set(group).intersection(having)), len(group)) for group in self.groups):
            return None
        nodes = sum(map(len, self.groups))
        return Agreed(value, f"{len(having)} of {count(nodes, 'node')}")

    def each_agreed(self, values: Mapping[str, Mapping[str, T]]) -> dict[str, Agreed[T]]:
        """Return what most nodes agree on of {node: {name: value}}, by name, without secrets and values of one node."""
        names = sorted({name for of_node in values.values() for name in of_node})
        found = {
            name: self.agreed({node: of_node[name] for node, of_node in values.items() if name in of_node})
            for name in names
        }
        return {name: one for name, one in found.items() if one and self.may_be_written(name, str(one.value))}

    def may_be_written(self, name: str, value: str) -> bool:
        """Return whether a value is short text that holds no secret and no name of a queried node."""
        words = set(re.findall(r"[A-Za-z0-9_-]+", f"{name} {value}"))
        plain = f"{name}{value}".isprintable() and len(name) + len(value) <= LONGEST
        return plain and not is_secret(name, value) and not words & self._names

    def without(self, program: str = "", package: str = "") -> str:
        """Return the read nodes that lack a program, or a module of python3, as words of a comment; '' if none does."""
        lacking = [
            node
            for node, found in self.software.items()
            if not (found.programs.get(program) if program else package in found.packages)
        ]
        return ", ".join(lacking)

    def small_partitions(self) -> str:
        """Return the partitions with one node only, where nothing between nodes can be tested; '' if there are none."""
        return ", ".join(sorted(name or "(default)" for name, size in self.sizes.items() if size < 2))

    @cached_property
    def _names(self) -> set[str]:
        return {name.partition(".")[0] for group in self.groups for name in group}
