"""A fact: a value that checks judge, made by a function of other facts and of what probes find.

It has two forms: of a node, and of the fleet.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from pytest_gpucluster import SuiteError
from pytest_gpucluster.core.probe import Probe

T = TypeVar("T")
R = TypeVar("R")
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.run.facts import ItemView
    from pytest_gpucluster.run.session import ClusterSession, Node

    Probes = Callable[[Any, Sequence[str]], Iterable[Probe[Any]]]


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


if TYPE_CHECKING:
    AnyProbe = Probe[T] | Callable[[Cluster], Probe[T]]
    OnNode = Fact[T] | AnyProbe[T]
    Values = Callable[[Cluster], Mapping[str, Any]]


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


# --- what the two forms are made of; core/given.py has all facts of every run


def declared(*sources: Fact[Any], once: bool = False) -> Callable[[Callable[..., T]], Fact[T]]:
    """Declare a fact of every run, see core/given.py."""
    return lambda function: Fact(function, sources, once, sources)


@declared(once=True)
def session() -> ClusterSession:
    """The session of the run (run/session.py)."""
    raise NotImplementedError


@declared()
def item() -> ItemView:
    """The record of the item (`ItemView`)."""
    raise NotImplementedError


@declared(item)
def node(item: ItemView) -> Node:
    """The node of this item: `.name`, `.profile`, `.group`, `.info`. A check that needs it runs once per node."""
    return item.node


@declared(session, once=True)
def fleet_facts(session: ClusterSession) -> Callable[[AnyProbe[Any]], dict[str, Any]]:
    """A function: probe -> {node: facts}, of all nodes that could provide them."""
    return session.facts.of_fleet


# --- the two forms


class Sources(Fact[T]):
    """What one probe finds. Called with a function, they make the fact of what it returns or yields for their values."""

    @overload
    def __call__(self, function: Callable[..., Iterator[R]]) -> Fact[R]: ...
    @overload
    def __call__(self, function: Callable[..., R]) -> Fact[R]: ...
    def __call__(self, function: Callable[..., Any]) -> Fact[Any]:
        """Declare a fact."""
        return Fact(function, self.sources, self.once, self.needs, self.probes)


class SingleSource(Sources[T]):
    """A single one, whose type is that of the function's argument."""

    @overload
    def __call__(self, function: Callable[[T], Iterator[R]]) -> Fact[R]: ...
    @overload
    def __call__(self, function: Callable[[T], R]) -> Fact[R]: ...
    def __call__(self, function: Callable[[T], Any]) -> Fact[Any]:
        """Declare a fact."""
        return super().__call__(function)


@overload
def of_node(source: OnNode[T], /) -> SingleSource[T]: ...
@overload
def of_node(first: OnNode[Any], second: OnNode[Any], /, *more: OnNode[Any]) -> Sources[Any]: ...
@overload
def of_node(*sources: OnNode[Any], probes: Probes | None = None, each: Values | None = None) -> Sources[Any]: ...
def of_node(*sources: OnNode[Any], probes: Probes | None = None, each: Values | None = None) -> Sources[Any]:
    """Make a fact of the item's node: `of_node(PROBE)` of what a probe finds there, `@of_node(config, PROBE)` of its function.

    Sources are facts, probes, and functions of the cluster that return a probe. If a node could not provide what a probe
    reads, the item ends as 'not checked: why'; if its answer is not understood, as an error. `probes`: a function (cluster,
    nodes) of further probes, which the function reads by `facts`. `each`: instead of sources; the fact has several
    values, {word in the name of the item: value}: a check that needs it has an item of each.
    """
    return SingleSource(each, values=each) if each is not None else _declared(sources, probes, once=False)


@overload
def of_fleet(source: Fact[T], /) -> SingleSource[T]: ...
@overload
def of_fleet(source: AnyProbe[T], /) -> SingleSource[dict[str, T]]: ...
@overload
def of_fleet(first: OnNode[Any], second: OnNode[Any], /, *more: OnNode[Any]) -> Sources[Any]: ...
@overload
def of_fleet(*sources: OnNode[Any], probes: Probes) -> Sources[Any]: ...
def of_fleet(*sources: OnNode[Any], probes: Probes | None = None) -> Sources[Any]:
    """Make a fact of all nodes, once in a run, as a step must be; a probe gives {node: facts} of nodes that could provide them.

    `@of_fleet(config, PROBE)`: of its function; one that yields cleans up at the end of the run.
    """
    for it in sources:
        if isinstance(it, Fact) and not it.once:
            name = getattr(it.function, "__name__", "an attribute")
            raise SuiteError(f"a fact of the fleet has {name!r} as a source, which each item has of its own")
    return _declared(sources, probes, once=True)


def of_peers(probe: AnyProbe[T]) -> Callable[[Callable[[dict[str, T]], R]], Fact[R]]:
    """Make a fact of what a function makes of {node: facts} of the nodes that are compared with the item's node."""

    def declare(function: Callable[[dict[str, T]], R]) -> Fact[R]:
        @of_fleet(session, probe)
        def by_peers(session: ClusterSession, found: dict[str, T]) -> dict[str, R]:
            groups = {node.peers.nodes: node.peers.names for node in session.nodes.values()}
            return {
                group: function({name: found[name] for name in names if name in found})
                for group, names in groups.items()
            }

        return of_node(node, by_peers)(lambda node, by_peers: by_peers[node.peers.nodes])

    return declare


def _declared(sources: Sequence[OnNode[Any]], probes: Probes | None, *, once: bool) -> Sources[Any]:
    asked = [it for it in sources if not isinstance(it, Fact)]
    needs = [it for it in sources if isinstance(it, Fact)]
    needs += [fleet_facts if once else node] if asked else []

    def sent(cluster: Cluster, nodes: Sequence[str]) -> Iterator[Probe[Any]]:
        yield from (probe_for(it, cluster) for it in asked)
        yield from probes(cluster, nodes) if probes is not None else ()

    early = sent if asked or probes is not None else None
    return SingleSource(lambda found: found, tuple(sources), once, tuple(needs), early)


def probe_for(probe: AnyProbe[T], cluster: Cluster) -> Probe[T]:
    """Return the probe itself, made for this cluster where it is a function of it."""
    return probe if isinstance(probe, Probe) else probe(cluster)
