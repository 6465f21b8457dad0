"""Network interfaces, their addresses, and how long names take to resolve."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.errors import NotAvailable, ProbeError
from pytest_gpucluster.probes.base import Answer, Probe, last_line
from pytest_gpucluster.probes.os import SECTIONS_SH, sections

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.probes.os import Section

PATIENCE = 20  # seconds for two names; a resolver gives up a dead server after 5 (man resolv.conf)


@dataclass(frozen=True)
class Link:
    """An interface that is up: `kind` as `ip` writes it (ether, infiniband), '' where it does not; `mtu` in bytes."""

    kind: str
    mtu: int


@dataclass(frozen=True)
class Network:
    """{interface: link} of all that are up, {interface: its IPv4 addresses}."""

    links: Mapping[str, Link] = field(default_factory=dict)
    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_LINK = re.compile(r"\d+: ([^:@\s]+)(?:@\S+)?: <([^>]*)> mtu (\d{1,9})\b(?:.*\blink/(\S+))?")
_ADDRESS = re.compile(r"\d+: (\S+)\s+inet (\d+\.\d+\.\d+\.\d+)")


def read_network(answer: Answer) -> Network:
    """Read `ip -o link` and `ip -o -4 addr`; NotAvailable where `ip` is absent or refuses."""
    found = sections(answer)
    links = {
        match[1]: Link(match[4] or "", int(match[3]))
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


def _lines(found: Mapping[str, Section], name: str) -> list[str]:
    part = found.get(name)
    if part is None or part.rc != 0:
        raise NotAvailable(f"ip: {last_line(part.text) if part else 'no answer'}")
    return part.text.splitlines()


NETWORK: Probe[Network] = Probe(
    "network",
    SECTIONS_SH + "s link ip -o link; s addr ip -o -4 addr",
    read_network,
    by_hand="ip -br link; ip -br addr",
)


@dataclass(frozen=True)
class Naming:
    """How long the node's own name and another one took to resolve, and the addresses of its own."""

    seconds: float
    own: tuple[str, ...] = ()


def naming(names: Sequence[str]) -> Probe[Naming]:
    """Make the probe that times the node's own name and the first of `names`, in one getent."""
    other = shlex.quote(names[0]) if names else ""
    # the shell's own read: a process would be part of what is timed
    command = (
        "export LC_ALL=C; n=${SLURMD_NODENAME:-$(uname -n)}; read -r a _ </proc/uptime; "
        f'timeout {PATIENCE} getent hosts "$n" {other}; r=$?; read -r b _ </proc/uptime; '
        'echo "took $a $b $r $n"'
    )
    return Probe(
        "naming",
        command,
        read_naming,
        timeout=PATIENCE + 15.0,
        by_hand="time getent hosts $(hostname)",
    )


def read_naming(answer: Answer) -> Naming:
    """Read getent's lines and the uptimes around it; a name that does not resolve is judged elsewhere."""
    *lines, last = answer.out.splitlines() or [""]
    took = re.fullmatch(r"took (\d{1,12}(?:\.\d+)?) (\d{1,12}(?:\.\d+)?) (\d+) (\S+)", last)
    if not took:
        raise ProbeError(f"getent: not understood: {last[:80]!r}")
    if took[3] not in ("0", "2", "124"):  # 2: a name is unknown; 124: timeout(1) ended it
        raise NotAvailable(f"getent: {last_line(answer.err) or f'exit {took[3]}'}")
    name = took[4].partition(".")[0]
    rows = [line.split() for line in lines]
    own = {row[0] for row in rows if any(word.partition(".")[0] == name for word in row[1:])}
    return Naming(max(float(took[2]) - float(took[1]), 0.0), tuple(sorted(own)))
