"""What a suite file needs besides pytest: fixtures made of probes, tests made of checks.

    from pytest_gpucluster.suite import checks_as_tests, fact, fleet_probed, probed

    gpus = probed(nvidia_smi.GPUS)                               # facts of the item's node
    uuid_owners = fleet_probed(nvidia_smi.GPUS, gpu.uuid_owners)  # made once from the facts of all nodes

    @fact(scope="session")                                       # a fixture that combines others
    def norms(uuid_owners, cluster): ...

    globals().update(checks_as_tests(checks))                    # test_WHAT of each check SUITE.WHAT of the module

These are pytest fixtures; a test that uses no others becomes an item of the plugin's own for each node.

A probe that depends on the cluster file is given as a function of the cluster: `probed(lambda cluster: ...)`.
The commands of all such fixtures are sent to the nodes in one go before the first test.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

import pytest

from pytest_gpucluster.config.models import SECTIONS
from pytest_gpucluster.core.check import Check
from pytest_gpucluster.core.probe import Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.core.values import OptionalSection
    from pytest_gpucluster.kit.between import Reach
    from pytest_gpucluster.kit.framework_step import FrameworkStepRunner

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


def fixture_of(fact: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Make a fixture of the session that pytest parametrises by nodes, with the fact that own items use in its place.

    Fixtures of a module or the session may use it: a test that has one is parametrised with their scope.
    """

    def make(function: Callable[..., Any]) -> Any:
        vars(function)["gpucluster_fact"] = Fact(fact, arguments_of(fact), once=False)
        return pytest.fixture(scope="session")(function)

    return make


def arguments_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the fixtures that a function requests."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(it.name for it in parameters if it.default is it.empty)


class Item(Protocol):
    """What a fixture of facts needs of its item."""

    def facts(self, source: AnyProbe) -> Any:
        """Return the facts of the item's node."""

    def of_peers(self, source: AnyProbe, reduce: Callable[[dict[str, Any]], Any]) -> Any:
        """Return reduce({node: facts}) of the nodes that are compared with the item's node."""


def probe_for(probe: AnyProbe, cluster: Cluster) -> Probe[Any]:
    """Return the probe itself, made for this cluster where it is a function of it."""
    return probe if isinstance(probe, Probe) else probe(cluster)


def asks(probes: Callable[[Cluster], Iterable[Probe[Any]]]) -> Callable[[Function], Function]:
    """Declare the probes that a fixture function uses: their commands are sent with the others before the first test.

    Place it below `@fact` or `@pytest.fixture`. Without it the commands are sent when the fixture runs.
    """

    def mark(function: Function) -> Function:
        vars(function)["gpucluster_asks"] = probes  # read by the plugin
        return function

    return mark


def asks_of_nodes(
    probes: Callable[[Cluster, Sequence[str]], Iterable[Probe[Any]]],
) -> Callable[[Function], Function]:
    """Say the same of probes that depend on which nodes are under test: they get the names, as `nodes` has them."""

    def mark(function: Function) -> Function:
        vars(function)["gpucluster_asks_of_nodes"] = probes  # read by the plugin
        return function

    return mark


def probes_of(function: Any, cluster: Cluster, nodes: Sequence[str]) -> tuple[Probe[Any], ...]:
    """Return the probes that a fixture function declares for these nodes under test."""
    made_of, declared = (
        getattr(function, "gpucluster_probe", None),
        getattr(function, "gpucluster_asks", None),
    )
    of_nodes = getattr(function, "gpucluster_asks_of_nodes", None)
    return (
        *(() if made_of is None else (probe_for(made_of, cluster),)),
        *(() if declared is None else declared(cluster)),
        *(() if of_nodes is None else of_nodes(cluster, nodes)),
    )


def probed(probe: AnyProbe) -> Any:
    """Make a fixture that returns the facts of the item's node.

    If the node could not provide them, the item ends as 'not checked: why'; if its answer is not understood, as
    an error.
    """

    def facts_of_node(node: object, gpucluster_item: Item) -> Any:  # `node` makes an item per node
        return gpucluster_item.facts(
            probe
        )  # not through the fixture `facts`: each fixture costs time per item

    vars(facts_of_node)["gpucluster_probe"] = probe  # read by the plugin
    return _fact(facts_of_node, "function")


def required_section(model: type[OptionalSection]) -> Any:
    """Make a session fixture of the section of this model; without the section the items are not applicable."""

    def section(cluster: Cluster) -> OptionalSection:
        found = cluster.section(model)
        if found is None:
            key = SECTIONS[model]
            pytest.skip(f"not applicable: the cluster file has no section `{key}` (add `{key}:`)")
        return found

    return pytest.fixture(section, scope="session")


def framework_runs(runner: type[FrameworkStepRunner[Any]]) -> Any:
    """Make a session fixture of a framework's runners, one per allocation; it uses the fixture `config`."""

    def runs(config: Any, allocation: object, gpucluster_session: Any) -> list[FrameworkStepRunner[Any]]:
        return runner.of_allocations(gpucluster_session, config)

    return pytest.fixture(runs, scope="session")


def framework_run(runner: type[FrameworkStepRunner[Any]], *, first: str = "", without: str = "") -> Any:
    """Make a fixture of the runner in the fixture `runs` that has the item's node.

    `first`: the attribute that runs its first step, whose exceptions are errors and no verdicts. `without`: why the
    item is not applicable if no runner has the node.
    """

    def run(runs: Iterable[FrameworkStepRunner[Any]], node: Any) -> FrameworkStepRunner[Any]:
        found = next((run for run in runs if node.name in run.nodes), None)
        if found is None:
            why = without or f"`{runner.section}.nodes` of the cluster file selects fewer nodes"
            pytest.skip(f"not applicable: {why}")
        if first:
            getattr(found, first)
        return found

    return pytest.fixture(run)


def framework_reach() -> Any:
    """Make a fixture of the nodes with which the item's node can exchange data; it uses the fixture `run`."""

    def reach(run: FrameworkStepRunner[Any]) -> Reach:
        return run.reach

    return pytest.fixture(reach)


def fleet_probed(probe: AnyProbe, reduce: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Make a session fixture of {node: facts} of all nodes that could provide them, or of reduce({node: facts})."""

    def facts_of_fleet(fleet_facts: Callable[[AnyProbe], dict[str, Any]]) -> Any:
        found = fleet_facts(probe)
        return found if reduce is None else reduce(found)

    vars(facts_of_fleet)["gpucluster_probe"] = probe  # read by the plugin
    return _fact(facts_of_fleet, "session")


def peer_probed(probe: AnyProbe, reduce: Callable[[dict[str, Any]], Any]) -> Any:
    """Make a fixture of reduce({node: facts}) of the nodes of the group, partition and architecture of the item's node."""

    def facts_of_peers(gpucluster_item: Item, node: Any) -> Any:
        return gpucluster_item.of_peers(probe, reduce)

    vars(facts_of_peers)["gpucluster_probe"] = probe  # read by the plugin
    return fact(facts_of_peers)


def checks_as_tests(*modules: ModuleType) -> dict[str, Callable[..., None]]:
    """Return {test_WHAT: test} of all checks SUITE.WHAT of modules, in their order.

    Bind them by `globals().update(checks_as_tests(checks))`. The parameters of a check name its fixtures.
    """
    checks = [it for module in modules for it in vars(module).values() if isinstance(it, Check) and it.item]
    return {test.__name__: test for test in map(_test_of, checks)}


def _test_of(check: Check[...]) -> Callable[..., None]:
    @functools.wraps(check, updated=())  # pytest shows the file, the line and the frames of the check
    def test(expect: Callable[[Verdict], None], **facts: Any) -> None:
        __tracebackhide__ = True
        expect(check.of_facts(facts))

    test.__name__ = f"test_{check.name.partition('.')[2]}"
    names, kind = (*check.facts, "expect"), inspect.Parameter.KEYWORD_ONLY
    vars(test)["__signature__"] = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    for name in check.marks:
        getattr(pytest.mark, name)(test)
    return test
