"""What is wrong with each link between switches and with cables, and what report.html draws of them. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.check import Finding
from pytest_gpucluster.core.errors import NotJudged
from pytest_gpucluster.suites.ibfabric import checks
from pytest_gpucluster.suites.ibfabric.judge import errors, off_rail
from pytest_gpucluster.suites.ibfabric.wiring import node_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_gpucluster.suites.ibfabric.facts import FabricFacts
    from pytest_gpucluster.suites.ibfabric.judge import Owned
    from pytest_gpucluster.suites.ibfabric.subnet import Link
    from pytest_gpucluster.suites.ibfabric.wiring import WrongCable

MOST_SWITCHES = 64


def bad_links(fabric: FabricFacts) -> Iterator[tuple[str, Link, Finding]]:
    """Yield (check, link between switches, what is wrong with it)."""
    between = [link for link in fabric.subnet.links if link.between_switches]
    for link, finding in checks.slow_links(fabric, between):
        yield "ibfabric.switch_links", link, finding
    for link in between:
        try:
            found = [it for it in errors(fabric, link) if isinstance(it, Finding)]
        except NotJudged:
            return  # the counters were not read twice
        for finding in found:
            yield "ibfabric.switch_errors", link, finding


def picture_of(
    fabric: FabricFacts, links: Owned, rails: Mapping[str, tuple[str, str]], wrong_cables: Iterable[WrongCable] = ()
) -> dict[str, Any]:
    """Return plain data: switches [name, level, HCAs, what is wrong, kind], links [index, index, how many, what is wrong, kind].

    kind: `bad`, or of a cable that is not where the plan (`wrong_cables`) or its rail has it: swapped, missing, misplaced; '' for
    nothing. A cable of a host is a remark at its leaf. Level 0 are the leaves; a switch stands one above the lowest that it is
    connected to. {} for more than MOST_SWITCHES.
    """
    switches = fabric.subnet.switches
    if not 1 < len(switches) <= MOST_SWITCHES:
        return {}
    levels, index = _levels(fabric), {device.guid: number for number, device in enumerate(switches)}
    names = {node_key(device.node): number for number, device in enumerate(switches)}
    # a switch that did not answer is known by its links alone
    counts: Counter[tuple[int, ...]] = Counter(
        tuple(sorted((index[link.a.node_guid], index[link.z.node_guid])))
        for link in fabric.subnet.links
        if link.a.node_guid in index and link.z.node_guid in index
    )
    remarks: defaultdict[tuple[int, ...], list[tuple[str, str]]] = defaultdict(list)
    for _, link, finding in bad_links(fabric):
        ends = tuple(sorted(index[end.node_guid] for end in link.ends if end.node_guid in index))
        remarks[ends].append(("bad", f"{finding.part}: {finding.measured}"))
    for it in checks.balance(fabric, links).findings:
        if (leaf := names.get(node_key(it.part.name))) is not None:
            remarks[leaf,].append(("bad", str(it.measured)))
    for ends, kind, text in _cables(links, rails, wrong_cables, index, names):
        remarks[tuple(sorted(ends))].append((kind, text))
    hosts = Counter(link.z.node_guid for link in fabric.subnet.links if not link.between_switches)
    pairs = dict.fromkeys((*counts, *(ends for ends in remarks if len(ends) > 1)))
    return {
        "switches": [
            [device.node, levels.get(device.guid, 0), hosts[device.guid], *_joined(remarks[number,])]
            for number, device in enumerate(switches)
        ],
        "links": [[*pair, counts[pair], *_joined(remarks[pair])] for pair in pairs],
    }


def _joined(remarks: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return what is wrong, and the kind that most of it is; a fault of a link before a cable at another port."""
    kinds = Counter(kind for kind, _ in remarks)
    return "; ".join(text for _, text in remarks), max(kinds, key=lambda kind: (kind == "bad", kinds[kind]), default="")


def _cables(
    links: Owned,
    rails: Mapping[str, tuple[str, str]],
    wrong_cables: Iterable[WrongCable],
    index: Mapping[str, int],
    names: Mapping[str, int],
) -> Iterator[tuple[tuple[int, ...], str, str]]:
    """Yield (indices of one switch or two, kind, what is wrong) of cables that are not where the plan, else their rail, has them."""
    planned = list(wrong_cables)
    for it in planned:
        text = f"{it.cable}: {it.measured}"
        kinds = dict.fromkeys(it.planned, "swapped" if it.code == "swapped" else "missing")
        for pair, kind in {**kinds, **dict.fromkeys(it.found, it.code)}.items():
            if ends := tuple(names[node] for node in pair if node in names):
                yield ends, kind, text
    for node in links.of if not planned else ():
        for wrong in off_rail(links, node, rails):
            leaf = index.get(wrong.link.z.node_guid)
            if leaf is not None:
                yield (leaf,), "misplaced", f"{node} {wrong.port.part} is of another rail"


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
