"""What both the items of nodes and those of the cluster judge a link by: its rate, its errors. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from pytest_gpucluster.core.check import Advisory, Finding
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.finding import Quantity
from pytest_gpucluster.core.majority import Norm, decides, norms
from pytest_gpucluster.kit.node.port_errors import CAUSED_ELSEWHERE, allowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pytest_gpucluster.suites.ibfabric.facts import FabricFacts, NodePort, NodePorts
    from pytest_gpucluster.suites.ibfabric.subnet import Link, SubnetPort

T = TypeVar("T")
ACTIVE = "Active"
FEWEST = 3  # HCAs on a leaf from which on most of them show what it is for
# The bit error ratio that volume 2 of IBTA allows for a link; ibdiagnet states those after correction, which are lower
MOST_BIT_ERRORS = 1e-12


@dataclass(frozen=True)
class NodeLink:
    """A link of a node. port: by sysfs; found: the same port in the subnet.

    planes: of an XDR adapter the links of its port in each plane; `link` has the lanes of all of them.
    """

    port: NodePort
    found: SubnetPort
    link: Link
    planes: tuple[Link, ...] = ()

    @property
    def cables(self) -> tuple[Link, ...]:
        """The link of each plane; of another adapter its one link."""
        return self.planes or (self.link,)

    @property
    def key(self) -> tuple[str, int]:
        """What the facts of the subnet have the port by."""
        return self.found.guid, self.found.number


@dataclass(frozen=True)
class Owned:
    """The links of the nodes under test. of: {node: its links}; guids: of the ports of all of them.

    places: {node: places of its ports, also of those without a link}.
    """

    of: Mapping[str, tuple[NodeLink, ...]]
    places: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def among(self, nodes: Iterable[str]) -> Owned:
        """Return the links of some of the nodes."""
        return Owned({node: self.of[node] for node in nodes if node in self.of}, self.places)

    @property
    def guids(self) -> frozenset[str]:
        """GUIDs of the ports at the nodes' ends."""
        return frozenset(one.a.guid for links in self.of.values() for it in links for one in it.cables)


def owned(facts: FabricFacts, ports: Mapping[str, NodePorts]) -> Owned:
    """Return which links are those of which node, by the GUIDs of its ports; of two ports with one GUID the first has it."""
    known = facts.subnet.by_port_guid
    of: dict[str, tuple[NodeLink, ...]] = {}
    for node, of_node in ports.items():
        by_guid = {port.guid: port for port in reversed(of_node.ports) if port.guid in known}
        of[node] = tuple(
            _node_link(port, *known[guid], facts.subnet.of_hca[known[guid][0].node_guid], by_guid)
            for guid, port in reversed(by_guid.items())
        )
    return Owned(of, {node: frozenset(port.place for port in it.ports) for node, it in ports.items()})


def _node_link(port: NodePort, found: SubnetPort, link: Link, of_hca: Iterable[Link], guids: Iterable[str]) -> NodeLink:
    """Return the link of a port; links of its HCA at ports that sysfs does not have are further planes of it."""
    planes = tuple(it for it in of_hca if it.a.guid == found.guid or it.a.guid not in guids)
    if len(planes) < 2 or not all(it.gbps for it in planes):
        return NodeLink(port, found, link)
    worst = min(planes, key=lambda it: (it.state in (ACTIVE, ""), not it.could_be))
    lanes = sum(int(it.width.removesuffix("x")) for it in planes)
    return NodeLink(port, found, replace(worst, width=f"{lanes}x"), planes)


def usual_rates(links: Owned) -> dict[str, Norm[float]]:
    """Return {place of a port: norm of the rate of its link in Gb/s on the nodes that have it}."""
    return _usual(links, lambda it: it.link.gbps)


def usual_keys(fabric: FabricFacts, links: Owned) -> dict[str, Norm[tuple[int, ...]]]:
    """Return {place of a port: norm of its partition keys on the nodes where it is active}."""
    return _usual(links, lambda it: fabric.pkeys.get(it.key) if it.link.state in (ACTIVE, "") else None)


def _usual(links: Owned, value: Callable[[NodeLink], T | None]) -> dict[str, Norm[T]]:
    return norms(
        (it.port.place, node, found) for node, of_node in links.of.items() for it in of_node if (found := value(it))
    )


def rails_of_leaves(links: Owned) -> dict[str, tuple[str, str]]:
    """Return {GUID of a leaf: (its name, the place that most of its HCAs have)}, without leaves of HCAs of all places."""
    of_leaf: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for of_node in links.of.values():
        for it in of_node:
            of_leaf[it.link.z.node_guid, it.link.z.node][it.port.place] += 1
    return {
        guid: (name, counts.most_common(1)[0][0])
        for (guid, name), counts in of_leaf.items()
        if counts.total() >= FEWEST and decides(max(counts.values()), counts.total())
    }


def off_rail(links: Owned, node: str, rails: Mapping[str, tuple[str, str]]) -> list[NodeLink]:
    """Return the links at a leaf of another rail; an adapter that no other node has, as one for storage, has no rail.

    A leaf whose rail is at an address that the node has no port at is one of other hardware: addresses say nothing there.
    """
    places = {place for _, place in rails.values()}
    mine = links.places.get(node, frozenset())
    return [
        it
        for it in links.of.get(node, ())
        if len(places) > 1
        and it.port.place in places
        and (rail := rails.get(it.link.z.node_guid, ("", it.port.place))[1]) != it.port.place
        and rail in mine
    ]


def errors(facts: FabricFacts, link: Link) -> Iterator[Finding | Advisory | NotAvailable]:
    """Yield what the counters of both ends, and ibdiagnet's bit error ratios, show of a link."""
    seconds = facts.seconds
    for end in link.ends:
        key, rises = (end.guid, end.number), facts.rises((end.guid, end.number))
        for counter, rise in rises.items():
            most = allowed(counter, (link.gbps or 0) / 8, seconds)
            if rise > most:
                kind = Advisory if counter in CAUSED_ELSEWHERE else Finding
                shown = f"{counter} at {end.label}: +{rise} in {seconds:.0f} s"
                found, limit = Quantity(rise, "errors", shown), Quantity(most, "errors", f"<= {most:.0f}")
                yield kind(link.part, found, limit, code=f"{counter.lower()}_rose")
        if odd := facts.unread.get(key):
            yield NotAvailable(f"ibdiagnet at {end.label}: not understood: {odd}")
        bits = facts.bit_errors.get(key)
        if bits and bits.errors and max(bits.effective, bits.symbol) > MOST_BIT_ERRORS:
            worst = max(bits.effective, bits.symbol)
            after = f"after {bits.fec or 'no'} correction, {bits.errors} symbol errors"
            yield Finding(
                link.part,
                Quantity(worst, "errors per bit", f"bit errors at {end.label}: {worst:.1e} {after}"),
                Quantity(MOST_BIT_ERRORS, "errors per bit", f"<= {MOST_BIT_ERRORS:.0e} (ibdiagnet)"),
                code="bit_error_rate",
            )
