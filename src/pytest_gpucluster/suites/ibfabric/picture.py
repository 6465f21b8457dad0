"""What is wrong with each link between switches, and what report.html draws of them. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Finding
from pytest_gpucluster.core.errors import NotJudged
from pytest_gpucluster.suites.ibfabric import checks
from pytest_gpucluster.suites.ibfabric.judge import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.suites.ibfabric.facts import FabricFacts
    from pytest_gpucluster.suites.ibfabric.judge import Owned
    from pytest_gpucluster.suites.ibfabric.subnet import Link

MOST_SWITCHES = 64


def bad_links(fabric: FabricFacts) -> Iterator[tuple[str, Link, Finding]]:
    """Yield (check, link between switches, what is wrong with it)."""
    between = [link for link in fabric.subnet.links if link.between_switches]
    for link, finding in checks.slow_links(between):
        yield "ibfabric.switch_links", link, finding
    for link in between:
        try:
            found = [it for it in errors(fabric, link) if isinstance(it, Finding)]
        except NotJudged:
            return  # the counters were not read twice
        for finding in found:
            yield "ibfabric.switch_errors", link, finding


def picture_of(fabric: FabricFacts, links: Owned) -> dict[str, Any]:
    """Return plain data: switches [name, level, HCAs, what is wrong], links [index, index, how many, what is wrong].

    Level 0 are the leaves; a switch stands one above the lowest that it is connected to. {} for more than MOST_SWITCHES.
    """
    switches = fabric.subnet.switches
    if not 1 < len(switches) <= MOST_SWITCHES:
        return {}
    levels, index = _levels(fabric), {device.guid: number for number, device in enumerate(switches)}
    wrong: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for _, link, finding in bad_links(fabric):
        wrong[link.a.node_guid, link.z.node_guid].append(f"{finding.part}: {finding.measured}")
    # a switch that did not answer is known by its links alone
    counts = Counter(
        (link.a.node_guid, link.z.node_guid)
        for link in fabric.subnet.links
        if link.a.node_guid in index and link.z.node_guid in index
    )
    few = {it.part.removeprefix("leaf "): it.measured for it in checks.balance(fabric, links).findings}
    hosts = Counter(link.z.node_guid for link in fabric.subnet.links if not link.between_switches)
    return {
        "switches": [
            [device.node, levels.get(device.guid, 0), hosts[device.guid], few.get(device.node, "")]
            for device in switches
        ],
        "links": [
            [index[one], index[other], count, "; ".join(wrong[one, other])]
            for (one, other), count in counts.items()
        ],
    }


def _levels(fabric: FabricFacts) -> dict[str, int]:
    """Return {GUID of a switch: links between it and the nearest leaf}."""
    beside: defaultdict[str, set[str]] = defaultdict(set)
    for link in fabric.subnet.links:
        if link.between_switches:
            beside[link.a.node_guid].add(link.z.node_guid)
            beside[link.z.node_guid].add(link.a.node_guid)
    found = dict.fromkeys(fabric.subnet.leaves, 0)
    edge = list(found)
    while edge:
        above = {other: found[one] + 1 for one in edge for other in beside[one] if other not in found}
        found |= above
        edge = list(above)
    return found
