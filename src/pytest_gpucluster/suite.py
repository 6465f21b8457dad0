"""What a suite file needs besides pytest: fixtures made of probes.

    from pytest_gpucluster.suite import fact, fleet_probed, probed

    gpus = probed(nvidia_smi.GPUS)                               # facts of the item's node
    uuid_owners = fleet_probed(nvidia_smi.GPUS, gpu.uuid_owners)  # made once from the facts of all nodes

    @fact(scope="session")                                       # a fixture that combines others
    def norms(uuid_owners, cluster): ...

These are pytest fixtures; a test that uses no others becomes an item of the plugin's own for each node.

A probe that depends on the cluster file is given as a function of the cluster: `probed(lambda cluster: ...)`.
The commands of all such fixtures are sent to the nodes in one go before the first test.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

import pytest

from pytest_gpucluster.config.models import SECTIONS
from pytest_gpucluster.core.probe import Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.values import Claim

    AnyProbe = Probe[Any] | Callable[[Cluster], Probe[Any]]
    Function = TypeVar("Function", bound=Callable[..., Any])
    Scope = Literal["function", "session"]


@dataclass(frozen=True, eq=False)
class Fact:
    """A fixture that can be made without pytest. `once`: it is made once in a session."""

    function: Callable[..., Any]
    arguments: tuple[str, ...]
    once: bool


@overload
def fact(function: Callable[..., Any]) -> Any: ...
@overload
def fact(*, scope: Scope) -> Callable[[Callable[..., Any]], Any]: ...
def fact(function: Any = None, *, scope: Scope = "function") -> Any:
    """Make a pytest fixture of a plain function, without yield, parameters and `request`.

    A test whose fixtures are all facts becomes an item of the plugin's own for each node. A fact of the session is made
    twice where a test that is left to pytest uses it too.
    """
    if function is None:
        return lambda function: _fact(function, scope)
    return _fact(function, scope)


def _fact(function: Any, scope: Scope) -> Any:
    function.gpucluster_fact = Fact(function, arguments_of(function), scope == "session")
    return pytest.fixture(scope=scope)(function)


def arguments_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the fixtures that a function asks for."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(it.name for it in parameters if it.default is it.empty)


class Asks(Protocol):
    """What a fixture of facts needs of the session."""

    def facts_of_item(self, asked: AnyProbe) -> Any:
        """Return the facts of the item's node."""


class RunOfNodes(Protocol):
    """The steps of a framework in one allocation."""

    nodes: tuple[str, ...]


Run = TypeVar("Run", bound=RunOfNodes)


def probe_for(probe: AnyProbe, cluster: Cluster) -> Probe[Any]:
    """Return the probe itself, made for this cluster where it is a function of it."""
    return probe if isinstance(probe, Probe) else probe(cluster)


def asks(probes: Callable[[Cluster], Iterable[Probe[Any]]]) -> Callable[[Function], Function]:
    """Declare the probes that a fixture function uses: their commands are sent with the others before the first test.

    Place it below `@fact` or `@pytest.fixture`. Without it the commands are sent when the fixture runs.
    """

    def mark(function: Function) -> Function:
        function.gpucluster_asks = probes  # type: ignore[attr-defined] # read by the plugin's prefetch
        return function

    return mark


def asks_of_nodes(
    probes: Callable[[Cluster, Sequence[str]], Iterable[Probe[Any]]],
) -> Callable[[Function], Function]:
    """Say the same of probes that depend on which nodes are under test: they get the names, as `nodes` has them."""

    def mark(function: Function) -> Function:
        function.gpucluster_asks_of_nodes = probes  # type: ignore[attr-defined] # read by the plugin's prefetch
        return function

    return mark


def asked_by(function: Any, cluster: Cluster, nodes: Sequence[str]) -> tuple[Probe[Any], ...]:
    """Return the probes that a fixture function is known to ask for where these nodes are under test."""
    made_of, said = getattr(function, "gpucluster_probe", None), getattr(function, "gpucluster_asks", None)
    of_nodes = getattr(function, "gpucluster_asks_of_nodes", None)
    return (
        *(() if made_of is None else (probe_for(made_of, cluster),)),
        *(() if said is None else said(cluster)),
        *(() if of_nodes is None else of_nodes(cluster, nodes)),
    )


def probed(probe: AnyProbe) -> Any:
    """Make a fixture that returns the facts of the item's node.

    If the node could not provide them, the item ends as 'not checked: why'; if its answer is not understood, as
    an error.
    """

    def facts_of_node(node: object, gpucluster_session: Asks) -> Any:  # makes an item a node
        return gpucluster_session.facts_of_item(probe)  # not by way of `facts`: each fixture costs an item

    facts_of_node.gpucluster_probe = probe  # type: ignore[attr-defined] # read by the plugin's prefetch
    return _fact(facts_of_node, "function")


def claimed(model: type[Claim], what: str) -> Any:
    """Make a session fixture of the section of this model; the items are not applicable without it."""

    def claim(cluster: Cluster) -> Claim:
        found = cluster.section(model)
        if found is None:
            pytest.skip(f"not applicable: the cluster file does not claim {what} (add `{SECTIONS[model]}:`)")
        return found

    return pytest.fixture(claim, scope="session")


def taking_part(runs: Iterable[Run], node: str, section: str) -> Run:
    """Return the run of this node's allocation; the item is not applicable where no run has the node."""
    found = next((run for run in runs if node in run.nodes), None)
    if found is None:
        pytest.skip(f"not applicable: `{section}.nodes` of the cluster file asks for fewer nodes")
    return found


def fleet_probed(probe: AnyProbe, reduce: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Make a session fixture of {node: facts} of all nodes that could provide them, or of reduce({node: facts})."""

    def facts_of_fleet(fleet_facts: Callable[[AnyProbe], dict[str, Any]]) -> Any:
        told = fleet_facts(probe)
        return told if reduce is None else reduce(told)

    facts_of_fleet.gpucluster_probe = probe  # type: ignore[attr-defined] # read by the plugin's prefetch
    return _fact(facts_of_fleet, "session")
