"""Network interfaces, their addresses, the time to resolve names, and the reachability of other nodes by name."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.core.command_end import LIMITED_SH, STATUS, CommandEnd
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe, last_line
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.suites.os.facts import SECTIONS_SH, sections

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.suites.os.facts import CommandSection

RESOLVE_SECONDS = 20  # for two names; a resolver waits 5 seconds for a dead server (man resolv.conf)


@dataclass(frozen=True)
class NetworkInterface:
    """An interface that is up: `link_type` as `ip` prints it (ether, infiniband), else ''; `mtu` in bytes."""

    link_type: str
    mtu: int


@dataclass(frozen=True)
class Network:
    """All interfaces that are up, by name, and {interface: its IPv4 addresses}."""

    links: Mapping[str, NetworkInterface] = field(default_factory=dict)
    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_LINK = re.compile(r"\d+: ([^:@\s]+)(?:@\S+)?: <([^>]*)> mtu (\d{1,9})\b(?:.*\blink/(\S+))?")
_ADDRESS = re.compile(r"\d+: (\S+)\s+inet (\d+\.\d+\.\d+\.\d+)")


def read_network(answer: Answer) -> Network:
    """Read `ip -o link` and `ip -o -4 addr`; NotAvailable if `ip` is absent or fails."""
    found = sections(answer)
    links = {
        match[1]: NetworkInterface(match[4] or "", int(match[3]))
        for match in map(_LINK.match, _lines(found, "link"))
        if match and "UP" in match[2].split(",")
    }
    addresses: dict[str, tuple[str, ...]] = {}
    for match in map(_ADDRESS.match, _lines(found, "addr")):
        if match:
            addresses[match[1]] = (*addresses.get(match[1], ()), match[2])
    if not links:
        raise NotAvailable("ip -o link: no interface is up")
    return Network(links, addresses)


def _lines(found: Mapping[str, CommandSection], name: str) -> list[str]:
    part = found.get(name)
    if part is None or part.rc != 0:
        raise NotAvailable(f"ip: {last_line(part.text) if part else 'no answer'}")
    return part.text.splitlines()


NETWORK: Probe[Network] = Probe(
    "network", SECTIONS_SH + "s link ip -o link; s addr ip -o -4 addr", read_network, by_hand="ip -br link; ip -br addr"
)


@dataclass(frozen=True)
class Naming:
    """The time to resolve the node's name and another name, and the addresses of the node's name."""

    seconds: float
    own: tuple[str, ...] = ()


def naming(names: Sequence[str]) -> Probe[Naming]:
    """Return the probe that measures one getent of the node's name and the first of `names`.

    After two seconds or more it is repeated and the second time counts, since the node may have been busy.
    """
    other = shlex.quote(names[0]) if names else ""
    command = LIMITED_SH + script(__package__, "naming.sh", SECONDS=RESOLVE_SECONDS, OTHER=other)
    return Probe(
        "naming", command, read_naming, timeout=2 * RESOLVE_SECONDS + 15.0, by_hand="time getent hosts $(hostname)"
    )


def read_naming(answer: Answer) -> Naming:
    """Read getent's output and the uptimes before and after; another check judges names that do not resolve."""
    *lines, last = answer.out.splitlines() or [""]
    took = re.fullmatch(rf"took (\d{{1,12}}(?:\.\d+)?) (\d{{1,12}}(?:\.\d+)?) ({STATUS}) (\S+)", last)
    if not took:
        raise ProbeError(f"getent: not understood: {last[:80]!r}")
    if (end := CommandEnd.of(took[3])).status not in (0, _NO_SUCH_NAME) and not end.hung:
        raise NotAvailable(f"getent: {last_line(answer.err) or end}")
    name = took[4].partition(".")[0]
    rows = [line.split() for line in lines]
    own = {row[0] for row in rows if any(word.partition(".")[0] == name for word in row[1:])}
    return Naming(max(float(took[2]) - float(took[1]), 0.0), tuple(sorted(own)))


CONNECT_SECONDS = 5  # a lost SYN is sent again after 1 and 3 s (RFC 6298)
NAME_SECONDS = 10
# One of the ports that MPI, NCCL and torchrun use (net.ipv4.ip_local_port_range). No process needs to listen on it: a
# refusal proves that the neighbour is reachable; a firewall drops the packets or answers that the host is unreachable.
PORT = 59_999
REACHED = "reached"
_NO_SUCH_NAME = 2  # getent(1)
UNKNOWN_NAME = "the name does not resolve"


@dataclass(frozen=True)
class ReachabilityResult:
    """Result of one attempt to reach a neighbour by name: `outcome` is REACHED or the reason of the failure."""

    to: str
    address: str
    outcome: str


def rings(groups: Iterable[Sequence[str]]) -> str:
    """Return the rings of all groups, in which each node finds its neighbours; '' without a group of two nodes."""
    lists = (" ".join((names[-1], *names, names[0])) for names in groups if len(names) > 1)
    return " ".join(lists)


def reach(ring: str) -> Probe[tuple[ReachabilityResult, ...]]:
    """Return the probe in which each node connects to the node before and the node after it in `ring`."""
    command = LIMITED_SH + script(
        __package__,
        "reach.sh",
        LIST=shlex.quote(f" {ring} "),
        NAME_SECONDS=NAME_SECONDS,
        CONNECT_SECONDS=CONNECT_SECONDS,
        PORT=PORT,
    )
    peer = shlex.quote(ring.partition(" ")[0])  # one of the neighbours, as an example
    return Probe(
        "neighbours",
        command,
        read_reachability,
        by_hand=f'peer={peer}; getent ahosts $peer; timeout {CONNECT_SECONDS} bash -c ": >/dev/tcp/$peer/{PORT}"  # refused: reachable',
    )


def read_reachability(answer: Answer) -> tuple[ReachabilityResult, ...]:
    """Read the lines `peer NAME ADDRESS STATUS WHY`; NotAvailable if the node lacks a tool."""
    if answer.rc != 0:
        raise NotAvailable(last_line(answer.err) or f"exit {answer.rc}")
    results = tuple(_read_peer(line) for line in answer.out.splitlines())
    if not results:
        raise ProbeError("neighbours: no answer")
    return tuple(sorted(results, key=lambda result: result.to))


def _read_peer(line: str) -> ReachabilityResult:
    found = re.fullmatch(rf"peer (\S+) (\S+) ({STATUS}) ?(.*)", line)
    if not found:
        raise ProbeError(f"neighbours: not understood: {line[:80]!r}")
    name, address, word, why = found.groups()
    end = CommandEnd.of(word)
    if address == "-":
        if end.status == _NO_SUCH_NAME:
            return ReachabilityResult(name, "", UNKNOWN_NAME)
        raise NotAvailable(f"getent ahosts {name}: {end}")
    if end.status == 0 or why == "Connection refused":
        return ReachabilityResult(name, address, REACHED)
    if end.hung:
        return ReachabilityResult(name, address, f"no answer within {CONNECT_SECONDS} s")
    if end.status != 1 or why == "No such file or directory":  # no bash, or one without /dev/tcp
        raise NotAvailable(f"bash: {why or end}")
    return ReachabilityResult(name, address, why)
