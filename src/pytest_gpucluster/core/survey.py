"""What `gpucluster init` finds on a running cluster; from it suites draft their sections of the cluster file. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.majority import decides, norm
from pytest_gpucluster.core.redact import is_secret

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
class Survey:
    """The argument of `Suite.draft`. `pmi`: None where srun was not run.

    `groups`: the names of the queried nodes, by groups of the cluster file; () if no node was queried.
    `answers`: {command of a probe: {node: its answer}}. `in_step`: the commands ran in a step of Slurm. `outputs`:
    {command of Slurm's: its output}, of those that succeeded.
    """

    pmi: Pmi | None = None
    groups: tuple[tuple[str, ...], ...] = ()
    answers: Mapping[str, Mapping[str, Answer]] = field(default_factory=dict)
    in_step: bool = True
    outputs: Mapping[tuple[str, ...], str] = field(default_factory=dict)

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
        return Agreed(value, f"{len(having)} of {nodes} node{'s' * (nodes != 1)}")

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

    @cached_property
    def _names(self) -> set[str]:
        return {name.partition(".")[0] for group in self.groups for name in group}
