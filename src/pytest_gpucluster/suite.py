"""What the file test_SUITE.py of a suite declares: facts, and the checks that judge them.

    from pytest_gpucluster.suite import Tests, given, of_fleet, of_node

    gpus = of_node(nvidia_smi.GPUS)                               # what the probe finds on the item's node
    uuid_owners = of_fleet(nvidia_smi.GPUS)(gpu.uuid_owners)      # made once of {node: what the probe finds}

    @of_fleet(uuid_owners, given.cluster)                         # made once in a run, of other facts
    def norms(uuid_owners, cluster): ...

    TESTS = Tests(checks, marks=("gpu",))                         # an item test_WHAT of each check SUITE.WHAT of the module

The sources of a fact are the arguments of its function: facts, those of every run (`given`, core/given.py), probes, and
functions of the cluster that return a probe. The parameters of a check name the facts of the file or of `given`. A check
that needs `given.node`, itself or through a fact, has an item per node.

A fact raises NotApplicable or NotAvailable where the item cannot be judged. The commands of its probes are sent to the
nodes in one go before the first item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucluster.config.models import SECTIONS, AnyOptional
from pytest_gpucluster.core import given
from pytest_gpucluster.core.check import Check
from pytest_gpucluster.core.errors import NotApplicable
from pytest_gpucluster.core.fact import of_fleet, of_node, of_peers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.fact import Fact

__all__ = ["Tests", "given", "of_fleet", "of_node", "of_peers", "required_section"]


class Tests:
    """The items of a suite: one of each check of the modules, then one of each function test_WHAT of the file.

    Such a function returns a verdict that something else has concluded; None if there is nothing to judge.
    `marks`: pytest's marks of all its items. `needs`: facts that every item needs, if only since they may raise.
    """

    __test__ = False  # its name is no reason to collect it

    def __init__(self, *modules: ModuleType, marks: Iterable[str], needs: Iterable[Fact[Any]] = ()) -> None:
        self.modules, self.marks, self.needs = modules, tuple(marks), tuple(needs)

    def checks(self) -> Iterator[Check[...]]:
        """Yield the checks of the modules, in their order; one that several modules import is one."""
        values = (it for module in self.modules for it in vars(module).values())
        yield from dict.fromkeys(it for it in values if isinstance(it, Check) and it.item)


def required_section(model: type[AnyOptional]) -> Fact[AnyOptional]:
    """Make a fact of the section of this model; without the section the items are not applicable."""

    @of_fleet(given.cluster)
    def section(cluster: Cluster) -> AnyOptional:
        found = cluster.section(model)
        if found is None:
            key = SECTIONS[model]
            raise NotApplicable(f"the cluster file has no section `{key}` (add `{key}:`)")
        return found

    return section
