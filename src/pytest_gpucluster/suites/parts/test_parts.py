"""The parts of every node, by serial number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.kit.parts.inventory import PARTS
from pytest_gpucluster.suite import Tests, given, of_fleet, of_node
from pytest_gpucluster.suites.parts import checks

if TYPE_CHECKING:
    from pytest_gpucluster.kit.parts.inventory import NodeParts
    from pytest_gpucluster.run.facts import ItemView


@of_node(given.item, probes=lambda _cluster, _nodes: [PARTS])
def installed(item: ItemView) -> NodeParts:
    """The parts of the item's node, which go into the record of the run. A tool that cannot be ended fails no node."""
    try:
        found: NodeParts = item.facts(PARTS)
    except ProbeError as error:
        raise NotAvailable(str(error)) from error
    item.record.parts = found.parts
    return found


serial_owners = of_fleet(PARTS)(checks.serial_owners)

TESTS = Tests(checks, marks=("parts",))
