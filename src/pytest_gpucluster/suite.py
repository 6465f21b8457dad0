"""What the file test_SUITE.py of a suite declares: facts, and the checks that judge them.

    from pytest_gpucluster.suite import Tests, fact, fleet_probed, probed

    gpus = probed(nvidia_smi.GPUS)                               # facts of the item's node
    uuid_owners = fleet_probed(nvidia_smi.GPUS, gpu.uuid_owners)  # made once from the facts of all nodes

    @fact(once=True)                                             # made once in a run, of other facts
    def norms(uuid_owners, cluster): ...

    TESTS = Tests(checks, marks=("gpu",))                        # an item test_WHAT of each check SUITE.WHAT of the module

The parameters of a fact and of a check name the facts that they need: those of the file, and those of every run
(plugin/fixtures.py). A check that needs `node`, itself or through a fact, has an item per node.

A fact raises NotApplicable or NotAvailable where the item cannot be judged. Its commands are sent to the nodes in one go
before the first item: `probed(lambda cluster: ...)` for a probe that depends on the cluster file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, overload

from pytest_gpucluster.config.models import SECTIONS
from pytest_gpucluster.core.check import Check
from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.core.fact import Fact
from pytest_gpucluster.core.probe import Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import ModuleType

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.fact import Probes
    from pytest_gpucluster.core.values import OptionalSection

    AnyProbe = Probe[Any] | Callable[[Cluster], Probe[Any]]


class Tests:
    """The items of a suite: one of each check of the modules, then one of each function test_WHAT of the file.

    Such a function returns a verdict that something else has concluded; None if there is nothing to judge.
    `marks`: pytest's marks of all its items. `needs`: facts that every item needs, if only since they may raise.
    """

    __test__ = False  # its name is no reason to collect it

    def __init__(self, *modules: ModuleType, marks: Iterable[str], needs: Iterable[str] = ()) -> None:
        self.modules, self.marks, self.needs = modules, tuple(marks), tuple(needs)

    def checks(self) -> Iterator[Check[...]]:
        """Yield the checks of the modules, in their order; one that several modules import is one."""
        values = (it for module in self.modules for it in vars(module).values())
        yield from dict.fromkeys(it for it in values if isinstance(it, Check) and it.item)


@overload
def fact(function: Callable[..., Any]) -> Any: ...
@overload
def fact(*, once: bool = False, probes: Probes | None = None) -> Callable[[Callable[..., Any]], Any]: ...
def fact(function: Any = None, *, once: bool = False, probes: Probes | None = None) -> Any:
    """Make a fact of a function of other facts, once per item; `@fact(once=True)`: once in a run, as a step must be."""
    if function is None:
        return lambda function: Fact(function, once, probes)
    return Fact(function, once, probes)


def one_item_per(values: Callable[[Cluster], Mapping[str, Any]]) -> Any:
    """Make a fact with several values, {word in the name of the item: value}: a check that needs it has an item of each."""
    return Fact(values, values=values)


class Item(Protocol):
    """What a fact needs of its item."""

    def facts(self, source: AnyProbe) -> Any:
        """Return the facts of the item's node."""

    def of_peers(self, source: AnyProbe, reduce: Callable[[dict[str, Any]], Any]) -> Any:
        """Return reduce({node: facts}) of the nodes that are compared with the item's node."""


def probe_for(probe: AnyProbe, cluster: Cluster) -> Probe[Any]:
    """Return the probe itself, made for this cluster where it is a function of it."""
    return probe if isinstance(probe, Probe) else probe(cluster)


def probed(probe: AnyProbe) -> Any:
    """Make a fact of what a probe finds on the item's node; `probed(lambda cluster: Probe(...))` reads the cluster file.

    If the node could not provide it, the item ends as 'not checked: why'; if its answer is not understood, as an error.
    """

    def facts_of_node(node: object, gpucluster_item: Item) -> Any:  # `node` makes an item per node
        return gpucluster_item.facts(probe)

    return Fact(facts_of_node, probes=_only(probe))


def _only(probe: AnyProbe) -> Probes:
    return lambda cluster, _: (probe_for(probe, cluster),)


def fleet_probed(probe: AnyProbe, reduce: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Make a fact of {node: facts} of all nodes that could provide them, or of reduce({node: facts}); once in a run."""

    def facts_of_fleet(fleet_facts: Callable[[AnyProbe], dict[str, Any]]) -> Any:
        found = fleet_facts(probe)
        return found if reduce is None else reduce(found)

    return Fact(facts_of_fleet, once=True, probes=_only(probe), compares=True)


def peer_probed(probe: AnyProbe, reduce: Callable[[dict[str, Any]], Any]) -> Any:
    """Make a fact of reduce({node: facts}) of the nodes of the group, partition and architecture of the item's node."""

    def facts_of_peers(gpucluster_item: Item, node: Any) -> Any:
        return gpucluster_item.of_peers(probe, reduce)

    return Fact(facts_of_peers, probes=_only(probe), compares=True)


def required_section(model: type[OptionalSection]) -> Any:
    """Make a fact of the section of this model; without the section the items are not applicable."""

    def section(cluster: Cluster) -> OptionalSection:
        found = cluster.section(model)
        if found is None:
            key = SECTIONS[model]
            raise NotApplicable(f"the cluster file has no section `{key}` (add `{key}:`)")
        return found

    return Fact(section, once=True)
