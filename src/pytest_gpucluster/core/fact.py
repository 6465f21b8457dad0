"""A fact: a value that checks judge, made by a function of other facts and of what probes find."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpucluster.core.probe import Probe

    Probes = Callable[[Any, Sequence[str]], Iterable[Probe[Any]]]


T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class Fact(Generic[T]):
    """A value that checks judge: its function, and the sources of the arguments, which are other facts or probes.

    `once`: it is of the fleet, made once in a run; a generator function yields it and cleans up at the end of the run.
    `needs`: the facts that are made before. `probes`: a function (Cluster, names of the nodes under test) of the probes
    whose commands are sent before the first test. `values`: it has no function; each item has one of these values, by the
    word in the item's name: a function of the Cluster.
    """

    function: Callable[..., Any]
    sources: tuple[Any, ...] = ()
    once: bool = False
    needs: tuple[Fact[Any], ...] = ()
    probes: Probes | None = None
    values: Callable[[Any], Mapping[str, Any]] | None = None

    def __call__(self, *args: Any) -> Any:
        """Make it of these values of its sources."""
        return self.function(*args)


def in_order(facts: Iterable[Fact[Any]]) -> list[Fact[Any]]:
    """Return facts and all that they need, in the order in which they are made."""
    found: dict[Fact[Any], None] = {}

    def add(fact: Fact[Any]) -> None:
        if fact not in found:
            for needed in fact.needs:
                add(needed)
            found[fact] = None

    for fact in facts:
        add(fact)
    return [*found]


def arguments_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters of a function that have no default."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(it.name for it in parameters if it.default is it.empty)
