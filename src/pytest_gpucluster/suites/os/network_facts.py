"""Network interfaces, their addresses, how long names take to resolve, and whether names reach other nodes."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe, last_line
from pytest_gpucluster.suites.os.facts import SECTIONS_SH, sections

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucluster.suites.os.facts import Section

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
    """Make the probe that times the node's own name and the first of `names`, in one getent.

    One that took two seconds is asked once more, and the second time counts: a busy moment is no slow directory.
    """
    other = shlex.quote(names[0]) if names else ""
    # the shell's own read: a process would be part of what is timed
    command = (
        "export LC_ALL=C; n=${SLURMD_NODENAME:-$(uname -n)}; for i in 1 2; do read -r a _ </proc/uptime; "
        f'o=$(timeout {PATIENCE} getent hosts "$n" {other}); r=$?; read -r b _ </proc/uptime; '
        '[ "$r" != 124 ] && [ "$((${b%.*}-${a%.*}))" -gt 1 ] || break; done; '
        'printf "%s\\n" ${o:+"$o"} "took $a $b $r $n"'
    )
    return Probe(
        "naming",
        command,
        read_naming,
        timeout=2 * PATIENCE + 15.0,
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


CONNECT_SECONDS = 5  # a lost SYN is sent again after 1 and 3 s (RFC 6298)
NAME_SECONDS = 10
# Of those that MPI, NCCL and torchrun take (net.ipv4.ip_local_port_range). Nobody has to listen: a refusal has come
# from the neighbour, as an answer would, where a firewall that drops, or says that the host is closed, shows itself.
PORT = 59_999
REACHED = "reached"
UNKNOWN_NAME = "the name does not resolve"


@dataclass(frozen=True)
class ReachabilityResult:
    """What came of one attempt to reach a neighbour by its name: `outcome` is REACHED, or why not."""

    to: str
    address: str
    outcome: str


# the two neighbours at once, in the order of the list, which holds the last name before the first and the first again
_REACH_SH = (
    'export LC_ALL=C; n=${SLURMD_NODENAME:-}; [ -n "$n" ] || { n=$(uname -n); n=${n%%.*}; }; l=@LIST@; '
    'case $l in *" $n "*) ;; *) echo "$n has no neighbour" >&2; exit 1;; esac; '
    't=${l#*" $n "}; x=${t%% *}; t=${l%" $n "*}; y=${t##* }; [ "$x" != "$y" ] || y=; '
    f'go() {{ a=$(timeout {NAME_SECONDS} getent ahosts "$1"); r=$?; a=${{a%%[[:space:]]*}}; '
    '[ -n "$a" ] || { echo "way $1 - $r -"; return; }; '
    f'e=$(timeout {CONNECT_SECONDS} bash -c ": >/dev/tcp/$a/{PORT}" 2>&1); r=$?; echo "way $1 $a $r ${{e##*: }}"; }}; '
    'go "$x" & [ -z "$y" ] || go "$y" & wait'
)


def rings(groups: Iterable[Sequence[str]]) -> str:
    """Return the list of names from which each node takes its neighbours in its own group; '' where none has any."""
    lists = (" ".join((names[-1], *names, names[0])) for names in groups if len(names) > 1)
    return " ".join(lists)


def reach(ring: str) -> Probe[tuple[ReachabilityResult, ...]]:
    """Make the probe in which each node tries the node before and the one after it in `ring`: two ways a node."""
    command = _REACH_SH.replace("@LIST@", shlex.quote(f" {ring} "))
    return Probe(
        "neighbours",
        command,
        read_ways,
        by_hand=f"getent ahosts PEER; timeout {CONNECT_SECONDS} bash -c ': >/dev/tcp/PEER/{PORT}'  # refused is well",
    )


def read_ways(answer: Answer) -> tuple[ReachabilityResult, ...]:
    """Read the lines `way NAME ADDRESS STATUS WHY`; NotAvailable where the node has not the tools."""
    if answer.rc != 0:
        raise NotAvailable(last_line(answer.err) or f"exit {answer.rc}")
    ways = tuple(_way(line) for line in answer.out.splitlines())
    if not ways:
        raise ProbeError("neighbours: no answer")
    return tuple(sorted(ways, key=lambda way: way.to))


def _way(line: str) -> ReachabilityResult:
    found = re.fullmatch(r"way (\S+) (\S+) (\d{1,3}) ?(.*)", line)
    if not found:
        raise ProbeError(f"neighbours: not understood: {line[:80]!r}")
    name, address, status, why = found.groups()
    if address == "-":
        if status == "2":  # of getent: there is no such name
            return ReachabilityResult(name, "", UNKNOWN_NAME)
        raise NotAvailable(
            f"getent ahosts {name}: {'timed out' if status == _TIMED_OUT else f'exit {status}'}"
        )
    if status == "0" or why == "Connection refused":
        return ReachabilityResult(name, address, REACHED)
    if status == _TIMED_OUT:
        return ReachabilityResult(name, address, f"no answer within {CONNECT_SECONDS} s")
    if status != "1" or why == "No such file or directory":  # no bash, or one without /dev/tcp
        raise NotAvailable(f"bash: {why or f'exit {status}'}")
    return ReachabilityResult(name, address, why)


_TIMED_OUT = "124"  # as timeout(1) exits
