"""A fact: a value that checks judge, made by a function whose parameters name other facts."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpucluster.core.probe import Probe

    Probes = Callable[[Any, Sequence[str]], Iterable[Probe[Any]]]


@dataclass(frozen=True, eq=False)
class Fact:
    """A value that checks judge: its function, whose parameters name other facts, and when it is made.

    `once`: it is made once in a run, of facts that are too; a generator function yields it and cleans up at the end of the run.
    `probes`: a function (Cluster, names of the nodes under test) of the probes whose commands it needs.
    `compares`: it is made of the facts of several nodes: the baseline of a gate holds their answers.
    `values`: it has no function; each item has one of these values, by the word in the item's name: a function of the Cluster.
    """

    function: Callable[..., Any]
    once: bool = False
    probes: Probes | None = None
    values: Callable[[Any], Mapping[str, Any]] | None = None
    compares: bool = False

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """The names of the facts that it needs."""
        return arguments_of(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make it of these facts."""
        return self.function(*args, **kwargs)


def arguments_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters of a function that have no default."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(it.name for it in parameters if it.default is it.empty)
