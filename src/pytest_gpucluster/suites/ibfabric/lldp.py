"""Neighbours of a node on Ethernet, as lldpd has found them by LLDP. Pure.

Formats: `lldpcli -f json` and `-f json0` of lldpd 0.9.2 to 1.0.20 (src/client/json_writer.c): json has one interface, one neighbour
and one value without the list around it, and moves `name` to the key; json0 has neither exception.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import NOT_FOUND, Answer, Probe, last_line
from pytest_gpucluster.core.safe_json import as_dict, as_dicts, loads, text
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.kit.gpu.node_links import ENTRIES_SH
from pytest_gpucluster.suites.ibfabric.wiring import Plug, Wiring, ethernet_port, node_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class Neighbour:
    """What lldpd has found at an interface. ports: identifier and description of the remote port, without MAC addresses.

    chassis: identifier of the remote device, mostly a MAC address.
    """

    interface: str
    node: str
    ports: tuple[str, ...]
    chassis: str = ""


@dataclass(frozen=True)
class Neighbours:
    """The neighbours of a node; states: {interface: operstate of sysfs}; rdma: {interface: its RDMA device}."""

    found: tuple[Neighbour, ...]
    states: Mapping[str, str] = field(default_factory=dict)
    rdma: Mapping[str, str] = field(default_factory=dict)


def read_neighbours(answer: Answer) -> Neighbours:
    """Read the output of neighbours.sh; NotAvailable without lldpd."""
    before, _, after = answer.out.partition("\nlldp\n")
    output, _, status = after.rpartition("rc ")
    if not status.strip().isdecimal():
        raise ProbeError("neighbours.sh did not end")
    if int(status) == NOT_FOUND:
        raise NotAvailable("lldpcli is not installed: without lldpd the neighbours are not known")
    if int(status) or not output.lstrip().startswith("{"):
        raise NotAvailable(f"lldpcli: {last_line(output) or 'no answer'} (is lldpd running?)")
    states = re.findall(r"^/sys/class/net/([^/\n]+)/operstate:(\S+)$", before, re.MULTILINE)
    rdma = re.findall(r"^rdma (\S+) (\S+)$", before, re.MULTILINE)
    devices = {interface: device for device, interface in rdma}
    return Neighbours(parse_neighbours(output), dict(states), devices)


def parse_neighbours(output: str) -> tuple[Neighbour, ...]:
    """Return the neighbours of `lldpcli -f json show neighbors`, or of json0; ProbeError where it is no JSON of that form."""
    try:
        found = as_dict(loads(output)).get("lldp")
    except ValueError as error:
        raise ProbeError(f"lldpcli: no JSON: {error}") from error
    if not isinstance(found, (dict, list)):
        raise ProbeError("lldpcli: the JSON has no lldp")
    return tuple(
        neighbour
        for part in _each(found)
        for entry in _each(part.get("interface"))
        for name, body in _named(entry)
        if (neighbour := _neighbour(name, body)).node
    )


def _each(value: Any) -> list[dict[str, Any]]:
    return [value] if isinstance(value, dict) else as_dicts(value)


def _named(entry: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and body of {name: body}, or of a body that has its name inside."""
    if "id" in entry or isinstance(entry.get("name"), (str, list)):
        yield _value(entry.get("name")), entry
    else:
        yield from ((name, as_dict(body)) for name, body in entry.items())


def _value(value: Any) -> str:
    if isinstance(value, list):
        return _value(value[0]) if value else ""
    return text(value.get("value") if isinstance(value, dict) else value)


def _neighbour(interface: str, body: dict[str, Any]) -> Neighbour:
    """Return the neighbour; a switch without a name has its chassis ID, mostly a MAC address."""
    chassis = next((found for one in _each(body.get("chassis")) for found in _named(one)), ("", {}))
    port = next(iter(_each(body.get("port"))), {})
    identifiers = _each(port.get("id"))
    ports = [_value(one) for one in identifiers if one.get("type") != "mac"] + [_value(port.get("descr"))]
    identifier = _value(chassis[1].get("id"))
    names = tuple(dict.fromkeys(filter(None, ports)))
    return Neighbour(interface, chassis[0] or identifier, names, identifier)


NEIGHBOURS = Probe(
    "neighbours",
    f"{ENTRIES_SH}\n{script(__package__, 'neighbours.sh')}",
    read_neighbours,
    root=True,
    by_hand="lldpcli show neighbors",
)


def of_neighbours(facts: Mapping[str, Neighbours]) -> Wiring:
    """Return the wiring that {node: its neighbours} show; an interface that is up without a neighbour shows nothing."""
    links, down = [], []
    for node, found in facts.items():

        def plug(interface: str, node: str = node, rdma: Mapping[str, str] = found.rdma) -> Plug:
            ports = {ethernet_port(it) for it in (interface, rdma.get(interface)) if it}
            return Plug(node_key(node), frozenset(ports), f"{node} {interface}")

        links += [(plug(one.interface), _remote(one)) for one in found.found]
        down += [plug(name) for name, state in found.states.items() if state in ("down", "lowerlayerdown")]
    hosts = frozenset(map(node_key, facts))
    chassis = {node_key(one.chassis): node_key(one.node) for it in facts.values() for one in it.found}
    return Wiring(
        tuple(links),
        frozenset(remote.node for _, remote in links) - hosts,
        hosts,
        True,
        tuple(down),
        aliases={key: node for key, node in chassis.items() if key not in hosts},
    )


def _remote(neighbour: Neighbour) -> Plug:
    label = f"{neighbour.node} {neighbour.ports[0]}" if neighbour.ports else neighbour.node
    return Plug(node_key(neighbour.node), frozenset(map(ethernet_port, neighbour.ports)), label)
