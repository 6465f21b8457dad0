"""The parts of every node, by serial number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.suite import Tests, given, of_fleet, of_node
from pytest_gpucluster.suites.parts import checks
from pytest_gpucluster.suites.parts.facts import PARTS

if TYPE_CHECKING:
    from pytest_gpucluster.run.facts import ItemView
    from pytest_gpucluster.suites.parts.facts import NodeParts


@of_node(given.item, PARTS)
def installed(item: ItemView, found: NodeParts) -> NodeParts:
    """The parts of the item's node, which go into the record of the run."""
    item.record.parts = found.parts
    return found


serial_owners = of_fleet(PARTS)(checks.serial_owners)

TESTS = Tests(checks, marks=("parts",))
